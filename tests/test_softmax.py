"""Classification: the loss, its derivatives, the v step in Böhning's metric, Newton's method, learning Λ with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from learn2pfed.algorithms.learn2pfed import Learn2pFed
from learn2pfed.data.federated import FederatedData
from learn2pfed.engines.simulation import run_simulation
from learn2pfed.unrolled.cell import Theta
from learn2pfed.unrolled.network import forward, zero_state
from learn2pfed.unrolled.settings import Settings
from learn2pfed.unrolled.softmax import Softmax, SoftmaxLoss
from tests.conftest import random_labels

SIZES = [6, 1, 13, 30]
RIDGE = (0.0, 0.2, 0.05)


def loss_of(n_classes: int, n_splits: int = 1) -> SoftmaxLoss:
    data = random_labels(n_classes, SIZES)
    weight = torch.ones(n_splits, len(data.y), dtype=torch.float64)
    weight[1:] = torch.from_numpy(np.random.default_rng(1).integers(0, 3, weight[1:].shape)).double()
    return Softmax(n_classes, RIDGE).loss(data, weight)


def by_hand(n_classes: int, i: int, v: Tensor) -> Tensor:
    """F_i by the book, for one split and all rows counting once."""
    client = random_labels(n_classes, SIZES).clients[i]
    scores = client.X @ v.view(-1, 3).T
    if n_classes == 2:
        scores = torch.cat([torch.zeros_like(scores), scores], 1)
    nll = torch.nn.functional.cross_entropy(scores, client.y.long(), reduction="sum")
    ridge = torch.tensor(RIDGE, dtype=torch.float64).repeat(len(v) // 3)
    return nll + 0.5 * client.n_rows * (ridge * v.square()).sum()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_value_gradient_and_hessian_are_those_of_the_book(n_classes: int) -> None:
    loss = loss_of(n_classes)
    v = torch.randn(loss.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert loss.shape[-1] == Softmax(n_classes, RIDGE).n_parameters(3) == (3 if n_classes == 2 else 9)
    for i in range(len(SIZES)):
        at = v[0, i].clone().requires_grad_()
        (slope,) = torch.autograd.grad(by_hand(n_classes, i, at), at)
        torch.testing.assert_close(loss.value(v)[0, i], by_hand(n_classes, i, v[0, i]))
        torch.testing.assert_close(loss.gradient(v)[0, i], slope)
        torch.testing.assert_close(
            loss.hessian(v)[0, i], torch.autograd.functional.hessian(lambda at, i=i: by_hand(n_classes, i, at), v[0, i])
        )
    torch.testing.assert_close(loss.zero, loss.value(torch.zeros_like(v)))
    blocks = loss.hessian(torch.zeros_like(v))[0, :, :3, :3] - torch.diag_embed(
        loss.n[0, :, None] * torch.tensor(RIDGE, dtype=torch.float64)
    )
    torch.testing.assert_close(loss.gram[0], blocks)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_splits_count_rows_as_often_as_they_say(n_classes: int) -> None:
    loss = loss_of(n_classes, n_splits=3)
    v = torch.randn(loss.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    total = torch.zeros(3, len(SIZES), dtype=torch.float64)
    for part in loss.rows:
        for s in range(3):
            for m, i in enumerate(part.clients.tolist()):
                scores = part.X[m] @ v[s, i].view(-1, 3).T
                if n_classes == 2:
                    scores = torch.cat([torch.zeros_like(scores), scores], 1)
                label = part.Y[m, :, 0, 0].long() if n_classes == 2 else part.Y[m, :, 0].argmax(-1)
                nll = torch.nn.functional.cross_entropy(scores, label, reduction="none")
                total[s, i] += (part.weight[m, :, s, 0] * nll).sum()
    ridge = torch.tensor(RIDGE, dtype=torch.float64).repeat(v.shape[-1] // 3)
    total += 0.5 * loss.n * (ridge * v.square()).sum(-1)
    torch.testing.assert_close(loss.value(v), total)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_the_v_step_lowers_h_from_anywhere(n_classes: int) -> None:
    loss = loss_of(n_classes, n_splits=2)
    g = torch.Generator().manual_seed(3)
    rho = torch.tensor([[0.1], [5.0], [1.0], [0.01]], dtype=torch.float64)
    for size in (0.1, 1.0, 20.0):
        v, target = (size * torch.randn(loss.shape, generator=g, dtype=torch.float64) for _ in range(2))

        def h(at: Tensor, target: Tensor = target) -> Tensor:
            return loss.value(at) + 0.5 * rho.squeeze(-1) * (at - target).square().sum(-1)

        assert (h(loss.v_step(v, target, rho)) < h(v)).all()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_newton_finds_what_scipy_finds(n_classes: int) -> None:
    loss = loss_of(n_classes)
    g = torch.Generator().manual_seed(2)
    lam = torch.rand(loss.shape[1:], generator=g, dtype=torch.float64) + 0.01
    w = torch.randn(1, loss.shape[-1], generator=g, dtype=torch.float64)
    found = loss.follow(lam, w)
    for i in range(len(SIZES)):

        def objective(x: np.ndarray, i: int = i) -> tuple[float, np.ndarray]:
            at = torch.tensor(x, requires_grad=True)
            value = by_hand(n_classes, i, at) + 0.5 * (lam[i] * (at - w[0]).square()).sum()
            (slope,) = torch.autograd.grad(value, at)
            return value.item(), slope.numpy()

        best = minimize(objective, np.zeros(loss.shape[-1]), jac=True, tol=1e-12)
        np.testing.assert_allclose(found[0, i], best.x, atol=2e-5)


def test_few_hessians_at_a_time_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = loss_of(3)
    lam, w = torch.full((9,), 0.3, dtype=torch.float64), torch.zeros(1, 9, dtype=torch.float64)
    whole = loss.follow(lam, w)
    monkeypatch.setattr("learn2pfed.unrolled.losses.HESSIANS", 100)
    assert [len(clients) for clients, _ in loss.parts()] == [1] * len(SIZES)
    torch.testing.assert_close(loss.follow(lam, w), whole)


def test_newton_survives_separable_and_huge_features() -> None:
    loss = loss_of(2).scaled(torch.tensor([1.0, 1e-3, 1.0], dtype=torch.float64))
    v = loss.follow(torch.full((3,), 1e-6, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64))
    slope = loss.gradient(v) + 1e-6 * v
    assert slope.abs().max() < 1e-6


def test_many_cells_solve_the_joint_problem() -> None:
    """At the fixed point: ∇F_i(v_i) + Λ(v_i - w) = 0 for each client, and Σ Λ(v_i - w) = 0."""
    loss = loss_of(3)
    M, P = loss.shape[1:]
    ones = torch.ones(M, 1, dtype=torch.float64)
    theta = Theta(torch.full((M, P), 0.5, dtype=torch.float64), *(ones for _ in range(5)))
    state, w = forward(loss, [theta] * 6000, zero_state(1, M, P), torch.zeros(1, P, dtype=torch.float64))
    pull = 0.5 * (state.v - w[:, None])
    assert (loss.gradient(state.v) + pull).abs().max() < 1e-8
    assert pull.sum(1).abs().max() < 1e-8
    torch.testing.assert_close(loss.follow(theta.lam, w), state.v, atol=1e-7, rtol=0)


def test_held_out_rows_tell_which_parameters_are_shared() -> None:
    """Clients share their slopes and differ in the level; the learned Λ is smallest for the level."""
    rng = np.random.default_rng(5)
    rows = []
    for i in range(30):
        X = np.column_stack([np.ones(40), rng.normal(size=(40, 2))])
        chance = 1 / (1 + np.exp(-X @ [1.5 * rng.normal(), 1.0, -1.0]))
        rows.append((str(i), X, (rng.uniform(size=40) < chance).astype(float)))
    outcome = run_simulation(
        Learn2pFed(Settings(n_repeats=3, n_epochs=150), Softmax(2, (0.0, 1e-3, 1e-3))), FederatedData.build(rows)
    )
    lam = outcome.insight["lam"][0]
    assert lam[0] < 0.2 * lam[1:].min()
    assert outcome.history[-1] < outcome.history[10]
