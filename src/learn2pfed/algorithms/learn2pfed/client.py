"""The client: its private state and a pure handler for every kind of message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from learn2pfed.algorithms.base import Message
from learn2pfed.data.federated import ClientData, FederatedData
from learn2pfed.errors import MessageError
from learn2pfed.unrolled.cell import State, client_cell, contribution
from learn2pfed.unrolled.limit import client_system
from learn2pfed.unrolled.losses import ClientLoss, Family, SquaredLoss
from learn2pfed.unrolled.network import drawn_state, drawn_w, movement, zero_state
from learn2pfed.unrolled.settings import Settings
from learn2pfed.unrolled.supervision import Supervised, judged, supervise
from learn2pfed.unrolled.theta import (
    Effective,
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


@dataclass(frozen=True)
class ClientState:
    """All that a client keeps to itself; tensors have a client axis of length one."""

    index: int
    given: Supervised[ClientLoss]  # in the units of the data
    problem: Supervised[ClientLoss]  # in the units that all agreed on
    scale: Tensor  # (k,)
    common: Tensor  # log Λ as last broadcast, (C, P)
    own: Raw
    memory: Moments
    now: State
    bar: State  # adjoint of `now` on the way back; between epochs, the carried adjoint of the start
    trail: tuple[tuple[State, Tensor], ...] = ()  # (state, w) that entered each cell of this pass
    slopes: tuple[Tensor, ...] = ()  # gradients by own Θ and, last, by the common log Λ
    mark: Tensor | None = None  # v when this pass began
    refitting: bool = False
    sat_out: bool = True  # no cell yet


class Client:
    """What a client does; what it knows is in its ClientState."""

    def __init__(self, settings: Settings, family: Family[ClientLoss]) -> None:
        self.settings = settings
        self.family = family
        self.by_client = learned_by_client(settings)
        self.by_server = learned_by_server(settings)

    def enter(self, index: int, data: ClientData) -> ClientState:
        """Statistics of the client's rows; the rows are not needed again."""
        problem = supervise(FederatedData.of_client(data), self.settings, self.family, [index])
        n_splits, _, n_parameters = problem.train.shape
        zero = zero_state(n_splits, 1, n_parameters)
        scale = torch.ones(data.X.shape[1], dtype=torch.float64)
        common = start_common(self.settings, n_parameters)
        return ClientState(index, problem, problem, scale, common, {}, Moments([], [], []), zero, zero)

    def handle(self, kind: str, state: ClientState, said: Message) -> tuple[ClientState, Message]:
        """Answer one message."""
        answers: dict[str, Callable[[ClientState, Message], tuple[ClientState, Message]]] = {
            "describe": self._on_describe,
            "prepare": self._on_prepare,
            "epoch": self._on_epoch,
            "cell": self._on_cell,
            "loss": self._on_loss,
            "adjoint": self._on_adjoint,
            "learn": self._on_learn,
            "refit": self._on_refit,
            "system": self._on_system,
            "solution": self._on_solution,
        }
        return answers[kind](state, said)

    def _on_describe(self, state: ClientState, said: Message) -> tuple[ClientState, Message]:
        return state, {"gram": state.given.full.gram[0, 0]}

    def _on_prepare(self, state: ClientState, said: Message) -> tuple[ClientState, Message]:
        problem = state.given.scaled(said["scale"])
        own = start_own(self.settings, problem.full, float(said["conditioning"]))
        memory = Moments.zeros([own[name] for name in self.by_client])
        return replace(state, problem=problem, scale=said["scale"], own=own, memory=memory), {}

    def _on_epoch(self, state: ClientState, said: Message) -> tuple[ClientState, Message]:
        bar = state.bar
        if state.trail:  # the last epoch broke off on the way: what is in `bar` belongs to its middle
            bar = State(*map(torch.zeros_like, bar))
        state = replace(state, common=said["lam"], trail=(), bar=bar, slopes=self._zero_slopes(state))
        if self.settings.start == "redrawn":
            state = self._redraw(state, int(said["epoch"]))
        return state, {}

    def _on_refit(self, state: ClientState, said: Message) -> tuple[ClientState, Message]:
        mean = State(*(part.mean(0, keepdim=True) for part in state.now))
        state = replace(state, common=said["lam"], trail=(), now=mean, refitting=True)
        if self.settings.start == "redrawn":
            state = self._redraw(state, int(said["epoch"]))
        return state, {}

    def _on_system(self, state: ClientState, said: Message) -> tuple[ClientState, Message]:
        state = replace(state, common=said["lam"], now=zero_state(1, 1, state.now.v.shape[-1]), refitting=True)
        obeyed = self._effective(state)
        return state, {"system": client_system(self._squared(state), obeyed.lam, obeyed.p)[0, 0]}

    def _on_solution(self, state: ClientState, said: Message) -> tuple[ClientState, Message]:
        v = self._squared(state).follow(self._effective(state).lam, said["w"])
        return replace(state, now=state.now._replace(v=v)), {}

    def _squared(self, state: ClientState) -> SquaredLoss:
        if not isinstance(state.problem.full, SquaredLoss):
            raise MessageError("a system came where the loss is not squared.")
        return state.problem.full

    def _effective(self, state: ClientState) -> Effective:
        return effective(theta_of_cells(state.common, state.own, self.settings.n_cells)[-1])

    def _redraw(self, state: ClientState, epoch: int) -> ClientState:
        w = drawn_w(self.settings, epoch, *state.now.v.shape[::2])
        return replace(state, now=drawn_state(self.settings, epoch, [state.index], w))

    def _zero_slopes(self, state: ClientState) -> tuple[Tensor, ...]:
        return tuple(torch.zeros_like(t) for t in (*(state.own[g] for g in self.by_client), state.common))

    def _on_cell(self, state: ClientState, said: Message) -> tuple[ClientState, Message]:
        """Forward: eq. (9)-(11) and the client's half of eq. (12)."""
        number, w = int(said["cell"]), said["w"]
        due = range(1, self.settings.n_cells + 1) if state.refitting else (len(state.trail) + 1,)
        if number not in due:
            raise MessageError(f"cell {number} came where cell {due[0]} was due.")
        theta = theta_of_cells(state.common, state.own, self.settings.n_cells)[number - 1]
        loss = state.problem.full if state.refitting else state.problem.train
        if state.sat_out and self.settings.start == "warm":  # as everyone else would have it: v = w
            start = zero_state(*state.now.v.shape)
            state = replace(state, now=start._replace(v=w.unsqueeze(-2)))
        now = client_cell(loss, state.now, w, theta)
        total, weight = contribution(now, theta.p, theta.gamma)
        trail = () if state.refitting else (*state.trail, (state.now, w))
        mark = state.now.v if number == 1 or state.mark is None else state.mark
        reply = {"total": total.sum(-2), "weight": weight.sum(-2), "moved": movement(mark, now.v)[:, 0]}
        return replace(state, now=now, trail=trail, mark=mark, sat_out=False), reply

    def _on_loss(self, state: ClientState, said: Message) -> tuple[ClientState, Message]:
        size = torch.tensor(state.problem.size, dtype=torch.float64)
        return state, {"loss": self._judged(state, state.now.v, self._effective(state).lam), "size": size}

    def _judged(self, state: ClientState, v: Tensor, lam: Tensor) -> Tensor:
        return judged(state.problem, self.settings, v, lam)[:, 0]

    def _on_adjoint(self, state: ClientState, said: Message) -> tuple[ClientState, Message]:
        """Backward: the vector-Jacobian product of the client's own cell."""
        number = int(said["cell"])
        if number != len(state.trail):
            raise MessageError(f"the adjoint of cell {number} came where that of {len(state.trail)} was due.")
        state, w_bar = self._back(state, said["loss"], said["total"], said["weight"])
        return state, {"w": w_bar}

    def _back(
        self, state: ClientState, loss_bar: Tensor, total_bar: Tensor, weight_bar: Tensor
    ) -> tuple[ClientState, Tensor]:
        """Take the last cell off the trail: adjoints of what entered it, and gradients added to `slopes`.

        Cell L also leads to what is judged; if carried, what left it is what entered the next epoch's first cell.
        """
        number = len(state.trail)
        last = number == self.settings.n_cells
        bar = State(*map(torch.zeros_like, state.bar)) if last and not self.settings.carries_adjoint else state.bar
        entered, w = state.trail[-1]
        with torch.enable_grad():
            own = {name: raw.detach().requires_grad_(name in self.by_client) for name, raw in state.own.items()}
            common = state.common.detach().requires_grad_()
            before = State(*(part.detach().requires_grad_() for part in entered))
            w = w.detach().requires_grad_()
            theta = theta_of_cells(common, own, self.settings.n_cells)[number - 1]
            after = client_cell(state.problem.train, before, w, theta)
            total, weight = contribution(after, theta.p, theta.gamma)
            inputs = [*(own[name] for name in self.by_client), common, *before, w]
            ends = [(end, end_bar) for end, end_bar in zip(after, bar, strict=True)]
            ends += [(total.sum(-2), total_bar), (weight.sum(-2), weight_bar)]
            ends += [(self._judged(state, after.v, effective(theta).lam), loss_bar)] if last else []
            outputs, bars = zip(*(pair for pair in ends if pair[0].requires_grad), strict=True)
            given = torch.autograd.grad(outputs, inputs, bars, allow_unused=True)
        found = [torch.zeros_like(at) if slope is None else slope for slope, at in zip(given, inputs, strict=True)]
        n_slopes = len(self.by_client) + 1
        slopes = tuple(a + b for a, b in zip(state.slopes, found[:n_slopes], strict=True))
        state = replace(state, trail=state.trail[:-1], slopes=slopes, bar=State(*found[n_slopes:-1]))
        return state, found[-1]

    def _on_learn(self, state: ClientState, said: Message) -> tuple[ClientState, Message]:
        """Move the client's own Θ by Adam; with `gradient = local`, after a backward pass of its own."""
        if self.settings.gradient == "local":
            nothing = torch.zeros_like(state.trail[0][1])
            while state.trail:
                state, _ = self._back(state, said["loss"], nothing, torch.zeros(1, dtype=nothing.dtype))
        _, prior = penalty_gradients(self.settings, state.common, state.own)
        slopes = [
            slope + (prior if name == "lam" else 0.0)
            for name, slope in zip(self.by_client, state.slopes[:-1], strict=True)
        ]
        moved, memory = adam_step(
            self.settings,
            int(said["epoch"]),
            [state.own[name] for name in self.by_client],
            slopes,
            state.memory,
        )
        own = state.own | dict(zip(self.by_client, moved, strict=True))
        reply = {"lam": state.slopes[-1]} if self.by_server else {}
        return replace(state, own=own, memory=memory, trail=()), reply

    def model(self, state: ClientState) -> Tensor:
        """v_i in the units of the data."""
        return state.now.v[0, 0] / self.family.by_parameter(state.scale)

    def insight(self, state: ClientState) -> Mapping[str, Tensor]:
        """The Λ_i that the final model obeys, in the units of the data, and where Λ started."""
        square = self.family.by_parameter(state.scale).square()
        start = start_common(self.settings, len(square))[-1].exp()
        return {"lam": self._effective(state).lam[0] * square, "lam_start": start * square}
