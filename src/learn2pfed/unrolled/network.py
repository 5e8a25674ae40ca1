"""L cells in a row: the network Φ of the paper, its start, and its final pass on all training data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from learn2pfed.errors import DivergenceError
from learn2pfed.unrolled.cell import Loss, Rest, State, Theta, cell
from learn2pfed.unrolled.losses import SquaredLoss
from learn2pfed.unrolled.settings import Settings

BLOW_UP = 1e8
"""A judging loss above this multiple of that of the zero model counts as divergence."""


def unroll(
    loss: Loss, thetas: Sequence[Theta], state: State, w: Tensor, *, detach: bool = False, rest: Rest | None = None
) -> Iterator[tuple[State, Tensor]]:
    """(α, v, z) and w after cell 1, 2, .. L; `detach` cuts w out of the graph (gradient = local)."""
    for ell, theta in enumerate(thetas):
        state, w = cell(loss, state, w, theta, rest, ell)
        if detach:
            w = w.detach()
        yield state, w


def forward(
    loss: Loss, thetas: Sequence[Theta], state: State, w: Tensor, *, detach: bool = False, rest: Rest | None = None
) -> tuple[State, Tensor]:
    """(α, v, z) and w after cell L; with squared loss as one node of the autograd graph."""
    if isinstance(loss, SquaredLoss):
        return loss.cells(thetas, state, w, detach, rest)
    for state, w in unroll(loss, thetas, state, w, detach=detach, rest=rest):  # noqa: B007, B020
        pass
    return state, w


def zero_state(n_splits: int, n_clients: int, n_features: int) -> State:
    """α = v = z = 0."""
    return State(*(torch.zeros(n_splits, n_clients, n_features, dtype=torch.float64) for _ in range(3)))


def drawn_w(settings: Settings, epoch: int, n_splits: int, n_features: int) -> Tensor:
    """w⁰ ~ N(0, 1), drawn from (seed, epoch), so that every party draws the same."""
    rng = np.random.default_rng([settings.seed, 2, epoch])
    return torch.from_numpy(rng.standard_normal((n_splits, n_features)))


def drawn_state(settings: Settings, epoch: int, clients: Sequence[int], w: Tensor) -> State:
    """v_i⁰ ~ N(0, 1) from (seed, epoch, client), z_i⁰ = v_i⁰ - w⁰, α_i⁰ = 0, as the authors' demo starts."""
    draws = [np.random.default_rng([settings.seed, 3, epoch, i]).standard_normal(w.shape) for i in clients]
    v = torch.from_numpy(np.stack(draws, axis=1))
    return State(torch.zeros_like(v), v, v - w.unsqueeze(-2))


def movement(before: Tensor, after: Tensor) -> Tensor:
    """[Σ (v' - v)², Σ v'²] over a pass through the cells, of each client, (2, M): sums, so that they can be added."""
    return torch.stack([(after - before).square().sum((0, -1)), after.square().sum((0, -1))])


def settled(settings: Settings, moved: Tensor) -> bool:
    """Whether a pass through the cells no longer moves the models, relative to their size."""
    return bool(moved[0] <= settings.tolerance**2 * moved[1])


def check_finite(when: str, total: float, zero_total: float) -> None:
    """Name the epoch at which the network diverges, rather than print NaN later."""
    if not (math.isfinite(total) and (zero_total <= 0 or total <= BLOW_UP * zero_total)):
        raise DivergenceError(
            f"Learn2pFed diverged {when} (loss {total:.3g}): lower learning_rate, learn fewer groups, or raise "
            "rho_start."
        )
