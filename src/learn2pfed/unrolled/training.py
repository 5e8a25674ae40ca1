"""Learning Θ by gradients through the cells, all clients at once in one autograd graph.

The same steps as a conversation of messages: algorithms/learn2pfed. A test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from learn2pfed.data.federated import cohort
from learn2pfed.unrolled.cell import Rest, State, Theta, contribution
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
from learn2pfed.unrolled.supervision import Size, Supervised, judged, outer_objective
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
    heard: Tensor  # (M,) who has taken part
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
    """Of the outer objective: by the clients' logs, and the adjoint of the start state."""

    own: dict[GroupName, Tensor]
    start: tuple[Tensor, ...]  # of α⁰, v⁰, z⁰, w⁰; empty unless carried

    @property
    def common(self) -> Tensor:
        """By the common log Λ, to which every client's own is added."""
        return self.own["lam"].sum(0)


@dataclass
class Standing:
    """What each client last said: those who sit an epoch out count with it, and not at all before they are heard."""

    total: Tensor  # (S, M, P) c_i (v_i - z_i - α_i)
    weight: Tensor  # (M, 1) c_i
    judged: Tensor  # (terms, M)
    sizes: Tensor  # (M, 3) as in supervision.Size
    slopes: Tensor  # (M, C, P) gradient by log Λ
    adjoint: Tensor  # (L, S, M, P) part of the adjoint of the w that enters each cell

    @classmethod
    def silent(cls, settings: Settings, n_splits: int, n_clients: int, n_parameters: int) -> Standing:
        """Nobody has said anything."""
        shapes = (
            (n_splits, n_clients, n_parameters),
            (n_clients, 1),
            (settings.n_terms, n_clients),
            (n_clients, 3),
            (n_clients, 1 if settings.tied else settings.n_cells, n_parameters),
            (settings.n_cells if settings.join < 1 else 0, n_splits, n_clients, n_parameters),
        )
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))

    def rest(self, here: Tensor) -> Rest:
        """Those who sit out, as they stand in eq. (12)."""
        away = torch.ones(len(self.weight), dtype=torch.bool).index_fill(0, here, False)
        adjoint = self.adjoint[:, :, away].sum(-2)
        said = torch.zeros(*adjoint.shape[:2], len(here), adjoint.shape[-1], dtype=torch.float64)
        return Rest(self.total[:, away].sum(-2), self.weight[away].sum(-2), adjoint, said)

    def hear(self, here: Tensor | slice, state: State, theta: Theta) -> None:
        """What those who take part have said after their last cell."""
        self.total[:, here], self.weight[here] = contribution(state, theta.p, theta.gamma)


def pass_and_gradient(
    problem: Supervised[L],
    settings: Settings,
    common: Tensor,
    own: Raw,
    state: State,
    w: Tensor,
    carried: tuple[Tensor, ...],
    is_likelihood: bool = False,
    rest: Rest | None = None,
    away: Tensor | float = 0.0,
    size: Size | None = None,
) -> tuple[State, Tensor, Tensor, Tensor, Gradients]:
    """L cells forward and the gradient of the outer objective back through them.

    `carried` is the adjoint of (α⁰, v⁰, z⁰, w⁰) of the last epoch. With a warm start that epoch ended where this one
    starts, so adding it at the end makes the gradient that of infinitely many cells once Θ settles, at the cost of L.
    Of clients that sit out, `rest` is what they last said in eq. (12) and `away` when they were judged; `size` is then
    that of all who count.

    Returns the last state, the last w, what is judged by client, the objective and the gradients.
    """
    own = {name: raw.detach().requires_grad_(name in settings.learn) for name, raw in own.items()}
    leaves = [own[name] for name in settings.learn]
    start: tuple[Tensor, ...] = ()
    if carried:
        start = tuple(part.detach().requires_grad_() for part in (*state, w))
        state, w = State(*start[:3]), start[3]
    thetas = theta_of_cells(common, own, settings.n_cells)
    state, w = forward(problem.train, thetas, state, w, detach=settings.gradient == "local", rest=rest)
    each = judged(problem, settings, state.v, effective(thetas[-1]).lam)
    objective = outer_objective(settings, each.sum(-1) + away, size or problem.size, is_likelihood)
    found: list[Tensor] = []
    if leaves:
        ends = (*state, w) if carried else ()
        given = torch.autograd.grad(
            (objective, *ends), (*leaves, *start), (torch.ones_like(objective), *carried), allow_unused=True
        )
        found = [
            torch.zeros_like(at) if slope is None else slope for slope, at in zip(given, (*leaves, *start), strict=True)
        ]
    n_groups = len(leaves)
    gradients = Gradients(dict(zip(settings.learn, found[:n_groups], strict=False)), tuple(found[n_groups:]))
    return State(*(part.detach() for part in state)), w.detach(), each.detach(), objective.detach(), gradients


