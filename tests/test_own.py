"""A person's own table on the command line: what it prints and writes, what it refuses, and the examples."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from learn2pfed import load_model
from tests.test_cli import call

ROOT = Path(__file__).parents[1]
QUICK = ["--set", "n_epochs=40", "--set", "n_repeats=2"]


def visits(n_clients: int = 8, n: int = 20) -> pd.DataFrame:
    """Hospitals: the level is each one's own, the effect of dose and ward is shared."""
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(n_clients), n)
    frame = pd.DataFrame(
        {
            "hospital": [f"H{i}" for i in who],
            "dose": rng.normal(size=len(who)).round(3),
            "ward": rng.choice(["north", "south", "east"], len(who)),
            "day": pd.date_range("2024-01-01", periods=len(who)).strftime("%Y-%m-%d"),
        }
    )
    level = 5 * rng.normal(size=n_clients)
    frame["days"] = level[who] + 2 * frame["dose"] + (frame["ward"] == "south") + 0.5 * rng.normal(size=len(who))
    frame["better"] = np.where(frame["days"] + rng.normal(size=len(who)) > 0, "yes", "no")
    return frame


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    visits().to_csv("visits.csv", index=False)
    return tmp_path


FIT = ["fit", "visits.csv", "--client", "hospital", "--target", "days", "--features", "dose,ward", *QUICK]


def test_fit_prints_compares_explains_and_writes(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *FIT, "--out", "runs/mine", "--set", "n_epochs=150", "--test", "0.5") == 0
    said = capsys.readouterr().out
    for words in (
        "H0",
        "H7",
        "all rows",
        "Held-out rows: RMSE",
        "alone",
        "one for all",
        "personalised",
        "runs/mine/report.html",
    ):
        assert words in said
    assert "Shared by all clients: dose (" in said
    assert "Each client's own: level at average x (" in said
    folder = here / "runs" / "mine"
    assert {path.name for path in folder.iterdir() if path.suffix != ".safetensors"} == {
        "model.json",
        "results.json",
        "config.toml",
        "participation.csv",
        "clients.csv",
        "report.html",
        "figures",
    }
    assert {path.stem for path in (folder / "figures").iterdir()} == {"participation", "errors"}
    results = json.loads((folder / "results.json").read_text())
    assert {row["algorithm"] for row in results["rows"]} == {"local", "global", "learn2pfed"}
    rmse = {row["algorithm"]: row["value"] for row in results["rows"] if row["metric"] == "RMSE"}
    assert rmse["learn2pfed"] < min(rmse["local"], rmse["global"])
    assert next(row for row in results["rows"] if row["algorithm"] == "learn2pfed")["bytes_up"] > 0
    part = pd.read_csv(folder / "participation.csv")
    assert list(part.columns) == ["client", "dose", "ward=north", "ward=south", "intercept"] or "ward=east" in part
    assert len(part) == 8
    by_client = pd.read_csv(folder / "clients.csv")
    assert (by_client["training rows"] == 10).all()
    assert (by_client["test rows"] == 10).all()
    total = np.sqrt((by_client["learn2pfed"] ** 2).mean())  # all have ten test rows
    assert total == pytest.approx(rmse["learn2pfed"])
    assert tomllib.loads((folder / "config.toml").read_text())["features"] == ["dose", "ward"]
    page = (folder / "report.html").read_text()
    assert "learn2pfed fit visits.csv --client hospital" in page
    assert not list(here.rglob(".*"))


def test_the_saved_model_is_the_one_that_was_judged_and_predicts_as_it_did(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *FIT, "--out", "mine", "--time", "day") == 0
    rows = json.loads((here / "mine" / "results.json").read_text())["rows"]
    judged = next(r["value"] for r in rows if (r["algorithm"], r["metric"]) == ("learn2pfed", "RMSE"))
    frame = pd.read_csv("visits.csv")
    latest = frame.groupby("hospital").tail(4)  # the latest days, one fifth
    latest.to_csv("latest.csv", index=False)
    capsys.readouterr()
    assert call(monkeypatch, "predict", "mine", "latest.csv") == 0
    assert "32 rows predicted: latest-predicted.csv" in capsys.readouterr().out
    out = pd.read_csv("latest-predicted.csv")
    assert np.sqrt(((out["predicted days"] - out["days"]) ** 2).mean()) == pytest.approx(judged)
    assert (out["model"] == "personal").all()
    gaps = latest.assign(days=latest["days"].where(latest["hospital"] != "H0"))
    gaps.to_csv("gaps.csv", index=False)
    assert call(monkeypatch, "predict", "mine", "gaps.csv") == 0  # some targets are missing: the others judge
    known = out[out["hospital"] != "H0"]
    error = np.sqrt(((known["predicted days"] - known["days"]) ** 2).mean())
    assert f"RMSE on them: {error:.3g}" in capsys.readouterr().out
    gaps.assign(days=np.nan).to_csv("gaps.csv", index=False)
    assert call(monkeypatch, "predict", "mine", "gaps.csv") == 0
    assert "RMSE" not in capsys.readouterr().out
    assert call(monkeypatch, "predict", "mine", "gaps.csv", "--out", "./gaps.csv") == 2
    assert "is the table itself" in capsys.readouterr().err
    assert call(monkeypatch, "predict", "mine", "gaps.csv", "--out", "p.parquet") == 2
    assert "let --out end in .csv" in capsys.readouterr().err
    stranger = latest.drop(columns=["days", "day", "better"]).assign(hospital="H99")
    stranger.to_parquet("stranger.parquet")
    assert call(monkeypatch, "predict", "mine", "stranger.parquet", "--out", "out/s.csv") == 0
    assert "32 of them by the global model" in capsys.readouterr().out
    assert (pd.read_csv("out/s.csv")["model"] == "global").all()


