"""FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020,
https://arxiv.org/abs/1812.06127.

Objective:  client i:  min over u of F_i(u) + (μ/2) ‖u - w‖²;  all together:  min over w of Σ_i (n_i / n) F_i(w).

Update:
1. client: E epochs of steps on ∇F_i(u) + μ (u - w), from u = w; the anchor w is fixed during the round.
2. server: w = Σ n_i u_i / Σ n_i.

Deviations: no stragglers; every client does its E epochs. Momentum and Adam see the whole of ∇F_i(u) + μ (u - w).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from learn2pfed.algorithms.base import Message
from learn2pfed.algorithms.fedavg import FedAvg
from learn2pfed.algorithms.local import Local, LocalSettings, towards
from learn2pfed.algorithms.rounds import Nothing
from learn2pfed.search import Span


class FedProxSettings(LocalSettings):
    """μ of the paper was tuned among 0.001, 0.01, 0.1, 0.5, 1."""

    mu: Annotated[float, Span(1e-3, 1.0)] = Field(0.1, ge=0, description="μ, the pull to w; 0 is FedAvg")


class FedProx(FedAvg):
    """FedProx."""

    name = "fedprox"
    title = "FedProx"
    objective = "min Σ (n_i/n) F_i(w), clients on F_i(u) + (μ/2)‖u - w‖²"
    citation = "Li et al., MLSys 2020"
    settings: FedProxSettings
    settings_class = FedProxSettings

    def work(self, kept: Nothing, local: Local, heard: Message) -> tuple[Nothing, Message]:
        """Step 1."""
        w = heard["w"]
        batches = local.batches(self.settings.epochs)
        u, _ = local.descend(w, batches, self.optimizer, pull=towards(w, self.settings.mu))
        return kept, {"w": u}
