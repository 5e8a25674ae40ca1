"""FedRep: Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations for Personalized Federated
Learning", ICML 2021, https://arxiv.org/abs/2102.07078.

Objective:  min over φ, h_1 .. h_M of Σ_i (n_i / n) F_i(φ, h_i), by turns.

Update:
1. client: E_h epochs on h_i with φ fixed, from its own h_i.
2. client: E epochs on φ with h_i fixed; each half has an optimiser of its own.
3. server: φ = Σ n_i φ_i / Σ n_i.

The personal model is (φ, h_i); with `final_epochs` every client, also one that never took part, fits its head once
more to the last φ.

Deviations: the mean is weighted by rows (the authors' code: uniform on CIFAR, by rows on LEAF).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from learn2pfed.algorithms.base import Message
from learn2pfed.algorithms.fedper import FedPer, FedPerSettings, Kept
from learn2pfed.algorithms.local import Local
from learn2pfed.search import Choice


class FedRepSettings(FedPerSettings):
    """`epochs` are those of the body."""

    epochs: int = Field(2, ge=0, description="E, epochs of the body a round")
    head_epochs: Annotated[int, Choice((1, 2, 5, 10))] = Field(10, ge=0, description="E_h, epochs of the head a round")
    final_epochs: int = Field(0, ge=0, description="epochs of the head at the end, body fixed")


class FedRep(FedPer):
    """FedRep; the server's part is FedPer's."""

    name = "fedrep"
    title = "FedRep"
    objective = "min Σ (n_i/n) F_i(φ, h_i), head first, then body"
    citation = "Collins et al., ICML 2021"
    settings: FedRepSettings
    settings_class = FedRepSettings

    def work(self, kept: Kept, local: Local, heard: Message) -> tuple[Kept, Message]:
        """Steps 1 and 2."""
        x = self.network.join(heard["body"], kept.head)
        x, _ = local.descend(x, local.batches(self.settings.head_epochs), self.optimizer, part="head")
        x, _ = local.descend(x, local.batches(self.settings.epochs), self.optimizer, part="body")
        body, head = self.network.cut(x)
        return Kept(head), {"body": body}

    def personal(self, kept: Kept, local: Local, heard: Message) -> Tensor:
        """(φ, h_i), the head fitted once more if so set."""
        x = self.network.join(heard["body"], kept.head)
        return local.descend(x, local.batches(self.settings.final_epochs), self.optimizer, part="head")[0]
