"""Tuning: the same number of trials for all, on validation data alone, and files that `run` uses."""

from __future__ import annotations

import json
import math
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from learn2pfed.data.polynomial import Polynomial
from learn2pfed.errors import DivergenceError
from learn2pfed.experiments import polynomial as study
from learn2pfed.experiments import registry
from learn2pfed.experiments.base import Task, over_clients
from learn2pfed.experiments.polynomial import PolynomialConfig, PolynomialExperiment
from learn2pfed.experiments.registry import configure, find, tuned_file, tuned_for, tuned_values
from learn2pfed.experiments.tuning import Tunings, chosen_values, searches, tune
from tests.test_cli import call

ROOT = Path(__file__).parents[1]
SMALL = ["--set", "n_rounds=2", "--set", "settings=1", "--set", "learn2pfed.n_epochs=3", "--jobs", "1"]


def tuned(n_trials: int, method: str) -> list[tuple[float, float | None]]:
    """(step size, error) of every trial."""
    experiment = find("polynomial")
    config = configure(experiment, "quick", {"n_rounds": 2, "settings": [1], "algorithms": "fedavg"})
    (search,) = (found for found in searches(experiment, config) if found.method == method)
    found = tune("polynomial", config.model_dump(), n_trials, search)
    return [(trial.values["lr"], trial.error) for trial in found.trials]


def test_the_first_trial_has_the_values_given_and_the_smallest_error_wins() -> None:
    trials = tuned(4, "mlp.fedavg")
    given = configure(find("polynomial"), "quick", {})
    assert isinstance(given, PolynomialConfig)
    assert trials[0][0] == pytest.approx(given.mlp["fedavg"]["lr"])
    assert len({lr for lr, _ in trials}) == 4
    assert trials == tuned(4, "mlp.fedavg")  # the same seed, the same trials


def test_more_trials_go_on_where_fewer_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = find("polynomial")
    config = configure(experiment, "quick", {"n_rounds": 2, "settings": [1], "algorithms": "fedavg"})
    search = next(found for found in searches(experiment, config) if found.method == "mlp.fedavg")
    few = tune("polynomial", config.model_dump(), 11, search)  # ten are drawn blindly, the next by what they gave
    many = tune("polynomial", config.model_dump(), 14, search)
    run: list[float] = []
    validate = PolynomialExperiment.validate

    def watched(self: PolynomialExperiment, config: PolynomialConfig, key: str) -> float:
        run.append(config.mlp["fedavg"]["lr"])
        return validate(self, config, key)

    monkeypatch.setattr(PolynomialExperiment, "validate", watched)
    known = tuple(few.trials)
    assert tune("polynomial", config.model_dump(), 14, search._replace(known=known)) == many
    assert run == [trial.values["lr"] for trial in many.trials[11:]]
    other = known[0].model_copy(update={"values": {"lr": 0.5}})  # of another search: not to be trusted
    assert tune("polynomial", config.model_dump(), 1, search._replace(known=(other,))).trials == many.trials[:1]


def test_the_best_few_are_tried_again_and_that_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = find("polynomial")
    config = configure(experiment, "quick", {"n_rounds": 2, "settings": [1], "algorithms": "fedavg"})
    search = next(found for found in searches(experiment, config) if found.method == "mlp.fedavg")
    once = tune("polynomial", config.model_dump(), 6, search)
    assert all(trial.again is None for trial in once.trials)
    assert once.complete(6, 0)
    assert not once.complete(6, 3)
    assert not once.complete(7, 0)
    ranked = sorted(once.trials, key=lambda trial: trial.error or 0.0)
    run: list[float] = []

    def again(self: PolynomialExperiment, config: PolynomialConfig, key: str) -> float:
        run.append(config.mlp["fedavg"]["lr"])
        if len(run) == 2:
            raise DivergenceError("the second of three")
        return 1e3 if run[-1] == ranked[0].values["lr"] else len(run)

    monkeypatch.setattr(PolynomialExperiment, "finalists", 3)
    monkeypatch.setattr(PolynomialExperiment, "validate_again", again)
    twice = tune("polynomial", config.model_dump(), 6, search._replace(known=tuple(once.trials)))
    assert run == [trial.values["lr"] for trial in ranked[:4]]
    assert twice.best is not None
    assert twice.best.values == ranked[2].values
    assert twice.complete(6, 3)
    assert [trial.error is None for trial in twice.trials] == [trial is ranked[1] for trial in once.trials]
    assert sum(trial.again is not None for trial in twice.trials) == 3  # the fourth took the place of the second
    assert tune("polynomial", config.model_dump(), 6, search._replace(known=tuple(twice.trials))) == twice
    assert len(run) == 4  # what was tried again is not tried a third time
    monkeypatch.setattr(PolynomialExperiment, "finalists", 1)
    first = tune("polynomial", config.model_dump(), 6, search._replace(known=tuple(twice.trials)))
    assert [trial.again is not None for trial in first.trials] == [trial is ranked[0] for trial in once.trials]


