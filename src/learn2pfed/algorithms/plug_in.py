"""Learn2pFed as the paper has it for networks: cells on the head, which begins at any layer; the body trained with it.

Objective:  min over φ_i, v_i, w of  Σ_i p_i ( F_i(φ_i, v_i) + ½ z_iᵀ Λ_i z_i ),  z_i = v_i - w;  φ_i body, v_i head.

Update:
1. client: α_i ← α_i + θ_i (z_i - v_i + w)                                                      eq. (9)
   with the w that it was sent, then L cells, R batches dealt out over them:
   v_i ← v_i - lr_v (∇F_i(v_i; batch) + ρ_i (v_i - w - z_i - α_i)), and φ_i by its optimiser    eq. (14)
   z_i ← η_i / (Λ_i + η_i) (v_i - w - α_i)                                                      eq. (11)
2. client: Θ_i = {Λ, p, ρ, η, γ, θ} by Adam on the gradient of F_i at (φ_i, v_i^L) through the L cells, over the rows
   that are trained on (the paper's), or over rows that are set aside for it.
3. client sends c_i (v_i - z_i - α_i) and c_i = p_i γ_i; with `backbone` = shared also φ_i.
4. server: w = Σ c_i (v_i - z_i - α_i) / Σ c_i  eq. (12);  φ = Σ n_i φ_i / Σ n_i.

The personal model is (φ_i, v_i), with `backbone` = shared (φ, v_i).

Deviations: the w step is done once a round, so that a round costs one vector each way, as the paper counts, and so is
the α step: ten dual steps against a w that stands still throw the next w past the v_i. Who sits out stands in step 4
with what it last said. The slopes of F_i count as given where Θ_i is differentiated (first order), and so does w, which
leaves p and γ as they were.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, pairwise
from math import log
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from learn2pfed.algorithms.base import Message, Replies, Specs
from learn2pfed.algorithms.local import Local, Memory, Optimizer
from learn2pfed.algorithms.rounds import Rounds, mean_by_rows
from learn2pfed.algorithms.settings import RoundSettings
from learn2pfed.errors import Learn2pFedError
from learn2pfed.models.network import Network
from learn2pfed.search import Choice, Span
from learn2pfed.tasks import Task
from learn2pfed.unrolled.cell import State, Theta, alpha_step, contribution, v_gradient_step, z_step
from learn2pfed.unrolled.theta import THETA_MAX

Backbone = Literal["local", "shared"]
"""Whether only the head travels, or the body too."""


class PlugInSettings(RoundSettings):
    """The paper's: L = 10; ρ, η and γ start alike, p and θ at 1."""

    backbone: Backbone = Field("local", description="whether only the head travels, or the body too")
    set_aside: float = Field(0.0, ge=0, lt=1, description="share of a client's rows by which Θ is learned; 0: by all")
    n_steps: int = Field(20, ge=1, description="R, batches a round")
    n_cells: int = Field(10, ge=1, description="L, cells a round")
    head_lr: Annotated[float, Span(1e-3, 1.0)] = Field(0.1, gt=0, description="lr_v, step size of the v step")
    rho: Annotated[float, Span(1e-3, 1.0)] = Field(0.1, gt=0, description="ρ, η, γ at the start")
    lam: Annotated[float, Span(1e-3, 10.0)] = Field(1.0, gt=0, description="Λ at the start")
    theta_lr: Annotated[float, Choice((0.0, 0.01, 0.1))] = Field(0.01, ge=0, description="step size for Θ; 0: fixed")
    optimizer: Literal["sgd", "adam"] = Field("adam", description="of the body")
    lr: Annotated[float, Span(1e-4, 0.1)] = Field(0.001, gt=0, description="its step size")

    @classmethod
    def of_steps(cls, steps: int) -> dict[str, int]:
        """R."""
        return {"n_steps": steps}


class Kept(NamedTuple):
    """What a client keeps."""

    state: State  # α_i, v_i, z_i, each (H,)
    raw: Tensor  # (H + 5,): logarithms of Λ, p, ρ, η, γ, and the logit of θ / THETA_MAX
    memory: Memory  # of Θ's optimiser
    body: Tensor  # φ_i
    joined: Tensor  # (1,), whether it has taken part


class Server(NamedTuple):
    """What the server holds."""

    w: Tensor  # (φ, w), or w alone
    parts: Tensor  # (M, H), what each client last said: c_i (v_i - z_i - α_i)
    weights: Tensor  # (M, 1), and c_i; 0 before it said anything


def theta_of(raw: Tensor) -> Theta:
    """Θ_i, positive, θ_i bounded."""
    lam, (p, rho, eta, gamma) = raw[..., :-5].exp(), (raw[..., [place]].exp() for place in range(-5, -1))
    return Theta(lam, p, rho, eta, gamma, THETA_MAX * raw[..., [-1]].sigmoid())


