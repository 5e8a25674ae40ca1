"""Who has what: each client's rows, checked once where they come in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from learn2pfed.errors import Learn2pFedError

PROPORTIONAL = 1e-12
"""Two columns whose squared cosine is within this of 1 carry the same information."""

BLOCK_ROWS = 2**20
"""Most rows of a block, padding included."""


SAMPLING = 3
"""Keeps the draw of clients apart from other draws."""


def cohort(n_clients: int, join: float, seed: int, t: int) -> tuple[int, ...]:
    """Who takes part in round t: this share of the clients, drawn from (seed, t), the same for every method."""
    count = round(join * n_clients)
    if count < 1:
        raise Learn2pFedError(
            f"join = {join} of {n_clients} clients is no client at all: use at least {1 / n_clients:.3g}."
        )
    if count == n_clients:
        return tuple(range(n_clients))
    return tuple(sorted(np.random.default_rng([seed, t, SAMPLING]).choice(n_clients, count, replace=False).tolist()))


@dataclass(frozen=True)
class ClientData:
    """One client's rows: X (n, ...) and y (n,)."""

    name: str
    X: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if self.X.ndim < 2 or self.y.ndim != 1:
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


class Block(NamedTuple):
    """Clients of similar size side by side, their rows padded to the same number, so that one product serves all."""

    clients: Tensor  # (m,) which clients
    rows: Tensor  # (m, n) where each row is in X and y; padding repeats the client's last row
    present: Tensor  # (m, n) 1 where there is a row, 0 where there is padding


@dataclass(frozen=True)
class Samples:
    """All clients' rows, client after client: vectors, series or images, with numbers or classes to predict.

    >>> Samples.join([("a", torch.zeros(1, 3), torch.zeros(1)), ("b", torch.ones(2, 3), torch.ones(2))]).sizes
    (1, 2)
    """

    names: tuple[str, ...]
    X: Tensor  # (N, ...)
    y: Tensor  # (N,)
    sizes: tuple[int, ...]  # n_1 .. n_M

    def __post_init__(self) -> None:
        if not self.names:
            raise Learn2pFedError("There are no clients: give the rows of at least one.")
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            raise Learn2pFedError(f"client {twice[0]!r} appears twice: join its rows or rename one.")
        if 0 in self.sizes:
            raise Learn2pFedError(f"client {self.names[self.sizes.index(0)]!r} has no rows: drop it or give it some.")
        if not len(self.X) == len(self.y) == sum(self.sizes):
            raise Learn2pFedError(
                f"There are {len(self.X)} samples and {len(self.y)} targets where sizes add up to {sum(self.sizes)}."
            )

    @classmethod
    def join(cls, rows: Sequence[tuple[str, Any, Any]]) -> Samples:
        """From (name, X, y) triples of tensors or arrays."""
        clients = [ClientData(name, torch.as_tensor(X), torch.as_tensor(y)) for name, X, y in rows]
        if not clients:
            raise Learn2pFedError("There are no clients: give the rows of at least one.")
        for client in clients:
            if client.X.shape[1:] != clients[0].X.shape[1:]:
                raise Learn2pFedError(
                    f"client {client.name!r} has samples of shape {tuple(client.X.shape[1:])} where "
                    f"{clients[0].name!r} has {tuple(clients[0].X.shape[1:])}: give every client the same."
                )
        X, y = torch.cat([c.X for c in clients]), torch.cat([c.y for c in clients])
        return cls(tuple(c.name for c in clients), X, y, tuple(c.n_rows for c in clients))

    def __len__(self) -> int:
        """M."""
        return len(self.names)

    @cached_property
    def starts(self) -> Tensor:
        """Where each client's rows begin, and N, (M + 1,)."""
        return torch.cat([torch.zeros(1, dtype=torch.int64), torch.tensor(self.sizes).cumsum(0)])

    @cached_property
    def owner(self) -> Tensor:
        """Which client each row belongs to, (N,)."""
        return torch.repeat_interleave(torch.arange(len(self)), torch.tensor(self.sizes))

    def means(self, values: Tensor) -> Tensor:
        """The mean over each client's rows of a value per row, (N,); (M,)."""
        sums = values.new_zeros(len(self)).index_add_(0, self.owner, values)
        return sums / torch.tensor(self.sizes)

    def pick(self, chosen: Tensor) -> Self:
        """Only some of each client's rows; `chosen` is a mask, (N,)."""
        counts = torch.zeros(len(self), dtype=torch.int64).index_add_(0, self.owner, chosen.long())
        return replace(self, X=self.X[chosen], y=self.y[chosen], sizes=tuple(counts.tolist()))

    def held_out(self, share: float, seed: int) -> Tensor:
        """A mask of this share of each client's rows, drawn with the seed: at least one, but not the last."""
        mask = torch.zeros(len(self.y), dtype=torch.bool)
        for i, (start, size) in enumerate(zip(self.starts.tolist(), self.sizes, strict=False)):
            rng = np.random.default_rng([seed, i])
            mask[start + rng.permutation(size)[: min(size - 1, max(1, round(share * size)))]] = True
        return mask

    @cached_property
    def clients(self) -> tuple[ClientData, ...]:
        """Each client's rows."""
        parts = zip(self.names, *(torch.split(rows, list(self.sizes)) for rows in (self.X, self.y)), strict=True)
        return tuple(ClientData(*part) for part in parts)


