"""The estimators: scikit-learn's own checks, what they learn, what never changes a prediction, what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from learn2pfed import Learn2pFedClassifier, Learn2pFedRegressor
from learn2pfed.algorithms.learn2pfed import Learn2pFed
from learn2pfed.engines.simulation import run_simulation
from learn2pfed.errors import Learn2pFedError
from learn2pfed.personal import Prepared, alone, fit, settings_for, together

Array = NDArray[Any]


@parametrize_with_checks([Learn2pFedRegressor(), Learn2pFedClassifier()])
def test_scikit_learn_s_own_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    """All of them; check_array_api_input skips itself unless SCIPY_ARRAY_API is set."""
    check(estimator)


def panel(
    sizes: list[int], spread: tuple[float, ...] = (2.0, 0.0, 0.0), noise: float = 0.5, seed: int = 0
) -> tuple[Array, Array, Array, Array]:
    """X, y, clients and the true coefficients (level first): each scatters by its `spread` between clients."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    X = rng.normal(size=(len(owner), len(spread) - 1))
    truth = np.linspace(1.0, -1.0, len(spread)) + np.array(spread) * rng.normal(size=(len(sizes), len(spread)))
    y = truth[owner, 0] + (X * truth[owner, 1:]).sum(1) + noise * rng.normal(size=len(owner))
    return X, y, np.array([f"c{i:03d}" for i in owner]), truth


