"""CFL: Sattler, Müller, Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under
Privacy Constraints", IEEE TNNLS 2021, https://arxiv.org/abs/1910.01991.

Objective:  split the clients into groups c and  min over w_c of Σ_{i in c} F_i(w_c)  in each.

Update:
1. client: E epochs from its group's w; sends Δ_i = w_i - w. The optimiser's memory persists.
2. server, each group: a = ‖mean Δ_i‖, b = max ‖Δ_i‖. If a < ε1, b > ε2, the group has more than `min_size` members,
   round `first_split` is over and every member's Δ_i is young enough: split it in two by complete linkage on
   -cosine(Δ_i, Δ_j).
3. server, each group: w += mean of Δ_i, uniform.

The personal model is that of the client's group, also for one that never took part.

Deviations: clients are told apart by their number throughout (in public versions members are lost from the second
split on). With some clients a round, a and b and the mean are over those that answered, and a split needs an update
of every member that is at most `max_age` rounds old. The paper's further test of a split is not made, as in the
authors' code.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor

from learn2pfed.algorithms.base import Message, Replies, Specs
from learn2pfed.algorithms.local import Local, LocalSettings, Memory
from learn2pfed.algorithms.rounds import Rounds, Told
from learn2pfed.search import Span


class CFLSettings(LocalSettings):
    """The authors' thresholds; they depend on the network and the step size."""

    eps1: Annotated[float, Span(1e-2, 10.0)] = Field(0.4, ge=0, description="ε1, split if ‖mean Δ‖ is below; 0: never")
    eps2: Annotated[float, Span(1e-2, 10.0)] = Field(1.6, ge=0, description="ε2, and max ‖Δ_i‖ is above")
    first_split: int = Field(20, ge=0, description="no split in the first rounds")
    min_size: int = Field(2, ge=1, description="a group must have more members to be split")
    max_age: int | None = Field(None, ge=1, description="rounds for which an update may speak; none: 2 / join")


class Kept(NamedTuple):
    """The optimiser's memory."""

    memory: Memory


class Groups(NamedTuple):
    """What the server holds."""

    w: Tensor  # (C, P), one model a group
    group: Tensor  # (M,), each client's
    delta: Tensor  # (M, P), each client's last Δ_i
    heard: Tensor  # (M,), the round of that; very long ago: never


class CFL(Rounds):
    """CFL."""

    name = "cfl"
    title = "CFL"
    objective = "min Σ_{i in c} F_i(w_c) in each group c, groups found"
    citation = "Sattler et al., TNNLS 2021"
    only_classification = True
    settings: CFLSettings
    settings_class = CFLSettings

    def begin(self) -> Kept:
        """Nothing remembered."""
        return Kept(self.optimizer.fresh(self.network.start))

    def opening(self, n_clients: int) -> Groups:
        """One group of all."""
        start = self.network.start
        never = torch.full((n_clients,), -(2**31))
        return Groups(start[None], torch.zeros_like(never), start.new_zeros(n_clients, len(start)), never)

    def tells(self, server: Groups, clients: tuple[int, ...]) -> Told:
        """To each client its group's w."""
        members = {c: tuple(i for i in clients if server.group[i] == c) for c in range(len(server.w))}
        return [({"w": server.w[c]}, inside) for c, inside in members.items() if inside]

    def sends(self, server: Groups) -> Specs:
        """Δ_i."""
        return {"delta": self.vector()}

    def work(self, kept: Kept, local: Local, heard: Message) -> tuple[Kept, Message]:
        """Step 1."""
        w, batches = heard["w"], local.batches(self.settings.epochs)
        w_i, memory = local.descend(w, batches, self.optimizer, memory=kept.memory)
        return Kept(memory), {"delta": w_i - w}

    def gather(self, server: Groups, t: int, replies: Replies) -> Groups:
        """Steps 2 and 3."""
        w, group, delta, heard = (part.clone() for part in server)
        for i, reply in replies.items():
            delta[i], heard[i] = reply["delta"], t
        for c in range(len(w)):
            members = (group == c).nonzero()[:, 0]
            if self.splits(delta[members], heard[members], t):
                group[members[self.second_half(delta[members])]] = len(w)
                w = torch.cat([w, w[c : c + 1]])
        for c in range(len(w)):
            answered = (group == c) & (heard == t)
            if answered.any():
                w[c] += delta[answered].mean(0)
        return Groups(w, group, delta, heard)

    def splits(self, delta: Tensor, heard: Tensor, t: int) -> bool:
        """Whether a group with these updates is to be split."""
        how, now = self.settings, heard == t
        old = how.max_age or round(2 / how.join)
        if len(delta) <= how.min_size or t < how.first_split or t - int(heard.min()) > old or not now.any():
            return False
        a, b = delta[now].mean(0).norm(), delta[now].norm(dim=-1).max()
        return bool(a < how.eps1) and bool(b > how.eps2)

    @staticmethod
    def second_half(delta: Tensor) -> Tensor:
        """Which members leave, as a mask."""
        direction = torch.nn.functional.normalize(delta, dim=-1)
        distance = -(direction @ direction.T).double().numpy()
        halves = AgglomerativeClustering(2, metric="precomputed", linkage="complete").fit_predict(distance)
        return torch.from_numpy(halves != halves[0])
