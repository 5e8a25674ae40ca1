"""Imports go one way, nothing is unpickled, and documents agree with the runs behind them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learn2pfed.algorithms.base import Outcome
from learn2pfed.report.docs import with_tables
from learn2pfed.results.store import read_details, read_results

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "learn2pfed"
ORDER = (
    "errors",
    "search",
    "data",
    "models",
    "tasks",
    "unrolled",
    "algorithms",
    "engines",
    "personal",
    "results",
    "estimators",
    "storage",
    "experiments",
    "report",
    "owndata",
    "cli",
)


def imported(path: Path) -> set[str]:
    """Top-level parts of learn2pfed that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name.startswith("learn2pfed.")}
    return found


def test_a_folder_imports_only_from_the_ones_before_it() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"]
    assert len(files) > 20
    for path in files:
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        assert part in ORDER, f"{part} has no place in the order"
        later = {name for name in imported(path) if ORDER.index(name) > ORDER.index(part)}
        assert not later, f"{path.name} imports {later}"


def test_the_examples_in_the_readme_run_and_find_what_is_shared() -> None:
    table, baseline, conversation = (
        part.partition("```")[0] for part in (ROOT / "README.md").read_text().split("```python\n")[1:]
    )
    names: dict[str, Any] = {}
    exec(baseline, names)
    right = names["marks_of"](names["ditto"], names["ditto_outcome"].models, names["data"], names["data"])
    assert right.mean() > 0.9
    exec(table, names)
    dose, age, level = np.median(names["model"].participation_, axis=0)
    assert level < 0.2 < 0.7 < min(dose, age)  # the level is each firm's own
    assert names["model"].clients_[-1] == "newcomer"
    exec(conversation, names)
    assert isinstance(names["outcome"], Outcome)
    assert int(names["outcome"].insight["lam"][0].argmin()) == 0  # the level is each client's own


def test_nothing_is_unpickled() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        for word in ("import pickle", "torch.load", "allow_pickle", "joblib", "cloudpickle"):
            assert word not in text, f"{word} in {path}"


KEPT = sorted(path for path in (ROOT / "docs" / "results").glob("*.json") if "." not in path.stem)
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("file", KEPT, ids=lambda path: path.stem)
def test_tables_in_the_documents_are_those_of_the_runs(file: Path) -> None:
    results, details = read_results(file), read_details(file).details
    shown = [path for path in DOCUMENTS if f"<!-- tables:{file.stem}" in path.read_text()]
    assert shown, f"{file.stem} is in no document"
    for path in shown:
        text = path.read_text()
        names = file.relative_to(ROOT), path.relative_to(ROOT)
        assert with_tables(text, results, details) == text, f"run: learn2pfed report {names[0]} --into {names[1]}"


def test_the_runs_behind_the_tables_are_kept() -> None:
    assert {path.stem for path in KEPT} >= {"polynomial", "ablation", "layers", "quality"}
