"""What is learned: held-out supervision shares, the training loss does not; references against independent ones."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from statsmodels.regression.mixed_linear_model import MixedLMParams

from learn2pfed.algorithms.closed_form import exact_inner, local_only, one_for_all, oracle, reml
from learn2pfed.algorithms.learn2pfed import Learn2pFed
from learn2pfed.data.federated import FederatedData
from learn2pfed.data.polynomial import BASE, polynomial
from learn2pfed.engines.simulation import run_simulation
from learn2pfed.errors import DivergenceError, Learn2pFedError
from learn2pfed.experiments.polynomial import curve_errors
from learn2pfed.unrolled.network import check_finite
from learn2pfed.unrolled.settings import GROUPS, Settings
from tests.conftest import random_data


def test_polynomial_data_are_as_described() -> None:
    for setting in (1, 2, 3):
        study = polynomial(3, setting, sizes="random")
        differ = study.coefficients - np.array(BASE)
        assert (differ[:, study.shared] == 0).all()
        assert study.shared.sum() == 4 - setting
        own = differ[:, ~study.shared]
        np.testing.assert_allclose(own, np.tile(own[:, :1], setting))
        assert len(np.unique(own[:, 0])) == 10
        assert min(study.data.sizes) >= 8
        x = np.concatenate([client.X[:, 1].numpy() for client in study.data.clients])
        assert (np.diff(x) >= 0).all()
        noise = np.concatenate([client.y.numpy() - study.truth(i) for i, client in enumerate(study.data.clients)])
        assert 0.09 < noise.std() < 0.11


def test_crossval_beats_alone_together_and_the_paper() -> None:
    study = polynomial(1, 1)
    mse = {
        "local": curve_errors(study, local_only(study.data))["MSE"],
        "global": curve_errors(study, one_for_all(study.data))["MSE"],
        "paper": curve_errors(study, run_simulation(Learn2pFed(Settings.paper(seed=1)), study.data))["MSE"],
        "reml": curve_errors(study, reml(study.data))["MSE"],
    }
    outcome = run_simulation(Learn2pFed(Settings(seed=1)), study.data)
    ours = curve_errors(study, outcome)["MSE"]
    assert ours < 0.8 * min(mse["local"], mse["global"], mse["paper"])
    assert ours < 1.3 * mse["reml"]
    grown = outcome.insight["lam"][0] / outcome.insight["lam_start"][0]
    assert int(grown.argmin()) == 3
    assert grown[3] < 0.1 < 1 < grown[0]
    exact = curve_errors(study, exact_inner(study.data, Settings(seed=1)))["MSE"]
    assert ours == pytest.approx(exact, rel=0.05)


def test_some_at_a_time_end_where_all_together_do() -> None:
    """Θ fixed: the randomised cells have the same fixed point, whoever takes part."""
    data = random_data(sizes=[20, 5, 9, 2, 14, 8, 7, 30])
    exact = run_simulation(Learn2pFed(Settings(n_epochs=0, refit="exact")), data)
    some = run_simulation(Learn2pFed(Settings(n_epochs=0, tolerance=1e-12, join=0.25)), data)
    torch.testing.assert_close(some.models, exact.models, rtol=0, atol=1e-10)
    torch.testing.assert_close(some.global_model, exact.global_model, rtol=0, atol=1e-10)


def test_some_at_a_time_learn_what_all_together_learn() -> None:
    """Five of twenty an epoch: the gradient is that of all, since who sits out stands in it with its last word."""
    data = random_data(seed=3, M=20, n=12)
    every = run_simulation(Learn2pFed(Settings(refit="exact")), data)
    some = run_simulation(Learn2pFed(Settings(refit="exact", join=0.25, n_epochs=1200)), data)
    torch.testing.assert_close(some.insight["lam"].log(), every.insight["lam"].log(), rtol=0, atol=0.05)
    torch.testing.assert_close(some.models, every.models, rtol=0, atol=1e-3)
    assert some.history[-1] == pytest.approx(every.history[-1], abs=0.05)


def test_the_training_loss_only_learns_not_to_share() -> None:
    data = random_data(M=6, k=3, n=8)
    chosen = Settings(supervision="train", lam_spread=None, n_epochs=200, lam_start=1.0)
    outcome = run_simulation(Learn2pFed(chosen), data)
    assert (outcome.insight["lam"] < 1e-2 * outcome.insight["lam_start"]).all()
    held_out = run_simulation(Learn2pFed(Settings(n_epochs=200, lam_start=1.0)), data)
    assert (held_out.insight["lam"] > outcome.insight["lam"]).all()


def mixed_lm(data: FederatedData) -> tuple[np.ndarray, np.ndarray, float]:
    """statsmodels' random slopes with diagonal covariance by REML: fixed effects, variances, noise."""
    X = np.concatenate([c.X.numpy() for c in data.clients])
    y = np.concatenate([c.y.numpy() for c in data.clients])
    groups = np.repeat(np.arange(len(data)), data.sizes)
    k = data.n_features
    free = MixedLMParams.from_components(fe_params=np.ones(k), cov_re=np.eye(k))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = sm.MixedLM(y, X, groups=groups, exog_re=X).fit(reml=True, free=free, gtol=1e-9, maxiter=2000)
    return fit.fe_params, np.diag(np.asarray(fit.cov_re)), float(fit.scale)