def labels(sizes: list[int], n_classes: int = 3, seed: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    X = rng.normal(size=(len(owner), 2))
    w = 1.5 * rng.normal(size=(n_classes, 2))
    level = 1.5 * rng.normal(size=(len(sizes), n_classes))
    y = (level[owner] + X @ w.T + rng.gumbel(size=(len(owner), n_classes))).argmax(1)
    return X, np.array(["red", "green", "blue", "grey"])[y], owner


def test_the_attributes_say_what_predict_does_and_what_is_shared() -> None:
    X, y, clients, truth = panel([15] * 12)
    model = Learn2pFedRegressor().fit(pd.DataFrame(X, columns=["dose", "age"]), y, clients=clients)
    assert list(model.feature_names_in_) == ["dose", "age"]
    assert list(model.clients_) == sorted(set(clients))
    assert list(model.parameters_) == ["dose", "age", "intercept"]
    assert model.coef_.shape == (12, 2)
    assert model.intercept_.shape == (12,)
    assert model.global_coef_.shape == (2,)
    assert model.participation_.shape == (12, 3)
    assert len(model.history_) == 300
    assert model.traffic_.bytes_up > 0
    at = np.searchsorted(model.clients_, clients)
    np.testing.assert_allclose(
        model.predict(pd.DataFrame(X, columns=["dose", "age"]), clients=clients),
        (X * model.coef_[at]).sum(1) + model.intercept_[at],
    )
    with pytest.warns(UserWarning, match="clients is missing, so the global model answers"):
        together = model.predict(pd.DataFrame(X, columns=["dose", "age"]))
    np.testing.assert_allclose(together, X @ model.global_coef_ + model.global_intercept_)
    assert (model.participation_[:, :2] > 0.8).all()  # the slopes are shared
    assert (model.participation_[:, 2] < 0.2).all()  # the level is each client's own
    alone = np.array([LinearRegression().fit(X[at == i], y[at == i]).coef_ for i in range(12)])
    assert np.abs(model.coef_ - truth[:, 1:]).mean() < 0.5 * np.abs(alone - truth[:, 1:]).mean()


def test_participation_is_the_diagonal_of_the_shrinkage_matrix() -> None:
    X, y, clients, _ = panel([4, 9, 30, 7])
    model = Learn2pFedRegressor(n_epochs=60).fit(X, y, clients=clients)
    Z = np.column_stack([np.ones(len(X)), (X - X.mean(0)) / X.std(0)])
    lam = np.diag(model.personal_.lam.numpy())  # common to all clients
    for i, name in enumerate(model.clients_):
        A = Z[clients == name].T @ Z[clients == name]
        diagonal = np.diag(np.linalg.solve(A + lam, lam))
        np.testing.assert_allclose(model.participation_[i], [*diagonal[1:], diagonal[0]], rtol=1e-9)


@pytest.mark.parametrize("sharing", ["mixed", "per-client"])
def test_where_clients_have_their_own_lambda_it_counts_and_a_newcomer_has_the_typical_one(sharing: str) -> None:
    X, y, clients, _ = panel([6, 9, 30, 7])
    prepared = Prepared.of(torch.tensor(X), torch.tensor(y), np.unique(clients, return_inverse=True)[1], names="ab")
    fitted = fit(prepared, {"sharing": sharing, "n_epochs": 40, "n_repeats": 2})
    outcome = run_simulation(
        Learn2pFed(settings_for({"sharing": sharing, "n_epochs": 40, "n_repeats": 2}, 4, len(y), 3, 0)), prepared.data
    )
    lam = outcome.insight["lam"].numpy()
    assert np.ptp(np.log(lam), axis=0).min() > 0.01
    np.testing.assert_allclose(fitted.lam, np.exp(np.log(lam).mean(0)))
    for place, client in enumerate(prepared.order):
        rows = prepared.data.clients[place].X.numpy()
        diagonal = np.diag(np.linalg.solve(rows.T @ rows + np.diag(lam[place]), np.diag(lam[place])))
        np.testing.assert_allclose(fitted.participation[client], diagonal, rtol=1e-9)


def test_the_settings_follow_the_size_of_the_data() -> None:
    small, many, wide = (settings_for({}, *size, 0) for size in ((10, 1000, 4), (5000, 1e5, 4), (1000, 1e5, 21)))
    assert (small.n_repeats, small.objective, small.refit) == (10, "predictive", "exact")
    assert (many.n_learners, many.n_repeats) == (1000, 1)
    assert (wide.n_learners, wide.n_repeats) == (431, 1)
    assert settings_for({}, 100, 5000, 201, 0).objective == "profiled"  # factorisations would take minutes
    classes = settings_for({"n_repeats": 3}, 10, 1000, 6, 3)
    assert (classes.n_repeats, classes.objective, classes.refit) == (3, "profiled", "cells")
    assert settings_for({"supervision": "train"}, 10, 1000, 4, 0).objective == "profiled"


def test_one_client_is_the_usual_model() -> None:
    X, y, _, _ = panel([40])
    model, usual = Learn2pFedRegressor().fit(X, y), LinearRegression().fit(X, y)
    np.testing.assert_allclose(model.predict(X), usual.predict(X))
    np.testing.assert_allclose(model.coef_[0], usual.coef_)
    X, label, _ = labels([120])
    for y in (label, np.where(label == "red", "yes", "no")):
        ours, theirs = Learn2pFedClassifier().fit(X, y), LogisticRegression(tol=1e-10, max_iter=2000)
        theirs.fit((X - X.mean(0)) / X.std(0), y)
        chances = theirs.predict_proba((X - X.mean(0)) / X.std(0))
        np.testing.assert_allclose(ours.predict_proba(X), chances, atol=2e-3)  # ours has a hair of ridge on the level


def test_a_client_with_one_row_and_one_with_ten_times_the_others_help_and_are_helped() -> None:
    """Known truth, eight draws: each is nearer to it with the others than alone, and they help the others too."""
    sizes = [1, *[12] * 10, 120]
    together, alone, without = [], [], []
    for seed in range(8):
        X, y, clients, truth = panel(sizes, spread=(1.0, 0.3, 0.0, 0.0), seed=seed)
        grid = np.random.default_rng(99).normal(size=(200, 3))

        def error(model: Any, chosen: list[int], truth: Array = truth, grid: Array = grid) -> list[float]:
            names = [f"c{i:03d}" for i in chosen]
            return [
                float(np.mean((model.predict(grid, clients=[name] * 200) - truth[i, 0] - grid @ truth[i, 1:]) ** 2))
                for i, name in zip(chosen, names, strict=True)
            ]

        quick = Learn2pFedRegressor(n_epochs=120)
        together.append(error(clone(quick).fit(X, y, clients=clients), list(range(12))))
        own = []
        for i in (0, 5, 11):
            at = clients == f"c{i:03d}"
            own += error(clone(quick).fit(X[at], y[at], clients=clients[at]), [i])
        alone.append(own)
        rest = ~np.isin(clients, ["c000", "c011"])
        without.append(error(clone(quick).fit(X[rest], y[rest], clients=clients[rest]), list(range(1, 11))))
    by_client, by_itself = np.mean(together, 0), np.mean(alone, 0)
    assert by_client[0] < 0.5 * by_itself[0]  # the one with a single row is helped
    assert by_client[5] < 0.8 * by_itself[1]  # so are the others
    assert by_client[11] < by_itself[2]  # and even the large one
    assert by_client[1:11].mean() < np.mean(without)  # and they help the others


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_classifier_for_each_client_beats_alone_and_together(n_classes: int) -> None:
    X, y, clients = labels([60] * 30, n_classes)
    train = np.arange(len(y)) % 60 < 8
    model = Learn2pFedClassifier(n_epochs=100).fit(X[train], y[train], clients=clients[train])
    assert list(model.classes_) == sorted(set(y))
    outputs = 1 if n_classes == 2 else n_classes
    assert model.coef_.shape == (30, outputs, 2)
    assert model.participation_.shape == (30, outputs * 3) == (30, len(model.parameters_))
    chances = model.predict_proba(X, clients=clients)
    np.testing.assert_allclose(chances.sum(1), 1.0)
    assert (model.classes_[chances.argmax(1)] == model.predict(X, clients=clients)).all()
    scores = model.decision_function(X, clients=clients)
    odds = np.log(chances[:, 1] / chances[:, 0])
    np.testing.assert_allclose(scores if n_classes == 2 else scores[:, 1] - scores[:, 0], odds, atol=1e-8)
    prepared = Prepared.of(
        torch.tensor(X[train]), model._target(y[train]), clients[train], n_classes=n_classes, names=["a", "b"]
    )
    loss = {"learn2pfed": log_loss(y[~train], chances[~train])}
    for name, personal in {"local": alone(prepared), "global": together(prepared)}.items():
        other = clone(model)
        other.clients_, other.classes_, other.n_features_in_ = model.clients_, model.classes_, 2
        other.publish(personal)
        loss[name] = log_loss(y[~train], other.predict_proba(X[~train], clients=clients[~train]))
    assert loss["learn2pfed"] < 0.95 * min(loss["local"], loss["global"])


def test_a_newcomer_joins_from_one_row_and_nobody_else_moves() -> None:
    X, y, clients, truth = panel([20] * 15, spread=(2.0, 0.0, 0.0))
    model = Learn2pFedRegressor(n_epochs=150).fit(X, y, clients=clients)
    before = model.predict(X, clients=clients)
    new_X, new_y = np.array([[0.3, -0.2]]), np.array([8.0 + 0.3 * truth[0, 1] - 0.2 * truth[0, 2]])  # level 8
    model.adapt(new_X, new_y, client="newcomer")
    np.testing.assert_array_equal(model.predict(X, clients=clients), before)
    assert list(model.clients_[-1:]) == ["newcomer"]
    assert model.coef_.shape == (16, 2)
    grid = np.random.default_rng(0).normal(size=(50, 2))
    real = 8.0 + grid @ truth[0, 1:]
    adapted = np.abs(model.predict(grid, clients=["newcomer"] * 50) - real).mean()
    assert adapted < 0.2 * np.abs(model.predict(grid, clients=["stranger"] * 50) - real).mean()
    with pytest.raises(Learn2pFedError, match="'newcomer' has a model already"):
        model.adapt(new_X, new_y, client="newcomer")


@pytest.mark.parametrize("name", [3.0, np.int64(3), 3])
def test_a_newcomer_called_by_a_number_is_found_by_it(name: float) -> None:
    X, y, _, _ = panel([10, 10])
    model = Learn2pFedRegressor(**SMALL).fit(X, y, clients=np.repeat([1.0, 2.0], 10))
    model.adapt(X[:3], [90.0, 90.0, 90.0], client=name)
    assert model.clients_.tolist() == [1, 2, 3]
    assert model.predict(X[:1], clients=[3.0])[0] > 10
    assert model.predict(X[:1], clients=pd.Series([3], dtype="Int64"))[0] > 10
    with pytest.raises(Learn2pFedError, match="'1' has a model already"):
        model.adapt(X[:3], [90.0, 90.0, 90.0], client=1.0)


def test_a_newcomer_with_the_rows_of_a_client_gets_its_model() -> None:
    X, y, clients, _ = panel([20] * 8)
    model = Learn2pFedRegressor(n_epochs=100).fit(X, y, clients=clients)
    model.adapt(X[:20], y[:20], client="twin")
    np.testing.assert_allclose(model.coef_[-1], model.coef_[0], rtol=1e-8)
    X, y, clients = labels([15] * 8)
    classifier = Learn2pFedClassifier(n_epochs=50).fit(X, y, clients=clients)
    classifier.adapt(X[:15], y[:15], client=8)
    assert classifier.clients_.tolist() == list(range(9))
    np.testing.assert_allclose(classifier.coef_[-1], classifier.coef_[0], rtol=1e-6, atol=1e-9)
    with pytest.raises(Learn2pFedError, match="class 'pink' was not there"):
        classifier.adapt(X[:1], ["pink"], client=9)


SMALL = {"n_epochs": 25, "n_cells": 4, "settings": {"n_repeats": 2, "n_warmup": 3}}


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_order_and_names_never_change_a_prediction(seed: int, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=5))
    X, y, clients, _ = panel(sizes, seed=seed)
    rows = np.array(data.draw(st.permutations(range(len(y)))))
    names = dict(zip(sorted(set(clients)), data.draw(st.permutations(["zoe", "ann", "Bob", "7", "ü"])), strict=False))
    renamed = np.array([names[name] for name in clients])
    before = Learn2pFedRegressor(**SMALL).fit(X, y, clients=clients).predict(X, clients=clients)
    after = Learn2pFedRegressor(**SMALL).fit(X[rows], y[rows], clients=renamed[rows]).predict(X, clients=renamed)
    np.testing.assert_allclose(after, before, rtol=1e-7, atol=1e-9 * np.abs(y).max())


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_order_and_names_never_change_a_chance(seed: int, data: st.DataObject) -> None:
    X, y, clients = labels([4, 6, 3, 6], seed=seed)
    if len(set(y)) < 2:
        return
    rows = np.array(data.draw(st.permutations(range(len(y)))))
    renamed = np.array(data.draw(st.permutations(["zoe", "ann", "Bob", "7"])))[clients]
    before = Learn2pFedClassifier(**SMALL).fit(X, y, clients=clients).predict_proba(X, clients=clients)
    after = Learn2pFedClassifier(**SMALL).fit(X[rows], y[rows], clients=renamed[rows]).predict_proba(X, clients=renamed)
    np.testing.assert_allclose(after, before, atol=1e-7)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_nor_where_clients_look_alike(seed: int, data: st.DataObject) -> None:
    """The same x for all, few distinct y: sizes and sums tie, and rows repeat."""
    rng = np.random.default_rng(seed)
    clients = np.repeat(np.arange(6), 4)
    X = np.tile([0.0, 0.0, 1.0, 1.0], 6)[:, None]
    y = np.concatenate([rng.permutation([1.0, 2.0, 2.0, 4.0]) for _ in range(6)])
    rows, names = (np.array(data.draw(st.permutations(range(n)))) for n in (len(y), 6))
    before = Learn2pFedRegressor(**SMALL).fit(X, y, clients=clients).predict(X, clients=clients)
    after = Learn2pFedRegressor(**SMALL).fit(X[rows], y[rows], clients=names[clients][rows])
    np.testing.assert_allclose(after.predict(X, clients=names[clients]), before, rtol=1e-7, atol=1e-9)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    by_feature=st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=2),
    by_target=st.floats(1e-6, 1e6),
    moved=st.floats(-1e3, 1e3),
)
def test_units_scale_the_answer_accordingly(seed: int, by_feature: list[float], by_target: float, moved: float) -> None:
    X, y, clients, _ = panel([5, 8, 3, 6], seed=seed)
    one = Learn2pFedRegressor(**SMALL).fit(X, y, clients=clients)
    two = Learn2pFedRegressor(**SMALL).fit(X * by_feature + moved, by_target * y, clients=clients)
    size = np.abs(y).max()
    np.testing.assert_allclose(
        two.predict(X * by_feature + moved, clients=clients) / by_target,
        one.predict(X, clients=clients),
        rtol=1e-5,
        atol=1e-5 * size,
    )
    np.testing.assert_allclose(two.coef_ * by_feature / by_target, one.coef_, rtol=1e-5, atol=1e-5 * size)
    np.testing.assert_allclose(two.participation_, one.participation_, atol=1e-5)


