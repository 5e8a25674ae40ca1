"""Learning Θ by gradients through the cells, all clients at once in one autograd graph.

The same steps as a conversation of messages: algorithms/learn2pfed. A test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from learn2pfed.unrolled.cell import State
from learn2pfed.unrolled.limit import client_system, solve_system
from learn2pfed.unrolled.losses import ClientLoss, L, SquaredLoss
from learn2pfed.unrolled.network import (
    check_finite,
    drawn_state,
    drawn_w,
    forward,
    movement,
    settled,
    zero_state,
)
from learn2pfed.unrolled.settings import GroupName, Settings
from learn2pfed.unrolled.supervision import Supervised, judged, outer_objective
from learn2pfed.unrolled.theta import (
    Moments,
    Raw,
    adam_step,
    effective,
    learned_by_client,
    learned_by_server,
    penalty_gradients,
    start_common,
    start_own,
    theta_of_cells,
)

Progress = Callable[[int, float], None]
"""Called after every epoch with its number (from 1) and the outer objective."""


@dataclass(frozen=True)
class Learned:
    """What the epochs give, in the units of the (scaled) problem."""

    common: Tensor  # (C, P) log of the common Λ
    own: Raw
    state: State  # (S, M, P)
    w: Tensor  # (S, P)
    history: list[float]  # outer objective by epoch


@dataclass(frozen=True)
class Final:
    """The models on all training data, in the units of the (scaled) problem."""

    v: Tensor  # (M, P) personal models
    w: Tensor  # (P,) the global model
    lam: Tensor  # (M, P) the Λ_i that they obey
    n_cells: int  # that it took; 0 if solved exactly


@dataclass(frozen=True)
class Gradients:
    """Of the outer objective: by server-held and client-held logs, and the adjoint of the start state."""

    common: Tensor | None
    own: dict[GroupName, Tensor]
    start: tuple[Tensor, ...]  # of α⁰, v⁰, z⁰, w⁰; empty unless carried


def pass_and_gradient(
    problem: Supervised[L],
    settings: Settings,
    common: Tensor,
    own: Raw,
    state: State,
    w: Tensor,
    carried: tuple[Tensor, ...],
    is_likelihood: bool = False,
) -> tuple[State, Tensor, Tensor, Tensor, Gradients]:
    """L cells forward and the gradient of the outer objective back through them.

    `carried` is the adjoint of (α⁰, v⁰, z⁰, w⁰) of the last epoch. With a warm start that epoch ended where this one
    starts, so adding it at the end makes the gradient that of infinitely many cells once Θ settles, at the cost of L.

    Returns the last state, the last w, ΣF, the objective and the gradients.
    """
    by_server, by_client = learned_by_server(settings), learned_by_client(settings)
    common = common.detach().requires_grad_(bool(by_server))
    own = {name: raw.detach().requires_grad_(name in by_client) for name, raw in own.items()}
    leaves = ([common] if by_server else []) + [own[name] for name in by_client]
    start: tuple[Tensor, ...] = ()
    if carried:
        start = tuple(part.detach().requires_grad_() for part in (*state, w))
        state, w = State(*start[:3]), start[3]
    thetas = theta_of_cells(common, own, settings.n_cells)
    state, w = forward(problem.train, thetas, state, w, detach=settings.gradient == "local")
    totals = judged(problem, settings, state.v, effective(thetas[-1]).lam)
    objective = outer_objective(settings, totals, problem.size, is_likelihood)
    found: list[Tensor] = []
    if leaves:
        ends = (*state, w) if carried else ()
        given = torch.autograd.grad(
            (objective, *ends), (*leaves, *start), (torch.ones_like(objective), *carried), allow_unused=True
        )
        found = [
            torch.zeros_like(at) if slope is None else slope for slope, at in zip(given, (*leaves, *start), strict=True)
        ]
    n_server = len(by_server)
    gradients = Gradients(
        found[0] if by_server else None,
        dict(zip(by_client, found[n_server : n_server + len(by_client)], strict=True)),
        tuple(found[n_server + len(by_client) :]),
    )
    return (
        State(*(part.detach() for part in state)),
        w.detach(),
        totals[0].detach(),
        objective.detach(),
        gradients,
    )


def learn(
    problem: Supervised[L],
    settings: Settings,
    conditioning: float,
    progress: Progress | None = None,
    is_likelihood: bool = False,
) -> Learned:
    """E epochs of eq. (13); `conditioning` as in supervision.Units, `is_likelihood` as in losses.Family."""
    n_splits, n_clients, n_parameters = problem.train.shape
    common = start_common(settings, n_parameters)
    own = start_own(settings, problem.full, conditioning)
    by_client = learned_by_client(settings)
    server_memory = Moments.zeros([common])
    client_memory = Moments.zeros([own[name] for name in by_client])
    state = zero_state(n_splits, n_clients, n_parameters)
    w = torch.zeros(n_splits, n_parameters, dtype=torch.float64)
    carried: tuple[Tensor, ...] = tuple(map(torch.zeros_like, (*state, w))) if settings.carries_adjoint else ()
    history = []
    for epoch in range(settings.n_epochs):
        if settings.start == "redrawn":
            w = drawn_w(settings, epoch, n_splits, n_parameters)
            state = drawn_state(settings, epoch, range(n_clients), w)
        state, w, total, objective, gradients = pass_and_gradient(
            problem, settings, common, own, state, w, carried, is_likelihood
        )
        check_finite(f"at epoch {epoch + 1}", float(total), problem.size.zero)
        carried = gradients.start
        prior_common, prior_own = penalty_gradients(settings, common, own)
        if gradients.common is not None:
            (common,), server_memory = adam_step(
                settings, epoch, [common], [gradients.common + prior_common], server_memory
            )
        slopes = [gradients.own[name] + (prior_own if name == "lam" else 0.0) for name in by_client]
        moved, client_memory = adam_step(settings, epoch, [own[name] for name in by_client], slopes, client_memory)
        own = own | dict(zip(by_client, moved, strict=True))
        history.append(float(objective))
        if progress is not None:
            progress(epoch + 1, history[-1])
    return Learned(common, own, state, w, history)


def invite(learned: Learned, learners: Sequence[int], full: ClientLoss, own: Raw) -> Learned:
    """Before the final fit, those that sat out the learning: they start from v = w, z = α = 0, and their own Θ.

    `full` and `own` are of all clients, `learned` is of the `learners` among them.
    """
    n_splits, _, n_parameters = learned.state.v.shape
    state = zero_state(n_splits, full.shape[1], n_parameters)
    state = state._replace(v=learned.w.unsqueeze(-2).expand(state.v.shape).clone())
    for part, given in zip(state, learned.state, strict=True):
        part[:, learners] = given
    return replace(learned, state=state, own=own)


def refit(full: L, settings: Settings, learned: Learned) -> Final:
    """The final models on all training data, exactly or by passes of L cells from the mean over splits until v rests.

    A redrawn start makes the network's output depend on exactly L cells, so there it is one pass, from a new draw.
    """
    thetas = theta_of_cells(learned.common, learned.own, settings.n_cells)
    obeyed = effective(thetas[-1])  # of the last cell, if they differ
    lam = obeyed.lam.expand(full.shape[1:])
    if settings.refit == "exact" and isinstance(full, SquaredLoss):
        p = obeyed.p.expand(len(lam), 1)
        systems = [client_system(part, lam[few], p[few]).sum((0, 1)) for few, part in full.parts()]
        w = solve_system(torch.stack(systems).sum(0))
        return Final(torch.cat([part.follow(lam[few], w[None])[0] for few, part in full.parts()]), w, lam, 0)
    state, w = learned.state, learned.w
    if settings.start == "redrawn":
        w = drawn_w(settings, settings.n_epochs, 1, w.shape[-1])
        state = drawn_state(settings, settings.n_epochs, range(full.shape[1]), w)
        n_passes = 1
    else:
        state, w = State(*(part.mean(0, keepdim=True) for part in state)), w.mean(0, keepdim=True)
        n_passes = max(1, settings.refit_cells // settings.n_cells)
    for n_done in range(1, n_passes + 1):  # noqa: B007, the count is returned
        before = state.v
        state, w = forward(full, thetas, state, w)
        if settled(settings, movement(before, state.v)):
            break
    check_finite("in the refit", float(full.value(state.v).sum()), float(full.zero.sum()))
    return Final(state.v[0], w[0], lam, n_done * settings.n_cells)
