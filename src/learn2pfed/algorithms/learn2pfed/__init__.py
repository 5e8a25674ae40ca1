"""Learn2pFed: Lv, Ye, Huang, Yang, Chen, "Learn What You Need in Personalized Federated Learning", Algorithm 1.

Objective:  min over v, w of  Σ_i p_i ( F_i(v_i) + ½ (v_i - w)ᵀ Λ_i (v_i - w) ),  with Θ = {Λ, p, ρ, η, γ, θ} learned by
gradients through L unrolled ADMM cells.

The conversation, an epoch:

1. `epoch`    server → client: the common log Λ.
2. `cell`     for ℓ = 1 .. L, server → client: w of cell ℓ-1; client: α, v, z by eq. (9)-(11);
              client → server: its half of eq. (12).
3. `loss`     client → server: F_i on the rows that judge.
4. `adjoint`  for ℓ = L .. 1, server → client: the adjoint of eq. (12); client: the vector-Jacobian product of its own
              cell; client → server: its part of the adjoint of w of cell ℓ-1. Not with `gradient = local`.
5. `learn`    each client moves its own Θ; client → server: its part of the gradient by the common log Λ.

Before: `describe` (Σ XᵀX, for units) and `prepare`. After, on all training rows: `refit` and cells until w rests; or,
with `refit = exact` and squared loss, `system` (client → server: p_i Λ_i (A_i + Λ_i)⁻¹ [A_i, b_i]) and `solution`
(server → client: w). Where there are more than `n_learners` clients and only a common Λ is learned, steps 1-5 are with
a draw of them. The server uses nothing but sums over clients.

Deviations from the paper: gradients run through w into the other clients by adjoint messages (the sum of losses that
the paper sends is a number and has no gradient); p and γ live with their client, which sends c_i (v_i - z_i - α_i) and
c_i = p_i γ_i.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from learn2pfed.algorithms.base import Conversation, Fused, Message, Outcome, Programme, Progress, Specs
from learn2pfed.algorithms.learn2pfed.client import Client, ClientState
from learn2pfed.algorithms.learn2pfed.server import Server
from learn2pfed.algorithms.learn2pfed.wording import Sizes, broadcasts, talks
from learn2pfed.data.federated import ClientData, FederatedData, Streamed
from learn2pfed.errors import Learn2pFedError, MessageError
from learn2pfed.unrolled.losses import SQUARED, ClientLoss, Family, Squared
from learn2pfed.unrolled.settings import Settings
from learn2pfed.unrolled.supervision import learners_of, supervise, units
from learn2pfed.unrolled.theta import start_common, start_own
from learn2pfed.unrolled.training import invite, learn, refit


class Learn2pFed(Conversation[ClientState], Fused):
    """The conversation above; `fused` computes the same in one autograd graph."""

    name = "learn2pfed"
    objective = "min Σ p_i ( F_i(v_i) + ½ (v_i - w)ᵀ Λ_i (v_i - w) ), Λ and the solver's settings learned"
    citation = "Lv et al., Learn What You Need in Personalized Federated Learning"

    def __init__(self, settings: Settings, family: Family[ClientLoss] = SQUARED) -> None:
        for name, value, instead in (("refit", "exact", "cells"), ("objective", "predictive", "profiled")):
            if getattr(settings, name) == value and not isinstance(family, Squared):
                raise Learn2pFedError(f"{name} = {value!r} needs squared loss: use {name} = {instead!r}.")
        self.settings = settings
        self.family = family
        self.client = Client(settings, family)

    def sizes(self, n_splits: int, n_features: int) -> Sizes:
        """What the shapes of messages depend on."""
        return Sizes(n_splits, n_features, self.family.n_parameters(n_features))

    def enter(self, index: int, data: ClientData) -> ClientState:
        """The client's state before the first message."""
        return self.client.enter(index, data)

    def expects(self, kind: str, state: ClientState) -> Specs:
        """What the server says, by kind."""
        known = broadcasts(self.settings, self.sizes(state.now.v.shape[0], len(state.scale)))
        if kind not in known:
            raise MessageError(f"a message of kind {kind!r} came where {', '.join(known)} are known.")
        return known[kind]

    def handle(
        self, kind: str, state: ClientState, data: ClientData, broadcast: Message
    ) -> tuple[ClientState, Message]:
        """Answer one message; the rows themselves are not needed any more."""
        return self.client.handle(kind, state, broadcast)

    def model(self, state: ClientState) -> Tensor:
        """v_i in the units of the data."""
        return self.client.model(state)

    def insight(self, state: ClientState) -> Mapping[str, Tensor]:
        """The Λ_i that the final model obeys, and where Λ started."""
        return self.client.insight(state)

    def programme(self, n_clients: int, n_features: int, progress: Progress | None) -> Programme:
        """Algorithm 1, the server's side."""
        return Server(self.settings, self.family, n_features).programme(n_clients, progress)

    def fused(self, data: FederatedData | Streamed, progress: Progress | None) -> Outcome:
        """All clients in one autograd graph."""
        settings, family = self.settings, self.family
        learners = learners_of(settings, range(len(data)))
        everyone = len(learners) == len(data)
        given = supervise(data if everyone else data.subset(learners), settings, family, learners)
        full = given.full if everyone else supervise(data, settings.changed(supervision="train"), family).full
        scale, conditioning = units(settings, full.gram.sum((0, 1)), len(data))
        learned = learn(given.scaled(scale), settings, conditioning, progress, family.is_likelihood)
        full = full.scaled(scale)
        if not everyone:
            learned = invite(learned, learners, full, start_own(settings, full, conditioning))
        final = refit(full, settings, learned)
        unit = family.by_parameter(scale)
        start = start_common(settings, len(unit))[-1].exp() * unit.square()
        insight = {"lam": final.lam * unit.square(), "lam_start": start.expand(final.lam.shape)}
        sizes = self.sizes(settings.n_splits, data.n_features)
        said = talks(settings, sizes, len(data), len(learners), final.n_cells)
        return Outcome(final.v / unit, final.w / unit, learned.history, insight, talks=said)
