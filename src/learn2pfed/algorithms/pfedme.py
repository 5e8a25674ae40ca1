"""pFedMe: Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020,
https://arxiv.org/abs/2006.08848.

Objective:  min over w of (1/M) Σ_i min over θ_i of F_i(θ_i) + (λ/2) ‖θ_i - w‖².

Update:
1. client: w_i = θ = w. For each of R batches: K steps  θ -= α (∇f(θ; batch) + λ (θ - w_i)),  on that batch, θ going
   on from where it was;
2. then  w_i -= η λ (w_i - θ). Sends w_i.
3. server: w = (1 - β) w + β mean of w_i, uniform.

The personal model is θ, not w_i and not w. Every client, also one that never took part, gets it by steps 1 and 2 from
the last w.

Deviations: the authors' code trains all clients in every round and averages some, scores w_i, and weights by rows;
here only those drawn train, θ is scored as in the paper, and the mean is the paper's. Their hidden weight decay is a
setting.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from learn2pfed.algorithms.base import Message, Replies
from learn2pfed.algorithms.local import Local
from learn2pfed.algorithms.rounds import Nothing, Rounds, Server, part_way
from learn2pfed.algorithms.settings import RoundSettings
from learn2pfed.search import Choice, Span


class PFedMeSettings(RoundSettings):
    """α and η of the authors' tuned network, the rest of their code; keep η λ up to 1 and α (λ + curvature) below 2."""

    lam: Annotated[float, Span(0.1, 30.0)] = Field(15.0, ge=0, description="λ, the pull between θ_i and w")
    alpha: Annotated[float, Span(3e-3, 5e-1)] = Field(0.05, gt=0, description="α, step size of θ")
    eta: Annotated[float, Span(3e-3, 5e-1)] = Field(0.01, gt=0, description="η, step size of w_i")
    beta: Annotated[float, Choice((1.0, 2.0))] = Field(1.0, gt=0, description="β, how far the server follows")
    n_inner: Annotated[int, Choice((3, 5, 7))] = Field(5, ge=1, description="K, steps of θ on a batch")
    n_batches: int = Field(20, ge=1, description="R, batches a round")
    weight_decay: float = Field(0.0, ge=0, description="of θ; 0.001 in the authors' code")

    @classmethod
    def of_steps(cls, steps: int) -> dict[str, int]:
        """R."""
        return {"n_batches": steps}


class PFedMe(Rounds):
    """pFedMe."""

    name = "pfedme"
    title = "pFedMe"
    objective = "min (1/M) Σ min F_i(θ_i) + (λ/2)‖θ_i - w‖²"
    citation = "Dinh et al., NeurIPS 2020"
    settings: PFedMeSettings
    settings_class = PFedMeSettings

    def solve(self, local: Local, w: Tensor) -> tuple[Tensor, Tensor]:
        """θ and w_i after steps 1 and 2."""
        how = self.settings
        theta = w_i = local.each(w)
        for batch in local.batches(steps=how.n_batches):
            for _ in range(how.n_inner):
                gradient = local.gradient(theta, batch)
                theta = theta - how.alpha * (gradient + how.lam * (theta - w_i) + how.weight_decay * theta)
            w_i = w_i - how.eta * how.lam * (w_i - theta)
        return theta, w_i

    def work(self, kept: Nothing, local: Local, heard: Message) -> tuple[Nothing, Message]:
        """Steps 1 and 2."""
        return kept, {"w": self.solve(local, heard["w"])[1]}

    def gather(self, server: Server, t: int, replies: Replies) -> Server:
        """Step 3."""
        return Server(part_way(server.w, replies, self.settings.beta))

    def personal(self, kept: Nothing, local: Local, heard: Message) -> Tensor:
        """θ."""
        return self.solve(local, heard["w"])[0]
