"""A fit that is stopped goes on where it was: the same models, curve and bytes as one that never stopped."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch

from learn2pfed.engines.rounds import Simulator, run_rounds
from learn2pfed.errors import DivergenceError
from learn2pfed.experiments import checkpoints
from learn2pfed.experiments.base import Task
from learn2pfed.experiments.checkpoints import kept_in
from learn2pfed.experiments.comparing import Fitted, fit
from tests.test_baselines import ALL, clients, quick

TASK = Task("1", "FedAvg", 0)


class StoppedError(Exception):
    """Somebody pulled the plug."""


def fitted(name: str, stop_at: int | None = None) -> Fitted:
    algorithm = quick(name, n_rounds=6, join=0.6)

    def watch(simulator: Simulator) -> int:
        if simulator.round == stop_at:
            raise StoppedError
        return simulator.round

    return fit(algorithm, "simulation", clients(), clients(), rounds=(1, 3, 6), watch=watch)


@pytest.mark.parametrize("name", ALL)
def test_what_was_stopped_goes_on_as_if_it_had_not_been(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "EVERY", -1.0)
    whole = fitted(name)
    with pytest.raises(StoppedError), kept_in(tmp_path, TASK):
        fitted(name, stop_at=4)
    (left,) = tmp_path.iterdir()
    seen: list[Any] = []
    monkeypatch.setattr(Simulator, "_answers", _noting(Simulator._answers, seen))
    with kept_in(tmp_path, TASK):
        again = fitted(name)
    assert {simulator.round for simulator in seen} == {3, 4, 5}  # three rounds were not done again
    assert torch.equal(again.outcome.models, whole.outcome.models)
    assert torch.equal(again.outcome.global_model, whole.outcome.global_model)
    assert again.outcome.traffic == whole.outcome.traffic
    assert torch.equal(again.outcome.insight["joined"], whole.outcome.insight["joined"])
    assert (again.curve, again.watched) == (whole.curve, [1, 2, 3, 4, 5, 6])
    assert not left.exists()


def _noting(answers: Any, seen: list[Any]) -> Any:
    def noted(self: Simulator, exchange: Any) -> Any:
        seen.append(type("At", (), {"round": self.round}))
        return answers(self, exchange)

    return noted


def test_every_task_has_a_place_of_its_own_and_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "EVERY", -1.0)
    for task in (TASK, TASK._replace(seed=1), TASK._replace(setting="2"), TASK._replace(algorithm="Ditto")):
        with pytest.raises(StoppedError), kept_in(tmp_path, task):
            fitted("fedavg", stop_at=2)
    assert len(list(tmp_path.iterdir())) == 4
    with pytest.raises(StoppedError):
        fitted("fedavg", stop_at=2)
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("damage", [b"", b"not safetensors", None], ids=["empty", "other", "cut"])
def test_what_is_damaged_is_begun_anew(damage: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "EVERY", -1.0)
    with pytest.raises(StoppedError), kept_in(tmp_path, TASK):
        fitted("fedavg", stop_at=4)
    (left,) = tmp_path.iterdir()
    left.write_bytes(left.read_bytes()[:-5] if damage is None else damage)
    whole = fitted("fedavg")
    with kept_in(tmp_path, TASK):
        assert torch.equal(fitted("fedavg").outcome.models, whole.outcome.models)


def test_a_state_of_another_form_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "EVERY", -1.0)
    algorithm, other = quick("fedavg"), quick("ditto")
    stops = [Simulator(method, clients()).snapshot() for method in (algorithm, other)]
    path = tmp_path / "state.safetensors"
    checkpoints.put(path, checkpoints.Stop(stops[0], {}), "it")
    assert checkpoints.get(path, lambda: stops[0], "it") is not None
    assert checkpoints.get(path, lambda: stops[0], "another") is None
    assert checkpoints.get(path, lambda: stops[1], "it") is None
    checkpoints.put(path, checkpoints.Stop(stops[1], {}), "it")
    assert checkpoints.get(path, lambda: stops[0], "it") is None


def test_another_fit_of_the_same_task_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "EVERY", -1.0)
    whole = fitted("fedprox")
    with kept_in(tmp_path, TASK):
        fitted("fedavg")
        assert list(tmp_path.iterdir())
        assert torch.equal(fitted("fedprox").outcome.models, whole.outcome.models)


def test_a_short_fit_leaves_nothing_on_disk(tmp_path: Path) -> None:
    with pytest.raises(StoppedError), kept_in(tmp_path, TASK):
        fitted("fedavg", stop_at=4)
    assert not list(tmp_path.iterdir())


WILD = {"local-only": {"lr": 1e300}, "fedavg-ft": {"ft_lr": 1e300}, "ditto": {"lam": 1e300}}
"""What a client keeps at home leaves the finite numbers, and what it sends does not."""


@pytest.mark.parametrize("name", WILD)
def test_no_class_is_read_off_a_model_that_is_not_finite(name: str) -> None:
    algorithm = quick(name, optimizer="sgd", **WILD[name])
    assert not run_rounds(algorithm, clients()).models.isfinite().all()
    with pytest.raises(DivergenceError, match=f"^{re.escape(algorithm.title)} left the finite numbers"):
        fit(algorithm, "simulation", clients(), clients())


def test_a_state_of_another_shape_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "EVERY", -1.0)
    with pytest.raises(StoppedError), kept_in(tmp_path, TASK):
        fitted("ditto", stop_at=4)
    (left,) = tmp_path.iterdir()
    with safetensors.safe_open(left, "pt") as file:
        of = json.loads(file.metadata()["said"])["of"]
    fresh = Simulator(quick("ditto"), clients())
    assert checkpoints.get(left, fresh.snapshot, of) is not None
    assert checkpoints.get(left, Simulator(quick("ditto"), clients((3, 3))).snapshot, of) is None
