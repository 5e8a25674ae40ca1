"""Many cells against the dense solution, gradients through them, limits, and Theorem 1."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learn2pfed.unrolled.cell import State, Theta, alpha_step, augmented_lagrangian, cell, contribution, w_step
from learn2pfed.unrolled.limit import solve
from learn2pfed.unrolled.losses import DifferentiableLoss, SquaredLoss
from learn2pfed.unrolled.network import forward, unroll
from learn2pfed.unrolled.settings import GROUPS, Settings
from learn2pfed.unrolled.supervision import Supervised, judged, outer_objective
from learn2pfed.unrolled.theta import effective, start_common, start_own, theta_of_cells
from learn2pfed.unrolled.training import pass_and_gradient
from tests.conftest import Problem


def dense_kkt(loss: SquaredLoss, lam: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """min Σ p_i (F_i(v_i) + ½(v_i-w)ᵀΛ_i(v_i-w)) as one linear system in (v_1 .. v_M, w); first split."""
    M, k = loss.b.shape[1:]
    H = torch.zeros((M + 1) * k, (M + 1) * k, dtype=torch.float64)
    right = torch.zeros((M + 1) * k, dtype=torch.float64)
    last = slice(M * k, None)
    for i in range(M):
        own, L = slice(i * k, (i + 1) * k), torch.diag(lam[i])
        H[own, own] = p[i] * (loss.A[0, i] + L)
        H[own, last] = H[last, own] = -p[i] * L
        H[last, last] += p[i] * L
        right[own] = p[i] * loss.b[0, i]
    x = torch.linalg.solve(H, right)
    return x[: M * k].reshape(M, k), x[last]


def test_the_exact_solution_is_the_dense_one() -> None:
    problem = Problem(S=1)
    v, w = solve(problem.loss, problem.theta.lam, problem.theta.p)
    v_dense, w_dense = dense_kkt(problem.loss, problem.theta.lam, problem.theta.p)
    torch.testing.assert_close(v[0], v_dense)
    torch.testing.assert_close(w[0], w_dense)


@pytest.mark.parametrize("copies", ["equal", "different"])
def test_many_cells_reach_the_dense_solution(copies: str) -> None:
    """Also when η and γ are not ρ: then Λ counts ρ/η times and p counts γ/ρ times."""
    problem = Problem(S=1)
    theta = problem.theta._replace(theta=torch.ones(3, 1, dtype=torch.float64))
    if copies == "equal":
        theta = theta._replace(eta=theta.rho, gamma=theta.rho)
    state, w = forward(problem.loss, [theta] * 4000, problem.state, problem.w)
    v_dense, w_dense = dense_kkt(problem.loss, *effective(theta))
    torch.testing.assert_close(state.v[0], v_dense, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(w[0], w_dense, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(state.z, state.v - w[:, None], rtol=1e-9, atol=1e-9)


def test_limits_of_lambda() -> None:
    """Λ → 0 is each client alone; Λ → ∞ is one model for all."""
    problem = Problem(S=1, n=9)
    ones = torch.ones(3, 1, dtype=torch.float64)
    alone = torch.linalg.lstsq(problem.X[0], problem.y[0][..., None]).solution[..., 0]
    v, _ = solve(problem.loss, 1e-10 * ones, ones)
    torch.testing.assert_close(v[0], alone, rtol=1e-6, atol=1e-6)
    together = torch.linalg.lstsq(problem.X[0].reshape(-1, 4), problem.y[0].reshape(-1, 1)).solution[:, 0]
    v, w = solve(problem.loss, 1e8 * ones, ones)
    torch.testing.assert_close(v[0], together.expand(3, -1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(w[0], together, rtol=1e-5, atol=1e-5)


def test_a_zero_weight_client_changes_nothing_for_the_others() -> None:
    problem = Problem(S=1)
    p = torch.tensor([[1.0], [1.0], [0.0]], dtype=torch.float64)
    v, w = solve(problem.loss, problem.theta.lam, p)
    two = SquaredLoss(*(getattr(problem.loss, name)[:, :2] for name in ("A", "b", "c", "n")))
    v_two, w_two = solve(two, problem.theta.lam[:2], p[:2])
    torch.testing.assert_close(v[:, :2], v_two)
    torch.testing.assert_close(w, w_two)


def test_client_order_does_not_matter(problem: Problem) -> None:
    order = [2, 0, 1]
    shuffled = SquaredLoss(*(getattr(problem.loss, name)[:, order] for name in ("A", "b", "c", "n")))
    state, w = forward(problem.loss, [problem.theta] * 5, problem.state, problem.w)
    other, w_other = forward(
        shuffled,
        [Theta(*(group[order] for group in problem.theta))] * 5,
        State(*(part[:, order] for part in problem.state)),
        problem.w,
    )
    torch.testing.assert_close(other.v, state.v[:, order])
    torch.testing.assert_close(w_other, w)


def supervised(seed: int = 0, M: int = 3, k: int = 2) -> Supervised[SquaredLoss]:
    train, judge = Problem(seed, M=M, k=k, n=5).loss, Problem(seed + 1, M=M, k=k, n=4).loss
    full = SquaredLoss(*(getattr(train + judge, name)[:1] for name in ("A", "b", "c", "n")))
    return Supervised(train, judge, full)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("objective", ["sum", "profiled", "predictive"])
def test_gradcheck_of_a_three_cell_network_for_every_group(tied: bool, objective: str) -> None:
    chosen = Settings(n_cells=3, tied=tied, learn=GROUPS, sharing="mixed", objective=objective, rho_start=0.5)
    problem = supervised()
    common, own = start_common(chosen, 2), start_own(chosen, problem.full, 1.0)
    start = Problem(5, M=3, k=2)

    def outer(common: Tensor, *raw: Tensor) -> Tensor:
        thetas = theta_of_cells(common, dict(zip(own, raw, strict=True)), 3)
        state, _ = forward(problem.train, thetas, start.state, start.w)
        return outer_objective(
            chosen, judged(problem, chosen, state.v, effective(thetas[-1]).lam).sum(-1), problem.size
        )

    inputs = [x.clone().requires_grad_() for x in (common, *own.values())]
    assert torch.autograd.gradcheck(outer, inputs)
    *_, gradients = pass_and_gradient(problem, chosen, common, own, start.state, start.w, ())
    expected = torch.autograd.grad(outer(*inputs), inputs)
    torch.testing.assert_close(gradients.common, expected[0])
    for name, slope in zip(own, expected[1:], strict=True):
        torch.testing.assert_close(gradients.own[name], slope)
        assert slope.abs().max() > 0, name


def test_the_carried_adjoint_gives_the_gradient_of_infinitely_many_cells() -> None:
    """Θ fixed, two cells an epoch: the gradient tends to that through the exact solution; truncated it does not."""
    chosen = Settings(n_cells=2, learn=("lam",), rho_start=0.5, lam_start=1.0)
    problem = supervised()
    common, own = start_common(chosen, 2), start_own(chosen, problem.full, 1.0)
    raw = common.clone().requires_grad_()
    v, _ = solve(problem.train, raw.exp(), torch.ones(3, 1, dtype=torch.float64))
    value = outer_objective(chosen, judged(problem, chosen, v, raw.exp()).sum(-1), problem.size)
    (exact,) = torch.autograd.grad(value, raw)
    found = {}
    for carry in (True, False):
        start = Problem(5, M=3, k=2)
        state, w = start.state, start.w
        carried: tuple[Tensor, ...] = tuple(map(torch.zeros_like, (*state, w))) if carry else ()
        for _ in range(400):
            state, w, _, _, gradients = pass_and_gradient(problem, chosen, common, own, state, w, carried)
            carried = gradients.start
        found[carry] = gradients.common
    torch.testing.assert_close(found[True], exact, rtol=1e-7, atol=1e-9)
    assert (found[False] - exact).abs().max() > 0.01 * exact.abs().max()


def test_the_general_loss_runs_through_the_same_cells(problem: Problem) -> None:
    """With enough gradient steps eq. (14) gives the cells of eq. (10)."""
    general = DifferentiableLoss(problem.loss.value, rate=0.02, n_steps=2000)
    ours, w = forward(problem.loss, [problem.theta] * 2, problem.state, problem.w)
    theirs, w_general = forward(general, [problem.theta] * 2, problem.state, problem.w)
    torch.testing.assert_close(theirs.v, ours.v, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(w_general, w, rtol=1e-6, atol=1e-6)


def lagrangians(problem: Problem, rho: float, n_cells: int = 40) -> list[float]:
    """L(v^ℓ, z^ℓ, w^ℓ; α^(ℓ+1)) along cells with Θ fixed, η = γ = ρ, θ = 1."""
    same = torch.full((3, 1), rho, dtype=torch.float64)
    theta = problem.theta._replace(rho=same, eta=same, gamma=same, theta=torch.ones_like(same))
    values = []
    for after, w in unroll(problem.loss, [theta] * n_cells, problem.state, problem.w):
        alpha = alpha_step(after.alpha, after.v, after.z, w, theta.theta)
        values.append(float(augmented_lagrangian(problem.loss, after._replace(alpha=alpha), w, theta)))
    return values


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), factor=st.floats(4, 100))
def test_theorem_1_the_lagrangian_falls_at_every_cell_when_rho_is_large(seed: int, factor: float) -> None:
    problem = Problem(seed, S=1)
    rho = factor * max(float(problem.loss.curvature.max()), float(problem.theta.lam.max()))
    values = torch.tensor(lagrangians(problem, rho), dtype=torch.float64)
    assert (values.diff() <= 1e-9 * values.abs().max()).all()


def test_theorem_1_needs_its_condition() -> None:
    """With ρ far below the curvature the Lagrangian rises, although the cells converge all the same."""
    problem = Problem(0, S=1)
    values = lagrangians(problem, 0.01 * float(problem.loss.curvature.min()), 10)
    assert any(after > before for before, after in pairwise(values))


def test_one_cell_for_all_is_the_cell_of_each(problem: Problem) -> None:
    """M clients at once equal M clients one by one whose contributions are added."""
    state, w = cell(problem.loss, problem.state, problem.w, problem.theta)
    total, weight = torch.zeros_like(w), torch.zeros(1, dtype=torch.float64)
    for i in range(3):
        at = slice(i, i + 1)
        own = SquaredLoss(*(getattr(problem.loss, name)[:, at] for name in ("A", "b", "c", "n")))
        theta = Theta(*(group[at] for group in problem.theta))
        alone, _ = cell(own, State(*(part[:, at] for part in problem.state)), problem.w, theta)
        weighted, c = contribution(alone, theta.p, theta.gamma)
        total, weight = total + weighted[:, 0], weight + c[0]
        torch.testing.assert_close(alone.v, state.v[:, at])
        torch.testing.assert_close(alone.z, state.z[:, at])
    torch.testing.assert_close(w_step(total, weight), w)