def test_explain_and_adapt(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, *FIT, "--out", "mine") == 0
    before, _ = load_model("mine")
    capsys.readouterr()
    assert call(monkeypatch, "explain", "mine") == 0
    said = capsys.readouterr().out
    assert "What is shared" in said
    assert "level at average x" in said
    assert call(monkeypatch, "explain", "mine", "--client", "H3") == 0
    assert "H3: its parameters" in capsys.readouterr().out
    assert call(monkeypatch, "explain", "mine", "--client", "H77") == 2
    assert "There is no client 'H77'; there are H0, H1" in capsys.readouterr().err
    pd.DataFrame({"dose": [0.5], "ward": ["north"], "days": [40.0]}).to_csv("first.csv", index=False)
    assert call(monkeypatch, "adapt", "mine", "first.csv", "--client", "H9", "--out", "with9") == 0
    assert "H9 has a model from 1 row and the shared one: with9" in capsys.readouterr().out
    assert load_model("mine").model.clients_.tolist() == before.clients_.tolist()
    after, _ = load_model("with9")
    assert after.clients_.tolist() == [*before.clients_.tolist(), "H9"]
    assert (after.coef_[:-1] == before.coef_).all()
    assert after.intercept_[-1] > 20
    assert call(monkeypatch, "adapt", "mine", "first.csv", "--client", "H9") == 0
    assert load_model("mine").model.clients_.tolist() == after.clients_.tolist()
    assert len(list((here / "mine").glob("*.safetensors"))) == 1
    assert call(monkeypatch, "adapt", "mine", "first.csv", "--client", "H9") == 2
    assert "'H9' has a model already" in capsys.readouterr().err
    assert call(monkeypatch, "adapt", "mine", "visits.csv", "--client", "H10") == 2
    assert "No row has hospital 'H10'" in capsys.readouterr().err


