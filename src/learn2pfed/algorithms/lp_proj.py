"""lp-proj: Lin, Han, Li, Zhang, "Personalized Federated Learning towards Communication Efficiency, Robustness and
Fairness", NeurIPS 2022, authors' code https://github.com/desternylin/perfed.

Objective:  min over w in R^d of (1/M) Σ_i min over v_i of F_i(v_i) + λ ρ(P v_i - w),  with a fixed random P, d x D,
shared by all, and ρ = ‖·‖₁ (p = 1) or ½ ‖·‖² (p = 2).

Update, R times at each client:
1. K steps, each on a new batch:  v_i -= α (clip ∇f(v_i) + λ Pᵀ ∂ρ(P v_i - w_i)),  from its own v_i;
2. w_i += η λ ∂ρ(P v_i - w_i),  from w_i = w. Sends w_i, d numbers.
3. server: w = (1 - β) w + β mean of w_i, uniform.

The personal model is v_i. A client that never took part has the common start.

Deviations: P comes from the seed and is not sent. All clients start alike (in the authors' code each has its own
start), and only those drawn train. For p = 2 both steps use the same ρ (theirs use two).
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from learn2pfed.algorithms.base import Message, Replies, Specs
from learn2pfed.algorithms.local import Local
from learn2pfed.algorithms.rounds import Rounds, Server, part_way
from learn2pfed.algorithms.settings import RoundSettings
from learn2pfed.errors import Learn2pFedError
from learn2pfed.models.network import Network
from learn2pfed.search import Choice, Span
from learn2pfed.tasks import Task

PROJECTION = 4
"""Keeps the draw of P apart from other draws."""


class LpProjSettings(RoundSettings):
    """The authors' R, K, d, β; λ and η fit their models and must be tuned for others."""

    lam: Annotated[float, Span(1e-4, 1.0)] = Field(0.01, ge=0, description="λ, the pull to w; 0 is Local-Only")
    alpha: Annotated[float, Span(3e-3, 5e-1)] = Field(0.05, gt=0, description="α, step size of v_i")
    eta: Annotated[float, Span(1e-2, 10.0)] = Field(0.1, gt=0, description="η, step size of w_i")
    beta: float = Field(1.0, gt=0, description="β, how far the server follows")
    p: Annotated[Literal[1, 2], Choice((1, 2))] = Field(1, description="ρ = ‖·‖₁ (1) or ½‖·‖² (2)")
    n_projected: int = Field(10, ge=1, description="d, the size of w")
    n_local: int = Field(5, ge=1, description="R, steps of w_i a round")
    n_inner: int = Field(20, ge=1, description="K, steps of v_i before each")
    clip: float = Field(60.0, gt=0, description="largest norm of the loss's gradient")

    @classmethod
    def of_steps(cls, steps: int) -> dict[str, int]:
        """R and K: two steps of w_i where the number is even."""
        n_local = 2 if steps % 2 == 0 else 1
        return {"n_local": n_local, "n_inner": steps // n_local}


class Kept(NamedTuple):
    """v_i."""

    v: Tensor


class LpProj(Rounds):
    """lp-proj."""

    name = "lp-proj"
    title = "lp_proj"
    objective = "min (1/M) Σ min F_i(v_i) + λ ρ(P v_i - w), w of few numbers"
    citation = "Lin et al., NeurIPS 2022"
    settings: LpProjSettings
    settings_class = LpProjSettings

    def __init__(self, settings: RoundSettings, network: Network, task: Task) -> None:
        super().__init__(settings, network, task)
        if self.settings.n_projected > network.n_parameters:
            most = network.n_parameters
            raise Learn2pFedError(f"n_projected = {self.settings.n_projected} is more than the network has: {most}.")

    @cached_property
    def P(self) -> Tensor:  # noqa: N802
        """d rows of N(0, 1), each scaled to length 1."""
        rng = np.random.default_rng([self.settings.seed, PROJECTION])
        drawn = rng.standard_normal((self.settings.n_projected, self.network.n_parameters))
        return torch.from_numpy(drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).to(self.network.dtype)

    def begin(self) -> Kept:
        """v_i = the common start."""
        return Kept(self.network.start)

    def opening(self, n_clients: int) -> Server:
        """w = 0."""
        return Server(self.network.start.new_zeros(self.settings.n_projected))

    def sends(self, server: Server) -> Specs:
        """w_i."""
        return {"w": self.vector(self.settings.n_projected)}

    def slope(self, v: Tensor, w: Tensor) -> Tensor:
        """∂ρ(P v - w)."""
        gap = v @ self.P.T - w
        return gap.sign() if self.settings.p == 1 else gap

    def work(self, kept: Kept, local: Local, heard: Message) -> tuple[Kept, Message]:
        """Steps 1 and 2."""
        how, v, w = self.settings, kept.v, local.each(heard["w"])
        for s, batch in enumerate(local.batches(steps=how.n_local * how.n_inner), start=1):
            gradient = local.gradient(v, batch)
            gradient = gradient * (how.clip / gradient.norm(dim=-1, keepdim=True).clamp(min=how.clip))
            v = v - how.alpha * (gradient + how.lam * self.slope(v, w) @ self.P)
            if s % how.n_inner == 0:
                w = w + how.eta * how.lam * self.slope(v, w)
        return Kept(v), {"w": w}

    def gather(self, server: Server, t: int, replies: Replies) -> Server:
        """Step 3."""
        return Server(part_way(server.w, replies, self.settings.beta))

    def personal(self, kept: Kept, local: Local, heard: Message) -> Tensor:
        """v_i."""
        return kept.v
