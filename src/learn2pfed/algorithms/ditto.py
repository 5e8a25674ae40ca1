"""Ditto: Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021,
https://arxiv.org/abs/2012.04221.

Objective:  w = argmin Σ_i (n_i / n) F_i(w);  for each i:  min over v_i of F_i(v_i) + (λ/2) ‖v_i - w‖².

Update:
1. client: w_i by E epochs from w;  sends w_i - w.
2. client: v_i by E_v epochs on ∇F_i(v_i) + λ (v_i - w), from its own v_i; the anchor is the w it was sent, not w_i.
3. server: w += Σ n_i (w_i - w) / Σ n_i.

The personal model is v_i. It moves only in rounds in which the client takes part; one that never did has the common
start, unless `final_epochs` lets every client take step 2 once more against the last w.

Deviations: clients are drawn uniformly and weighted by rows (the authors draw by rows and weight uniformly). The
optimiser of v_i, where it has a memory, remembers from round to round, as v_i does.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field
from torch import Tensor

from learn2pfed.algorithms.base import Message, Replies, Specs
from learn2pfed.algorithms.local import Local, LocalSettings, Memory, towards
from learn2pfed.algorithms.rounds import Rounds, Server, mean_by_rows
from learn2pfed.search import Choice, Span


class DittoSettings(LocalSettings):
    """λ = 1 in the authors' script for Fashion-MNIST."""

    lam: Annotated[float, Span(1e-3, 10.0)] = Field(1.0, ge=0, description="λ, the pull to w; 0 is Local-Only")
    personal_epochs: Annotated[int, Choice((1, 2, 5))] = Field(2, ge=0, description="E_v, epochs of v_i a round")
    final_epochs: int = Field(0, ge=0, description="epochs of v_i at the end, for every client")


class Kept(NamedTuple):
    """v_i and its optimiser's memory."""

    v: Tensor
    memory: Memory


class Ditto(Rounds):
    """Ditto."""

    name = "ditto"
    title = "Ditto"
    objective = "min F_i(v_i) + (λ/2)‖v_i - w*‖², w* by FedAvg"
    citation = "Li et al., ICML 2021"
    settings: DittoSettings
    settings_class = DittoSettings

    def begin(self) -> Kept:
        """v_i = the common start."""
        return Kept(self.network.start, self.optimizer.fresh(self.network.start))

    def sends(self, server: Server) -> Specs:
        """w_i - w."""
        return {"delta": self.vector()}

    def work(self, kept: Kept, local: Local, heard: Message) -> tuple[Kept, Message]:
        """Steps 1 and 2."""
        w, how = heard["w"], self.settings
        w_i, _ = local.descend(w, local.batches(how.epochs), self.optimizer)
        return self.personalise(kept, local, w, how.personal_epochs), {"delta": w_i - w}

    def personalise(self, kept: Kept, local: Local, w: Tensor, epochs: int) -> Kept:
        """Step 2."""
        pull = towards(w, self.settings.lam)
        return Kept(*local.descend(kept.v, local.batches(epochs), self.optimizer, pull, memory=kept.memory))

    def gather(self, server: Server, t: int, replies: Replies) -> Server:
        """Step 3."""
        return Server(server.w + mean_by_rows(replies, "delta"))

    def personal(self, kept: Kept, local: Local, heard: Message) -> Tensor:
        """v_i."""
        return self.personalise(kept, local, heard["w"], self.settings.final_epochs).v
