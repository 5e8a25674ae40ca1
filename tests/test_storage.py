"""Models on disk: they come back the same, and what is damaged, foreign or newer is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load, save
from sklearn.exceptions import NotFittedError

from learn2pfed import Learn2pFedClassifier, Learn2pFedRegressor, load_model, save_model
from learn2pfed.errors import Learn2pFedError

QUICK = {"n_epochs": 20, "n_cells": 3, "settings": {"n_repeats": 2}}


@pytest.fixture
def fitted() -> Learn2pFedRegressor:
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(40, 2)), columns=["dose", "age"])
    clients = np.repeat(["a", "b", "ü", "007"], 10)
    return Learn2pFedRegressor(**QUICK).fit(X, X["dose"] + rng.normal(size=40), clients=clients)


def test_a_regressor_comes_back_to_the_last_bit(fitted: Learn2pFedRegressor, tmp_path: Path) -> None:
    save_model(fitted, tmp_path / "m")
    assert {path.name for path in (tmp_path / "m").iterdir()} == {"model.json", numbers(tmp_path / "m").name}
    again, table = load_model(tmp_path / "m")
    assert table is None
    assert type(again) is Learn2pFedRegressor
    assert again.get_params() == fitted.get_params()
    X = pd.DataFrame([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], columns=["dose", "age"])
    who = ["ü", "007", "stranger"]
    assert (again.predict(X, clients=who) == fitted.predict(X, clients=who)).all()
    for name in ("coef_", "intercept_", "global_coef_", "participation_", "history_", "clients_", "parameters_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(fitted, name))
    assert again.traffic_ == fitted.traffic_
    np.testing.assert_array_equal(
        again.adapt(X[:1], [3.0], client="new").coef_, fitted.adapt(X[:1], [3.0], client="new").coef_
    )


@pytest.mark.parametrize("labels", [["no", "yes"], [1, 2, 5], [True, False], [0.5, 1.5]])
def test_a_classifier_keeps_its_classes_and_its_clients_types(labels: list[object], tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(40, 2)), np.array(labels)[np.arange(40) % len(labels)]
    if y.dtype == float:
        y = y.astype(str)  # scikit-learn takes fractions for a regression target
    model = Learn2pFedClassifier(**QUICK).fit(X, y, clients=np.repeat([3, 1], 20))
    save_model(model, tmp_path)
    again, _ = load_model(tmp_path)
    assert again.clients_.tolist() == [1, 3]
    assert again.classes_.dtype.kind == model.classes_.dtype.kind
    assert (again.predict(X, clients=[3] * 40) == model.predict(X, clients=[3] * 40)).all()
    assert (again.predict_proba(X, clients=[1] * 40) == model.predict_proba(X, clients=[1] * 40)).all()


def numbers(folder: Path) -> Path:
    (file,) = folder.glob("model-*.safetensors")
    return file


def test_a_model_that_is_replaced_is_never_lost(
    fitted: Learn2pFedRegressor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken off between its two files, it is still the old one."""
    save_model(fitted, tmp_path)
    before, _ = load_model(tmp_path)
    fitted.adapt(pd.DataFrame([[1.0, 2.0]], columns=["dose", "age"]), [3.0], client="new")

    def break_off(path: Path, content: bytes) -> None:
        if path.suffix == ".json":
            raise KeyboardInterrupt
        path.write_bytes(content)

    with monkeypatch.context() as patch:
        patch.setattr("learn2pfed.storage.write_whole", break_off)
        with pytest.raises(KeyboardInterrupt):
            save_model(fitted, tmp_path)
    assert load_model(tmp_path).model.clients_.tolist() == before.clients_.tolist()
    save_model(fitted, tmp_path)
    assert load_model(tmp_path).model.clients_.tolist() == fitted.clients_.tolist()
    assert numbers(tmp_path).exists()


def change(name: str, value: object) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        card = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps(card | {name: value}))

    return act


def swap_numbers(folder: Path) -> None:
    """Numbers of another shape, with a digest that fits."""
    blob = save(load(numbers(folder).read_bytes()) | {"w": torch.zeros(7, dtype=torch.float64)})
    digest = hashlib.sha256(blob).hexdigest()
    numbers(folder).rename(folder / f"model-{digest[:12]}.safetensors").write_bytes(blob)
    change("digest", digest)(folder)


def cut(find: Callable[[Path], Path]) -> Callable[[Path], None]:
    return lambda folder: find(folder).write_bytes(find(folder).read_bytes()[:-20]) and None


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda folder: (folder / "model.json").unlink(), "can't be read"),
        (lambda folder: numbers(folder).unlink(), "can't be read"),
        (lambda folder: (folder / "model.json").write_text("not json"), "is damaged, or no model of learn2pfed"),
        (lambda folder: (folder / "model.json").write_bytes(b"\xff\xfe\x00"), "is damaged, or no model"),
        (lambda folder: (folder / "model.json").write_text('{"format": "other"}'), "is damaged, or no model"),
        (lambda folder: numbers(folder).write_bytes(b"\x80\x04."), "is damaged, or not of model.json"),
        (cut(numbers), "is damaged, or not of model.json"),
        (cut(lambda folder: folder / "model.json"), "is damaged, or no model"),
        (change("version", 2), "written by a newer learn2pfed"),
        (change("clients", ["a"]), "does not fit model.json"),
        (change("kind", "oracle"), "is damaged at 'kind'"),
        (change("kind", "classifier"), "is damaged at 'classes'"),
        (change("clients", ["p"] * 4), "is damaged at 'clients'"),
        (change("features", ["dose"]), "is damaged at 'features'"),
        (change("digest", "../../etc/passwd"), "is damaged at 'digest'"),
        (change("n_rows", 0), "is damaged at 'n_rows'"),
        (change("traffic", {"bytes": 1}), "is damaged at 'traffic"),
        (change("parameters", {"magic": 1}), "does not fit model.json"),
        (swap_numbers, "w should be"),
    ],
)
def test_what_is_damaged_foreign_or_newer_is_refused(
    fitted: Learn2pFedRegressor, tmp_path: Path, harm: Callable[[Path], None], sentence: str
) -> None:
    save_model(fitted, tmp_path)
    harm(tmp_path)
    with pytest.raises(Learn2pFedError, match=sentence):
        load_model(tmp_path)


def test_parameters_of_numpy_are_kept(fitted: Learn2pFedRegressor, tmp_path: Path) -> None:
    fitted.set_params(n_epochs=np.int64(20), random_state=np.int64(3), settings={"lam_spread": np.float64(4)})
    save_model(fitted, tmp_path)
    again, _ = load_model(tmp_path)
    assert again.get_params() == fitted.get_params()


def test_a_model_that_was_never_fitted_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        save_model(Learn2pFedRegressor(), tmp_path / "m")
    assert not (tmp_path / "m").exists()