def learn(
    problem: Supervised[L],
    settings: Settings,
    conditioning: float,
    progress: Progress | None = None,
    is_likelihood: bool = False,
) -> Learned:
    """E epochs of eq. (13); `conditioning` as in supervision.Units, `is_likelihood` as in losses.Family.

    Where only some clients take part in an epoch, the others stand in every sum with what they last said: their part of
    eq. (12) and of its adjoint, of the outer loss and of the gradient by the common Λ. Their state, their adjoint and
    their own Θ wait.
    """
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
    standing = Standing.silent(settings, *problem.train.shape)
    heard, sizes = torch.zeros(n_clients, dtype=torch.bool), problem.sizes
    for epoch in range(settings.n_epochs):
        if settings.start == "redrawn":
            w = drawn_w(settings, epoch, n_splits, n_parameters)
            state = drawn_state(settings, epoch, range(n_clients), w)
        here = _here(settings, n_clients, epoch)
        some, rest = problem, None
        if isinstance(here, Tensor):
            some, rest = problem.pick(here), standing.rest(here)
        if settings.start == "warm":
            welcome(state, w, heard, here)
        their = {name: raw[here] for name, raw in own.items()}
        standing.judged[:, here], standing.sizes[here] = 0.0, sizes[here]
        now, w, each, objective, gradients = pass_and_gradient(
            some,
            settings,
            common,
            their,
            State(*(part[:, here] for part in state)),
            w,
            (*(part[:, here] for part in carried[:3]), *carried[3:]),
            is_likelihood,
            rest,
            standing.judged.sum(-1),
            Size(*standing.sizes.sum(0).tolist()),
        )
        standing.judged[:, here] = each
        if rest is not None:
            standing.hear(here, now, theta_of_cells(common, their, settings.n_cells)[-1])
            standing.adjoint[:, :, here] = rest.said
        check_finite(f"at epoch {epoch + 1}", float(standing.judged[0].sum()), float(standing.sizes[:, 2].sum()))
        for kept, new in zip((*state, *carried[:3]), (*now, *gradients.start[:3]), strict=False):
            kept[:, here] = new
        carried = (*carried[:3], *(gradients.start or carried)[3:])
        prior_common, prior_own = penalty_gradients(settings, common, their)
        slopes = [gradients.own[name] + (prior_own if name == "lam" else 0.0) for name in by_client]
        if learned_by_server(settings):
            standing.slopes[here] = gradients.own["lam"]
            slope = standing.slopes.sum(0) + prior_common
            (common,), server_memory = adam_step(settings, epoch, [common], [slope], server_memory)
        moved, memory = adam_step(settings, epoch, [their[n] for n in by_client], slopes, client_memory.pick(here))
        client_memory.put(here, memory)
        for name, raw in zip(by_client, moved, strict=True):
            own[name][here] = raw
        history.append(float(objective))
        if progress is not None:
            progress(epoch + 1, history[-1])
    return Learned(common, own, state, w, heard, history)


def _here(settings: Settings, n_clients: int, t: int) -> Tensor | slice:
    """Who takes part in epoch t, or in that pass of the refit; a slice, which copies nothing, where all do."""
    join = 1.0 if settings.start == "redrawn" and t >= settings.n_epochs else settings.join
    chosen = cohort(n_clients, join, settings.seed, t)
    return slice(None) if len(chosen) == n_clients else torch.tensor(chosen)


def welcome(state: State, w: Tensor, heard: Tensor, here: Tensor | slice) -> None:
    """Those who take part for the first time start from v = w, z = α = 0."""
    new = (~heard).nonzero().flatten() if isinstance(here, slice) else here[~heard[here]]
    if len(new):
        state.v[:, new] = w.unsqueeze(-2)
        heard[new] = True


def invite(learned: Learned, learners: Sequence[int], full: ClientLoss, own: Raw) -> Learned:
    """Before the final fit, those that sat out the learning, with their own Θ.

    `full` and `own` are of all clients, `learned` is of the `learners` among them.
    """
    n_splits, _, n_parameters = learned.state.v.shape
    state = zero_state(n_splits, full.shape[1], n_parameters)
    for part, given in zip(state, learned.state, strict=True):
        part[:, learners] = given
    heard = torch.zeros(full.shape[1], dtype=torch.bool)
    heard[list(learners)] = learned.heard
    return replace(learned, state=state, own=own, heard=heard)


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
        n_passes = settings.n_passes
    n_clients = full.shape[1]
    standing = Standing.silent(settings, *full.shape)
    heard = learned.heard.clone()
    moved = torch.tensor([[torch.inf], [0.0]], dtype=torch.float64).repeat(1, n_clients)
    for n_done in range(1, n_passes + 1):
        here = _here(settings, n_clients, settings.n_epochs + n_done - 1)
        some, rest, obeying = full, None, thetas
        if isinstance(here, Tensor):
            some, rest = full.pick(here), standing.rest(here)
            obeying = theta_of_cells(learned.common, {n: raw[here] for n, raw in learned.own.items()}, settings.n_cells)
        if settings.start == "warm":
            welcome(state, w, heard, here)
        before = State(*(part[:, here] for part in state))
        after, w = forward(some, obeying, before, w, rest=rest)
        if rest is not None:
            standing.hear(here, after, obeying[-1])
        moved[:, here] = movement(before.v, after.v)
        for kept, new in zip(state, after, strict=True):
            kept[:, here] = new
        if settled(settings, moved.sum(-1)):
            break
    check_finite("in the refit", float(full.value(state.v).sum()), float(full.zero.sum()))
    return Final(state.v[0], w[0], lam, n_done * settings.n_cells)
