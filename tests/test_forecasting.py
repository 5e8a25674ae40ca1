"""Curves to rows, cut in time; the study of electricity."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from learn2pfed.algorithms.learn2pfed import Learn2pFed
from learn2pfed.algorithms.local import LocalSettings
from learn2pfed.data.electricity import load
from learn2pfed.data.forecasting import changing, chosen, every, forecasting, lags_of, most_distinct
from learn2pfed.data.loads import STILL, Loads
from learn2pfed.engines.simulation import run_simulation
from learn2pfed.errors import DivergenceError, Learn2pFedError
from learn2pfed.experiments import power_methods
from learn2pfed.experiments.base import Task
from learn2pfed.experiments.joining import JoiningExperiment
from learn2pfed.experiments.power import HISTORIES, PowerConfig, PowerExperiment, study_of
from learn2pfed.experiments.power_study import loads_at
from learn2pfed.experiments.registry import configure
from learn2pfed.experiments.tuning import searches
from learn2pfed.unrolled.losses import SQUARED
from learn2pfed.unrolled.settings import Settings
from learn2pfed.unrolled.softmax import Softmax
from learn2pfed.unrolled.supervision import supervise
from tests.test_cli import call


def curves(n_meters: int = 3, n_records: int = 40, minutes: int = 360, **changes: Any) -> Loads:
    """Four records a day unless told otherwise; meter i at time t is 100 i + t² (squares, so that every lag shows)."""
    values = 100.0 * np.arange(n_meters)[:, None] + np.arange(n_records)[None] ** 2
    names = tuple(f"m{i}" for i in range(n_meters))
    loads = Loads(names, values.astype(np.float32), minutes, None, "kWh", "made", np.arange(n_records), {})
    return replace(loads, **changes)


@pytest.mark.parametrize("horizon", [1, 2, 5])
def test_a_row_has_the_day_that_is_known_and_the_same_hour_of_past_days(horizon: int) -> None:
    rows = forecasting(curves(), horizon, n_days=3)
    assert rows.lags == lags_of(360, horizon, 3)
    client = rows.test.subset([1])
    raw = rows.mean[1] + rows.scale[1] * client.X[:, 1:].numpy()
    times = rows.test.times
    np.testing.assert_allclose(raw, 100 + (times[:, None] - np.array(rows.lags)) ** 2, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(rows.mean[1] + rows.scale[1] * client.y.numpy(), 100 + times**2, rtol=1e-5)
    assert (client.X[:, 0] == 1).all()
    assert min(rows.lags) == horizon
    assert {8, 12} <= set(rows.lags)  # the same hour, two and three days before


def test_the_cut_is_in_time_and_units_come_from_the_training_part_alone() -> None:
    loads = curves()
    rows = forecasting(loads, n_days=2)
    assert rows.train.times.tolist() == list(range(8, 36))
    assert rows.test.times.tolist() == list(range(36, 40))
    other = loads.values.copy()
    other[:, 36:] += 1000
    changed = forecasting(replace(loads, values=other), n_days=2)
    assert torch.equal(changed.train.all.X, rows.train.all.X)
    assert np.array_equal(changed.mean, rows.mean)
    assert not torch.equal(changed.test.all.y, rows.test.all.y)
    training = loads.values[:, :36].astype(float)
    np.testing.assert_allclose(rows.mean, training.mean(1))
    np.testing.assert_allclose(rows.scale, training.std(1))


def test_few_rows_are_the_latest_and_later_records_can_be_left_out() -> None:
    few = forecasting(curves(), n_days=2, rows=5)
    assert few.train.times.tolist() == list(range(31, 36))
    np.testing.assert_allclose(few.mean[0], np.mean(np.arange(23, 36) ** 2))  # these rows and their lags
    early = forecasting(curves(), n_days=2, until=0.75)
    assert early.test.times.tolist() == [27, 28, 29]
    assert early.train.curves.shape == (3, 30)


def test_no_row_reaches_over_a_break() -> None:
    rows = forecasting(curves(clock=np.r_[0:20, 23:43]), n_days=2)
    seen = np.concatenate([rows.train.times, rows.test.times])
    assert seen.tolist() == [*range(8, 20), *range(28, 40)]


@pytest.mark.parametrize(("horizon", "lag"), [(1, 4), (2, 4), (4, 4), (5, 8), (8, 8)])
def test_the_naive_forecast_is_the_same_hour_of_the_latest_day_that_is_known(horizon: int, lag: int) -> None:
    rows = forecasting(curves(), horizon, n_days=3)
    assert rows.lags[rows.day - 1] == lag


def test_a_coarser_clock_adds_energy_and_averages_power() -> None:
    fine = curves(minutes=15, n_records=10)
    hourly = every(fine, 60)
    assert hourly.values.shape == (3, 2)
    np.testing.assert_allclose(hourly.values[0], [0 + 1 + 4 + 9, 16 + 25 + 36 + 49])
    np.testing.assert_allclose(every(replace(fine, unit="kW"), 60).values[0], [14 / 4, 126 / 4])
    assert hourly.notes == ("2 records left out: of steps of 60 minutes that a break or the end cuts",)
    assert every(curves(minutes=15, n_records=8), 60).notes == ()
    with pytest.raises(Learn2pFedError, match=r"no multiple of the 15 minutes of made .*: set minutes to 15 or"):
        every(fine, 50)


def test_hours_that_a_break_cuts_into_are_left_out_and_the_others_keep_their_place() -> None:
    clock = np.r_[0:7, 10:20, 24:28]  # hours 1 and 2 are cut, hour 5 is missing
    hourly = every(curves(minutes=15, n_records=len(clock), clock=clock), 60)
    wanted = [sum(place**2 for place in places) for places in ((0, 1, 2, 3), (9, 10, 11, 12), (13, 14, 15, 16))]
    np.testing.assert_allclose(hourly.values[0], [*wanted, sum(place**2 for place in (17, 18, 19, 20))])
    assert hourly.clock.tolist() == [0, 3, 4, 6]
    assert hourly.stretches == (0, 1, 3)
    assert hourly.notes == ("5 records left out: of steps of 60 minutes that a break or the end cuts",)
    again = every(replace(hourly, minutes=60), 120)
    assert (again.clock.tolist(), again.values.shape) == ([], (3, 0))


@pytest.mark.parametrize(
    ("loads", "changes", "message"),
    [
        (curves(), {"horizon": 0}, "at least one record ahead"),
        (curves(n_records=9), {}, "give longer curves"),
        (curves(values=np.ones((3, 40), dtype=np.float32)), {"n_days": 2}, "'m0' never changes .* \\(3 such\\)"),
    ],
)
def test_what_can_not_be_forecast_is_refused(loads: Loads, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Learn2pFedError, match=message):
        forecasting(loads, **changes)


def test_rows_made_a_few_clients_at_a_time_give_the_same_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = forecasting(chosen(load("sample"), range(5))).train
    settings = Settings(n_repeats=1)
    whole = supervise(rows.all, settings, SQUARED)
    monkeypatch.setattr("learn2pfed.data.forecasting.PART", 2 * len(rows.times) * rows.n_features)
    assert [list(part) for part in rows.parts()] == [[0, 1], [2, 3], [4]]
    for ours, theirs in zip(supervise(rows, settings, SQUARED), whole, strict=True):
        torch.testing.assert_close(ours.A, theirs.A)
        torch.testing.assert_close(ours.b, theirs.b)
        assert torch.equal(ours.n, theirs.n)
    short = Settings(n_repeats=1, n_epochs=3, refit="exact", n_learners=3)
    some, every_row = (run_simulation(Learn2pFed(short), data) for data in (rows, rows.all))
    torch.testing.assert_close(some.models, every_row.models)
    assert some.traffic == every_row.traffic
    with pytest.raises(Learn2pFedError, match="from the rows themselves"):
        supervise(rows, settings, Softmax(2, (0.1,) * rows.n_features))


def test_the_most_distinct_lie_far_apart_and_are_always_the_same() -> None:
    loads = load("sample")
    picked, plane = most_distinct(loads, 5)
    assert most_distinct(loads, 5)[0] == picked
    assert len(set(picked)) == 5

    def nearest(five: Any) -> float:
        return float(np.linalg.norm(plane[five, None] - plane[five], axis=2)[np.triu_indices(5, 1)].min())

    rng = np.random.default_rng(0)
    at_random = [nearest(rng.choice(20, 5, replace=False)) for _ in range(200)]
    assert nearest(list(picked)) > np.quantile(at_random, 0.95)
    changed = loads.values.copy()
    changed[:, 4500:] = 0  # the test part has no say
    assert most_distinct(replace(loads, values=changed), 5)[0] == picked
    with pytest.raises(Learn2pFedError, match="21 meters are asked for"):
        most_distinct(loads, 21)


def weekly(n_meters: int = 8, n_weeks: int = 6) -> Loads:
    """Meters whose weeks are all the same, no two meters alike; four records a day, whole numbers (exact means)."""
    weeks = np.random.default_rng(0).integers(0, 100, (n_meters, 28)).astype(np.float32)
    return curves(n_meters, 28 * n_weeks, values=np.tile(weeks, n_weeks))


def test_weeks_of_the_map_never_reach_over_a_break() -> None:
    loads = weekly()
    there = np.delete(np.arange(28 * 6), [40, 41, 42])
    broken = replace(loads, values=loads.values[:, there], clock=there)
    for ours, whole in zip(most_distinct(broken, 3), most_distinct(loads, 3), strict=True):
        np.testing.assert_array_equal(ours, whole)
    with pytest.raises(Learn2pFedError, match=r"no week without a break .* leave out setting 1"):
        most_distinct(curves(5, 60, clock=np.arange(0, 120, 2)), 3)


def test_a_meter_that_changes_only_later_is_dropped_and_named() -> None:
    values = curves().values.copy()
    values[1, :36] = 5
    late = curves(values=values, dropped={"a rule": ("x",)})
    with pytest.raises(Learn2pFedError, match="'m1' never changes in its training part"):
        forecasting(late, n_days=2)
    left = changing(late, n_days=2)
    assert left.names == ("m0", "m2")
    assert left.dropped == {"a rule": ("x",), STILL: ("m1",)}
    assert len(forecasting(left, n_days=2).train) == 2
    values[1, :20] = np.arange(20)
    assert changing(late, n_days=2).names == ("m0", "m1", "m2")
    assert changing(late, n_days=2, rows=4).names == ("m0", "m2")  # in the little that it has


def own_file(path: Path, n_weeks: int = 4) -> Path:
    """Six hourly meters in the archive's format; `still` changes only at the end, `away` not in the last nine days of
    its training part; a record is missing.
    """
    times = pd.date_range("2020-01-01", periods=24 * 7 * n_weeks, freq="h").strftime("%Y-%m-%d %H:%M:%S")
    rng, cut = np.random.default_rng(0), round(len(times) * 0.9)
    day = 5 + np.sin(np.arange(len(times)) / 24 * 2 * np.pi)
    loads = {f"m{i}": day + rng.normal(0, 0.3, len(times)) for i in range(4)}
    loads |= {name: day.copy() for name in ("still", "away")}
    loads["still"][: cut + 5] = 2
    loads["away"][cut - 9 * 24 : cut] = 2
    table = pd.DataFrame(loads, index=times).drop(times[100])
    table.to_csv(path, sep=";", decimal=",")
    return path


def test_the_notes_say_what_was_left_out_in_which_setting(tmp_path: Path) -> None:
    file = own_file(tmp_path / "own.txt")
    config = small(source=str(file), crowd=str(file), n_distinct=2, n_joining=2, minutes=120)
    experiment = PowerExperiment()
    assert experiment.tasks(config)
    notes = experiment.notes(config)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    gap = "1 gap, the first after 2020-01-05T03:00:00, 1 record missing in all."
    assert [note.replace(str(file), "FILE") for note in notes] == [
        f"FILE (sha256 {digest}...): 6 meters, 671 records each.",
        gap,
        "Setting 1, 2: 1 dropped, constant in the records to learn from: still.",
        "Setting 1, 2, 3: 1 record left out: of steps of 120 minutes that a break or the end cuts.",
        "Setting 1, 2, 3: 50 rows left out: lags over a break.",
        "Setting 3: 2 dropped, constant in the records to learn from: still, away.",
    ]
    assert "still" not in study_of(config, "2", 0).rows.train.names
    assert "away" in study_of(config, "2", 0).rows.train.names
    joining = configure(JoiningExperiment(), "quick", {"source": str(file), "shares": [0.5], "epochs": [5, 20, 5]})
    assert len(JoiningExperiment().tasks(joining)) == 2 * 3
    said = JoiningExperiment().notes(joining)
    assert said[1:] == [
        "1 dropped, constant in the records to learn from: still.",
        gap,
        "24 rows left out: lags over a break.",
        "Λ stays as it is in the first 10 epochs (learn2pfed.n_warmup): after 5 nothing is learned yet.",
    ]


def test_setting_3_is_short_for_its_histories() -> None:
    assert small(settings=3).settings == tuple(HISTORIES)
    assert small(settings="1,3,3: one day").settings == ("1", *HISTORIES)


SMALL = {
    "n_rounds": 2,
    "batch_size": 512,
    "hidden": 4,
    "n_seeds": 1,
    "n_joining": 5,
    "learn2pfed.n_epochs": 30,
    "learn2pfed.n_repeats": 1,
    "crowd_epochs": 60,
    "body.ft_epochs": 1,
}


def small(**changes: Any) -> PowerConfig:
    config = configure(PowerExperiment(), "quick", SMALL | changes)
    assert isinstance(config, PowerConfig)
    return config


def rmse(config: PowerConfig, setting: str, title: str) -> dict[str, float]:
    return {row.metric: row.value for row in PowerExperiment().run(config, Task(setting, title, 0)).rows}


def test_the_naive_forecast_and_least_squares_are_what_they_say() -> None:
    config = small()
    rows = study_of(config, "1", 0).rows
    gaps, fits = [], []
    for seen, client in zip(rows.train.all.clients, rows.test.all.clients, strict=True):
        gaps.append(np.sqrt(np.mean((client.X[:, 24] - client.y).numpy() ** 2)))
        v = np.linalg.lstsq(seen.X.numpy(), seen.y.numpy(), rcond=None)[0]
        fits.append(np.sqrt(np.mean((client.X.numpy() @ v - client.y.numpy()) ** 2)))
    assert rmse(config, "1", "Seasonal naive")["RMSE"] == pytest.approx(np.mean(gaps))
    assert rmse(config, "1", "Least squares, alone")["RMSE"] == pytest.approx(np.mean(fits))


def test_every_row_of_every_setting_runs() -> None:
    config = small(algorithms=["naive", "least-squares", "ridge", "global", "fedavg", "learn2pfed"])
    experiment = PowerExperiment()
    tasks = experiment.tasks(config)
    assert {task.setting for task in tasks} == {"1", "2", *HISTORIES}
    found = {}
    for task in tasks:
        done = experiment.run(config, task)
        found[task.setting, task.algorithm] = {row.metric: row.value for row in done.rows}
        assert all(np.isfinite(row.value) for row in done.rows)
        if task.algorithm.startswith(("FedAvg", "Learn2pFed")):
            assert done.rows[0].bytes_up > 0
    assert {algorithm for setting, algorithm in found if setting == "1"} == {
        "Seasonal naive",
        "Least squares, alone",
        "Least squares, together",
        "FedAvg, linear",
        "FedAvg, LSTM",
        "Learn2pFed, linear",
        "Learn2pFed, LSTM",
    }
    assert found["2", "FedAvg, LSTM"]["clients that never took part"] >= 10  # two rounds of five
    one_day, week = (found[setting, "Learn2pFed, linear"]["RMSE"] for setting in ("3: one day", "3: one week"))
    assert one_day < 0.9 * found["3: one day", "Least squares, alone"]["RMSE"]
    assert one_day < 0.9 * found["3: one day", "Ridge, alone"]["RMSE"]
    assert week < one_day


def test_the_head_sees_the_lags_and_features_of_networks_that_have_not_seen_the_row() -> None:
    study = study_of(small(), "1", 0)
    made = power_methods.learn2pfed_on_body(small(), study, 0)
    assert made.outcome.models.shape == (5, 31 + 4)
    assert made.outcome.traffic.bytes_up > power_methods.learn2pfed_linear(small(), study, 0).outcome.traffic.bytes_up

    train, test = power_methods.series_of(study.rows.train), power_methods.series_of(study.rows.test)
    train = train.pick(torch.arange(train.sizes[0]).repeat(5) < 410)
    network = power_methods.network_of(small(), power_methods.LSTM, 30, 0)
    tuning = LocalSettings.of(n_rounds=1, epochs=1, lr=0.01)

    def features(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return power_methods.unseen_features(network, tuning, 4, replace(train, y=y), test)

    learned, judged = features(train.y)
    y = train.y.clone()
    of_first = slice(0, -(-train.sizes[0] // 4))  # a quarter of the first client's rows
    y[of_first] += 5
    other, then = features(y)
    torch.testing.assert_close(other[of_first], learned[of_first], rtol=0, atol=0)
    rest = slice(of_first.stop, train.sizes[0])
    assert ((other[rest] - learned[rest]).abs().amax(1) > 1e-4).all()  # the other three networks did see them
    torch.testing.assert_close(other[train.sizes[0] :], learned[train.sizes[0] :], rtol=0, atol=1e-6)
    assert not torch.equal(judged, then)
    still = power_methods.unseen_features(network, tuning.changed(epochs=0), 4, train, test)
    as_it_is = network.start.expand(5, -1)
    torch.testing.assert_close(still[0], power_methods.features_of(network, as_it_is, train))
    torch.testing.assert_close(still[1], power_methods.features_of(network, as_it_is, test))
    with pytest.raises(DivergenceError, match=r"body\.ft_lr"):
        power_methods.unseen_features(network, tuning.changed(optimizer="sgd", lr=1e30), 4, train, test)


def test_newcomers_follow_as_far_as_lambda_says() -> None:
    late = study_of(small(), "3: one day", 0).newcomers
    assert late is not None
    k = late.train.n_features
    w = torch.arange(k, dtype=torch.float64)
    stiff = power_methods.follow(late.train, w, torch.full((k,), 1e12, dtype=torch.float64))
    torch.testing.assert_close(stiff, w.expand(len(late.train), -1), rtol=0, atol=1e-6)
    loose = power_methods.follow(late.train, w, torch.full((k,), 1e-6, dtype=torch.float64))
    assert (power_methods.errors(loose, late.train) < 1e-4).all()  # 24 rows, 31 coefficients: they fit
    assert len(late.train.times) == 24


def test_newcomers_are_not_among_those_who_learned() -> None:
    study = study_of(small(), "3: one day", 0)
    assert study.newcomers is not None
    assert not set(study.newcomers.train.names) & set(study.rows.train.names)
    assert len(study.newcomers.train) + len(study.rows.train) == 20
    assert study_of(small(), "3: one day", 1).newcomers.train.names != study.newcomers.train.names  # type: ignore[union-attr]


def test_tuning_never_sees_the_last_tenth() -> None:
    config = small()
    for setting in ("1", "2"):
        tuned = study_of(config, setting, 500, tuning=True).rows
        judged = study_of(config, setting, 500).rows
        assert max(tuned.test.times) < min(judged.test.times)
    spaces = PowerExperiment().tunable(config)
    assert {"learn2pfed", "body", "lstm.ditto", "linear.fedrep"} <= spaces.keys()
    assert np.isfinite(PowerExperiment().validate(config, "linear.fedavg"))
    late = small(settings=3)
    assert set(PowerExperiment().tunable(late)) == {"learn2pfed"}  # no network runs there
    with pytest.raises(Learn2pFedError, match="settings 1 and 2"):
        searches(PowerExperiment(), late)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithms": ["nothing"]}, "unknown 'nothing'"),
        ({"algorithms": ["knn-per"]}, "needs classes"),
        ({"settings": ["4"]}, "unknown '4'; there are 1, 2"),
        ({"source": "no/such/file"}, "no/such/file"),
        ({"n_distinct": 21}, "21 meters are asked for"),
        ({"newcomers": 0.99}, "leaves nobody"),
        ({"minutes": 7}, "no multiple"),
        ({"horizon": 6000}, "give longer curves"),
        ({"algorithms": ["ridge"], "settings": ["1"]}, "nothing to do"),
        ({"algorithms": ["ditto"], "settings": ["3: one day"]}, "nothing to do"),
    ],
)
def test_what_can_not_be_studied_is_refused_before_anything_runs(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Learn2pFedError, match=message):
        PowerExperiment().tasks(small(**changes))


def test_some_clients_at_a_time_come_nearer_to_all_together_with_more_epochs() -> None:
    experiment = JoiningExperiment()
    changes = {"epochs": [100, 400], "reference": 400, "shares": [0.5, 1.0], "learn2pfed.n_repeats": 1}
    config = configure(experiment, "quick", changes)
    far, near, same = (
        experiment.run(config, Task(f"{share} an epoch", f"{epochs} epochs", 0)).rows[0].value
        for share, epochs in (("50%", 100), ("50%", 400), ("100%", 400))
    )
    assert same == 0
    assert 0 < near < far / 2
    assert near < 0.01
    assert len(experiment.tasks(config)) == 2 * 2 * 3


def test_shares_that_are_nearly_alike_have_names_of_their_own() -> None:
    experiment = JoiningExperiment()
    config = configure(experiment, "quick", {"shares": [0.1, 0.101, 0.1, 1.0], "epochs": [3], "n_seeds": 1})
    assert [task.setting for task in experiment.tasks(config)] == ["10% an epoch", "10.1% an epoch", "100% an epoch"]
    with pytest.raises(Learn2pFedError, match=r"join = 0.01 of 20 clients is no client at all"):
        experiment.tasks(configure(experiment, "quick", {"shares": [0.5, 0.01]}))


def test_a_run_goes_on_only_with_the_data_it_was_begun_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = own_file(tmp_path / "own.txt")
    ask = ["run", "power", "--algorithms", "naive", "--set", f"crowd={file}", "--set", "settings=2", "--seeds", "1"]
    ask += ["--set", "n_joining=2", "--jobs", "1", "--out", str(tmp_path / "run")]
    assert call(monkeypatch, *ask) == 0
    assert call(monkeypatch, *ask, "--resume") == 0
    before = (tmp_path / "run" / "results.json").read_text()
    file.write_text(file.read_text().replace("5,1", "5,2", 1))
    loads_at.cache_clear()
    assert call(monkeypatch, *ask, "--resume") == 2
    assert (tmp_path / "run" / "results.json").read_text() == before


def test_one_meter_has_nobody_to_learn_with(tmp_path: Path) -> None:
    file = own_file(tmp_path / "own.txt")
    columns = [line.split(";")[:2] for line in file.read_text().splitlines()]
    file.write_text("".join(";".join(cells) + "\n" for cells in columns))
    for setting in ("1", "2", "scarce"):
        with pytest.raises(Learn2pFedError, match="has one usable meter, 'm0': give others to learn with"):
            study_of(small(source=str(file), crowd=str(file), n_joining=2, scarce_rows=20), setting, 0)
