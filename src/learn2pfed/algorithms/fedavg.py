"""FedAvg: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017, https://arxiv.org/abs/1602.05629.

Objective:  min over w of Σ_i (n_i / n) F_i(w).

Update:
1. client: E epochs of gradient steps from w; the optimiser starts afresh.
2. server: w = Σ n_i w_i / Σ n_i over those that took part.

Deviations: none. The personal model is w itself, for every client.
"""

from __future__ import annotations

from learn2pfed.algorithms.base import Message
from learn2pfed.algorithms.local import Local, LocalSettings
from learn2pfed.algorithms.rounds import Nothing, Rounds


class FedAvg(Rounds):
    """FedAvg; step 2 and the personal model are what every baseline has unless it says otherwise."""

    name = "fedavg"
    title = "FedAvg"
    objective = "min Σ (n_i/n) F_i(w)"
    citation = "McMahan et al., AISTATS 2017"
    settings: LocalSettings
    settings_class = LocalSettings

    def work(self, kept: Nothing, local: Local, heard: Message) -> tuple[Nothing, Message]:
        """Step 1."""
        w, _ = local.descend(heard["w"], local.batches(self.settings.epochs), self.optimizer)
        return kept, {"w": w}
