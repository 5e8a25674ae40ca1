"""The command line as a person meets it: what it writes, what it says, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from learn2pfed.cli import main
from learn2pfed.cli.common import console, progress_bar, rich_table
from learn2pfed.errors import Learn2pFedError
from learn2pfed.experiments.registry import EXPERIMENTS
from learn2pfed.report.tables import Table
from learn2pfed.unrolled.settings import Settings

QUICK = ["--seeds", "2", "--jobs", "1"]
QUICK += [part for change in ("learn2pfed.n_epochs=12", "paper.n_epochs=5", "n_rounds=2") for part in ("--set", change)]

FEW = ["--algorithms", "ditto,least-squares,global,paper,learn2pfed,reml,oracle"]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit code of the command."""
    monkeypatch.setattr(sys, "argv", ["learn2pfed", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_run_writes_everything_and_says_where(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "run", "polynomial", *QUICK, "--set", "settings=3") == 0
    said = capsys.readouterr().out
    assert "runs/polynomial/report.html" in said
    for name in ("Local-Only", "lp_proj", "Least squares, alone", "Learn2pFed (paper)", "REML (limit)", "RMSE", "MSE"):
        assert name in said
    folder = here / "runs" / "polynomial"
    results = json.loads((folder / "results.json").read_text())
    assert {"experiment", "preset", "versions", "rows"} <= results.keys()
    wanted = {"setting", "algorithm", "seed", "metric", "value", "seconds", "bytes_up", "bytes_down"}
    assert all(wanted <= row.keys() for row in results["rows"])
    errors = [row for row in results["rows"] if row["metric"] in ("RMSE", "MSE")]
    assert len(errors) == (6 + 2 * 10) * 2 * 2
    assert tomllib.loads((folder / "config.toml").read_text())["learn2pfed"]["n_epochs"] == 12
    assert {path.name for path in (folder / "figures").iterdir()} == {
        f"{name}.{kind}" for name in ("methods", "lambda", "fits", "rounds", "learning") for kind in ("svg", "png")
    }
    assert not list(folder.rglob(".*"))

    assert call(monkeypatch, "run", "polynomial", *QUICK, "--algorithms", "least-squares") == 0
    assert (here / "runs" / "polynomial-2" / "results.json").exists()


def test_an_old_run_is_not_overwritten(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = ("run", "polynomial", *QUICK, "--algorithms", "least-squares", "--out", "x")
    assert call(monkeypatch, *ask) == 0
    before = (here / "x" / "results.json").read_text()
    assert call(monkeypatch, *ask) == 2
    assert "add --resume" in capsys.readouterr().err
    assert call(monkeypatch, *ask, "--resume") == 0
    assert (here / "x" / "results.json").read_text() == before
    assert call(monkeypatch, *ask, "--resume", "--set", "noise=0.2") == 2
    assert "with other settings" in capsys.readouterr().err
    assert call(monkeypatch, "run", "ablation", "--resume", "--out", "x") == 2
    assert "x holds a run of polynomial: go on with learn2pfed run polynomial --resume" in capsys.readouterr().err
    file = here / "x" / "results.json"
    file.write_text(json.dumps(json.loads(before) | {"versions": {"torch": "1.0"}}))
    assert call(monkeypatch, *ask, "--resume") == 2
    assert re.search(r"x was begun with torch 1\.0; here is .*: install those or", capsys.readouterr().err)


def test_resume_does_only_what_is_left(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = ("run", "polynomial", *QUICK, "--algorithms", "least-squares,global", "--out", "x")
    assert call(monkeypatch, *ask) == 0
    file = here / "x" / "results.json"
    whole = json.loads(file.read_text())
    cut = whole | {"rows": whole["rows"][:5] + [row | {"value": 0.125} for row in whole["rows"][5:10]]}
    file.write_text(json.dumps(cut))
    assert call(monkeypatch, *ask, "--resume") == 0
    again = json.loads(file.read_text())["rows"]
    assert len(again) == len(whole["rows"])
    assert [row["value"] for row in again].count(0.125) == 5


def test_a_method_that_diverges_is_a_result_and_the_others_go_on(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--algorithms", "fedavg,pfedme", "--seeds", "1", "--jobs", "1", "--set", "n_rounds=2", "--set", "settings=3"]
    wild = ["--set", "polynomial.pfedme.alpha=1e9"]
    assert call(monkeypatch, "run", "polynomial", *few, *wild) == 0
    said = capsys.readouterr().out
    assert "pFedMe, polynomial, setting 3, seed 0: pFedMe left the finite numbers: lower its step size." in said
    assert said.count("diverged (1/1)") == said.count("Polynomial regression: ") > 1  # in every table
    file = here / "runs" / "polynomial" / "results.json"
    rows = json.loads(file.read_text())["rows"]
    gone = [row for row in rows if row["algorithm"] == "pFedMe, polynomial"]
    assert [(row["metric"], row["value"]) for row in gone] == [("diverged", 1.0)]
    assert {"FedAvg, MLP", "FedAvg, polynomial", "pFedMe, MLP"} <= {row["algorithm"] for row in rows}

    monkeypatch.setattr("learn2pfed.experiments.registry.spread", lambda work, tasks, n_jobs: iter(tasks or ()))
    assert call(monkeypatch, "run", "polynomial", *few, *wild, "--resume") == 0  # nothing is left to do
    assert json.loads(file.read_text())["rows"] == rows


def test_fits_of_another_run_are_taken_over_if_nothing_behind_them_changed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = ("run", "polynomial", *QUICK, "--algorithms", "least-squares,global")
    assert call(monkeypatch, *ask, "--out", "x") == 0
    file = here / "x" / "results.json"
    marked = json.loads(file.read_text())
    file.write_text(json.dumps(marked | {"rows": [row | {"value": 0.125} for row in marked["rows"]]}))
    details = json.loads((here / "x" / "details.json").read_text())["details"]
    capsys.readouterr()

    def values(out: str) -> list[bool]:
        rows = json.loads((here / out / "results.json").read_text())["rows"]
        return [row["value"] == 0.125 for row in rows]

    n = len(marked["rows"])
    assert call(monkeypatch, *ask, "--seeds", "3", "--reuse", "x", "--out", "more") == 0
    assert "12 of 18 fits taken over." in capsys.readouterr().out
    assert values("more") == [True] * n + [False] * (n // 2)
    taken = json.loads((here / "more" / "details.json").read_text())["details"]
    assert [detail for detail in taken if detail in details] == details
    assert call(monkeypatch, *ask, "--set", "noise=0.2", "--reuse", "x", "--out", "other") == 0
    assert "0 of 12 fits taken over." in capsys.readouterr().out
    assert not any(values("other"))
    file.write_text(json.dumps(marked | {"versions": {"torch": "1.0"}}))
    assert call(monkeypatch, *ask, "--reuse", "x", "--out", "old") == 2
    assert "--reuse: x is of polynomial with torch 1.0; this run is" in capsys.readouterr().err
    assert not (here / "old").exists()


HEARS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # also in the background of a shell
PROGRAM = [sys.executable, "-c", f"{HEARS}; from learn2pfed.cli import main; main()"]
QUIET = os.environ | {"PYTHONWARNINGS": "ignore"}


def stopped(file: Path, until: str, *ask: str) -> str:
    """What is said by a command that gets Ctrl-C once the file has that text."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    run = subprocess.Popen([*PROGRAM, *ask], **pipes, env=QUIET, start_new_session=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (file.exists() and until in file.read_text()):
        time.sleep(0.01)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does: the whole group
    said, complaint = run.communicate(timeout=120)
    assert run.returncode == 130, complaint
    assert "Traceback" not in complaint
    return str(said)


def go_on(said: str) -> None:
    """Does as it was told."""
    done = subprocess.run(
        [*PROGRAM, *said.split("go on with: learn2pfed ")[1].split()],
        capture_output=True,
        text=True,
        timeout=300,
        env=QUIET,
    )
    assert done.returncode == 0, done.stderr


def test_ctrl_c_before_the_first_result_leaves_a_run_that_can_go_on(here: Path) -> None:
    ask = ["run", "polynomial", "--seeds", "2", "--out", "x", "--jobs", "2", "--algorithms", "least-squares"]
    file = here / "x" / "results.json"
    said = stopped(file, '"rows"', *ask)  # while the processes start
    assert json.loads(file.read_text())["rows"] == []
    assert "go on with: learn2pfed run polynomial --resume --out x" in said
    go_on(said)
    assert len(json.loads(file.read_text())["rows"]) == 2 * 3 * 5
    assert tomllib.loads((here / "x" / "config.toml").read_text())["n_seeds"] == 2


def test_ctrl_c_leaves_a_tuning_that_can_go_on(here: Path) -> None:
    ask = ["tune", "polynomial", "--trials", "1", "--algorithms", "fedavg", "--set", "n_rounds=2", "--out", "x"]
    file = here / "x" / "trials.json"
    said = stopped(file, '"tuned"', *ask, "--set", "settings=1", "--jobs", "2")
    assert json.loads(file.read_text())["tuned"] == []
    assert "go on with: learn2pfed tune polynomial --resume --out x" in said
    go_on(said)
    assert len(json.loads(file.read_text())["tuned"]) == 2


def test_ctrl_c_leaves_a_run_that_can_go_on(here: Path) -> None:
    ask = ["run", "polynomial", "--out", "x", "--algorithms", "fedper", "--set", "n_rounds=5"]
    file = here / "x" / "results.json"
    said = stopped(file, '"value"', *ask)
    assert "go on with: learn2pfed run polynomial --resume --out x" in said
    n_kept = len(json.loads(file.read_text())["rows"])
    assert n_kept > 0
    go_on(said)
    rows = json.loads(file.read_text())["rows"]
    assert len({(r["setting"], r["algorithm"], r["seed"], r["metric"]) for r in rows}) == len(rows) > n_kept


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "nothing"], "There is no experiment 'nothing'; there are polynomial"),
        (["run", "polynomial", "--preset", "huge"], "no preset 'huge'; there are quick, paper"),
        (["run", "polynomial", "--algorithms", "magic"], "unknown 'magic'; there are local-only"),
        (["run", "polynomial", "--set", "learn2pfed.n_cells=0"], "learn2pfed.n_cells: input should be greater than"),
        (["run", "polynomial", "--set", "noise=-1"], "noise: input should be greater than or equal to 0, got -1"),
        (["run", "polynomial", "--set", "learn2pfed.learn=lam,mu"], "unknown group 'mu'; there are lam, p, rho"),
        (["run", "polynomial", "--set", "learn2pfed.size=3"], "There is no setting 'learn2pfed.size'; there are n_c"),
        (["run", "polynomial", "--set", "learn2pfed.n_cell=3"], "did you mean 'learn2pfed.n_cells'?"),
        (["run", "polynomial", "--set", "rubbish"], "--set takes NAME=VALUE, got 'rubbish'"),
        (["run", "polynomial", "--set", "settings=4"], "settings.0: input should be 1, 2 or 3"),
        (["run", "polynomial", "--set", "n_rows=5"], "leaves a client with no rows: raise n_rows"),
        (["run", "polynomial", "--set", "sizes=random", "--set", "n_rows=50"], "can't be split at random"),
        (["run", "polynomial", "--out", "taken"], "taken already holds something: choose another"),
        (["run", "polynomial", "--resume", "--out", "x"], "There is no run to resume in x: leave out --resume"),
        (["run", "polynomial", "--resume"], "There is no run to resume in runs/polynomial"),
        (["tune", "polynomial", "--resume", "--out", "x"], "There is no tuning to resume in x: leave out --resume"),
        (["run", "polynomail"], "There is no experiment 'polynomail'; did you mean 'polynomial'?"),
        (["run", "polynomial", "--algorithms", "dito"], "unknown 'dito'; did you mean 'ditto'?"),
        (["run", "polynomial", "--algorithms", "magic"], "oracle, cfl (only for classes), knn-per (only for classes)."),
        (["run", "polynomial", "--set", "ditto.lam=3"], "did you mean 'mlp.ditto.lam' or 'polynomial.ditto.lam'?"),
        (["run", "polynomial", "--set", "mlp.lam=3"], "did you mean 'mlp.pfedme.lam' or 'mlp.ditto.lam'"),
        (["run", "polynomial", "--set", "magic=3"], "mlp.*, polynomial.*."),
        (["run", "polynomial", "--set", "learn2pfed.learn=p", "--set", "learn2pfed.gradient=local"], "only through w"),
        (["run", "layers", "--set", "depths=0"], "depths.0: input should be greater than or equal to 1"),
        (["run", "layers", "--set", "penalties=-1"], "penalties.0: input should be greater than 0"),
        (["run", "layers", "--algorithms", "magic"], "There is no setting 'algorithms'"),
        (["run", "polynomial", "--set", "settings=[]"], "settings: tuple should have at least 1 item"),
        (["run", "polynomial", "--out", "x" * 300], "can't be used"),
        (["report", "absent"], "can't be read"),
        (["report", "taken"], "is not a results file of learn2pfed"),
        (
            [
                "run",
                "polynomial",
                "--algorithms",
                "learn2pfed",
                "--seeds",
                "1",
                "--set",
                "settings=1",
                "--set",
                "learn2pfed.learning_rate=1e3",
            ],
            "Learn2pFed, setting 1, seed 0: Learn2pFed diverged at epoch",
        ),
    ],
)
def test_a_mistake_is_one_sentence_exit_code_2_and_nothing_written(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    (here / "taken").write_text("a file, not a folder")
    if "--jobs" not in arguments and arguments[0] == "run":
        arguments = [*arguments, "--jobs", "1"]
    assert call(monkeypatch, *arguments) == 2
    complaint = capsys.readouterr().err
    assert sentence in complaint
    assert "Traceback" not in complaint
    assert complaint.count("\n") == 1
    assert not [path for path in here.rglob("*") if path.is_file() and path.name != "taken"]


def test_one_client_and_few_rows_work(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for change in ("n_clients=1", "n_rows=20", "learn2pfed.lam_spread=none"):
        ask = ["run", "polynomial", *QUICK, *FEW, "--set", change, "--set", "settings=1", "--out", change]
        assert call(monkeypatch, *ask) == 0
        rows = json.loads((here / change / "results.json").read_text())["rows"]
        assert {row["algorithm"] for row in rows} >= {"Learn2pFed", "REML (limit)"}


def test_nothing_to_learn_and_parts_of_a_table_work(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = ["--set", "settings=3"]
    ask = ["run", "polynomial", "--jobs", "1", "--seeds", "1", "--algorithms", "learn2pfed", *one]
    assert call(monkeypatch, *ask, "--set", "learn2pfed.n_epochs=0") == 0
    part = ["--seeds", "1", "--algorithms", "least-squares,reml"]
    part += ["--set", "first_seed=0"]  # its own seeds are for no test
    assert call(monkeypatch, "run", "quality", "--jobs", "1", *part) == 0
    assert call(monkeypatch, "run", "polynomial", *QUICK, *FEW, *one, "--set", "n_rows=4", "--set", "n_clients=4") == 0


def test_a_folder_with_other_files_is_left_alone(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "full").mkdir()
    (here / "full" / "thesis.tex").write_text("mine")
    for ask in (["run", "polynomial"], ["tune", "polynomial"]):
        assert call(monkeypatch, *ask, "--out", "full") == 2
        assert "full already holds something: choose another folder" in capsys.readouterr().err
    assert [path.name for path in (here / "full").iterdir()] == ["thesis.tex"]
    (here / "empty").mkdir()
    assert call(monkeypatch, "run", "polynomial", *QUICK, "--algorithms", "least-squares", "--out", "empty") == 0


def test_names_are_printed_as_they_are(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    name = "mine:ok: [bold]x[/bold] [a] :smile:"
    console.print(name)
    console.print(rich_table(Table(name, (name, "n"), ((name, "1"),))))
    with progress_bar() as bar:
        bar.console.print(name)
        bar.add_task(name)
        assert str(bar.columns[0](bar.tasks[0])) == name  # type: ignore[operator]
    assert capsys.readouterr().out.count(name) == 5

    def fail() -> None:
        raise Learn2pFedError(name)

    monkeypatch.setattr("learn2pfed.cli.app", fail)
    assert call(monkeypatch) == 2
    assert capsys.readouterr().err == f"Error: {name}\n"


def test_lists_show_what_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(console, "width", 400)
    assert call(monkeypatch, "list", "experiments") == 0
    said = {part.split()[0]: part for part in capsys.readouterr().out.strip().split("\n\n")}
    lines = {name: [" ".join(line.split()) for line in part.splitlines()] for name, part in said.items()}
    assert "n_rounds 100 T, rounds of the baselines" in lines["polynomial"]
    assert "--preset paper: n_rounds=500" in lines["polynomial"]
    assert "mlp.fedavg lr = 0.007413" in lines["polynomial"]
    assert "n_seeds 20 trials (--seeds)" in lines["quality"]
    assert "n_seeds 3 trials (--seeds)" in lines["layers"]
    assert "--preset paper: n_seeds=5" in lines["layers"]
    assert "--preset paper: recipes=paper" in lines["ablation"]
    assert call(monkeypatch, "list", "algorithms") == 0
    settings = capsys.readouterr().out
    assert "see below" not in settings
    for name in Settings.model_fields:
        assert name in settings


def test_list_and_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "list") == 0
    said = capsys.readouterr().out
    for name in ("polynomial", "ablation", "layers", "quality", "--preset", "n_cells", "deviation_spread"):
        assert name in said
    assert call(monkeypatch, "run", "--help") == 0
    said = capsys.readouterr().out
    assert "learn2pfed run polynomial --seeds 20" in said
    for preset in {preset for experiment in EXPERIMENTS.values() for preset in experiment.presets}:
        assert preset in said
