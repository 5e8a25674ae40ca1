"""What supervises Θ: the rows that the v step sees and the rows that the outer loss sees.

Supervised by the training loss, eq. (13), the best Λ is 0: nothing fits the training rows better than a model that
shares nothing. Held-out rows remove this. With squared loss a split costs only its own XᵀX, XᵀY, YᵀY.

`crossval` halves every client's rows at random, again and again: the v step sees one half, the outer loss the other.
Halves tell more about Λ than many small folds do, because Λ matters most where a client has little data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learn2pfed.data.federated import FederatedData, Streamed
from learn2pfed.errors import Learn2pFedError
from learn2pfed.unrolled.losses import Family, L
from learn2pfed.unrolled.settings import Settings


class Supervised(NamedTuple, Generic[L]):
    """Per split: the loss that the cells minimise and the loss that judges the result; `full` has all rows."""

    train: L  # (S, M)
    judge: L  # (S, M)
    full: L  # (1, M)

    @property
    def size(self) -> Size:
        """How much there is to judge by."""
        return Size(*self.sizes.sum(0).tolist())

    def pick(self, clients: Tensor) -> Supervised[L]:
        """Some of the clients."""
        return Supervised(*(part.pick(clients) for part in self))

    @property
    def sizes(self) -> Tensor:
        """The same by client, (M, 3)."""
        return torch.stack([self.judge.n.sum(0), self.full.n.sum(0), self.judge.zero.sum(0)], -1)

    def scaled(self, scale: Tensor) -> Supervised[L]:
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
    silent = (scale == 0).nonzero().flatten().tolist()
    if silent:
        raise Learn2pFedError(f"feature number {silent[0] + 1} is zero in every row of every client: drop it.")
    eigenvalues = torch.linalg.eigvalsh(typical / (scale[:, None] * scale))
    conditioning = float(eigenvalues.clamp_min(1e-4).log().mean().exp())
    return Units(scale if settings.scaling else torch.ones_like(scale), conditioning)


def training_weights(data: FederatedData, settings: Settings, indices: Sequence[int]) -> Tensor:
    """Which rows the v step sees, (S, N): 1 where it does. The outer loss sees the others, or with `train` the same.

    Each client's parts are drawn from (seed, index) along an order of its rows, by target and then features, that does
    not depend on how they were given nor on their units.
    """
    if settings.supervision == "train":
        return torch.ones(1, len(data.y), dtype=torch.float64)
    y, order = data.y, _in_order(data)
    part = np.empty((settings.n_repeats if settings.supervision == "crossval" else 1, len(y)), dtype=np.int64)
    drawn = [parts_of(n, settings, index) for n, index in zip(data.sizes, indices, strict=True)]
    part[:, order] = np.concatenate(drawn, 1)
    judging = range(settings.n_folds if settings.supervision == "crossval" else 1)
    return torch.from_numpy(np.concatenate([part[:, None] != held for held in judging], 1).reshape(-1, len(y))).double()


def _in_order(data: FederatedData) -> NDArray[np.int64]:
    """Rows by client, target and features; features are looked at only where a client has a target twice."""
    X, y, owner = data.X.numpy(), data.y.numpy(), data.owner.numpy()
    order = np.lexsort((y, owner))
    same = (np.diff(y[order]) == 0) & (np.diff(owner[order]) == 0)
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    rows = order[tied]
    order[tied] = rows[np.lexsort((*X[rows].T[::-1], y[rows], owner[rows]))]
    return order


def parts_of(n_rows: int, settings: Settings, index: int) -> NDArray[np.int64]:
    """For each repeat, to which part each of a client's rows belongs; split (repeat, part) judges on that part."""
    rng = np.random.default_rng([settings.seed, 4, index])
    if settings.supervision == "holdout":
        n_held = min(n_rows - 1, max(1, round(settings.holdout * n_rows)))
        return (rng.permutation(n_rows).argsort() >= n_held)[None].astype(np.int64)
    return np.stack([_deal(n_rows, settings.n_folds, rng) for _ in range(settings.n_repeats)])


