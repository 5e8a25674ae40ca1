"""What documents say can be done, can be done."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from learn2pfed.experiments.images import ImagesExperiment
from learn2pfed.experiments.tuning import Tunings
from learn2pfed.results.records import Results
from tests.test_cli import call

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "baselines.md").read_text()


def snippets(name: str) -> list[str]:
    return [part.partition("```")[0] for part in (ROOT / name).read_text().split("```python\n")[1:]]


def test_the_baseline_of_the_document_runs_on_both_engines() -> None:
    names: dict[str, Any] = {"__name__": "a_baseline"}
    for code in snippets("docs/adding_a_baseline.md"):
        exec(compile(code, "adding_a_baseline.md", "exec", dont_inherit=True), names)
    torch.testing.assert_close(names["outcome"].models, names["same"].models, rtol=1e-4, atol=1e-5)
    assert names["outcome"].traffic == names["same"].traffic
    assert names["outcome"].insight["joined"].sum() == 2 * 20
    plain = names["FedAvg"](names["LocalSettings"].of(n_rounds=3), names["network"], names["Regression"]())
    still = names["FedAvgM"](names["FedAvgMSettings"].of(n_rounds=3, beta=0), names["network"], names["Regression"]())
    found = [names["run_rounds"](algorithm, names["data"]).models for algorithm in (plain, still)]
    torch.testing.assert_close(*found)


def test_a_network_of_ones_own_is_run_as_the_document_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mynets.py").write_text(snippets("docs/baselines.md")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (line,) = re.findall(r"^    learn2pfed (run polynomial --set model=mynets.*)$", DOCUMENT, re.MULTILINE)
    assert line in (ROOT / "README.md").read_text()
    small = ["--algorithms", "fedper", "--seeds", "1", "--jobs", "1", "--set", "n_rounds=2", "--set", "settings=1"]
    for head in ("2", "none"):
        assert call(monkeypatch, *line.replace("head=2", f"head={head}").split(), *small, "--out", head) == 0
    rows = [json.loads((tmp_path / head / "results.json").read_text())["rows"] for head in ("2", "none")]
    sent = [next(r["bytes_up"] for r in found if r["algorithm"] == "FedPer, mynets:small") for found in rows]
    assert sent[0] < sent[1]  # without a head all of it is shared


def test_networks_learn_as_the_document_about_images_says() -> None:
    found = []
    for code in snippets("docs/images.md"):
        names: dict[str, Any] = {}
        exec(compile(code, "images.md", "exec", dont_inherit=True), names)
        assert names["network"].head == ("2",)
        assert names["outcome"].models.shape == (len(names["data"]), names["network"].n_parameters)
        found.append(names)
    whole, _ = found
    right = whole["whole"].task.marks
    for i, client in enumerate(whole["data"].clients):
        assert right(whole["network"].scores(whole["outcome"].models[i], client.X), client.y).double().mean() > 0.8
    assert whole["outcome"].insight["share"].shape == (3, len(whole["whole"].names))


def test_the_speeds_in_the_document_are_those_of_the_file() -> None:
    (shown,) = re.findall(r"<!-- file:benchmarks/rounds.txt -->\n\n```text\n(.*?)```", DOCUMENT, re.DOTALL)
    kept = (ROOT / "docs" / "benchmarks" / "rounds.txt").read_text().splitlines()
    assert shown.splitlines() == [line for line in kept if not line.startswith("    round")]
    assert "\n".join(kept[1:3]) == runpy.run_path(str(ROOT / "benchmarks" / "rounds.py"))["DATA"]


def test_errors_in_the_text_about_results_stand_in_its_tables_or_in_a_run_beside_them() -> None:
    lines = (ROOT / "docs" / "results.md").read_text().splitlines()
    tables = {word for line in lines if line.startswith("|") for word in line.split()}
    files = [file for file in (ROOT / "docs" / "results" / "again").iterdir() if ".details." not in file.name]
    beside = [Results.model_validate_json(file.read_text()) for file in files]
    single = {f"{row.value:.3f}" for run in beside for row in run.rows if row.metric == "accuracy"}
    text = " ".join(line for line in lines if not line.startswith("|")).partition("## Speed")[0]
    quoted = set(re.findall(r"\b\d\.\d{3,4}\b", text)) - {"0.0002"}  # the paper's
    assert len(quoted) >= 10
    assert quoted <= tables | single


def test_errors_in_the_text_about_tuning_are_those_of_the_trials() -> None:
    tunings = Tunings.model_validate_json((ROOT / "docs" / "results" / "tuning" / "images.json").read_text())
    best = {tuned.method: tuned.best for tuned in tunings.tuned}
    assert all(tuned.complete(16, ImagesExperiment.finalists) for tuned in tunings.tuned)
    text = (ROOT / "docs" / "images.md").read_text().partition("## How the methods were tuned")[2]
    chosen = [best[f"own.{name}"] for name in ("fedprox-ft", "learn2pfed", "fixed-share")]
    assert re.findall(r"0\.\d{4}", text) == [f"{trial.again:.4f}" for trial in chosen if trial is not None]
