"""Each equation against the sub-problem that it minimises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from learn2pfed.unrolled.cell import (
    State,
    Theta,
    alpha_step,
    augmented_lagrangian,
    cell,
    client_cell,
    contribution,
    v_gradient_step,
    w_step,
    z_step,
)
from learn2pfed.unrolled.losses import DifferentiableLoss
from tests.conftest import Problem


def test_alpha_is_the_paper_s_dual_step(problem: Problem) -> None:
    s, w, t = problem.state, problem.w, problem.theta.theta
    expected = s.alpha + t * (s.z - s.v + w[:, None, :])
    torch.testing.assert_close(alpha_step(s.alpha, s.v, s.z, w, t), expected)


def test_v_minimises_its_subproblem(problem: Problem) -> None:
    target, rho = problem.state.z, problem.theta.rho
    v = problem.loss.v_step(problem.state.v, target, rho).requires_grad_()
    residual = (problem.X @ v[..., None])[..., 0] - problem.y
    value = 0.5 * residual.square().sum() + 0.5 * (rho * (target - v).square()).sum()
    (slope,) = torch.autograd.grad(value, v)
    assert slope.abs().max() < 1e-12

    X, y = problem.X[0, 0].numpy(), problem.y[0, 0].numpy()
    found = minimize(
        lambda u: 0.5 * ((X @ u - y) ** 2).sum() + 0.5 * float(rho[0]) * ((target[0, 0].numpy() - u) ** 2).sum(),
        np.zeros(4),
        tol=1e-14,
    )
    np.testing.assert_allclose(v.detach()[0, 0].numpy(), found.x, atol=1e-6)


def test_z_minimises_its_subproblem(problem: Problem) -> None:
    s, w, t = problem.state, problem.w, problem.theta
    z = z_step(s.alpha, s.v, w, t.lam, t.eta).requires_grad_()
    gap = z - s.v + w[:, None, :] + s.alpha
    value = 0.5 * (t.lam * z.square()).sum() + 0.5 * (t.eta * gap.square()).sum()
    (slope,) = torch.autograd.grad(value, z)
    assert slope.abs().max() < 1e-12


def test_w_minimises_its_subproblem(problem: Problem) -> None:
    s, t = problem.state, problem.theta
    total, c = contribution(s, t.p, t.gamma)
    w = w_step(total.sum(-2), c.sum(-2)).requires_grad_()
    gap = s.z - s.v + w[:, None, :] + s.alpha
    (slope,) = torch.autograd.grad((t.p * t.gamma * gap.square()).sum(), w)
    assert slope.abs().max() < 1e-12


def test_v_z_and_w_minimise_the_augmented_lagrangian(problem: Problem) -> None:
    """With η = γ = ρ the three steps are block minimisers of one function, as ADMM has it."""
    t = problem.theta._replace(eta=problem.theta.rho, gamma=problem.theta.rho)

    def slope(state: State, w: Tensor, of: Tensor) -> Tensor:
        return torch.autograd.grad(augmented_lagrangian(problem.loss, state, w, t).sum(), of)[0].abs().max()

    after = client_cell(problem.loss, problem.state, problem.w, t)
    v = after.v.requires_grad_()
    assert slope(State(after.alpha, v, problem.state.z), problem.w, v) < 1e-12
    z = after.z.detach().requires_grad_()
    assert slope(State(after.alpha, after.v.detach(), z), problem.w, z) < 1e-12
    state, w = cell(problem.loss, problem.state, problem.w, t)
    w = w.requires_grad_()
    assert slope(State(*(part.detach() for part in state)), w, w) < 1e-12


def test_eq_14_repeated_reaches_eq_10(problem: Problem) -> None:
    target, rho = problem.state.z, problem.theta.rho
    exact = problem.loss.v_step(problem.state.v, target, rho)

    def gradient(v: Tensor) -> Tensor:
        return (problem.loss.A @ v[..., None])[..., 0] - problem.loss.b

    v, rate = problem.state.v, 1 / (float(problem.loss.curvature.max()) + float(rho.max()))
    one = v_gradient_step(v, target, rho, gradient, rate)
    torch.testing.assert_close(one, v - rate * (gradient(v) + rho * (v - target)))
    for _ in range(3000):
        v = v_gradient_step(v, target, rho, gradient, rate)
    torch.testing.assert_close(v, exact)
    general = DifferentiableLoss(problem.loss.value, rate, n_steps=3000)
    torch.testing.assert_close(general.v_step(problem.state.v, target, rho), exact)


def test_the_value_is_half_the_squared_residual(problem: Problem) -> None:
    v = problem.state.v
    residual = (problem.X @ v[..., None])[..., 0] - problem.y
    torch.testing.assert_close(problem.loss.value(v), 0.5 * residual.square().sum(-1))
    scale = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
    torch.testing.assert_close(problem.loss.scaled(scale).value(v * scale), problem.loss.value(v))
    both = problem.loss + problem.loss
    torch.testing.assert_close(both.value(v), 2 * problem.loss.value(v))
    assert float(both.n[0, 0]) == 14


def one_cell(problem: Problem, n_cells: int = 1) -> object:
    return lambda s, w, t: problem.loss.cells([t] * n_cells, s, w)


def chain(problem: Problem, state: State, w: Tensor, theta: Theta, n_cells: int = 3) -> tuple[State, Tensor]:
    for _ in range(n_cells):
        state, w = cell(problem.loss, state, w, theta)
    return state, w


def through(function: object, problem: Problem, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    state, w = function(State(*inputs[:3]), inputs[3], Theta(*inputs[4:]))  # type: ignore[operator]
    return (*state, w)


def leaves(problem: Problem) -> list[Tensor]:
    return [x.clone().requires_grad_() for x in (*problem.state, problem.w, *problem.theta)]


@pytest.mark.parametrize("block", [1, 2, 4096])
def test_the_adjoint_by_hand_is_torch_s(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learn2pfed.unrolled.adjoint.BLOCK", block)
    problem = Problem(seed=3)
    at = leaves(problem)
    bars = [torch.randn(x.shape, dtype=torch.float64) for x in at[:4]]
    by_hand = through(one_cell(problem, 3), problem, tuple(at))
    by_torch = through(lambda s, w, t: chain(problem, s, w, t), problem, tuple(at))
    for ours, theirs in zip(by_hand, by_torch, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)
    for ours, theirs in zip(
        torch.autograd.grad(by_hand, at, bars), torch.autograd.grad(by_torch, at, bars), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


def test_gradcheck_through_a_cell(problem: Problem) -> None:
    assert torch.autograd.gradcheck(lambda *x: through(one_cell(problem), problem, x), leaves(problem))


@pytest.mark.parametrize("group", range(6))
def test_the_adjoint_gives_only_what_is_asked(problem: Problem, group: int) -> None:
    """A group that is fixed costs nothing and changes nothing in the others' gradients."""
    every = leaves(problem)
    whole = torch.autograd.grad(sum(x.sum() for x in through(one_cell(problem), problem, tuple(every))), every)
    one = [x.detach().requires_grad_(place == 4 + group) for place, x in enumerate(every)]
    outputs = through(one_cell(problem), problem, tuple(one))
    (slope,) = torch.autograd.grad(sum(x.sum() for x in outputs), one[4 + group])
    torch.testing.assert_close(slope, whole[4 + group])


def test_gradcheck_through_eq_14() -> None:
    """A logistic loss: its v step is differentiable in target and ρ."""
    problem = Problem(S=1, M=2, k=3, n=5)
    labels = (problem.y > 0).double()

    def logistic(v: Tensor) -> Tensor:
        logits = (problem.X @ v[..., None])[..., 0]
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(-1)

    loss = DifferentiableLoss(logistic, rate=0.1, n_steps=2)
    inputs = [problem.state.v, problem.state.z, problem.theta.rho]
    assert torch.autograd.gradcheck(loss.v_step, [x.clone().requires_grad_() for x in inputs])