def _deal(n_rows: int, n_folds: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Cut rows into nearly equal parts, numbered so that none is favoured when they don't divide."""
    cuts = np.array_split(rng.permutation(n_rows), n_folds)
    part = np.empty(n_rows, dtype=np.int64)
    for number, place in enumerate(rng.permutation(n_folds)):
        part[cuts[place]] = number
    return part


def learners_of(settings: Settings, clients: Sequence[int]) -> tuple[int, ...]:
    """The clients that learn Θ: all, or `n_learners` of them where nothing but a common Λ is learned."""
    if len(clients) <= settings.n_learners or settings.sharing != "common" or set(settings.learn) - {"lam"}:
        return tuple(clients)
    drawn = np.random.default_rng([settings.seed, 6]).choice(len(clients), settings.n_learners, replace=False)
    return tuple(clients[place] for place in np.sort(drawn))


def supervise(
    data: FederatedData | Streamed, settings: Settings, family: Family[L], indices: Sequence[int] | None = None
) -> Supervised[L]:
    """The losses of all clients in the units of the data; `indices` are the clients' numbers if these are only some."""
    if not isinstance(data, FederatedData):
        numbers = range(len(data)) if indices is None else indices
        parts = [supervise(data.subset(few), settings, family, [numbers[i] for i in few]) for few in data.parts()]
        return Supervised(*(family.join(losses) for losses in zip(*parts, strict=True)))
    full = family.loss(data, torch.ones(1, len(data.y), dtype=torch.float64))
    if settings.supervision == "train":
        return Supervised(full, full, full)
    weight = training_weights(data, settings, range(len(data)) if indices is None else indices)
    return Supervised(family.loss(data, weight), family.loss(data, 1.0 - weight), full)


def supervise_all(data: FederatedData, settings: Settings, family: Family[L]) -> tuple[Supervised[L], Units]:
    """All clients' losses, in the units that are returned with them."""
    given = supervise(data, settings, family)
    chosen = units(settings, given.full.gram.sum((0, 1)), len(data))
    return given.scaled(chosen.scale), chosen


def judged(problem: Supervised[L], settings: Settings, v: Tensor, lam: Tensor) -> Tensor:
    """What the outer objective is made of, by client a sum over splits, (terms, M): F and, if `predictive`, Q and D.

    Given the rows that a client learned from (A, and v from them), its held-out rows (X', Y') are predicted as
    N(X'v, σ²(I + X'(A + Λ)⁻¹X'ᵀ)); with A' = X'ᵀX' and g = X'ᵀ(Y' - X'v) that has the
    squared distance  Q = 2F - gᵀ(A + A' + Λ)⁻¹g  and the log determinant  D = log|A + A' + Λ| - log|A + Λ|.
    """
    F = problem.judge.value(v)
    if settings.objective != "predictive":
        return F.sum(0, keepdim=True)
    prior = torch.diag_embed(lam.expand(v.shape[-2:]))
    before, after = (torch.linalg.cholesky(loss.gram + prior) for loss in (problem.train, problem.full))
    g = -problem.judge.gradient(v).unsqueeze(-1)
    reached = torch.linalg.solve_triangular(after.expand(before.shape), g, upper=False).squeeze(-1)
    growth = (after.diagonal(dim1=-2, dim2=-1) / before.diagonal(dim1=-2, dim2=-1)).log()
    missed = 2.0 * F - reached.square().sum(-1)
    return torch.stack([F.sum(0), missed.sum(0), 2.0 * growth.sum((0, -1))])


def outer_objective(settings: Settings, totals: Tensor, size: Size, is_likelihood: bool = False) -> Tensor:
    """What Θ minimises, as a function of the sums of `judged` over clients.

    `sum` is eq. (13). `profiled` is the Gaussian negative log-likelihood with the noise profiled out,
    ½ n log(2ΣF / n_judged), with n the number of distinct rows: the sum's optimum, in units that a prior can be set
    against. Below what rounding leaves of the zero model's loss, ΣF says nothing and the objective is flat. A loss that
    `is_likelihood` as it stands has no noise to profile: ΣF n / n_judged. `predictive` adds to `profiled` the negative
    log predictive density, ½ n log(ΣQ / n_judged) + ½ (n / n_judged) ΣD: how far off the held-out rows are says how
    much clients differ even where a client has too few rows for its own model to say it.
    """
    if size.n_judged == 0:
        raise Learn2pFedError(
            f"supervision = {settings.supervision!r} leaves no row to judge by, since every client has one row: "
            "use 'crossval'."
        )
    if settings.objective == "sum":
        return totals[0]
    if is_likelihood:
        return totals[0] * (size.n_rows / size.n_judged)
    floor = max(1e-13 * size.zero, 1e-300)

    def profiled(squares: Tensor) -> Tensor:
        return 0.5 * size.n_rows * torch.log(squares.clamp_min(2.0 * floor) / size.n_judged)

    value = profiled(2.0 * totals[0])
    if settings.objective == "predictive":
        value = value + profiled(totals[1]) + 0.5 * (size.n_rows / size.n_judged) * totals[2]
    return value
