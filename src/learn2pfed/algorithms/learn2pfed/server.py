"""The server: Algorithm 1 as a programme of exchanges, with nothing but sums over clients."""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor

from learn2pfed.algorithms.base import Exchange, Message, Programme, Progress, Replies, Verdict
from learn2pfed.algorithms.learn2pfed.wording import Sizes
from learn2pfed.algorithms.learn2pfed.wording import replies as reply_specs
from learn2pfed.data.federated import cohort
from learn2pfed.errors import DivergenceError
from learn2pfed.unrolled.cell import w_step
from learn2pfed.unrolled.limit import solve_system
from learn2pfed.unrolled.losses import ClientLoss, Family
from learn2pfed.unrolled.network import check_finite, drawn_w, settled
from learn2pfed.unrolled.settings import Settings
from learn2pfed.unrolled.supervision import Size, learners_of, outer_objective, units
from learn2pfed.unrolled.theta import Moments, adam_step, learned_by_server, penalty_gradients, start_common


class Server:
    """Asks, adds up, and moves the common Λ."""

    def __init__(self, settings: Settings, family: Family[ClientLoss], n_features: int) -> None:
        self.settings = settings
        self.family = family
        self.by_server = learned_by_server(settings)
        self.sizes = Sizes(settings.n_splits, n_features, family.n_parameters(n_features))
        self.epoch = 0
        self.away: frozenset[int] = frozenset()
        self.words: dict[str, dict[int, Message]] = {}

    def programme(self, n_clients: int, progress: Progress | None) -> Programme:
        """Algorithm 1, the server's side."""
        settings = self.settings
        n_splits, _, n_parameters = self.sizes
        everyone = tuple(range(n_clients))
        described = yield from self.insist("describe", {}, everyone)
        scale, conditioning = units(settings, _sum(described, "gram"), len(described))
        said = {"scale": scale, "conditioning": torch.tensor([conditioning], dtype=torch.float64)}
        members = tuple((yield from self.insist("prepare", said, tuple(described))))
        learners = learners_of(settings, members)
        common = start_common(settings, n_parameters)
        memory = Moments.zeros([common])
        w = torch.zeros(n_splits, n_parameters, dtype=torch.float64)
        w_carried = torch.zeros_like(w)
        history = []
        for epoch in range(settings.n_epochs):
            self.epoch = epoch + 1
            number = torch.tensor([epoch])
            here = self._gather(learners, epoch)
            alive = tuple((yield from self.ask("epoch", {"lam": common, "epoch": number}, here)))
            if settings.start == "redrawn":
                w = drawn_w(settings, epoch, n_splits, n_parameters)
            alive, weights, ws, _ = yield from self._forward(alive, w)
            w = ws[-1]
            replies = yield from self.ask("loss", {}, alive)
            alive = tuple(replies)
            losses = self.heard("loss", replies)
            size = Size(*_sum(losses, "size").tolist())
            totals = _sum(losses, "loss").requires_grad_()
            check_finite(f"at epoch {epoch + 1}", float(totals[0].detach()), size.zero)
            with torch.enable_grad():
                objective = outer_objective(settings, totals, size, self.family.is_likelihood)
                (loss_bar,) = torch.autograd.grad(objective, totals)
            if settings.gradient == "exact" and settings.learn:
                alive, w_bar = yield from self._backward(alive, weights, ws, w_carried, loss_bar)
                w_carried = w_bar if settings.carries_adjoint else w_carried
            replies = yield from self.ask("learn", {"loss": loss_bar, "epoch": number}, alive)
            if self.by_server:
                prior, _ = penalty_gradients(settings, common, {"lam": common})
                slope = _sum(self.heard("learn", replies), "lam")
                (common,), memory = adam_step(settings, epoch, [common], [slope + prior], memory)
            history.append(float(objective.detach()))
            if progress is not None:
                progress(epoch + 1, history[-1])
        ending = self._solve(members, common) if settings.refit == "exact" else self._refit(members, common, w)
        w, served = yield from ending
        return Verdict(w[0] / self.family.by_parameter(scale), history, frozenset(served))

    def _forward(
        self, alive: tuple[int, ...], w: Tensor
    ) -> Generator[Exchange, Replies, tuple[tuple[int, ...], list[Tensor], list[Tensor], Tensor]]:
        """Cells 1 .. L: who is still there, Σc and w of every cell, and how far the pass moved the models."""
        weights, ws = [], []
        for ell in range(1, self.settings.n_cells + 1):
            replies = yield from self.ask("cell", {"w": w, "cell": torch.tensor([ell])}, alive)
            alive = tuple(replies)
            words = self.heard("cell", replies)
            weights.append(_sum(words, "weight"))
            w = w_step(_sum(words, "total"), weights[-1])
            ws.append(w)
        return alive, weights, ws, _sum(words, "moved")

    def _backward(
        self, alive: tuple[int, ...], weights: list[Tensor], ws: list[Tensor], w_bar: Tensor, loss_bar: Tensor
    ) -> Generator[Exchange, Replies, tuple[tuple[int, ...], Tensor]]:
        """Cells L .. 1: with S = Σ c m and C = Σ c, w = S/C gives S̄ = w̄/C and C̄ = -w̄ᵀw/C; the clients do the rest."""
        for ell in range(self.settings.n_cells, 0, -1):
            weight, w = weights[ell - 1], ws[ell - 1]
            said = {
                "total": w_bar / weight,
                "weight": -(w_bar * w).sum().reshape(1) / weight,
                "loss": loss_bar,
                "cell": torch.tensor([ell]),
            }
            replies = yield from self.ask("adjoint", said, alive)
            alive = tuple(replies)
            w_bar = _sum(self.heard(f"adjoint {ell}", replies), "w")
        return alive, w_bar

    def _refit(
        self, members: tuple[int, ...], common: Tensor, w: Tensor
    ) -> Generator[Exchange, Replies, tuple[Tensor, tuple[int, ...]]]:
        """Cells on all training rows: L from a new draw, or as many as it takes from the warm start."""
        settings = self.settings
        self.sizes = self.sizes._replace(n_splits=1)
        said = {"lam": common, "epoch": torch.tensor([settings.n_epochs])}
        alive = tuple((yield from self.insist("refit", said, members)))
        redrawn = settings.start == "redrawn"
        w = drawn_w(settings, settings.n_epochs, 1, w.shape[-1]) if redrawn else w.mean(0, keepdim=True)
        self.words = {}
        for n_done in range(1 if redrawn else settings.n_passes):
            here = self._gather(alive, settings.n_epochs + n_done)
            _, _, ws, moved = yield from self._forward(here, w)
            w = ws[-1]
            if len(self.words["cell"]) == len(alive) and settled(settings, moved):
                break
        return w, alive

    def _solve(
        self, members: tuple[int, ...], common: Tensor
    ) -> Generator[Exchange, Replies, tuple[Tensor, tuple[int, ...]]]:
        """The limit of infinitely many cells on all training rows, from one sum over clients."""
        self.sizes = self.sizes._replace(n_splits=1)
        replies = yield from self.insist("system", {"lam": common}, members)
        w = solve_system(_sum(replies, "system"))[None]
        return w, tuple((yield from self.insist("solution", {"w": w}, tuple(replies))))

    def _gather(self, clients: tuple[int, ...], t: int) -> tuple[int, ...]:
        """Who takes part in epoch t, or in that pass of the refit; the others are away."""
        join = 1.0 if self.settings.start == "redrawn" and t >= self.settings.n_epochs else self.settings.join
        here = tuple(clients[place] for place in cohort(len(clients), join, self.settings.seed, t))
        self.away = frozenset(clients) - frozenset(here)
        return here

    def heard(self, kind: str, replies: Replies) -> Replies:
        """The replies, and what those who are away last said to this; a deployment that sees but sums sends changes."""
        words = self.words.setdefault(kind, {})
        words.update(replies)
        return dict(replies) | {i: words[i] for i in sorted(self.away & words.keys())}

    def ask(self, kind: str, broadcast: Message, clients: tuple[int, ...]) -> Generator[Exchange, Replies, Replies]:
        """One exchange; the replies in the order of the clients."""
        expected = reply_specs(self.settings, self.sizes)[kind]
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
                expected = reply_specs(self.settings, self.sizes)[kind]
                replies |= yield Exchange(kind, broadcast, expected, absent)
        return dict(sorted(replies.items()))


def _sum(replies: Replies, name: str) -> Tensor:
    """Σ over clients, the only thing the server does with what they send."""
    return torch.stack([reply[name] for reply in replies.values()]).sum(0)
