"""What supervises Θ: the rows that the v step sees and the rows that the outer loss sees.

Supervised by the training loss, eq. (13), the best Λ is 0: nothing fits the training rows better than a model that
shares nothing. Held-out rows remove this. With squared loss a split costs only its own XᵀX, XᵀY, YᵀY.

`crossval` halves every client's rows at random, again and again: the v step sees one half, the outer loss the other.
Halves tell more about Λ than many small folds do, because Λ matters most where a client has little data.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learn2pfed.data.federated import ClientData
from learn2pfed.unrolled.losses import SquaredLoss
from learn2pfed.unrolled.settings import Settings


class Supervised(NamedTuple):
    """Per split: the loss that the cells minimise and the loss that judges the result; `full` has all rows."""

    train: SquaredLoss  # (S, M)
    judge: SquaredLoss  # (S, M)
    full: SquaredLoss  # (1, M)

    @property
    def n_judged(self) -> float:
        """Rows that judge, each counted as often as it does."""
        return float(self.judge.n.sum())

    @property
    def n_rows(self) -> float:
        """Distinct rows."""
        return float(self.full.n.sum())

    def scaled(self, scale: Tensor) -> Supervised:
        """With feature j divided by scale_j."""
        return Supervised(*(part.scaled(scale) for part in self))


def canonical_order(client: ClientData) -> tuple[NDArray[np.int64], int]:
    """An order of the rows that does not depend on how they were given, and a fingerprint of that order.

    Rows are sorted by target, then features. The fingerprint hashes the ranks of each feature along this order: it
    changes neither with the client's name or place nor with the units of the data.
    """
    X, y = client.X.numpy(), client.y.numpy()
    order = np.lexsort((*X.T[::-1], y))
    ranks = np.argsort(X[order], axis=0, kind="stable")
    return order, zlib.crc32(ranks.astype(np.int64).tobytes())


def folds_of(client: ClientData, settings: Settings) -> list[list[NDArray[np.int64]]]:
    """For each repeat, the client's rows in parts; part 0 .. K-1 is what split (repeat, part) judges on."""
    if settings.supervision == "train":
        return []
    order, fingerprint = canonical_order(client)
    rng = np.random.default_rng([settings.seed, fingerprint])
    if settings.supervision == "holdout":
        shuffled = rng.permutation(order)
        n_held = round(settings.holdout * client.n_rows)
        return [[shuffled[:n_held], shuffled[n_held:]]]
    return [_deal(rng.permutation(order), settings.n_folds, rng) for _ in range(settings.n_repeats)]


def _deal(rows: NDArray[np.int64], n_folds: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Cut rows into nearly equal parts, in an order of parts that favours none when they don't divide."""
    parts = np.array_split(rows, n_folds)
    return [parts[place] for place in rng.permutation(n_folds)]


def supervise(client: ClientData, settings: Settings) -> Supervised:
    """One client's losses, with shapes (S, 1) and (1, 1)."""
    full = SquaredLoss.of_rows(client.X, client.y)
    train, judge = [], []
    for parts in folds_of(client, settings):
        losses = [SquaredLoss.of_rows(client.X[rows], client.y[rows]) for rows in parts]
        for held in range(len(parts) if settings.supervision == "crossval" else 1):
            rest = [loss for part, loss in enumerate(losses) if part != held]
            train.append(sum(rest[1:], start=rest[0]))
            judge.append(losses[held])
    if settings.supervision == "train":
        train = judge = [full]
    return Supervised(*(_block(part) for part in (train, judge, [full])))


def _block(parts: list[SquaredLoss]) -> SquaredLoss:
    """Splits on the first axis, a client axis of length one on the second."""
    return SquaredLoss.stack([SquaredLoss.stack([part]) for part in parts])


def join(clients: list[Supervised]) -> Supervised:
    """Many clients' losses as one block."""
    return Supervised(
        *(
            SquaredLoss(*(torch.cat([getattr(part, name) for part in parts], 1) for name in ("A", "b", "c", "n")))
            for parts in zip(*clients, strict=True)
        )
    )


def outer_objective(settings: Settings, total: Tensor, n_judged: float, n_rows: float) -> Tensor:
    """What Θ minimises, as a function of the judging losses summed over clients and splits, ΣF.

    `sum` is eq. (13). `profiled` is the Gaussian negative log-likelihood with the noise profiled out,
    ½ n log(2ΣF / n_judged), with n the number of distinct rows: the sum's optimum, in units that a prior can be set
    against.
    """
    if settings.objective == "sum":
        return total
    return 0.5 * n_rows * torch.log(2.0 * total / n_judged)
