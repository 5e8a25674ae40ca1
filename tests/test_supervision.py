"""What supervises Θ: splits, their invariances, Θ itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from learn2pfed.data.federated import FederatedData
from learn2pfed.errors import Learn2pFedError
from learn2pfed.unrolled.losses import SQUARED, SquaredLoss
from learn2pfed.unrolled.settings import GROUPS, Settings
from learn2pfed.unrolled.supervision import (
    Size,
    Supervised,
    judged,
    learners_of,
    outer_objective,
    parts_of,
    supervise,
    training_weights,
    units,
)
from learn2pfed.unrolled.theta import (
    THETA_MAX,
    Moments,
    adam_step,
    penalty_gradients,
    start_common,
    start_own,
    theta_of_cells,
)
from tests.conftest import Problem


def client(n: int, k: int = 3, seed: int = 0, name: str = "a") -> FederatedData:
    g = torch.Generator().manual_seed(seed)
    X, y = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((n, k), (n,)))
    return FederatedData.build([(name, X, y)])


def alone(data: FederatedData, chosen: Settings, index: int = 0) -> Supervised[SquaredLoss]:
    return supervise(data, chosen, SQUARED, [index])


@pytest.mark.parametrize("n", [1, 2, 7, 50])
@pytest.mark.parametrize("n_folds", [2, 3, 5])
def test_folds_cut_every_row_into_exactly_one_part(n: int, n_folds: int) -> None:
    repeats = parts_of(n, Settings(n_folds=n_folds, n_repeats=4), 0)
    assert repeats.shape == (4, n)
    for parts in repeats:
        counts = np.bincount(parts, minlength=n_folds)
        assert len(counts) == n_folds
        assert counts.max() - counts.min() <= 1


def test_folds_differ_between_repeats_seeds_and_clients() -> None:
    one = parts_of(40, Settings(), 0)
    assert (one[0] != one[1:]).any()
    assert (one[0] != parts_of(40, Settings(seed=1), 0)[0]).any()
    assert (one[0] != parts_of(40, Settings(), 1)[0]).any()


def test_clients_do_not_split_in_step() -> None:
    """Also where they look alike: one row each, or nothing but an intercept."""
    data = FederatedData.build([(str(i), np.ones((1, 1)), np.ones(1)) for i in range(40)])
    rows_in_training = supervise(data, Settings(), SQUARED).train.n.sum(1)
    assert ((rows_in_training > 8) & (rows_in_training < 32)).all()


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_holdout_keeps_rows_on_both_sides(n: int) -> None:
    problem = alone(client(n), Settings(supervision="holdout"))
    assert int(problem.train.n[0, 0]) >= 1
    assert int(problem.judge.n[0, 0]) == (0 if n == 1 else max(1, round(0.25 * n)))


def test_the_units_are_those_of_a_typical_client() -> None:
    gram = torch.tensor([[4.0, 0.0], [0.0, 100.0]], dtype=torch.float64)
    scale, conditioning = units(Settings(), gram, 4)
    torch.testing.assert_close(scale, torch.tensor([1.0, 5.0], dtype=torch.float64))
    assert conditioning == pytest.approx(1.0)
    slanted = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.float64)
    assert units(Settings(), slanted, 1).conditioning == pytest.approx((1.9 * 0.1) ** 0.5)
    assert torch.equal(units(Settings(scaling=False), gram, 4).scale, torch.ones(2, dtype=torch.float64))


def test_a_likelihood_is_averaged_over_repeats_and_not_profiled() -> None:
    total = outer_objective(Settings(), torch.tensor([30.0]), Size(100.0, 10.0, 5.0), is_likelihood=True)
    assert float(total) == pytest.approx(3.0)


def test_a_perfect_fit_leaves_the_objective_finite() -> None:
    flat = outer_objective(Settings(), torch.zeros(1, dtype=torch.float64), Size(10.0, 10.0, 5.0))
    assert torch.isfinite(flat)
    with pytest.raises(Learn2pFedError, match="leaves no row to judge by"):
        outer_objective(Settings(), torch.zeros(1), Size(0.0, 10.0, 0.0))


@pytest.mark.parametrize("supervision", ["train", "holdout", "crossval"])
def test_training_and_judging_rows_together_are_all_rows(supervision: str) -> None:
    data, chosen = client(23), Settings(supervision=supervision)
    problem = alone(data, chosen)
    rows = torch.tensor(23.0, dtype=torch.float64)
    full = SquaredLoss(data.X.T @ data.X, data.X.T @ data.y, data.y @ data.y, rows)
    if supervision == "train":
        torch.testing.assert_close(problem.train.A[0, 0], full.A)
        torch.testing.assert_close(problem.judge.c[0, 0], full.c)
        return
    n_splits = 1 if supervision == "holdout" else chosen.n_folds * chosen.n_repeats
    assert problem.train.A.shape == (n_splits, 1, 3, 3)
    both = problem.train + problem.judge
    torch.testing.assert_close(both.A, full.A.expand(n_splits, 1, 3, 3))
    torch.testing.assert_close(both.b, full.b.expand(n_splits, 1, 3))
    assert (both.n == 23).all()
    if supervision == "holdout":
        assert int(problem.judge.n[0, 0]) == round(0.25 * 23)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), order=st.permutations(range(12)), unit=st.floats(1e-3, 1e3))
def test_splits_do_not_depend_on_order_name_or_units(seed: int, order: list[int], unit: float) -> None:
    data = client(12, seed=seed)
    moved = FederatedData.build([("another name", data.X[order], data.y[order])])
    ours, theirs = alone(data, Settings(), 3), alone(moved, Settings(), 3)
    torch.testing.assert_close(ours.train.A, theirs.train.A)
    torch.testing.assert_close(ours.judge.b, theirs.judge.b)
    scaled = alone(FederatedData.build([("a", data.X * unit, data.y * unit)]), Settings(), 3)
    torch.testing.assert_close(ours.train.A * unit**2, scaled.train.A)


def test_many_clients_give_the_same_losses_together_as_each_alone() -> None:
    """Blocks of clients are padded; the padding must not count."""
    parts = [client(n, seed=n, name=str(n)) for n in (1, 9, 2, 30, 3, 17)]
    data = FederatedData.build([(d.names[0], d.X, d.y) for d in parts])
    assert len(data.blocks) > 2
    together = supervise(data, Settings(), SQUARED)
    for i, part in enumerate(parts):
        for ours, theirs in zip(together, alone(part, Settings(), i), strict=True):
            for name in ("A", "b", "c", "n"):
                torch.testing.assert_close(getattr(ours, name)[:, i : i + 1], getattr(theirs, name))


def test_of_very_many_clients_a_draw_learns() -> None:
    chosen = Settings(n_learners=5)
    drawn = learners_of(chosen, range(100, 120))
    assert len(set(drawn)) == 5
    assert set(drawn) <= set(range(100, 120))
    assert drawn == learners_of(chosen, range(100, 120)) != learners_of(chosen.changed(seed=1), range(100, 120))
    assert learners_of(chosen, range(5)) == tuple(range(5))
    assert len(learners_of(chosen.changed(sharing="mixed"), range(20))) == 20
    assert len(learners_of(chosen.changed(learn=("lam", "p")), range(20))) == 20


def test_the_predictive_density_is_that_of_a_normal_distribution() -> None:
    """Q and D from statistics against the covariance I + X'(A + Λ)⁻¹X'ᵀ itself."""
    chosen = Settings(supervision="holdout", objective="predictive", holdout=0.4)
    data, lam = client(12), torch.tensor([[0.3, 2.0, 0.01]], dtype=torch.float64)
    problem = alone(data, chosen)
    seen = training_weights(data, chosen, [0])[0] > 0
    X, X_, y_ = data.X[seen], data.X[~seen], data.y[~seen]
    v = torch.randn(3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    covariance = torch.eye(len(y_)).double() + X_ @ torch.linalg.solve(X.T @ X + torch.diag(lam[0]), X_.T)
    off = y_ - X_ @ v
    F, Q, D = judged(problem, chosen, v[None, None], lam)[:, 0]
    torch.testing.assert_close(F, 0.5 * off @ off)
    torch.testing.assert_close(Q, off @ torch.linalg.solve(covariance, off))
    torch.testing.assert_close(D, torch.logdet(covariance))
    with pytest.raises(ValidationError, match="judges held-out rows"):
        Settings(supervision="train", objective="predictive")


def test_theta_stays_positive_and_bounded_however_far_it_is_pushed() -> None:
    chosen = Settings(learn=GROUPS, sharing="mixed", learning_rate=3.0, n_warmup=0, decay=False)
    loss = Problem(M=2, k=2).loss
    common, own = start_common(chosen, 2), start_own(chosen, loss, 0.5)
    for sign in (1.0, -1.0):
        raw, memory = list(own.values()), Moments.zeros(list(own.values()))
        for epoch in range(50):
            raw, memory = adam_step(chosen, epoch, raw, [sign * torch.ones_like(x) for x in raw], memory)
        (theta, *_) = theta_of_cells(common, dict(zip(own, raw, strict=True)), 1)
        assert all((group > 0).all() and torch.isfinite(group).all() for group in theta)
        assert (theta.theta <= THETA_MAX).all()


def test_adam_step_changes_nothing_in_place() -> None:
    before = [torch.zeros(3, dtype=torch.float64)]
    memory = Moments.zeros(before)
    after, kept = adam_step(Settings(n_warmup=0), 0, before, [torch.ones(3, dtype=torch.float64)], memory)
    assert (before[0] == 0).all()
    assert (memory.first[0] == 0).all()
    torch.testing.assert_close(after[0], torch.full((3,), -0.1, dtype=torch.float64))
    assert float(kept.steps[0]) == 1


def test_the_start_of_theta_is_what_the_settings_say() -> None:
    loss = Problem(M=2, k=3, n=8).loss
    paper = Settings.paper(seed=4)
    theta = theta_of_cells(start_common(paper, 3), start_own(paper, loss, 0.5), paper.n_cells)[0]
    assert ((theta.lam > 0) & (theta.lam < 0.001)).all()
    assert torch.equal(theta.lam[0], theta.lam[1])
    for group in (theta.rho, theta.eta, theta.gamma, theta.theta):
        torch.testing.assert_close(group, torch.full((2, 1), 0.01, dtype=torch.float64))
    torch.testing.assert_close(theta.p, torch.full((2, 1), 8.0, dtype=torch.float64))
    ours = Settings()
    theta = theta_of_cells(start_common(ours, 3), start_own(ours, loss, 0.5), ours.n_cells)[0]
    size = 0.5 * loss.A[0].diagonal(dim1=-2, dim2=-1).mean(-1)  # halves learn
    torch.testing.assert_close(theta.rho[:, 0], 0.5 * ours.rho_start * size)
    torch.testing.assert_close(theta.theta, torch.ones(2, 1, dtype=torch.float64))


def test_no_prior_on_the_common_part_leaves_that_on_deviations() -> None:
    chosen = Settings(sharing="mixed", lam_spread=None, deviation_spread=0.5)
    by_common, by_own = penalty_gradients(chosen, torch.ones(1, 2), {"lam": torch.ones(3, 1, 2)})
    assert (by_common == 0).all()
    assert (by_own == 4).all()


@pytest.mark.parametrize("sharing", ["common", "per-client", "mixed"])
def test_penalty_gradients_are_those_of_the_penalty(sharing: str) -> None:
    chosen = Settings(sharing=sharing, lam_spread=2.0, deviation_spread=0.7)
    common = torch.randn(1, 3, dtype=torch.float64, requires_grad=True)
    own = torch.randn(4, 1, 3, dtype=torch.float64, requires_grad=True)
    if sharing == "per-client":
        value = (own + common.detach()).square().sum() / (2 * 2.0**2)
    else:
        value = common.square().sum() / (2 * 2.0**2) + own.square().sum() / (2 * 0.7**2)
    by_common, by_own = torch.autograd.grad(value, (common, own), allow_unused=True)
    ours = penalty_gradients(chosen, common.detach(), {"lam": own.detach()})
    torch.testing.assert_close(ours[0], torch.zeros_like(common) if by_common is None else by_common)
    torch.testing.assert_close(ours[1], by_own)


def test_cells_share_theta_when_tied_and_have_their_own_when_not() -> None:
    loss = Problem(M=2, k=3).loss
    for tied, n_kinds in ((True, 1), (False, 5)):
        chosen = Settings(tied=tied, n_cells=5)
        cells = theta_of_cells(start_common(chosen, 3), start_own(chosen, loss, 0.5), 5)
        assert len(cells) == 5
        assert len({id(theta.lam) for theta in cells}) == n_kinds
