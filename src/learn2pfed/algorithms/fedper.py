"""FedPer: Arivazhagan, Aggarwal, Singh, Choudhary, "Federated Learning with Personalization Layers", 2019,
https://arxiv.org/abs/1912.00818.

Objective:  min over φ, h_1 .. h_M of Σ_i (n_i / n) F_i(φ, h_i), with a shared body φ and a head h_i each.

Update:
1. client: E epochs on (φ, h_i) together, from the φ it is sent and its own h_i; h_i stays at home.
2. server: φ = Σ n_i φ_i / Σ n_i.

The personal model is (φ, h_i): the newest body and the client's last head. A client that never took part has the head
that all began with. With `final_epochs` every client takes step 1 once more at the end, and keeps all of it.

Deviations: none by default. Heads are never sent.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from pydantic import Field
from torch import Tensor

from learn2pfed.algorithms.base import Message, Replies, Specs
from learn2pfed.algorithms.local import Local, LocalSettings
from learn2pfed.algorithms.rounds import Rounds, Server, Told, mean_by_rows


class FedPerSettings(LocalSettings):
    """As in the paper, without a last pass."""

    final_epochs: int = Field(0, ge=0, description="epochs of body and head at the end, for every client")


class Kept(NamedTuple):
    """h_i."""

    head: Tensor


class FedPer(Rounds):
    """FedPer; the server's w is φ."""

    name = "fedper"
    title = "FedPer"
    objective = "min Σ (n_i/n) F_i(φ, h_i), body and head together"
    citation = "Arivazhagan et al., 2019"
    settings: FedPerSettings
    settings_class: ClassVar[type[LocalSettings]] = FedPerSettings

    def begin(self) -> Kept:
        """All heads start alike."""
        return Kept(self.network.cut(self.network.start)[1])

    def opening(self, n_clients: int) -> Server:
        """φ."""
        return Server(self.network.cut(self.network.start)[0])

    def tells(self, server: Server, clients: tuple[int, ...]) -> Told:
        """φ."""
        return [({"body": server.w}, clients)]

    def sends(self, server: Server) -> Specs:
        """φ_i."""
        return {"body": self.vector(self.network.n_parameters - int(self.network.is_head.sum()))}

    def work(self, kept: Kept, local: Local, heard: Message) -> tuple[Kept, Message]:
        """Step 1."""
        x = self.network.join(heard["body"], kept.head)
        x, _ = local.descend(x, local.batches(self.settings.epochs), self.optimizer)
        body, head = self.network.cut(x)
        return Kept(head), {"body": body}

    def gather(self, server: Server, t: int, replies: Replies) -> Server:
        """Step 2."""
        return Server(mean_by_rows(replies, "body"))

    def personal(self, kept: Kept, local: Local, heard: Message) -> Tensor:
        """(φ, h_i)."""
        x = self.network.join(heard["body"], kept.head)
        return local.descend(x, local.batches(self.settings.final_epochs), self.optimizer)[0]
