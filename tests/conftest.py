"""Small problems that the tests share. One thread each: two test processes run at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from learn2pfed.data.federated import FederatedData
from learn2pfed.unrolled.cell import State, Theta
from learn2pfed.unrolled.losses import SquaredLoss

torch.set_num_threads(1)


class Problem:
    """Random clients with S splits, M clients, k features."""

    def __init__(self, seed: int = 0, S: int = 2, M: int = 3, k: int = 4, n: int = 7) -> None:
        g = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=g, dtype=torch.float64)

        self.X, self.y = draw(S, M, n, k), draw(S, M, n)
        self.loss = SquaredLoss(
            self.X.mT @ self.X,
            (self.X.mT @ self.y[..., None])[..., 0],
            self.y.square().sum(-1),
            torch.full((S, M), float(n), dtype=torch.float64),
        )
        self.state = State(draw(S, M, k), draw(S, M, k), draw(S, M, k))
        self.w = draw(S, k)
        self.theta = Theta(draw(M, k).exp(), *(draw(M, 1).mul(0.3).exp() for _ in range(5)))


@pytest.fixture
def problem() -> Problem:
    return Problem()


def random_data(
    seed: int = 0, M: int = 4, k: int = 3, n: int = 20, spread: float = 0.3, sizes: list[int] | None = None
) -> FederatedData:
    """Clients whose coefficients scatter around common ones."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=k)
    rows = []
    for i in range(M):
        n_i = n if sizes is None else sizes[i]
        X = rng.normal(size=(n_i, k))
        X[:, 0] = 1.0
        rows.append((f"c{i}", X, X @ (w + spread * rng.normal(size=k)) + 0.2 * rng.normal(size=n_i)))
    return FederatedData.build(rows)


def random_labels(n_classes: int, sizes: list[int], seed: int = 0, spread: float = 0.5) -> FederatedData:
    """The same with classes in place of numbers: each client's own softmax around a common one."""
    rng = np.random.default_rng(seed)
    w = 2 * rng.normal(size=(3, n_classes))
    rows = []
    for i, n in enumerate(sizes):
        X = rng.normal(size=(n, 3))
        X[:, 0] = 1.0
        score = X @ (w + spread * rng.normal(size=w.shape)) + rng.gumbel(size=(n, n_classes))
        rows.append((f"c{i}", X, score.argmax(1).astype(float)))
    return FederatedData.build(rows)