class Streamed(Protocol):
    """Rows that are made when they are needed, a few clients at a time, since all of them would fill the memory."""

    def __len__(self) -> int:
        """M."""

    @property
    def n_features(self) -> int:
        """k."""

    def parts(self) -> Iterator[Sequence[int]]:
        """All clients, so few at a time that their rows fit."""

    def subset(self, chosen: Sequence[int]) -> FederatedData:
        """The rows of some of the clients."""


@dataclass(frozen=True)
class FederatedData(Samples):
    """A table's rows, client after client, in float64, with the names of its k features: X is (N, k).

    >>> FederatedData.build([("a", [[1.0]], [2.0]), ("b", [[1.0], [1.0]], [0.0, 1.0])], ["one"]).sizes
    (1, 2)
    """

    features: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.features:
            raise Learn2pFedError("There are no features: give every client at least one column.")
        bad = (~torch.isfinite(torch.cat([self.X, self.y[:, None]], 1))).nonzero()
        if len(bad):
            self._refuse(bad)

    def _refuse(self, bad: Tensor) -> None:
        """Name the first client and column with missing values, and count them there; `bad` has (row, column)."""
        i = int(torch.searchsorted(self.starts, bad[0, 0], right=True)) - 1
        own = bad[(bad[:, 0] >= self.starts[i]) & (bad[:, 0] < self.starts[i + 1]), 1]
        column = int(own.min())
        name = (*self.features, "the target")[column]
        raise Learn2pFedError(
            f"client {self.names[i]!r} has {int((own == column).sum())} missing or infinite value(s) in {name}: "
            "fill or drop those rows."
        )

    @classmethod
    def build(cls, rows: Sequence[tuple[str, object, object]], features: Sequence[str] | None = None) -> FederatedData:
        """From (name, X, y) triples of arrays or nested lists; columns that say nothing are refused."""
        clients = [ClientData(str(name), _tensor(name, "X", X), _tensor(name, "y", y)) for name, X, y in rows]
        if not clients:
            raise Learn2pFedError("There are no clients: give the rows of at least one.")
        if features is None:
            features = [f"x{j}" for j in range(clients[0].X.shape[1])]
        for client in clients:
            if client.X.ndim != 2:
                raise Learn2pFedError(
                    f"client {client.name!r}: X must be (rows, features), got {tuple(client.X.shape)}."
                )
            if client.X.shape[1] != len(features):
                raise Learn2pFedError(
                    f"client {client.name!r} has {client.X.shape[1]} features where {len(features)} are "
                    f"named ({', '.join(features[:8])}): give every client the same columns."
                )
        joined = Samples.join([(c.name, c.X, c.y) for c in clients])
        data = cls(joined.names, joined.X, joined.y, joined.sizes, tuple(features))
        data._check_columns()
        return data

    @classmethod
    def of_client(cls, client: ClientData) -> FederatedData:
        """One client as it sees itself."""
        features = tuple(f"x{j}" for j in range(client.X.shape[1]))
        return cls((client.name,), client.X, client.y, (client.n_rows,), features)

    @property
    def n_features(self) -> int:
        """k."""
        return len(self.features)

    def subset(self, chosen: Sequence[int]) -> FederatedData:
        """Some of the clients."""
        rows = torch.cat([torch.arange(int(self.starts[i]), int(self.starts[i + 1])) for i in chosen])
        names, sizes = tuple(self.names[i] for i in chosen), tuple(self.sizes[i] for i in chosen)
        return FederatedData(names, self.X[rows], self.y[rows], sizes, self.features)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """All clients, each once, by size: within a block the largest has less than twice the rows of the smallest."""
        sizes = torch.tensor(self.sizes)
        rising, order = sizes.sort(stable=True)
        found, start = [], 0
        while start < len(order):
            least = int(rising[start])
            end = int(torch.searchsorted(rising, 2 * least))
            end = min(end, start + max(1, BLOCK_ROWS // (2 * least)))
            clients = order[start:end]
            step = torch.arange(int(sizes[clients[-1]]))
            rows = self.starts[clients, None] + step.minimum(sizes[clients, None] - 1)
            found.append(Block(clients, rows, (step < sizes[clients, None]).double()))
            start = end
        return tuple(found)

    def _check_columns(self) -> None:
        """No column may be zero throughout, and no two may be proportional throughout (one row can't tell)."""
        gram = self.X.T @ self.X
        size = gram.diagonal()
        for column, square in zip(self.features, size.tolist(), strict=True):
            if square == 0:
                raise Learn2pFedError(f"column {column!r} is zero in every row: drop it.")
        cosine = gram.square() / (size[:, None] * size)
        same = (cosine.triu(1) > 1 - PROPORTIONAL).nonzero()
        if len(same) and len(self.y) > 1:
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