class PlugIn(Rounds):
    """Learn2pFed, the paper's plug-in."""

    name = "plug-in"
    title = "Learn2pFed (paper)"
    objective = "min p_i (F_i(φ_i, v_i) + ½ z_iᵀΛ_i z_i), z_i = v_i - w"
    citation = "Lv et al., Learn What You Need in Personalized Federated Learning"
    settings: PlugInSettings
    settings_class = PlugInSettings

    def __init__(self, settings: RoundSettings, network: Network, task: Task) -> None:
        super().__init__(settings, network, task)
        if not network.head:
            raise Learn2pFedError("Learn2pFed's plug-in needs a network with a head: name it, or attach() one.")
        self.body, self.head = network.cut(network.start)
        self.shares_body = self.settings.backbone == "shared"
        self.trainer = Optimizer(self.settings.optimizer, self.settings.lr)
        self.learner = Optimizer("adam", self.settings.theta_lr)

    def begin(self) -> Kept:
        """z_i = α_i = 0, and v_i = w when it first hears it."""
        how, zero = self.settings, torch.zeros_like(self.head)
        own = (0.0, *[log(how.rho)] * 3, -log(THETA_MAX - 1))  # θ = THETA_MAX sigmoid(own) = 1
        raw = torch.cat([zero + log(how.lam), zero.new_tensor(own)])
        return Kept(State(zero, self.head, zero), raw, self.learner.fresh(raw), self.body, zero[:1])

    def opening(self, n_clients: int) -> Server:
        """(φ, w), or w alone."""
        parts = self.head.new_zeros(n_clients, len(self.head))
        return Server(self.network.start if self.shares_body else self.head, parts, parts[:, :1])

    def sends(self, server: Server) -> Specs:
        """c_i (v_i - z_i - α_i), c_i, and φ_i where it is shared."""
        sent = {"part": self.vector(len(self.head)), "weight": self.vector(1)}
        return sent | ({"body": self.vector(len(self.body))} if self.shares_body else {})

    def told(self, kept: Kept, local: Local, heard: Message) -> tuple[Tensor, Tensor]:
        """φ and w as the client hears them; its own φ_i where that stays at home."""
        if not self.shares_body:
            return kept.body, local.each(heard["w"])
        return self.network.cut(local.each(heard["w"]))

    def work(self, kept: Kept, local: Local, heard: Message) -> tuple[Kept, Message]:
        """Steps 1 to 3."""
        body, w = self.told(kept, local, heard)
        state = self.since_w(kept, w)
        seen = replace(local, set_aside=self.settings.set_aside)
        raw = kept.raw.detach().requires_grad_()
        theta = theta_of(raw)
        state, body = self.cells(seen, state, w, theta, body)
        slope = self.network.cut(seen.gradient_aside(self.network.join(body, state.v.detach())))[1]
        found = torch.autograd.grad(state.v, raw, slope, allow_unused=True, materialize_grads=True)[0]
        learned, memory = self.learner.step(kept.raw, found, kept.memory)
        state = State(*(tensor.detach() for tensor in state))
        part, weight = contribution(state, *(tensor.detach() for tensor in (theta.p, theta.gamma)))
        reply = {"part": part, "weight": weight} | ({"body": body} if self.shares_body else {})
        return Kept(state, learned, memory, body, torch.ones_like(kept.joined)), reply

    def since_w(self, kept: Kept, w: Tensor) -> State:
        """The client's state; who takes part for the first time begins at w."""
        return kept.state._replace(v=torch.where(kept.joined > 0, kept.state.v, w))

    def cells(self, local: Local, state: State, w: Tensor, theta: Theta, body: Tensor) -> tuple[State, Tensor]:
        """Step 1: the cells, and the body after them."""
        how, (alpha, v, z) = self.settings, state
        memory, batches = self.trainer.fresh(body), local.batches(steps=how.n_steps)
        ends = [how.n_steps * cell // how.n_cells for cell in range(how.n_cells + 1)]
        alpha = alpha_step(alpha, v, z, w, theta.theta)
        for begin, end in pairwise(ends):
            for batch in islice(batches, end - begin):
                down_body, down = self.network.cut(local.gradient(self.network.join(body, v.detach()), batch))
                body, memory = self.trainer.step(body, down_body, memory)
                v = self.v_step(v, w + z + alpha, theta.rho, down)
            z = z_step(alpha, v, w, theta.lam, theta.eta)
        return State(alpha, v, z), body

    def v_step(self, v: Tensor, target: Tensor, rho: Tensor, slope: Tensor) -> Tensor:
        """Eq. (14), the slope of F_i being given."""
        return v_gradient_step(v, target, rho, lambda _: slope, self.settings.head_lr)

    def gather(self, server: Server, t: int, replies: Replies) -> Server:
        """Step 4."""
        parts, weights = server.parts.clone(), server.weights.clone()
        for i, reply in replies.items():
            parts[i], weights[i] = reply["part"], reply["weight"]
        w = parts.sum(0) / weights.sum(0)
        whole = self.network.join(mean_by_rows(replies, "body"), w) if self.shares_body else w
        return Server(whole, parts, weights)

    def personal(self, kept: Kept, local: Local, heard: Message) -> Tensor:
        """(φ_i, v_i), or (φ, v_i)."""
        body, w = self.told(kept, local, heard)
        return self.network.join(body, self.since_w(kept, w).v)
