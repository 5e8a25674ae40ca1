"""Who has what: each client's rows, checked once where they come in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from learn2pfed.errors import Learn2pFedError

PROPORTIONAL = 1e-12
"""Two columns whose squared cosine is within this of 1 carry the same information."""


@dataclass(frozen=True)
class ClientData:
    """One client's rows: X (n, k) and y (n,), in float64."""

    name: str
    X: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if self.X.ndim != 2 or self.y.ndim != 1:
            raise Learn2pFedError(
                f"client {self.name!r}: X must be (rows, features) and y (rows,), "
                f"got {tuple(self.X.shape)} and {tuple(self.y.shape)}."
            )
        if len(self.X) != len(self.y):
            raise Learn2pFedError(f"client {self.name!r} has {len(self.X)} rows of features but {len(self.y)} targets.")

    @property
    def n_rows(self) -> int:
        """n_i."""
        return len(self.y)


@dataclass(frozen=True)
class FederatedData:
    """All clients' rows with the names of the k features.

    >>> FederatedData.build([("a", [[1.0]], [2.0]), ("b", [[1.0], [1.0]], [0.0, 1.0])], ["one"]).sizes
    (1, 2)
    """

    clients: tuple[ClientData, ...]
    features: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.clients:
            raise Learn2pFedError("There are no clients: give the rows of at least one.")
        if not self.features:
            raise Learn2pFedError("There are no features: give every client at least one column.")
        twice = [name for name, count in Counter(c.name for c in self.clients).items() if count > 1]
        if twice:
            raise Learn2pFedError(f"client {twice[0]!r} appears twice: join its rows or rename one.")
        for client in self.clients:
            self._check_rows(client)
        self._check_columns()

    @classmethod
    def build(cls, rows: Sequence[tuple[str, object, object]], features: Sequence[str] | None = None) -> FederatedData:
        """From (name, X, y) triples of arrays or nested lists."""
        clients = tuple(ClientData(str(name), _tensor(name, "X", X), _tensor(name, "y", y)) for name, X, y in rows)
        if features is None:
            width = clients[0].X.shape[1] if clients else 0
            features = [f"x{j}" for j in range(width)]
        return cls(clients, tuple(features))

    @property
    def n_features(self) -> int:
        """k."""
        return len(self.features)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """n_1 .. n_M."""
        return tuple(client.n_rows for client in self.clients)

    def __len__(self) -> int:
        """M."""
        return len(self.clients)

    def _check_rows(self, client: ClientData) -> None:
        if client.n_rows == 0:
            raise Learn2pFedError(f"client {client.name!r} has no rows: drop it or give it some.")
        if client.X.shape[1] != self.n_features:
            raise Learn2pFedError(
                f"client {client.name!r} has {client.X.shape[1]} features where {self.n_features} are "
                f"named ({', '.join(self.features[:8])}): give every client the same columns."
            )
        for column, values in (*zip(self.features, client.X.T, strict=True), ("the target", client.y)):
            bad = int((~torch.isfinite(values)).sum())
            if bad:
                raise Learn2pFedError(
                    f"client {client.name!r} has {bad} missing or infinite value(s) in {column}: "
                    "fill or drop those rows."
                )

    def _check_columns(self) -> None:
        """No column may be zero throughout, and no two may be proportional throughout (one row can't tell)."""
        gram = torch.stack([client.X.T @ client.X for client in self.clients]).sum(0)
        size = gram.diagonal()
        for column, square in zip(self.features, size.tolist(), strict=True):
            if square == 0:
                raise Learn2pFedError(f"column {column!r} is zero in every row: drop it.")
        cosine = gram.square() / (size[:, None] * size)
        same = (cosine.triu(1) > 1 - PROPORTIONAL).nonzero()
        if len(same) and sum(self.sizes) > 1:
            first, second = (self.features[int(j)] for j in same[0])
            raise Learn2pFedError(
                f"columns {first!r} and {second!r} say the same in every row (constant or duplicated): drop {second!r}."
            )


def _tensor(client: str, what: str, values: object) -> Tensor:
    """Numbers as float64, or a sentence that names the client."""
    try:
        return torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise Learn2pFedError(f"client {client!r}: {what} is not a table of numbers ({error}).") from error