def test_trials_that_diverge_are_kept_and_never_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def validate(self: object, config: PolynomialConfig, key: str) -> float:
        seen.append(config.mlp["fedavg"]["lr"])
        if len(seen) == 2:
            raise DivergenceError("too far")
        return float(len(seen) != 3)

    monkeypatch.setattr(PolynomialExperiment, "validate", validate)
    experiment = find("polynomial")
    config = configure(experiment, "quick", {"algorithms": "fedavg"})
    search = next(found for found in searches(experiment, config) if found.method == "mlp.fedavg")
    found = tune("polynomial", config.model_dump(), 5, search)
    assert [trial.error for trial in found.trials] == [1.0, None, 0.0, 1.0, 1.0]
    assert found.best is not None
    assert found.best.values == {"lr": pytest.approx(seen[2])}
    never = found.model_copy(update={"trials": found.trials[1:2]})
    assert never.best is None
    kept = Tunings(experiment="polynomial", preset="quick", n_trials=5, versions={}, config={}, tuned=[found, never])
    assert chosen_values(kept) == {"mlp": {"fedavg": found.best.values}}


def test_validation_sees_neither_the_truth_nor_the_draws_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    real = study.StudyConfig.study

    def draw(self: study.StudyConfig, setting: str, seed: int) -> Polynomial:
        drawn.append(seed)
        return real(self, setting, seed)

    def truth(self: Polynomial, i: int) -> np.ndarray:
        raise AssertionError("tuning looked at the noise-free curve")

    monkeypatch.setattr(study.StudyConfig, "study", draw)
    monkeypatch.setattr(Polynomial, "truth", truth)
    experiment = find("polynomial")
    config = configure(experiment, "quick", {"n_rounds": 1, "learn2pfed.n_epochs": 2, "algorithms": "ditto,learn2pfed"})
    for search in searches(experiment, config):
        assert math.isfinite(experiment.validate(config, search.method))
    tables = configure(experiment, "quick", {}), configure(find("quality"), "quick", {})
    used = {seed for table in tables if isinstance(table, study.StudyConfig) for seed in table.seeds}
    assert drawn
    assert not used & set(drawn)


def test_a_start_outside_the_search_is_the_first_trial_all_the_same() -> None:
    experiment = find("polynomial")
    config = configure(experiment, "quick", {"n_rounds": 1, "settings": [1], "mlp.ditto.lam": 0, "algorithms": "ditto"})
    search = next(found for found in searches(experiment, config) if found.method == "mlp.ditto")
    trials = tune("polynomial", config.model_dump(), 3, search).trials
    assert trials[0].values["lam"] == 0
    assert len(trials) == 3


def test_methods_that_count_batches_get_as_many_as_epochs_have() -> None:
    for changes, steps in (({}, 4), ({"epochs": 3, "batch_size": 40}, 9), ({"n_rows": 100}, 2)):
        config = configure(find("polynomial"), "quick", changes)
        assert isinstance(config, PolynomialConfig)
        how = study.algorithm_of(config, "pfedme", "MLP", 0).settings
        assert how.model_dump()["n_batches"] == steps
        how = study.algorithm_of(config, "lp-proj", "polynomial", 0).settings
        assert how.model_dump()["n_local"] * how.model_dump()["n_inner"] == steps


def test_a_client_that_leaves_the_finite_numbers_is_not_passed_over() -> None:
    config = configure(find("polynomial"), "quick", {"n_rounds": 2, "mlp.pfedme.alpha": 1e9})
    with pytest.raises(DivergenceError, match=r"pFedMe.*lower"):
        find("polynomial").run(config, Task("3", "pFedMe, MLP", 0))


def test_held_out_rows_are_a_quarter_of_each_client_and_not_trained_on() -> None:
    data = PolynomialConfig().study("1", 500).data
    aside = data.held_out(0.25, 500)
    assert [int(aside[data.owner == i].sum()) for i in range(10)] == [25] * 10
    assert not bool((aside == data.held_out(0.25, 501)).all())
    seen, rest = data.pick(~aside), data.pick(aside)
    assert seen.sizes == (75,) * 10
    assert rest.sizes == (25,) * 10
    both = sorted([*seen.y.tolist(), *rest.y.tolist()])
    assert both == sorted(data.y.tolist())


