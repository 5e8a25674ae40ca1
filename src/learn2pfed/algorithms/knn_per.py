"""kNN-Per: Marfoq, Neglia, Kameni, Vidal, "Personalized Federated Learning through Local Memorization", ICML 2022,
https://arxiv.org/abs/2111.09360.

Objective:  w = argmin Σ_i (n_i / n) F_i(w);  client i predicts  λ_i q_i(x) + (1 - λ_i) softmax(score_w(x)).

Update:
1. rounds: as FedAvg.
2. client, at the end: keep (φ_w(x_j), y_j) of its own rows, φ_w being what the head of w receives. For x take the k
   nearest by Euclidean distance;  q(c) ∝ Σ over those with y_j = c of exp(-‖φ(x) - φ(x_j)‖² / (D σ)),  D the size of
   φ.

λ_i is that of 0, 0.01 .. 1 under which the rows that the client set aside from training are likeliest; `lam` where
these are fewer than 20, or where nothing is set aside.

Deviations: probabilities are mixed with probabilities (the authors' code mixes in raw scores by default, and sweeps λ
on test data). The whole of a client's rows is its store, those set aside included.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from learn2pfed.algorithms.base import Message
from learn2pfed.algorithms.fedavg import FedAvg
from learn2pfed.algorithms.local import Local, LocalSettings
from learn2pfed.algorithms.rounds import Nothing
from learn2pfed.data.federated import ClientData, Samples
from learn2pfed.errors import Learn2pFedError
from learn2pfed.search import Choice, Span

GRID = 101
"""Values of λ between 0 and 1 among which a client chooses."""

ENOUGH = 20
"""Rows set aside by which a client may choose."""


class KNNPerSettings(LocalSettings):
    """k = 10 and σ = 1 in the paper, and a fifth of the rows for choosing λ."""

    k: Annotated[int, Choice((3, 5, 7, 10))] = Field(10, ge=1, description="k, neighbours, or all rows if fewer")
    sigma: Annotated[float, Span(0.1, 10.0)] = Field(1.0, gt=0, description="σ, how far a neighbour speaks")
    set_aside: float = Field(0.2, ge=0, lt=1, description="share of a client's rows by which it chooses its λ; 0: none")
    lam: Annotated[float, Choice((0.2, 0.4, 0.6, 0.8))] = Field(
        0.5, ge=0, le=1, description="λ, the weight of neighbours, where a client does not choose; 0 is FedAvg"
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

    def check(self, data: Samples | ClientData) -> None:
        """The head must come off the network."""
        super().check(data)
        X = data.X[:2]
        try:
            sound = self.network.features(self.network.start, X).shape[:-1] == X.shape[:1]
        except Exception:  # whatever a module of one's own may raise without its head
            sound = False
        if not sound:
            raise Learn2pFedError(
                "kNN-Per needs what the head of the network receives, a row for each sample, and there is no head of "
                "one layer that can be taken off: name the last layer as its head, or leave kNN-Per out."
            )

    def work(self, kept: Nothing, local: Local, heard: Message) -> tuple[Nothing, Message]:
        """Step 1, without the rows set aside."""
        return super().work(kept, replace(local, set_aside=self.settings.set_aside), heard)

    def scores(self, model: Tensor, local: Local, X: Tensor) -> Tensor:
        """Step 2: the logarithm of the mixture."""
        seen, aside = replace(local, set_aside=self.settings.set_aside).split(0)
        lam = self.settings.lam
        if len(aside) >= ENOUGH:
            lam = self.chosen(self.both(model, local, seen, local.X[aside]), local.y[aside])
        near, own = self.both(model, local, np.concatenate([seen, aside]), X)
        return (lam * near + (1 - lam) * own).clamp(min=torch.finfo(own.dtype).tiny).log()

    def both(self, model: Tensor, local: Local, store: NDArray[np.int64], X: Tensor) -> tuple[Tensor, Tensor]:
        """q(x) from the rows in the store, and softmax(score_w(x))."""
        known, wanted = (
            self.network.in_parts(self.network.features, model, samples).flatten(1) for samples in (local.X[store], X)
        )
        search = NearestNeighbors(n_neighbors=min(self.settings.k, len(store))).fit(known.numpy())
        distance, place = (torch.from_numpy(found) for found in search.kneighbors(wanted.numpy()))
        weight = (-distance.square() / (known.shape[1] * self.settings.sigma)).softmax(-1).to(known.dtype)
        q = weight.new_zeros(len(X), self.task.n_outputs).scatter_add(1, local.y[store][place], weight)
        return q, self.network.in_parts(self.network.scores, model, X).softmax(-1)

    @staticmethod
    def chosen(both: tuple[Tensor, Tensor], labels: Tensor) -> float:
        """The λ under which these rows are likeliest."""
        near, own = (found.gather(1, labels[:, None])[:, 0] for found in both)
        grid = torch.linspace(0, 1, GRID, dtype=near.dtype)[:, None]
        likely = (grid * near + (1 - grid) * own).clamp(min=torch.finfo(near.dtype).tiny).log().sum(-1)
        return float(grid[likely.argmax()])