def test_in_a_pipeline_and_a_grid_search_with_routing() -> None:
    X, y, clients, _ = panel([14] * 6)
    with sklearn.config_context(enable_metadata_routing=True):
        pipe = make_pipeline(StandardScaler(), Learn2pFedRegressor(**SMALL))
        pipe.fit(X, y, clients=clients)
        plain = Learn2pFedRegressor(**SMALL).fit(X, y, clients=clients)
        np.testing.assert_allclose(pipe.predict(X, clients=clients), plain.predict(X, clients=clients), rtol=1e-6)
        assert pipe.score(X, y, clients=clients) > 0.8
        halves = KFold(2, shuffle=True, random_state=0)
        search = GridSearchCV(Learn2pFedRegressor(**SMALL), {"n_epochs": [0, 25]}, cv=halves, error_score="raise")
        search.fit(X, y, clients=clients)
        assert len(set(search.cv_results_["mean_test_score"])) == 2
        assert search.best_score_ > 0.7 > cross_val_score(LinearRegression(), X, y, cv=halves).mean()
    old = make_pipeline(StandardScaler(), Learn2pFedRegressor(**SMALL))
    old.fit(X, y, learn2pfedregressor__clients=clients)
    np.testing.assert_allclose(old.predict(X, clients=clients), plain.predict(X, clients=clients), rtol=1e-6)


