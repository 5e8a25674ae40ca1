"""kNN-Per: Marfoq, Neglia, Kameni, Vidal, "Personalized Federated Learning through Local Memorization", ICML 2022,
https://arxiv.org/abs/2111.09360.

Objective:  w = argmin Σ_i (n_i / n) F_i(w);  client i predicts  λ_i q_i(x) + (1 - λ_i) softmax(score_w(x)).

Update:
1. rounds: as FedAvg.
2. client, at the end: keep (φ_w(x_j), y_j) of its own rows, φ_w being what the head of w receives. For x take the k
   nearest by Euclidean distance;  q(c) ∝ Σ over those with y_j = c of exp(-‖φ(x) - φ(x_j)‖² / (D σ)),  D the size of
   φ.

Deviations: probabilities are mixed with probabilities (the authors' code mixes in raw scores by default). λ is a
number for all, or, with `lam = none`, each client's own: that which makes its own rows likeliest, each row judged
without itself.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from learn2pfed.algorithms.fedavg import FedAvg
from learn2pfed.algorithms.local import Local, LocalSettings
from learn2pfed.search import Choice, Span

GRID = 101
"""Values of λ between 0 and 1 among which a client chooses."""


class KNNPerSettings(LocalSettings):
    """k = 10 and σ = 1 in the paper."""

    k: Annotated[int, Choice((3, 5, 7, 10))] = Field(10, ge=1, description="k, neighbours, or all rows if fewer")
    sigma: Annotated[float, Span(0.1, 10.0)] = Field(1.0, gt=0, description="σ, how far a neighbour speaks")
    lam: Annotated[float | None, Choice((None, 0.2, 0.4, 0.6, 0.8))] = Field(
        None, ge=0, le=1, description="λ, the weight of neighbours; 0 is FedAvg; none: chosen by each client"
    )


class KNNPer(FedAvg):
    """kNN-Per."""

    name = "knn-per"
    title = "kNN-Per"
    objective = "λ kNN_i(φ_w(x)) + (1 - λ) softmax_w(x), w by FedAvg"
    citation = "Marfoq et al., ICML 2022"
    only_classification = True
    scores_alone = True
    settings: KNNPerSettings
    settings_class = KNNPerSettings

    def scores(self, model: Tensor, local: Local, X: Tensor) -> Tensor:
        """Step 2: the logarithm of the mixture."""
        known, labels = local.rows
        store = self.network.features(model, known)
        lam = self.settings.lam
        if lam is None:
            lam = self.chosen(store, labels, self.network.scores(model, known))
        if lam == 0:
            return self.network.scores(model, X)
        near = self.neighbours(store, labels, self.network.features(model, X), alone=False)
        mixed = lam * near + (1 - lam) * self.network.scores(model, X).softmax(-1)
        return mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log()

    def neighbours(self, store: Tensor, labels: Tensor, wanted: Tensor, *, alone: bool) -> Tensor:
        """q(c) for each row wanted; `alone`: the rows are those of the store, each judged without itself."""
        search = NearestNeighbors(n_neighbors=min(self.settings.k, len(store) - alone)).fit(store.numpy())
        found = search.kneighbors(None if alone else wanted.numpy())
        distance, place = torch.from_numpy(found[0]).to(store.dtype), torch.from_numpy(found[1])
        weight = (-distance.square() / (store.shape[-1] * self.settings.sigma)).softmax(-1)
        q = weight.new_zeros(len(wanted), self.task.n_outputs)
        return q.scatter_add(1, labels[place], weight)

    def chosen(self, store: Tensor, labels: Tensor, scores: Tensor) -> float:
        """The λ under which the client's own rows are likeliest; 0.5 where there is only one."""
        if len(store) < 2:
            return 0.5
        rows = torch.arange(len(store))
        near = self.neighbours(store, labels, store, alone=True)[rows, labels]
        own = scores.softmax(-1)[rows, labels]
        grid = torch.linspace(0, 1, GRID, dtype=near.dtype)[:, None]
        likely = (grid * near + (1 - grid) * own).clamp(min=torch.finfo(near.dtype).tiny).log().sum(-1)
        return float(grid[likely.argmax()])