def test_reml_is_that_of_statsmodels() -> None:
    data = random_data(seed=2, M=12, k=2, n=15, spread=0.8)
    w, variances, scale = mixed_lm(data)
    ours = reml(data)
    np.testing.assert_allclose(ours.global_model.numpy(), w, rtol=1e-4)
    np.testing.assert_allclose(ours.insight["lam"][0].numpy(), scale / variances, rtol=1e-2)


def test_the_oracle_and_least_squares_recover_a_noise_free_truth() -> None:
    study = polynomial(0, 2, noise=0.0)
    truth = torch.from_numpy(study.coefficients)
    torch.testing.assert_close(oracle(study.data, torch.from_numpy(study.shared)).models, truth, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(local_only(study.data).models, truth, rtol=1e-4, atol=1e-4)
    same = random_data(spread=0.0)
    w = one_for_all(same)
    X, y = (torch.cat([getattr(c, name) for c in same.clients]) for name in ("X", "y"))
    torch.testing.assert_close(X.T @ (X @ w.global_model - y), torch.zeros(3, dtype=torch.float64))
    assert torch.equal(w.models[0], w.models[3])


@pytest.mark.parametrize(
    "sizes", [[1, 1, 1, 1], [2, 30, 30, 30], [1]], ids=["a row each", "fewer rows than features", "one client"]
)
def test_few_rows_and_one_client_work(sizes: list[int]) -> None:
    data = random_data(M=len(sizes), k=3, sizes=sizes)
    outcome = run_simulation(Learn2pFed(Settings(n_epochs=30)), data)
    assert torch.isfinite(outcome.models).all()
    assert torch.isfinite(outcome.insight["lam"]).all()
    assert torch.isfinite(local_only(data).models).all()


def test_one_client_is_least_squares_when_rows_abound() -> None:
    data = random_data(M=1, k=3, n=400)
    ours = run_simulation(Learn2pFed(Settings()), data).models
    torch.testing.assert_close(ours, local_only(data).models, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("total", [float("nan"), float("inf"), 2e8])
def test_a_loss_that_blows_up_is_divergence_while_still_finite(total: float) -> None:
    check_finite("at epoch 1", 1.0, 1.0)
    with pytest.raises(DivergenceError, match="diverged at epoch 3"):
        check_finite("at epoch 3", total, 1.0)


def test_divergence_is_named_at_its_epoch() -> None:
    chosen = Settings(learn=GROUPS, learning_rate=80.0, decay=False, n_warmup=3, carry_adjoint=False)
    with pytest.raises(DivergenceError, match=r"diverged at epoch \d+ .*lower learning_rate"):
        run_simulation(Learn2pFed(chosen), random_data())


def test_alone_is_least_squares_whatever_the_sizes() -> None:
    data = random_data(sizes=[3, 4, 5, 2])
    models = local_only(data).models
    for i, client in enumerate(data.clients):
        expected = np.linalg.lstsq(client.X.numpy(), client.y.numpy(), rcond=None)[0]
        np.testing.assert_allclose(models[i], expected, atol=1e-9)


def intercepts(seed: int = 0) -> FederatedData:
    """Nothing but a mean for each of thirty clients of five rows."""
    rng = np.random.default_rng(seed)
    return FederatedData.build([(f"c{i}", np.ones((5, 1)), rng.normal() * 0.5 + rng.normal(size=5)) for i in range(30)])


@pytest.mark.parametrize("kind", ["intercepts", "few rows", "well-conditioned"])
def test_ten_cells_end_where_the_exact_solution_does(kind: str) -> None:
    data = {
        "intercepts": intercepts(),
        "few rows": random_data(M=20, k=6, n=4),
        "well-conditioned": random_data(M=20, k=3, n=15, spread=0.03),
    }[kind]
    outcome = run_simulation(Learn2pFed(Settings()), data)
    exact = exact_inner(data, Settings())
    torch.testing.assert_close(outcome.models, exact.models, rtol=0.01, atol=0.01)
    torch.testing.assert_close(outcome.insight["lam"].log(), exact.insight["lam"].log(), rtol=0, atol=0.2)


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_the_unit_of_the_target_does_not_matter(unit: float) -> None:
    data = random_data()
    scaled = FederatedData.build([(c.name, c.X, c.y * unit) for c in data.clients])
    ours, theirs = (run_simulation(Learn2pFed(Settings(n_epochs=60)), part) for part in (data, scaled))
    torch.testing.assert_close(theirs.models / unit, ours.models, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(theirs.insight["lam"], ours.insight["lam"], rtol=1e-6, atol=0)


def test_targets_of_zero_and_features_of_zero_work() -> None:
    data = random_data()
    nothing = FederatedData.build([(c.name, c.X, c.y * 0) for c in data.clients])
    for chosen in (Settings(n_epochs=20), Settings.paper(n_epochs=5)):
        assert run_simulation(Learn2pFed(chosen), nothing).models.abs().max() < 0.1
    silent = FederatedData.build(
        [*((c.name, c.X, c.y) for c in data.clients), ("silent", np.zeros((4, 3)), np.ones(4))]
    )
    outcome = run_simulation(Learn2pFed(Settings(n_epochs=60)), silent)
    torch.testing.assert_close(outcome.models[4], outcome.global_model, rtol=1e-3, atol=1e-3)


def test_divergence_in_the_last_epoch_is_noticed_in_the_refit() -> None:
    with pytest.raises(DivergenceError, match=r"diverged (at epoch|in the refit)"):
        run_simulation(Learn2pFed(Settings.paper(n_epochs=1, learning_rate=1e4)), random_data())


def test_reml_needs_more_rows_than_features() -> None:
    with pytest.raises(Learn2pFedError, match="got 3 rows and 3 features"):
        reml(random_data(M=3, k=3, sizes=[1, 1, 1]))


@pytest.mark.parametrize("sharing", ["per-client", "mixed"])
def test_other_ways_of_sharing_learn_too(sharing: str) -> None:
    study = polynomial(1, 1)
    outcome = run_simulation(Learn2pFed(Settings(seed=1, sharing=sharing)), study.data)
    assert not torch.allclose(outcome.insight["lam"][0], outcome.insight["lam"][1])
    assert curve_errors(study, outcome)["MSE"] < curve_errors(study, local_only(study.data))["MSE"]