def test_strangers_get_the_global_model_or_an_error() -> None:
    X, y, clients, _ = panel([10] * 4)
    model = Learn2pFedRegressor(**SMALL).fit(X, y, clients=clients)
    by_all = X[1] @ model.global_coef_ + model.global_intercept_
    np.testing.assert_allclose(model.predict(X[:2], clients=["c000", "nobody"])[1], by_all)
    strict = Learn2pFedRegressor(**SMALL, unknown="error").fit(X, y, clients=clients)
    with pytest.raises(Learn2pFedError, match="'nobody' was not there"):
        strict.predict(X[:2], clients=["c000", "nobody"])
    with pytest.raises(Learn2pFedError, match="clients is missing"):
        strict.predict(X[:2])
    numbers = Learn2pFedRegressor(**SMALL).fit(X, y, clients=np.repeat([3, 1, 4, 2], 10))
    assert numbers.clients_.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(numbers.predict(X[:1], clients=[3.0]), model.predict(X[:1], clients=["c000"]))


@pytest.mark.parametrize(
    ("changes", "fitting", "sentence"),
    [
        ({}, {"clients": ["a"]}, "clients must name the client of each of the 20 rows"),
        ({}, {"clients": ["a"] * 19 + [None]}, "clients has 1 missing name"),
        ({"unknown": "maybe"}, {}, "unknown must be 'global' or 'error'"),
        ({"n_cells": 0}, {}, "n_cells: input should be greater than"),
        ({"sharing": "some"}, {}, "sharing: input should be 'common'"),
        ({"settings": {"n_cell": 3}}, {}, "There is no setting 'n_cell'; did you mean 'n_cells'?"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], fitting: dict[str, Any], sentence: str) -> None:
    X, y, clients, _ = panel([10, 10])
    with pytest.raises(Learn2pFedError, match=sentence):
        Learn2pFedRegressor(**changes).fit(X, y, **({"clients": clients} | fitting))


def test_values_too_large_to_square_are_named() -> None:
    X, y, clients, _ = panel([10, 10])
    X[0, 1] = 1e300
    with pytest.raises(Learn2pFedError, match="x1 has values too large"):
        Learn2pFedRegressor().fit(X, y, clients=clients)
    with pytest.raises(Learn2pFedError, match="only one class"):
        Learn2pFedClassifier().fit(X, np.ones(20))


def test_columns_that_never_change_and_columns_that_repeat_do_no_harm() -> None:
    X, y, clients, _ = panel([10] * 5)
    wide = np.column_stack([X, np.full(len(X), 7.0), 2 * X[:, 0]])
    model = Learn2pFedRegressor(**SMALL).fit(wide, y, clients=clients)
    assert (model.coef_[:, 2] == 0).all()
    assert (model.participation_[:, 2] == 1).all()
    assert model.score(wide, y, clients=clients) > 0.9
    constant = Learn2pFedRegressor(**SMALL).fit(X, np.full(len(y), 3.0), clients=clients)
    np.testing.assert_allclose(constant.predict(X, clients=clients), 3.0)


def test_a_large_level_costs_no_digits() -> None:
    X, y, clients, _ = panel([10] * 5)
    near = Learn2pFedRegressor(**SMALL).fit(X, y, clients=clients).predict(X, clients=clients)
    far = Learn2pFedRegressor(**SMALL).fit(X, y + 1e9, clients=clients).predict(X, clients=clients)
    np.testing.assert_allclose(far - 1e9, near, atol=1e-4)


def test_the_random_state_seeds_the_folds() -> None:
    X, y, clients, _ = panel([10] * 4)
    one, same, other = (
        Learn2pFedRegressor(**SMALL, random_state=seed).fit(X, y, clients=clients).coef_ for seed in (1, 1, 2)
    )
    assert (one == same).all()
    assert (one != other).any()
    drawn = Learn2pFedRegressor(**SMALL, random_state=np.random.RandomState(0)).fit(X, y, clients=clients)
    assert torch.isfinite(torch.from_numpy(drawn.coef_)).all()