def test_the_command_writes_trials_and_values_that_run_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ask = ["tune", "polynomial", "--trials", "2", "--algorithms", "fedavg,ditto,learn2pfed", *SMALL, "--out", "t"]
    assert call(monkeypatch, *ask) == 0
    printed = capsys.readouterr().out
    assert "learn2pfed run polynomial --tuned t/tuned.toml" in printed
    assert "log of the mean squared error on held-out rows" in " ".join(printed.split())
    found = json.loads((tmp_path / "t" / "trials.json").read_text())
    methods = ["learn2pfed", "polynomial.fedavg", "polynomial.ditto", "mlp.fedavg", "mlp.ditto"]
    assert [tuned["method"] for tuned in found["tuned"]] == methods
    assert {len(tuned["trials"]) for tuned in found["tuned"]} == {2}
    first = found["tuned"][1]["trials"][0]["values"]["lr"]
    assert first == 0.01  # the default, not what an earlier tuning gave
    chosen = tomllib.loads((tmp_path / "t" / "tuned.toml").read_text())
    assert chosen["mlp"]["ditto"].keys() == {"lr", "lam", "personal_epochs"}
    assert call(monkeypatch, *ask) == 2
    assert "add --resume" in capsys.readouterr().err
    before = (tmp_path / "t" / "trials.json").read_text()
    assert call(monkeypatch, *ask, "--resume") == 0
    assert call(monkeypatch, "tune", "polynomial", "--resume", "--out", "t") == 0  # as it was begun
    assert (tmp_path / "t" / "trials.json").read_text() == before
    cut = found | {"tuned": found["tuned"][:2]}
    (tmp_path / "t" / "trials.json").write_text(json.dumps(cut))
    assert call(monkeypatch, "tune", "polynomial", "--resume", "--out", "t", "--jobs", "1") == 0
    assert json.loads((tmp_path / "t" / "trials.json").read_text()) == found
    assert call(monkeypatch, *ask, "--resume", "--set", "noise=0.2") == 2
    more = [*ask, "--resume", "--trials", "3"]
    assert call(monkeypatch, *more) == 0
    grown = json.loads((tmp_path / "t" / "trials.json").read_text())["tuned"]
    assert [tuned["trials"][:2] for tuned in grown] == [tuned["trials"] for tuned in found["tuned"]]
    assert {len(tuned["trials"]) for tuned in grown} == {3}
    assert call(monkeypatch, *ask, "--resume") == 2  # fewer than there are
    chosen = tomllib.loads((tmp_path / "t" / "tuned.toml").read_text())
    run = ["run", "polynomial", "--algorithms", "ditto", "--seeds", "1", *SMALL, "--tuned", "t/tuned.toml"]
    assert call(monkeypatch, *run) == 0
    used = tomllib.loads((tmp_path / "runs" / "polynomial" / "config.toml").read_text())
    assert used["mlp"]["ditto"]["lam"] == chosen["mlp"]["ditto"]["lam"]
    along = tomllib.loads(tuned_file(find("polynomial")).read_text())
    assert used["mlp"]["fedper"]["lr"] == along["mlp"]["fedper"]["lr"]  # not in the file: as it comes along
    assert "--tuned t/tuned.toml" in (tmp_path / "runs" / "polynomial" / "report.html").read_text()


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (["tune", "panels"], "panels has nothing to tune"),
        (["tune", "nothing"], "There is no experiment 'nothing'"),
        (["tune", "polynomial", "--algorithms", "magic"], "unknown 'magic'; there are local-only, fedavg"),
        (["tune", "polynomial", "--algorithms", "reml"], "polynomial has nothing to tune"),
        (["run", "polynomial", "--tuned", "absent.toml"], "absent.toml does not exist"),
        (["run", "polynomial", "--tuned", "broken.toml"], "broken.toml"),
        (["run", "polynomial", "--tuned", "unknown.toml"], "There is no setting 'mlp.fedavg.size'"),
        (["run", "polynomial", "--set", "mlp.fedavg.lr=-1"], "mlp.fedavg.lr: input should be greater than 0, got -1."),
        (["run", "polynomial", "--set", "mlp=3"], "mlp: give settings by method"),
        (["run", "polynomial", "--set", "mlp.fedavg=none"], "mlp: give settings by method"),
        (["run", "polynomial", "--set", "model=polynomial"], "There is no model 'polynomial'"),
        (["run", "polynomial", "--set", "first_seed=498"], "seeds 500 and 501 are for tuning alone"),
        (["run", "polynomial", "--algorithms", "knn-per"], "knn-per needs classes to predict"),
        (["run", "polynomial", "--algorithms", "lp-proj", "--set", "polynomial.lp-proj.n_projected=5"], "has: 4."),
        (["run", "polynomial", "--set", "mlp.magic.lr=1"], "There is no setting 'mlp.magic.lr'; there are local-only"),
        (["run", "polynomial", "--set", "join=0.01"], "is no client at all: use at least 0.1"),
        (["run", "polynomial", "--set", "join=0"], "join: input should be greater than 0"),
        (["run", "polynomial", "--set", "model=magic"], "There is no model 'magic'; there are linear, mlp, lstm"),
        (["run", "polynomial", "--set", "model=math:nothing"], "can't be imported"),
        (["run", "polynomial", "--set", "head=tail"], "no parameters in a part called 'tail'; there are layers.0"),
        (["run", "polynomial", "--set", "model=badnets:one"], "'badnets:one' must be a function of (shape, outputs)"),
        (
            ["run", "polynomial", "--set", "model=badnets:one"],
            "with (1,), 1 it says: TypeError: one() takes 1 positional",
        ),
        (
            ["run", "polynomial", "--set", "model=badnets:bare"],
            "there are no parts. For a network without a head",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    ask: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.toml").write_text("[mlp")
    (tmp_path / "unknown.toml").write_text("[mlp.fedavg]\nsize = 3")
    (tmp_path / "badnets.py").write_text(
        "from torch import nn\n\n\ndef one(shape):\n    return nn.Linear(shape[0], 1)\n\n\n"
        "def bare(shape, n_outputs):\n    return nn.Linear(shape[0], n_outputs)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = sorted(tmp_path.rglob("*"))
    more = [] if "--algorithms" in ask or ask[0] == "tune" else ["--algorithms", "fedper", "--jobs", "1"]
    assert call(monkeypatch, *ask, *more) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert sorted(tmp_path.rglob("*")) == before


def test_a_network_of_ones_own_by_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mynets.py").write_text(
        "from torch import nn\n\n\ndef small(shape, n_outputs):\n"
        "    return nn.Sequential(nn.Linear(shape[0], 3), nn.Tanh(), nn.Linear(3, n_outputs))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    own = ["--set", "model=mynets:small", "--set", "head=2", "--algorithms", "fedper", "--seeds", "1"]
    assert call(monkeypatch, "run", "polynomial", *SMALL, *own, "--out", "x") == 0
    rows = json.loads((tmp_path / "x" / "results.json").read_text())["rows"]
    assert {row["algorithm"] for row in rows} == {"FedPer, mynets:small", "FedPer, polynomial"}


def test_clients_that_never_took_part_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ask = ["--algorithms", "fedavg", "--seeds", "1", "--set", "join=0.2", "--out", "x"]
    assert call(monkeypatch, "run", "polynomial", *SMALL, *ask) == 0
    rows = json.loads((tmp_path / "x" / "results.json").read_text())["rows"]
    counts = {row["value"] for row in rows if row["metric"] == "clients that never took part"}
    assert len(counts) == 1  # the same draw for every method
    assert 6 <= counts.pop() <= 8


def test_a_metric_over_clients_says_mean_weight_spread_and_the_worst() -> None:
    values = np.arange(20.0)
    measured = over_clients("RMSE", values, [1] * 19 + [20], larger_is_better=False)
    assert measured["RMSE"] == 9.5
    assert measured["RMSE, weighted by samples"] == pytest.approx((171 + 19 * 20) / 39)
    assert measured["RMSE, std over clients"] == pytest.approx(np.std(values, ddof=1))
    assert measured["RMSE, worst tenth of clients"] == 18.5
    assert over_clients("accuracy", values, [1] * 20, larger_is_better=True)["accuracy, worst tenth of clients"] == 0.5


def test_the_values_in_the_package_are_the_best_of_the_trials_that_are_kept() -> None:
    kept = sorted((ROOT / "docs" / "results" / "tuning").glob("*.json"))
    assert [file.stem for file in kept] == ["images", "polynomial", "power"]
    for file in kept:
        tunings = Tunings.model_validate_json(file.read_text())
        experiment = find(file.stem)
        assert {len(found.trials) for found in tunings.tuned} == {tunings.n_trials}
        wanted = {search.method for search in searches(experiment, configure(experiment, tunings.preset, {}))}
        assert {found.method for found in tunings.tuned} == wanted
        assert tomllib.loads(tuned_file(experiment).read_text()) == chosen_values(tunings)
        assert tuned_values(tuned_file(experiment))


def test_studies_of_the_same_methods_take_the_values_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = tmp_path / "images.toml"
    values.write_text("[own.plug-in]\nlr = 0.0123\n\n[own.ditto]\nlam = 0.0456\n")
    monkeypatch.setattr(registry, "tuned_file", lambda experiment: values if experiment.tuned_as else tmp_path / "none")
    assert tuned_for(find("start-layer")) == {"own.plug-in.lr": 0.0123}
    assert configure(find("start-layer"), "quick", {}).model_dump()["own"]["plug-in"]["lr"] == 0.0123
    assert tuned_for(find("resources")) == {"own.plug-in.lr": 0.0123, "own.ditto.lam": 0.0456}
    assert {find(name).tuned_as for name in ("start-layer", "resources")} == {"images"}
    assert tuned_for(find("images")) == {}
