"""Learn2pFed: Lv, Ye, Huang, Yang, Chen, "Learn What You Need in Personalized Federated Learning", Algorithm 1.

Objective:  min over v, w of  Σ_i p_i ( F_i(v_i) + ½ (v_i - w)ᵀ Λ_i (v_i - w) ),  with Θ = {Λ, p, ρ, η, γ, θ} learned by
gradients through L unrolled ADMM cells.

The conversation, an epoch:

1. `epoch`    server → client: the common log Λ.
2. `cell`     for ℓ = 1 .. L, server → client: w of cell ℓ-1; client: α, v, z by eq. (9)-(11);
              client → server: its half of eq. (12).
3. `loss`     client → server: F_i on the rows that judge.
4. `adjoint`  for ℓ = L .. 1, server → client: the adjoint of eq. (12); client: the vector-Jacobian product of its own
              cell; client → server: its part of the adjoint of w of cell ℓ-1. Not with `gradient = local`.
5. `learn`    each client moves its own Θ; client → server: its part of the gradient by the common log Λ.

Before: `describe` (Σ XᵀX, for units) and `prepare`. After: `refit` and cells on all training rows until w rests.
The server uses nothing but sums over clients.

Deviations from the paper: gradients run through w into the other clients by adjoint messages (the sum of losses that
the paper sends is a number and has no gradient); p and γ live with their client, which sends c_i (v_i - z_i - α_i) and
c_i = p_i γ_i.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from learn2pfed.algorithms.base import (
    Conversation,
    Exchange,
    Message,
    Outcome,
    Programme,
    Progress,
    Replies,
    Spec,
    Specs,
    Talk,
    Verdict,
)
from learn2pfed.data.federated import ClientData, FederatedData
from learn2pfed.errors import DivergenceError, MessageError
from learn2pfed.unrolled.cell import State, client_cell, contribution, w_step
from learn2pfed.unrolled.network import check_finite, drawn_state, drawn_w, movement, settled, zero_state
from learn2pfed.unrolled.settings import Settings
from learn2pfed.unrolled.supervision import Size, Supervised, outer_objective, supervise, supervise_all, units
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
from learn2pfed.unrolled.training import effective_lam, learn


@dataclass(frozen=True)
class ClientState:
    """All that a client keeps to itself; tensors have a client axis of length one."""

    index: int
    given: Supervised  # in the units of the data
    problem: Supervised  # in the units that all agreed on
    scale: Tensor
    common: Tensor  # log Λ as last broadcast, (C, k)
    own: Raw
    memory: Moments
    now: State
    bar: State  # adjoint of `now` on the way back; between epochs, the carried adjoint of the start
    trail: tuple[tuple[State, Tensor], ...] = ()  # (state, w) that entered each cell of this pass
    slopes: tuple[Tensor, ...] = ()  # gradients by own Θ and, last, by the common log Λ
    mark: Tensor | None = None  # v when this pass began
    refitting: bool = False


class Learn2pFed(Conversation[ClientState]):
    """The conversation above; `fused` computes the same in one autograd graph."""

    name = "learn2pfed"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.by_client = learned_by_client(settings)
        self.by_server = learned_by_server(settings)

    # ------------------------------------------------------------------ client

    def enter(self, index: int, data: ClientData) -> ClientState:
        """Statistics of the client's rows; the rows are not needed again."""
        problem = supervise(data, self.settings, index)
        n_splits, _, n_features = problem.train.b.shape
        zero = zero_state(n_splits, 1, n_features)
        scale = torch.ones(n_features, dtype=torch.float64)
        common = start_common(self.settings, n_features)
        return ClientState(index, problem, problem, scale, common, {}, Moments([], [], []), zero, zero)

    def expects(self, kind: str, state: ClientState) -> Specs:
        """What the server says, by kind."""
        known = self._broadcasts(*state.now.v.shape[::2])
        if kind not in known:
            raise MessageError(f"a message of kind {kind!r} came where {', '.join(known)} are known.")
        return known[kind]

    def _broadcasts(self, n_splits: int, n_features: int) -> dict[str, Specs]:
        lam = Spec((1 if self.settings.tied else self.settings.n_cells, n_features))
        w, one, count = Spec((n_splits, n_features)), Spec((1,)), Spec((1,), torch.int64)
        return {
            "describe": {},
            "prepare": {"scale": Spec((n_features,)), "conditioning": one},
            "epoch": {"lam": lam, "epoch": count},
            "cell": {"w": w, "cell": count},
            "loss": {},
            "adjoint": {"total": w, "weight": one, "loss": one, "cell": count},
            "learn": {"loss": one, "epoch": count},
            "refit": {"lam": lam, "epoch": count},
        }

    def _replies(self, n_splits: int, n_features: int) -> dict[str, Specs]:
        lam = Spec((1 if self.settings.tied else self.settings.n_cells, n_features))
        w, one = Spec((n_splits, n_features)), Spec((1,))
        return {
            "describe": {"gram": Spec((n_features, n_features))},
            "prepare": {},
            "epoch": {},
            "cell": {"total": w, "weight": one, "moved": Spec((2,))},
            "loss": {"loss": one, "size": Spec((3,))},
            "adjoint": {"w": w},
            "learn": {"lam": lam} if self.by_server else {},
            "refit": {},
        }

    def handle(
        self, kind: str, state: ClientState, data: ClientData, broadcast: Message
    ) -> tuple[ClientState, Message]:
        """Answer one message."""
        answer = getattr(self, f"_on_{kind}")
        result: tuple[ClientState, Message] = answer(state, broadcast)
        return result

    def _on_describe(self, state: ClientState, said: Message) -> tuple[ClientState, Message]:
        return state, {"gram": state.given.full.A[0, 0]}

    def _on_prepare(self, state: ClientState, said: Message) -> tuple[ClientState, Message]:
        problem = state.given.scaled(said["scale"])
        own = start_own(self.settings, problem.train, problem.full, float(said["conditioning"]))
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
        now = client_cell(loss, state.now, w, theta)
        total, weight = contribution(now, theta.p, theta.gamma)
        trail = () if state.refitting else (*state.trail, (state.now, w))
        mark = state.now.v if number == 1 or state.mark is None else state.mark
        reply = {"total": total.sum(-2), "weight": weight.sum(-2), "moved": movement(mark, now.v)}
        return replace(state, now=now, trail=trail, mark=mark), reply

    def _on_loss(self, state: ClientState, said: Message) -> tuple[ClientState, Message]:
        size = torch.tensor(state.problem.size, dtype=torch.float64)
        return state, {"loss": state.problem.judge.value(state.now.v).sum().reshape(1), "size": size}

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
        """Take the last cell off the trail: adjoints of what entered it, and gradients added to `slopes`."""
        number = len(state.trail)
        bar = self._seed(state, loss_bar) if number == self.settings.n_cells else state.bar
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
            outputs, bars = zip(*(pair for pair in ends if pair[0].requires_grad), strict=True)
            given = torch.autograd.grad(outputs, inputs, bars, allow_unused=True)
        found = [torch.zeros_like(at) if slope is None else slope for slope, at in zip(given, inputs, strict=True)]
        n_slopes = len(self.by_client) + 1
        slopes = tuple(a + b for a, b in zip(state.slopes, found[:n_slopes], strict=True))
        state = replace(state, trail=state.trail[:-1], slopes=slopes, bar=State(*found[n_slopes:-1]))
        return state, found[-1]

    def _seed(self, state: ClientState, loss_bar: Tensor) -> State:
        """The adjoint of the last state: of the loss and, if carried, of the next epoch's start."""
        judge, v = state.problem.judge, state.now.v
        slope = loss_bar * ((judge.A @ v.unsqueeze(-1)).squeeze(-1) - judge.b)
        if not self.settings.carries_adjoint:
            return State(torch.zeros_like(v), slope, torch.zeros_like(v))
        return state.bar._replace(v=state.bar.v + slope)

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
        return state.now.v[0, 0] / state.scale

    def insight(self, state: ClientState) -> Mapping[str, Tensor]:
        """The Λ_i that the final model obeys, in the units of the data, and where Λ started."""
        theta = theta_of_cells(state.common, state.own, self.settings.n_cells)[-1]
        start = start_common(self.settings, len(state.scale))[-1].exp()
        return {
            "lam": effective(theta).lam[0] * state.scale.square(),
            "lam_start": start * state.scale.square(),
        }

    # ------------------------------------------------------------------ server

    def programme(self, n_clients: int, n_features: int, progress: Progress | None) -> Programme:
        """Algorithm 1, the server's side."""
        settings = self.settings
        n_splits = self._n_splits()
        server = _Server(self, n_splits, n_features)
        everyone = tuple(range(n_clients))
        described = yield from server.insist("describe", {}, everyone)
        scale, conditioning = units(settings, _sum(described, "gram"), len(described))
        said = {"scale": scale, "conditioning": torch.tensor([conditioning], dtype=torch.float64)}
        members = tuple((yield from server.insist("prepare", said, tuple(described))))
        common = start_common(settings, n_features)
        memory = Moments.zeros([common])
        w = torch.zeros(n_splits, n_features, dtype=torch.float64)
        w_carried = torch.zeros_like(w)
        history = []
        for epoch in range(settings.n_epochs):
            server.epoch = epoch + 1
            number = torch.tensor([epoch])
            alive = tuple((yield from server.ask("epoch", {"lam": common, "epoch": number}, members)))
            if settings.start == "redrawn":
                w = drawn_w(settings, epoch, n_splits, n_features)
            weights, ws = [], []
            for ell in range(1, settings.n_cells + 1):
                replies = yield from server.ask("cell", {"w": w, "cell": torch.tensor([ell])}, alive)
                alive = tuple(replies)
                weights.append(_sum(replies, "weight"))
                w = w_step(_sum(replies, "total"), weights[-1])
                ws.append(w)
            losses = yield from server.ask("loss", {}, alive)
            alive = tuple(losses)
            size = Size(*_sum(losses, "size").tolist())
            total = _sum(losses, "loss").requires_grad_()
            check_finite(f"at epoch {epoch + 1}", float(total.detach()), size.zero)
            with torch.enable_grad():
                objective = outer_objective(settings, total, size)
                (loss_bar,) = torch.autograd.grad(objective.sum(), total)
            if settings.gradient == "exact" and settings.learn:
                w_bar = w_carried
                for ell in range(settings.n_cells, 0, -1):
                    weight, w_ell = weights[ell - 1], ws[ell - 1]
                    said = {
                        "total": w_bar / weight,
                        "weight": -(w_bar * w_ell).sum().reshape(1) / weight,
                        "loss": loss_bar,
                        "cell": torch.tensor([ell]),
                    }
                    replies = yield from server.ask("adjoint", said, alive)
                    alive = tuple(replies)
                    w_bar = _sum(replies, "w")
                if settings.carries_adjoint:
                    w_carried = w_bar
            replies = yield from server.ask("learn", {"loss": loss_bar, "epoch": number}, alive)
            if self.by_server:
                prior, _ = penalty_gradients(settings, common, {"lam": common})
                (common,), memory = adam_step(settings, epoch, [common], [_sum(replies, "lam") + prior], memory)
            history.append(float(objective.detach()))
            if progress is not None:
                progress(epoch + 1, history[-1])
        w, served = yield from self._refit(server, members, common, w)
        return Verdict(w[0] / scale, history, frozenset(served))

    def _refit(
        self, server: _Server, members: tuple[int, ...], common: Tensor, w: Tensor
    ) -> Generator[Exchange, Replies, tuple[Tensor, tuple[int, ...]]]:
        """Cells on all training rows: L from a new draw, or as many as it takes from the warm start."""
        settings = self.settings
        server.n_splits = 1
        said = {"lam": common, "epoch": torch.tensor([settings.n_epochs])}
        alive = tuple((yield from server.insist("refit", said, members)))
        redrawn = settings.start == "redrawn"
        w = drawn_w(settings, settings.n_epochs, 1, w.shape[-1]) if redrawn else w.mean(0, keepdim=True)
        for _ in range(1 if redrawn else max(1, settings.refit_cells // settings.n_cells)):
            for ell in range(1, settings.n_cells + 1):
                replies = yield from server.ask("cell", {"w": w, "cell": torch.tensor([ell])}, alive)
                w = w_step(_sum(replies, "total"), _sum(replies, "weight"))
            if settled(settings, _sum(replies, "moved")):
                break
        return w, alive

    def _n_splits(self) -> int:
        settings = self.settings
        return settings.n_folds * settings.n_repeats if settings.supervision == "crossval" else 1

    # ------------------------------------------------------------------ all at once

    def fused(self, data: FederatedData, progress: Progress | None) -> Outcome:
        """All clients in one autograd graph."""
        problem, (scale, conditioning) = supervise_all(data, self.settings)
        learned = learn(problem, self.settings, conditioning, progress)
        lam = effective_lam(learned) * scale.square()
        start = start_common(self.settings, data.n_features)[-1].exp() * scale.square()
        insight = {"lam": lam, "lam_start": start.expand(lam.shape)}
        talks = self._talks(data.n_features, learned.n_refit_cells)
        return Outcome(learned.v / scale, learned.w / scale, learned.history, insight, talks=talks)

    def _talks(self, n_features: int, n_refit_cells: int) -> tuple[Talk, ...]:
        """What the conversation would have said, and how often."""
        n_epochs, n_cells = self.settings.n_epochs, self.settings.n_cells
        back = self.settings.gradient == "exact" and bool(self.settings.learn)
        times = {
            "describe": 1,
            "prepare": 1,
            "epoch": n_epochs,
            "cell": n_epochs * n_cells,
            "loss": n_epochs,
            "adjoint": n_epochs * n_cells if back else 0,
            "learn": n_epochs,
        }
        broadcasts, replies = (part(self._n_splits(), n_features) for part in (self._broadcasts, self._replies))
        learning = [Talk(broadcasts[kind], replies[kind], count) for kind, count in times.items()]
        broadcasts, replies = self._broadcasts(1, n_features), self._replies(1, n_features)
        final = [
            Talk(broadcasts[kind], replies[kind], count) for kind, count in (("refit", 1), ("cell", n_refit_cells))
        ]
        return (*learning, *final)


class _Server:
    """Asks a question of some clients and insists that at least one answers."""

    def __init__(self, algorithm: Learn2pFed, n_splits: int, n_features: int) -> None:
        self.algorithm = algorithm
        self.n_splits = n_splits
        self.n_features = n_features
        self.epoch = 0

    def ask(self, kind: str, broadcast: Message, clients: tuple[int, ...]) -> Generator[Exchange, Replies, Replies]:
        """One exchange; the replies in the order of the clients."""
        expected = self.algorithm._replies(self.n_splits, self.n_features)[kind]
        replies = yield Exchange(kind, broadcast, expected, clients)
        if not replies:
            raise DivergenceError(
                f"No client gave a usable answer to {kind!r} in epoch {self.epoch}: either none is running, or the "
                "network diverged (lower learning_rate, learn fewer groups, or raise rho_start)."
            )
        return replies

    def insist(self, kind: str, broadcast: Message, clients: tuple[int, ...]) -> Generator[Exchange, Replies, Replies]:
        """The same, asking those that did not answer up to twice more: without this step they can't take part."""
        replies = dict((yield from self.ask(kind, broadcast, clients)))
        for _ in range(2):
            absent = tuple(i for i in clients if i not in replies)
            if absent:
                expected = self.algorithm._replies(self.n_splits, self.n_features)[kind]
                replies |= yield Exchange(kind, broadcast, expected, absent)
        return dict(sorted(replies.items()))


def _sum(replies: Replies, name: str) -> Tensor:
    """Σ over clients, the only thing the server does with what they send."""
    return torch.stack([reply[name] for reply in replies.values()]).sum(0)