def test_classes_other_formats_and_no_test_rows(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = visits().drop(columns=["days", "day"])
    frame["part"] = np.where(np.arange(len(frame)) % 4 == 0, "test", "train")
    frame.to_parquet("v.parquet")
    ask = ["--client", "hospital", "--target", "better", "--task", "classification", *QUICK]
    assert call(monkeypatch, "fit", "v.parquet", *ask, "--test-column", "part", "--out", "a") == 0
    assert "Held-out rows: error rate" in capsys.readouterr().out
    assert (pd.read_csv("a/clients.csv")["test rows"] == 5).all()
    assert call(monkeypatch, "predict", "a", "v.parquet") == 0
    out = pd.read_csv("v-predicted.csv")
    np.testing.assert_allclose(out["chance of yes"] + out["chance of no"], 1)
    assert ((out["chance of yes"] > 0.5) == (out["predicted better"] == "yes")).all()
    frame.drop(columns="part").to_csv("v.tsv", sep="\t", index=False)
    assert call(monkeypatch, "fit", "v.tsv", *ask, "--test", "0") == 0
    assert "No rows were held out" in capsys.readouterr().out
    assert json.loads((here / "runs" / "fit" / "results.json").read_text())["rows"] == []
    three = frame.assign(better=np.array(["a", "b", "c"])[np.arange(len(frame)) % 3])
    three.drop(columns="part").to_csv("three.csv", index=False)
    assert call(monkeypatch, "fit", "three.csv", *ask, "--out", "c") == 0
    assert load_model("c").model.coef_.shape == (8, 3, 3)


def test_an_empty_folder_and_a_link_to_one_are_filled(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("empty", "other"):
        (here / name).mkdir()
    (here / "link").symlink_to(here / "other")
    for out in ("empty/", "link"):
        assert call(monkeypatch, *FIT, "--out", out, "--test", "0") == 0
    for name in ("empty", "other"):
        assert load_model(here / name).model.clients_.tolist() == [f"H{i}" for i in range(8)]
        assert not list((here / name).glob(".*"))
    assert (here / "link").is_symlink()
    assert call(monkeypatch, *FIT, "--out", "seed1", "--test", "0", "--seed", "1") == 0
    assert (load_model("seed1").model.coef_ != load_model("empty").model.coef_).any()


def test_missing_values_are_filled_when_asked(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = visits()
    frame.loc[[3, 50, 70], "dose"] = np.nan
    frame.to_csv("visits.csv", index=False)
    assert call(monkeypatch, *FIT, "--out", "x") == 2
    assert "dose 3" in capsys.readouterr().err
    assert call(monkeypatch, *FIT, "--out", "x", "--impute") == 0


BAD: dict[str, tuple[dict[str, object], list[str], str]] = {
    "missing column": ({}, ["--target", "stay"], "'stay'"),
    "missing column lists": ({}, ["--client", "clinic"], "hospital, dose, ward, day, days"),
    "text target": ({}, ["--target", "better"], "--task classification"),
    "empty client": ({"hospital": ["", *["H1"] * 159]}, [], "hospital"),
    "constant target": ({"days": 3.0}, [], "days"),
    "huge values": ({"dose": [1e300, *np.arange(159.0)]}, [], "dose"),
    "a copy of the target": ({"dose": visits()["days"]}, [], "dose"),
    "dates": ({}, ["--features", "dose,day"], "holds dates"),
    "all of one client in test": (
        {"part": (visits()["hospital"] == "H2").astype(int)},
        ["--test-column", "part"],
        "'H2'",
    ),
    "test and test column": ({}, ["--test", "0.1", "--test-column", "day"], "give one of them"),
    "test of one": ({}, ["--test", "1"], "test"),
    "a setting of the wrong kind": ({}, ["--set", "n_epochs=abc"], "n_epochs: input should be a valid integer"),
    "density of classes": (
        {"better": visits()["better"]},
        ["--target", "better", "--task", "classification", "--set", "objective=predictive"],
        "needs squared loss",
    ),
    "below a file": ({}, ["--out", "visits.csv/x"], "visits.csv"),
    "no such setting": ({}, ["--set", "n_cell=3"], "n_cell"),
    "folder taken": ({}, ["--out", "full"], "already holds something"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence_exit_code_2_and_nothing_written(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    changes, arguments, sentence = BAD[name]
    visits().assign(**changes).to_csv("visits.csv", index=False)
    (here / "full").mkdir()
    (here / "full" / "thing").write_text("kept")
    before = sorted(here.rglob("*"))
    out = [] if "--out" in arguments else ["--out", "mine"]
    assert call(monkeypatch, *FIT, *out, *arguments) == 2
    complaint = capsys.readouterr().err
    assert sentence in complaint
    assert "Traceback" not in complaint
    assert complaint.count("\n") == 1
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "empty"),
        (b"hospital,dose,days\n", "no rows"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "visits.csv"),
        ("hospital,dose,days\nMünchen,1,2\n".encode("latin-1"), "UTF-8"),
        (b"hospital,dose,dose,days\nH1,1,2,3\n", "dose"),
    ],
)
def test_bad_files_are_one_sentence_exit_code_2_and_nothing_written(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes, sentence: str
) -> None:
    (here / "visits.csv").write_bytes(content)
    assert call(monkeypatch, *FIT, "--out", "mine") == 2
    complaint = capsys.readouterr().err
    assert sentence in complaint
    assert complaint.count("\n") == 1
    assert [path.name for path in here.iterdir()] == ["visits.csv"]


def test_a_folder_of_fit_is_no_experiment(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *FIT, "--out", "mine") == 0
    assert call(monkeypatch, "report", "mine") == 2
    assert "open its report.html, or see learn2pfed explain mine" in capsys.readouterr().err
    assert call(monkeypatch, "predict", "full", "visits.csv") == 2
    assert "give the folder that learn2pfed fit wrote" in capsys.readouterr().err


def test_ctrl_c_writes_nothing(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("learn2pfed.owndata.folder.write_page", interrupt)  # at the last moment
    assert call(monkeypatch, *FIT, "--out", "mine") == 130
    assert "Nothing was written" in capsys.readouterr().out
    assert [path.name for path in here.iterdir()] == ["visits.csv"]


def test_the_lines_of_the_readme_work(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run([sys.executable, str(ROOT / "examples" / "make_visits.py")], check=True, timeout=60)
    text = (ROOT / "README.md").read_text().partition("## Your own data")[2].partition("No table at hand?")[0]
    lines = [line.partition("#")[0].split() for line in text.splitlines() if line.startswith("    learn2pfed ")]
    assert [line[1] for line in lines] == ["fit", "explain", "predict", "adapt"]
    for line in lines:
        assert call(monkeypatch, *line[1:]) == 0
    said = capsys.readouterr().out
    assert "36 rows predicted: new-predicted.csv" in said
    assert "north has a model from 2 rows" in said
    assert "Each client's own: level at average x" in said


@pytest.mark.parametrize("name", ["panel_of_firms", "classification", "newcomer"])
def test_the_examples_run_and_personal_beats_one_for_all(name: str) -> None:
    script = ROOT / "examples" / f"{name}.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    together, personal = (float(line.rpartition(" ")[2]) for line in done.stdout.splitlines()[:2])
    assert personal < 0.9 * together
