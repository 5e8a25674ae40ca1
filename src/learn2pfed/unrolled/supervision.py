"""What supervises Θ: the rows that the v step sees and the rows that the outer loss sees.

Supervised by the training loss, eq. (13), the best Λ is 0: nothing fits the training rows better than a model that
shares nothing. Held-out rows remove this. With squared loss a split costs only its own XᵀX, XᵀY, YᵀY.

`crossval` halves every client's rows at random, again and again: the v step sees one half, the outer loss the other.
Halves tell more about Λ than many small folds do, because Λ matters most where a client has little data.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learn2pfed.data.federated import ClientData, FederatedData
from learn2pfed.errors import Learn2pFedError
from learn2pfed.unrolled.losses import SquaredLoss
from learn2pfed.unrolled.settings import Settings


class Supervised(NamedTuple):
    """Per split: the loss that the cells minimise and the loss that judges the result; `full` has all rows."""

    train: SquaredLoss  # (S, M)
    judge: SquaredLoss  # (S, M)
    full: SquaredLoss  # (1, M)

    @property
    def size(self) -> Size:
        """How much there is to judge by."""
        return Size(float(self.judge.n.sum()), float(self.full.n.sum()), float(self.judge.c.sum()) / 2)

    def scaled(self, scale: Tensor) -> Supervised:
        """With feature j divided by scale_j."""
        return Supervised(*(part.scaled(scale) for part in self))


class Size(NamedTuple):
    """Three sums that put the judging loss into proportion."""

    n_judged: float  # rows that judge, each counted as often as it does
    n_rows: float  # distinct rows
    zero: float  # ΣF of the zero model


class Units(NamedTuple):
    """Units in which Λ and ρ are of order one, from the pooled XᵀX alone."""

    scale: Tensor  # (k,) feature j is divided by scale_j: a typical client's XᵀX then has ones on its diagonal
    conditioning: float  # geometric mean of the eigenvalues of that typical XᵀX: 1 if its features are orthogonal


def units(settings: Settings, gram: Tensor, n_clients: int) -> Units:
    """From Σ_i X_iᵀX_i. With `scaling` off the units are those of the data."""
    typical = gram / n_clients
    scale = typical.diagonal().sqrt()
    eigenvalues = torch.linalg.eigvalsh(typical / (scale[:, None] * scale))
    conditioning = float(eigenvalues.clamp_min(1e-4).log().mean().exp())
    return Units(scale if settings.scaling else torch.ones_like(scale), conditioning)


def folds_of(client: ClientData, settings: Settings, index: int) -> list[list[NDArray[np.int64]]]:
    """For each repeat, the client's rows in parts; part 0 .. K-1 is what split (repeat, part) judges on.

    Drawn from (seed, client) along an order of the rows, by target and then features, that does not depend on how they
    were given nor on their units.
    """
    X, y = client.X.numpy(), client.y.numpy()
    rows = np.lexsort((*X.T[::-1], y))
    rng = np.random.default_rng([settings.seed, 4, index])
    if settings.supervision == "holdout":
        n_held = min(client.n_rows - 1, max(1, round(settings.holdout * client.n_rows)))
        shuffled = rng.permutation(rows)
        return [[shuffled[:n_held], shuffled[n_held:]]]
    return [_deal(rng.permutation(rows), settings.n_folds, rng) for _ in range(settings.n_repeats)]


def _deal(rows: NDArray[np.int64], n_folds: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Cut rows into nearly equal parts, in an order of parts that favours none when they don't divide."""
    parts = np.array_split(rows, n_folds)
    return [parts[place] for place in rng.permutation(n_folds)]


def supervise(client: ClientData, settings: Settings, index: int) -> Supervised:
    """One client's losses, with shapes (S, 1) and (1, 1)."""
    full = SquaredLoss.of_rows(client.X, client.y)
    if settings.supervision == "train":
        return Supervised(*(_block([full]) for _ in range(3)))
    train, judge = [], []
    for parts in folds_of(client, settings, index):
        losses = [SquaredLoss.of_rows(client.X[rows], client.y[rows]) for rows in parts]
        for held in range(len(parts) if settings.supervision == "crossval" else 1):
            rest = [loss for part, loss in enumerate(losses) if part != held]
            train.append(sum(rest[1:], start=rest[0]))
            judge.append(losses[held])
    return Supervised(*(_block(part) for part in (train, judge, [full])))


def _block(parts: list[SquaredLoss]) -> SquaredLoss:
    """Splits on the first axis, a client axis of length one on the second."""
    return SquaredLoss.stack([SquaredLoss.stack([part]) for part in parts])


def supervise_all(data: FederatedData, settings: Settings) -> tuple[Supervised, Units]:
    """All clients' losses as one block, in the units that are returned with it."""
    clients = [supervise(client, settings, index) for index, client in enumerate(data.clients)]
    joined = Supervised(*(SquaredLoss.join(parts) for parts in zip(*clients, strict=True)))
    chosen = units(settings, joined.full.A.sum((0, 1)), len(data))
    return joined.scaled(chosen.scale), chosen


def outer_objective(settings: Settings, total: Tensor, size: Size) -> Tensor:
    """What Θ minimises, as a function of the judging losses summed over clients and splits, ΣF.

    `sum` is eq. (13). `profiled` is the Gaussian negative log-likelihood with the noise profiled out,
    ½ n log(2ΣF / n_judged), with n the number of distinct rows: the sum's optimum, in units that a prior can be set
    against. Below what rounding leaves of the zero model's loss, ΣF says nothing and the objective is flat.
    """
    if size.n_judged == 0:
        raise Learn2pFedError(
            f"supervision = {settings.supervision!r} leaves no row to judge by, since every client has one row: "
            "use 'crossval'."
        )
    if settings.objective == "sum":
        return total
    floor = max(1e-13 * size.zero, 1e-300)
    return 0.5 * size.n_rows * torch.log(2.0 * total.clamp_min(floor) / size.n_judged)
