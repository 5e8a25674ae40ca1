"""The page in a real browser, and the tables and files behind it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from plotly.offline import get_plotlyjs

from learn2pfed.errors import Learn2pFedError
from learn2pfed.experiments.registry import configure, differences, find, tuned_for
from learn2pfed.report import interactive
from learn2pfed.report.docs import update_tables, with_tables
from learn2pfed.report.drawing import COLOURS, Dumbbell, Figure, Heat, Panel, Series, shape
from learn2pfed.report.figures import figures
from learn2pfed.report.html import Page, page_of_experiment, render_page, write_page, write_report
from learn2pfed.report.interactive import draw_interactive
from learn2pfed.report.still import draw_files
from learn2pfed.report.tables import Table, mean_std, tables
from learn2pfed.results.records import DIVERGED, Detail, Details, Results, Row, versions
from learn2pfed.results.store import read_details, read_results, write_whole


def rows(algorithm: str, *values: float, setting: str = "1") -> list[Row]:
    return [
        Row(
            setting=setting,
            algorithm=algorithm,
            seed=seed,
            metric=metric,
            value=value,
            seconds=1.0,
            bytes_up=1000,
            bytes_down=500_000,
        )
        for metric in ("RMSE", "MSE")
        for seed, value in enumerate(values)
    ]


def made(name: str = "polynomial") -> Results:
    found = rows("Learn2pFed", 0.5, 0.7) + rows("Least squares, alone", 1.0, 1.0)
    return Results(experiment=name, preset="quick", versions=versions(), config={"noise": 0.1}, rows=found)


DETAILS = Details(
    details=[
        Detail(
            setting="1",
            algorithm=algorithm,
            seed=0,
            series={
                "pull": [[1.0, 2.0, 3.0, 0.1]] * 2,
                "pull_start": [1.0] * 4,
                "history": [3.0, 2.0, 1.5],
                "models": [[0.0, -6.0, 18.0, -12.0]] * 2,
                "truth": [[0.0, -6.0, 18.0, -11.0]] * 2,
                "rows": [{"x": [0.1, 0.2], "y": [0.0, 1.0]}, {"x": [0.5, 0.6], "y": [0.0, 1.0]}],
            },
        )
        for algorithm in ("Learn2pFed", "Least squares, alone")
    ]
)


def test_tables_are_means_and_deviations_over_seeds() -> None:
    rmse, mse, cost = tables(made())
    assert rmse.body == (("Learn2pFed", "0.600 ± 0.14"), ("Least squares, alone", "1.00 ± 0"))
    assert mse.head == ("MSE", "setting 1")
    assert cost.head[2:] == ("MB sent by clients", "MB sent to clients")
    assert cost.body[0] == ("Learn2pFed", "1.00", "0.00100", "0.500")
    assert mean_std([2.0]) == "2"
    assert mean_std([2.5]) == "2.50"
    assert Table("t", ("a", "b"), (("x", "1"),)).markdown() == "| a | b |\n| --- | ---: |\n| x | 1 |"
    words = Table("t", ("of", "n", "values"), (("x", "-1", "lr = 0.1"), ("y", "", "lr = 1, mu = 2, lam = 3")))
    assert words.is_text == [True, False, True]
    assert "| --- | ---: | --- |" in words.markdown()


def test_a_column_that_no_row_fills_is_left_out() -> None:
    every = rows("FedAvg, MLP", 0.5, setting="2") + rows("Learn2pFed", 0.5, setting="1")
    (rmse, *_) = tables(made().model_copy(update={"rows": every}))
    assert rmse.head == ("RMSE", "setting 1 · MLP", "setting 2 · MLP")
    assert rmse.body == (("FedAvg", "", "0.500"), ("Learn2pFed", "0.500", ""))
    both = [*every, *rows("FedAvg, polynomial", 0.25, setting="2")]
    (rmse, *_) = tables(made().model_copy(update={"rows": both}))
    assert rmse.head == ("RMSE", "setting 1 · polynomial", "setting 2 · MLP", "setting 2 · polynomial")


def test_trials_that_diverged_are_said_and_not_averaged_away() -> None:
    gone = rows("Ditto, LSTM", 1.0, 1.0, 1.0)[2].model_copy(update={"metric": DIVERGED})
    every = [*rows("Ditto, LSTM", 0.1, 0.1), gone, *rows("FedAvg, LSTM", 0.9, 0.9, 0.9)]
    every += [*rows("Learn2pFed, LSTM", 0.5, 0.5, 0.5), gone.model_copy(update={"algorithm": "FedPer, LSTM"})]
    lead, rmse, *others = tables(made("power").model_copy(update={"rows": every}))
    assert [row[3] for row in lead.body] == ["FedAvg, LSTM"]
    assert rmse.title.endswith(": RMSE")
    assert dict(rmse.body) == {
        "FedAvg": "0.900 ± 0",
        "FedPer": "diverged (1/1)",
        "Ditto": "diverged (1/3)",
        "Learn2pFed": "0.500 ± 0",
    }
    assert rmse.is_text == [True, False]
    assert not any(DIVERGED in table.title for table in others)


def test_there_are_no_tables_of_what_diverged_alone() -> None:
    gone = rows("Ditto, LSTM", 1.0)[0].model_copy(update={"metric": DIVERGED})
    assert tables(made("power").model_copy(update={"rows": [gone]})) == []


def test_a_lead_over_nothing_is_no_share_of_it() -> None:
    every = rows("Learn2pFed, LSTM", 0.5, 0.5) + rows("FedAvg, LSTM", 0.0, 0.0)
    (lead, *_) = tables(made("power").model_copy(update={"rows": every}))
    assert [row[5:] for row in lead.body] == [("-0.500 ± 0", "", "0 of 2")]


def test_the_quality_table_takes_medians_of_ratios() -> None:
    every = made("quality").rows + rows("REML (limit)", 0.5, 0.5) + rows("Learn2pFed (exact inner)", 0.5, 0.5)
    (first, *_) = tables(made("quality").model_copy(update={"rows": every}))
    assert first.body == (("1", "2", "1.200", "1.200", "1.200", "Least squares, alone"),)


def test_the_lead_is_taken_seed_by_seed_from_the_best_of_the_others() -> None:
    errors = rows("Learn2pFed, LSTM", 0.5, 0.7) + rows("Learn2pFed, linear", 1.0, 1.2)
    errors += rows("FedAvg, LSTM", 0.9, 0.9) + rows("Ditto, linear", 0.6, 1.0) + rows("Ditto, LSTM", 3.0, 3.0)
    (lead, *_) = tables(made("power").model_copy(update={"rows": errors}))
    assert lead.body == (
        ("1", "Learn2pFed, LSTM", "0.600 ± 0.14", "Ditto, linear", "0.800 ± 0.28", "0.200 ± 0.14", "25.0%", "2 of 2"),
        (
            "1",
            "Learn2pFed, linear",
            "1.10 ± 0.14",
            "Ditto, linear",
            "0.800 ± 0.28",
            "-0.300 ± 0.14",
            "-37.5%",
            "0 of 2",
        ),
    )
    setting = "cifar10, 0.1, 10 clients"
    right = [
        row.model_copy(update={"metric": "accuracy", "setting": setting})
        for row in errors
        if row.metric == "RMSE" and not row.algorithm.endswith("linear")
    ]
    right += [row.model_copy(update={"algorithm": "Learn2pFed"}) for row in right if row.algorithm == "Ditto, LSTM"]
    (lead, *_) = tables(made("images").model_copy(update={"rows": right}))
    assert lead.body == ((setting, "Learn2pFed", "3.00 ± 0", "Ditto, LSTM", "3.00 ± 0", "0 ± 0", "0.0%", "0 of 2"),)
    few = [row for row in right if (row.algorithm, row.seed) != ("Learn2pFed", 1)]
    (first, *_) = tables(made("images").model_copy(update={"rows": few}))
    assert first.head[0] == "accuracy"


def test_bytes_are_compared_with_those_who_communicate_and_are_at_most_as_accurate() -> None:
    sent = {"Learn2pFed": (0.8, 300), "FedAvg": (0.7, 400), "Ditto": (0.9, 100), "Local-Only": (0.6, 0)}
    sent |= {"Learn2pFed (paper)": (0.5, 30), "Learn2pFed, one s, fixed": (0.5, 300)}
    every = [
        row.model_copy(
            update={
                "setting": f"cifar10, {beta}, 10 clients",
                "metric": "accuracy",
                "bytes_up": up,
                "bytes_down": 2 * up,
            }
        )
        for name, (value, up) in sent.items()
        for row in rows(name, value)[:1]
        for beta in (0.1, 0.5)
        if (name, beta) != ("FedAvg", 0.5)
    ]
    found = tables(made("images").model_copy(update={"rows": every}))
    (table,) = [table for table in found if "bytes" in table.title]
    assert table.body == (
        ("FedAvg", "0.750", ""),
        ("Ditto", "more accurate", "more accurate"),
        ("Learn2pFed (paper)", "10.000", "10.000"),
    )


def test_bytes_at_equal_accuracy_in_the_end_and_of_the_worst_look_above_local_only() -> None:
    setting = "cifar10, 0.1, 10 clients"
    curves = {
        "Learn2pFed": ([2.0, 4.0, 6.0, 8.0], [0.5, 0.25, 0.75, 0.7]),
        "Local-Only": ([0.0, 0.0, 0.0], [0.9, 0.5, 0.4]),
        "FedAvg": ([4.0, 8.0, 16.0], [0.3, 0.625, 0.5625]),  # 5.5 / 8 and 5.25 / 16, on the way up from the dip
        "FedPer": ([1.0, 8.0, 16.0], [0.45, 0.5, 0.75]),  # 2 / 1, as much as ours has sent when it is first looked at
        "Ditto": ([1.0, 2.0, 3.0], [0.1, 0.8, 0.1]),
        "lp_proj": ([0.1, 0.2, 0.3], [0.1, 0.2, 0.4]),
        "Learn2pFed, one s, fixed": ([1.0, 2.0, 3.0], [0.5, 0.5, 0.5]),
    }
    results, seen = looked_at(setting, curves, "CFL")
    found = tables(results, seen)
    end, worst = [table for table in found if "equal accuracy" in table.title]
    assert "in the end" in end.title
    assert "largest" in worst.title
    assert end.body == (
        ("FedAvg", "0.328"),
        ("FedPer", "0.375"),
        ("Ditto", "not above alone"),
        ("lp_proj", "not above alone"),
    )
    assert worst.body == (
        ("FedAvg", "0.688"),
        ("FedPer", "2.000"),
        ("Ditto", "more accurate"),
        ("lp_proj", "not above alone"),
    )
    assert not any("equal accuracy" in table.title for table in tables(results))


def test_the_figure_of_bytes_shows_what_is_near_the_level_of_those_who_send_nothing() -> None:
    setting, curves = (
        "cifar10, 0.1, 10 clients",
        {
            "Local-Only": ([0.0, 0.0], [0.7, 0.6]),
            "FedAvg": ([4.0, 160.0], [0.1, 0.65]),
            "lp_proj": ([0.2, 1.0], [0.1, 0.2]),
            "Learn2pFed": ([2.0, 80.0], [0.5, 0.8]),
        },
    )
    ((panel,),) = (drawn.panels for drawn in drawn_of(setting, curves) if drawn.name == "bytes")
    assert isinstance(panel, Panel)
    assert panel.log_x
    assert panel.y_span == pytest.approx((0.4, 0.84))
    assert [(line.name, *line.x) for line in panel.series] == [
        ("Local-Only", 0.2, 160.0),
        *((name, *sent) for name, (sent, _) in list(curves.items())[1:]),
    ]
    assert list(panel.series[0].y) == [0.6, 0.6]
    fragment = draw_interactive(figure(panel))
    spans = re.findall(r'"range":\[([\d.]+),([\d.]+)\]', fragment)
    assert [tuple(map(float, span)) for span in spans] == [pytest.approx((0.4, 0.84))]
    assert '"type":"log"' in fragment
    still = svg(figure(panel))
    assert "<!-- 0.3 -->" not in still  # below
    assert "<!-- 0.2 -->" in still  # megabytes
    alone = {"Local-Only": curves["Local-Only"]}
    assert not any(drawn.name == "bytes" for drawn in drawn_of(setting, alone))
    for without in ({"lp_proj": curves["lp_proj"]}, alone | {"lp_proj": curves["lp_proj"]}):  # nothing is above alone
        ((panel,),) = (drawn.panels for drawn in drawn_of(setting, without) if drawn.name == "bytes")
        assert isinstance(panel, Panel)
        assert panel.y_span is None


def looked_at(setting: str, curves: dict[str, Any], *others: str) -> tuple[Results, list[Detail]]:
    """Results of these methods and some that were not looked at, and the looks: megabytes and accuracies."""
    names = (*curves, *others)
    every = [
        row.model_copy(update={"setting": setting, "metric": "accuracy"})
        for name in names
        for row in rows(name, 0.5)[:1]
    ]
    seen = [
        Detail(setting=setting, algorithm=name, seed=0, series={"rounds": [1, 2, 3], "sent": sent, "curve": curve})
        for name, (sent, curve) in curves.items()
    ]
    return made("images").model_copy(update={"rows": every}), seen


def drawn_of(setting: str, curves: dict[str, Any]) -> Sequence[Figure]:
    """The figures of these looks."""
    results, seen = looked_at(setting, curves)
    return figures(results, Details(details=seen))


def test_documents_get_their_tables_and_say_where_they_lack_a_place() -> None:
    text = "before\n<!-- tables:polynomial -->\nold\n<!-- /tables -->\nmore <!-- tables:layers --> kept\nafter"
    new = with_tables(text, made())
    assert "0.600 ± 0.14" in new
    assert "old" not in new
    assert new.startswith("before")
    assert new.endswith("more <!-- tables:layers --> kept\nafter")
    one = with_tables("<!-- tables:polynomial MSE -->\n<!-- /tables -->", made())
    assert one.count("| MSE |") == 1
    assert "RMSE" not in one
    assert with_tables(new, made()) == new
    paper = made().model_copy(update={"preset": "paper"})
    places = "<!-- tables:polynomial -->\nold\n<!-- /tables -->\n<!-- tables:polynomial-paper -->\n<!-- /tables -->"
    assert with_tables(places, paper).startswith("<!-- tables:polynomial -->\nold\n")
    assert "0.600 ± 0.14" in with_tables(places, paper)
    assert with_tables(text, paper) == new
    with pytest.raises(Learn2pFedError, match="no place for polynomial"):
        with_tables("nothing here", made())


def test_what_can_not_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "latin.md").write_bytes("<!-- tables:polynomial -->é".encode("latin-1"))
    with pytest.raises(Learn2pFedError, match=r"latin.md is no text in UTF-8: save it as that"):
        update_tables(tmp_path / "latin.md", made())
    (tmp_path / "details.json").mkdir()
    with pytest.raises(Learn2pFedError, match=r"details.json can't be read \(Is a directory\)"):
        read_details(tmp_path)
    with pytest.raises(Learn2pFedError, match=r"can't be read \(File name too long\)"):
        read_results(Path("m" * 300))


def test_the_page_says_how_it_was_made() -> None:
    experiment = find("polynomial")
    changes: dict[str, object] = {"noise": 0.3, "settings": "1,2", "learn2pfed.lam_spread": None}
    config = configure(experiment, "quick", changes).model_dump(mode="json")
    said = ["settings=1,2", "noise=0.3", "learn2pfed.lam_spread=none"]
    assert differences(experiment, "quick", config) == said
    assert differences(experiment, "quick", configure(experiment, "quick", {}).model_dump(mode="json")) == []


def test_the_page_says_where_settings_are_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my own.toml").write_text("[mlp.ditto]\nlam = 3.0\n")
    experiment = find("polynomial")

    def shown(changes: dict[str, object], file: str | None = None) -> Page:
        values = tuned_for(experiment, None if file is None else Path(file))
        config = configure(experiment, "quick", changes, values).model_dump(mode="json")
        return page_of_experiment(made().model_copy(update={"config": config, "tuned": file}), Details())

    tuned, changed = "were tuned on held-out rows", "Settings of the methods were changed for this run"
    assert tuned in shown({"noise": 0.2}).about
    for page in (shown({"mlp.ditto.lam": 1}), shown({"learn2pfed.n_cells": 5}), shown({}, "my own.toml")):
        assert tuned not in page.about
        assert changed in page.about
    again = "learn2pfed run polynomial --preset quick --tuned 'my own.toml' --set noise=0.2"
    assert shown({"noise": 0.2}, "my own.toml").command == again
    kept = shown({}, "my own.toml").config
    Path("my own.toml").unlink()
    gone = page_of_experiment(made().model_copy(update={"config": kept, "tuned": "my own.toml"}), Details())
    assert gone.command == "learn2pfed run polynomial --preset quick --set mlp.ditto.lam=3.0"
    assert "tuned" not in page_of_experiment(made("quality"), Details()).about


def test_captions_are_about_what_is_shown() -> None:
    def captions(*algorithms: str, setting: str = "1") -> dict[str, str]:
        one = DETAILS.details[0]
        found = [one.model_copy(update={"algorithm": algorithm, "setting": setting}) for algorithm in algorithms]
        every = [row for a in algorithms for row in rows(a, 0.5, setting=setting)]
        run = made().model_copy(update={"rows": every})
        return {figure.name: figure.caption for figure in figures(run, Details(details=found))}

    ours = captions("Learn2pFed", "FedAvg, MLP")
    assert "setting 1 only x³" in ours["lambda"]
    assert "Learn2pFed is supervised by held-out rows" in ours["lambda"]
    for absent in ("setting 2", "setting 3", "paper"):
        assert absent not in ours["lambda"] + ours["learning"]
    assert "grey line" not in ours["methods"]
    theirs = captions("Learn2pFed (paper)", "FedAvg, MLP", "FedAvg, polynomial", setting="3")
    assert "setting 3" in theirs["lambda"]
    assert "The paper's recipe is" in theirs["lambda"]
    assert "held-out" not in theirs["lambda"] + theirs["learning"]
    assert "A grey line joins the two ways to run a method, MLP and polynomial." in theirs["methods"]


def power(*names: str, settings: tuple[str, ...] = ("1", "2"), **changes: Any) -> tuple[Results, Details]:
    """A run of power in which each method is a little worse than the one before."""
    config = configure(find("power"), "quick", {"settings": list(settings), **changes}).model_dump(mode="json")
    found, details = [], []
    for setting in settings:
        for place, name in enumerate(names):
            row = rows(name, 1.0 + place, setting=setting)[0]
            found.append(row.model_copy(update={"bytes_up": 1_000_000 * (1 + (setting == "2"))}))
            series = {"errors": [3.0 + place, 1.0 + place, 2.0 + place]}
            details.append(Detail(setting=setting, algorithm=name, seed=0, series=series))
    results = Results(experiment="power", preset="quick", versions=versions(), config=config, rows=found)
    return results, Details(details=details)


def test_a_panel_has_the_methods_that_ran_there_with_a_shape_for_each_model() -> None:
    every = rows("FedAvg, LSTM", 0.5) + rows("FedAvg, linear", 0.6) + rows("Ridge, alone", 0.4, setting="scarce")
    every += rows("Learn2pFed, linear", 0.3, setting="scarce")
    run = power("Learn2pFed, linear")[0].model_copy(update={"rows": every})
    first, scarce = next(figure for figure in figures(run, Details(details=[])) if figure.name == "methods").panels
    assert isinstance(first, Dumbbell)
    assert isinstance(scarce, Dumbbell)
    assert list(first.rows) == ["FedAvg"]
    assert list(scarce.rows) == ["Ridge, alone", "Learn2pFed"]
    shapes = [{name: shape(colour) for name, colour, _ in panel.marks} for panel in (first, scarce)]
    assert shapes[0]["linear"] == shapes[1]["linear"] != shapes[0]["LSTM"]


def test_costs_that_differ_between_settings_stand_apart() -> None:
    results, _ = power("FedAvg, LSTM", settings=("1", "2", "3: one day"))
    (cost,) = (table for table in tables(results) if table.title == "Cost of a fit")
    assert cost.head[:3] == ("", "setting", "CPU seconds")
    assert [row[1] for row in cost.body] == ["1", "2", "3: one day"]
    assert [row[3] for row in cost.body] == ["1.00", "2.00", "1.00"]


def test_the_settings_of_all_that_ran_are_shown() -> None:
    def shown(**changes: Any) -> dict[str, str]:
        last = tables(power("Learn2pFed, linear", **changes)[0])[-1]
        return {row[0]: row[1] for row in last.body}

    every = shown(algorithms="learn2pfed,ditto", crowd_epochs=70, **{"body.lr": 0.02})
    assert list(every) == ["learn2pfed", "body", "linear.ditto", "lstm.ditto", "crowd_epochs"]
    assert every["body"].startswith("lr = 0.02, ft_lr = ")
    assert every["crowd_epochs"] == "70"
    assert "crowd_epochs" not in shown(settings=("1",))
    assert list(shown(settings=("3: one day",))) == ["learn2pfed", "crowd_epochs"]


def test_the_page_speaks_of_the_settings_that_were_run() -> None:
    one, late = (page_of_experiment(*power("Learn2pFed, linear", settings=s)).about for s in (("1",), ("3: one day",)))
    assert "Setting 1: the most distinct meters" in one
    assert "paper's LSTM" in one
    assert "Setting 3: newcomers" in late
    for absent in ("Setting 2", "Setting 3", "Scarce"):
        assert absent not in one
    for absent in ("Setting 1", "Setting 2", "LSTM", "Scarce"):
        assert absent not in late
    assert find("power").introduction([]) == find("power").about


def test_errors_by_client_are_of_the_best_that_ran_in_the_order_of_the_table() -> None:
    names = [f"{name}, {variant}" for variant in ("linear", "LSTM") for name in ("Ditto", "FedAvg", "FedRep", "FedPer")]
    ours = ["Learn2pFed, linear", "Learn2pFed, LSTM"]
    results, details = power(*names, "Least squares, alone", *ours, settings=("1", "scarce", "3: one day"))
    (drawn,) = (figure for figure in figures(results, details) if figure.name == "clients")
    assert [panel.title for panel in drawn.panels] == ["setting 1", "setting scarce", "setting 3: one day"]
    series = drawn.panels[0].series  # type: ignore[union-attr]
    others = ["Least squares, alone", "FedAvg, linear", "FedRep, linear", "Ditto, linear"]
    assert [line.name for line in series] == [*others, *ours]
    assert [line.name for line in series if line.kind == "line"] == ["Learn2pFed, linear"]
    assert [list(line.y) for line in series][-2:] == [[10.0, 11.0, 12.0], [11.0, 12.0, 13.0]]
    theirs = figures(*power("FedAvg, linear", "Ditto, linear"))
    (drawn,) = (figure for figure in theirs if figure.name == "clients")
    assert [line.kind for line in drawn.panels[0].series] == ["line", "dots"]  # type: ignore[union-attr]


def test_the_map_names_those_who_take_part() -> None:
    results, details = power("Learn2pFed, linear", settings=("1",))
    places = {"plane": [[0.0, 0.0], [1.0, 2.0], [3.0, 1.0]], "picked": [0, 2], "names": ["a $b$", "<i>c"]}
    details.details[0].series.update(places)
    (drawn,) = (figure for figure in figures(results, details) if figure.name == "map")
    assert all(name in svg(drawn) for name in ("<!-- a $b$ -->", "<!-- &lt;i&gt;c -->"))
    fragment = draw_interactive(drawn)
    assert '"text":["a $b$","&lt;i&gt;c"]' in fragment
    assert '"mode":"markers+text"' in fragment


def test_fits_stand_above_their_errors_for_any_number_of_settings() -> None:
    for settings in (["1"], ["1", "2"], ["1", "2", "3"]):
        found = [d.model_copy(update={"setting": setting}) for setting in settings for d in DETAILS.details]
        every = [row.model_copy(update={"setting": setting}) for setting in settings for row in made().rows]
        results = made().model_copy(update={"rows": every})
        (fits,) = (figure for figure in figures(results, Details(details=found)) if figure.name == "fits")
        assert [len(row) for row in fits.grid] == [len(settings)] * 2


def test_log_axes_are_labelled_with_whole_numbers() -> None:
    for values, step in (([1.0, 900.0], '"dtick":"D2"'), ([1e-4, 10.0], '"dtick":1'), ([0.2, 0.5], "")):
        panels = [Panel("lines", (Series("a", [0, 1], values),), log_y=True)]
        panels += [dumbbell(["north", "south"], values)] if step else []
        for panel in panels:
            fragment = draw_interactive(figure(panel))
            assert '"tickformat":"~g"' in fragment
            assert step in fragment
            assert step or "dtick" not in fragment


def test_figures_follow_the_first_table_and_words_stand_on_the_left() -> None:
    more = [Table(name, ("of", "values"), (("x", "lr = 1"),)) for name in ("First table", "Second table")]
    drawn = figure(dumbbell(["north"], [1.0]))
    text = render_page(Page("A table", "", "", more, [drawn], "", {}, {})).replace(get_plotlyjs(), "")
    assert text.index("First table") < text.index("A figure") < text.index("Second table")
    assert text.count("<td class=text>lr = 1</td>") == 2


def test_files_appear_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "a" / "b.txt", "one")
    assert (tmp_path / "a" / "b.txt").read_text() == "one"

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(Learn2pFedError, match="No space left"):
        write_whole(tmp_path / "a" / "b.txt", "two")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.txt"]
    assert (tmp_path / "a" / "b.txt").read_text() == "one"


def test_damaged_records_are_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"experiment": "polynomial", "rows": [{"value": NaN}]}')
    with pytest.raises(Learn2pFedError, match="is not a results file"):
        read_results(tmp_path)
    (tmp_path / "details.json").write_text("{")
    with pytest.raises(Learn2pFedError, match="is damaged"):
        read_details(tmp_path)


NAN = float("nan")
HOSTILE = "</script><script>document.title='taken'</script> & $\\frac$\n--> %{z}"


def heat(rows: list[str], columns: list[str], values: list[list[float | None]]) -> Heat:
    return Heat("what is shared", rows, columns, values, label="0 = own, 1 = shared")


def dumbbell(rows: list[str], *values: list[float | None]) -> Dumbbell:
    names = ("alone", "one model for all", "personalised")
    marks = [(name, colour, own) for name, colour, own in zip(names, COLOURS, values, strict=False)]
    return Dumbbell("error by client", rows, marks, "error")


def figure(*panels: Panel | Heat | Dumbbell) -> Figure:
    return Figure("own", "A figure", "What to see.", panels)


def svg(drawn: Figure) -> str:
    files = draw_files(drawn)
    assert files[f"{drawn.name}.png"].startswith(b"\x89PNG")
    ElementTree.fromstring(files[f"{drawn.name}.svg"])
    return files[f"{drawn.name}.svg"].decode()


def page(*figures: Figure, **other: Any) -> Page:
    table = Table("Errors", ("client", "error"), ((HOSTILE, "1.25"), ("north", "0.75")))
    return Page("A table", "About it.", "The lead.", [table], figures, "learn2pfed fit", {}, {"torch": "2"}, **other)


def test_a_heat_map_is_drawn_by_both() -> None:
    drawn = figure(heat(["north", "south"], ["level", "slope"], [[0.125, 1.0], [0.75, None]]))
    for name in ("north", "south", "level", "slope", "0.12", "0.75", "0 = own, 1 = shared"):
        assert f"<!-- {name} -->" in svg(drawn)
    fragment = draw_interactive(drawn)
    assert '"z":[[0.125,1.0],[0.75,null]]' in fragment
    assert "south\\u003cbr\\u003elevel: 0.75" in fragment
    assert "south\\u003cbr\\u003eslope: no value" in fragment
    assert "NaN" not in fragment


def test_a_heat_map_grows_with_its_rows_and_leaves_out_what_has_no_room() -> None:
    def sized(rows: int, columns: int, name: str = "x") -> Heat:
        return heat([f"c{i}" for i in range(rows)], [f"{name}{i}" for i in range(columns)], [[0.25] * columns] * rows)

    few, many, most = sized(11, 4), sized(60, 4), sized(300, 4)
    assert few.height < many.height == most.height
    assert not few.slanted
    assert sized(11, 12, "a long name ").slanted
    assert sized(11, 12, "a long name ").height > few.height
    assert "<!-- 0.25 -->" in svg(figure(few))
    shown = svg(figure(most))
    assert "<!-- 0.25 -->" not in shown
    assert "<!-- c295 -->" in shown
    assert "<!-- c296 -->" not in shown
    assert Heat("", ["a"], ["b"], [[7.0]], 7.0, 7.0).written(7.0) == "7.00"
    assert Heat("", ["a"], ["b"], [[250.0]], 0.0, 500.0).written(250.0) == "250"


def test_a_dumbbell_is_drawn_by_both() -> None:
    drawn = figure(dumbbell(["north", "south"], [2.5, 3.5], [None, 4.5], [1.5, NAN]))
    for name in ("north", "south", "alone", "one model for all", "personalised", "error"):
        assert f"<!-- {name} -->" in svg(drawn)
    fragment = draw_interactive(drawn)
    for values in ("[2.5,3.5]", "[null,4.5]", "[1.5,null]", "[1.5,2.5,null,3.5,4.5,null]"):
        assert f'"x":{values}' in fragment
    assert "north\\u003cbr\\u003epersonalised: 1.5" in fragment
    assert "NaN" not in fragment
    assert dumbbell(["c"] * 60, [1.0] * 60).height > dumbbell(["c"] * 11, [1.0] * 11).height
    assert draw_interactive(figure(dumbbell(["north"], [None])))


def test_errors_far_apart_get_a_log_axis() -> None:
    near, far = dumbbell(["a", "b"], [1.0, 30.0]), dumbbell(["a", "b", "c"], [1.0, 31.0, 0.0])
    assert not near.log_x
    assert far.log_x
    assert not dumbbell(["a"], [None]).log_x
    assert [place for place, _, _ in far.spans()] == [0, 1]
    assert '"type":"log"' not in draw_interactive(figure(near))
    assert '"type":"log"' in draw_interactive(figure(far))
    assert "<!-- 20 -->" in svg(figure(far))


def test_panels_with_named_rows_stand_below_each_other() -> None:
    lines = Panel("lines", (Series("alone", [0, 1], [1, 2]),))
    mixed = figure(lines, heat(["north"], ["level"], [[0.5]]), dumbbell(["north"], [1.0], [2.0]))
    assert [len(row) for row in mixed.grid] == [1, 1, 1]
    assert draw_interactive(mixed).count('"showlegend":true') == 2  # "alone" once, though two panels have it


def test_panels_fill_their_rows_evenly() -> None:
    panel = Panel("", (Series("a", [0, 1], [0, 1]),))
    by_number = {n: [len(row) for row in figure(*[panel] * n).grid] for n in (1, 3, 4, 5, 8)}
    assert by_number == {1: [1], 3: [3], 4: [2, 2], 5: [3, 2], 8: [3, 3, 2]}


@pytest.mark.parametrize("n_panels", [1, 2, 3])
def test_a_legend_of_long_names_stays_within_the_picture(n_panels: int) -> None:
    names = [f"from the layer called {place}, shared" for place in range(7)]
    drawn = svg(figure(*[Panel("", tuple(Series(name, [0, 1], [0, 1]) for name in names))] * n_panels))
    legend = re.search(r'<g id="legend_1">.*?<path d="(.*?)"', drawn, re.DOTALL)
    width = re.search(r'viewBox="0 0 ([\d.]+) ', drawn)
    assert legend
    assert width
    across = [float(x) for x in re.findall(r"[ML] ([-\d.]+) ", legend[1])]
    assert 0 < min(across) < max(across) < float(width[1])


def test_names_are_text_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    panels = (
        heat([HOSTILE, "中文"], [HOSTILE], [[0.5], [0.25]]),
        dumbbell([HOSTILE], [1.0], [2.0]),
        Panel(HOSTILE, (Series(HOSTILE, [HOSTILE], [1.0], "marks"),), HOSTILE, HOSTILE),
    )
    drawn = Figure("own", HOSTILE, HOSTILE, panels)
    assert "<script" not in svg(drawn)
    text = render_page(page(drawn, words=[(HOSTILE, [HOSTILE])])).replace(get_plotlyjs(), "")
    assert "<script>document" not in text
    assert text.count("</script>") == 2  # plotly's and the figure's
    monkeypatch.setattr(interactive, "_escaped", str)
    assert draw_interactive(drawn).count("</script>") == 1  # plotly is careful too


def test_a_page_says_what_it_is_told_and_marks_a_row() -> None:
    text = render_page(page(words=[("What was found", ["Shared: slope.", "Own: level."])], highlight="north"))
    assert "<h2>What was found</h2>\n<section><ul><li>Shared: slope.</li><li>Own: level.</li></ul></section>" in text
    assert re.findall(r'<tr class="ours"><td class=text>(.*?)</td>', text) == ["north"]
    assert text.index("The lead.") < text.index("What was found") < text.index("Errors")
    experiment = page_of_experiment(made().model_copy(update={"config": {"noise": 0.3}}), DETAILS)
    assert experiment.command == "learn2pfed run polynomial --preset quick --set noise=0.3"
    assert experiment.lead.startswith("Mean ± standard deviation over 2 seeds, 0 to 1.")
    assert re.findall(r'<tr class="ours"><td class=text>(.*?)</td>', render_page(experiment)) == ["Learn2pFed"] * 3
    assert ("pooled" in experiment.lead) == any("pooled" in row for table in experiment.tables for row in table.body)
    other = page_of_experiment(read_results(Path("docs/results/sharing.json")), Details())
    assert other.lead == "Mean ± standard deviation over 3 seeds, 0 to 2."  # where nothing is pooled
    assert "as in <code>learn2pfed run images</code>." in render_page(other)
    assert "`" not in render_page(other).partition("<h2>")[0].partition("<h1>")[2]
    assert "<code>&lt;b&gt;</code> &lt;i&gt;" in render_page(replace(other, about="`<b>` <i>"))
    nothing = made().model_copy(update={"rows": []})
    assert page_of_experiment(nothing, Details()).lead == "Nothing has been measured yet."


CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs a browser: apt-get install chromium chromium-driver (Debian)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "disable-dev-shm-usage",
        f"user-data-dir={tmp_path / 'profile'}",
        "window-size=1300,1000",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


def complaints(browser: Any) -> list[Any]:
    return [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def test_the_page_opens_without_a_network_and_answers_the_mouse(tmp_path: Path, browser: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    file = write_report(tmp_path, made(), DETAILS)
    fetched = ("<script src", '<link rel="stylesheet', "<img src", "@import")
    assert not [mark for mark in fetched if mark in file.read_text().replace(get_plotlyjs(), "")]
    browser.get(file.as_uri())
    WebDriverWait(browser, 30).until(lambda d: d.find_elements(By.CSS_SELECTOR, "#learning .scatterlayer path"))
    plot = browser.find_element(By.CSS_SELECTOR, "#learning .nsewdrag")
    ActionChains(browser).scroll_to_element(plot).move_to_element(plot).pause(0.3).move_by_offset(2, 1).perform()
    WebDriverWait(browser, 20).until(lambda d: d.find_elements(By.CSS_SELECTOR, "#learning .hoverlayer .hovertext"))
    before = browser.execute_script("return document.querySelector('#learning .js-plotly-plot').layout.xaxis.range")
    drag = ActionChains(browser).move_to_element_with_offset(plot, -60, 0).click_and_hold()
    drag.move_by_offset(90, 20).release().perform()
    WebDriverWait(browser, 20).until(
        lambda d: (
            d.execute_script("return document.querySelector('#learning .js-plotly-plot').layout.xaxis.range") != before
        )
    )
    shown = browser.find_element(By.TAG_NAME, "body").text
    assert "0.600 ± 0.14" in shown
    assert "Learned Λ against its start" in shown
    assert not complaints(browser)


def test_heat_maps_and_dumbbells_open_and_name_what_is_under_the_mouse(tmp_path: Path, browser: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    panels = heat([HOSTILE], ["slope"], [[0.25]]), dumbbell([HOSTILE], [1.0], [80.0], [0.9])
    figures = [Figure(name, name, "", (panel,)) for name, panel in zip(("heat", "dumbbell"), panels, strict=True)]
    browser.get(write_page(tmp_path, page(*figures, words=[("Found", [HOSTILE])])).as_uri())
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{name}.{kind}" for name in ("heat", "dumbbell") for kind in ("svg", "png")
    }
    for name, said in (("heat", "slope: 0.25"), ("dumbbell", "personalised: 0.9")):
        plot = browser.find_element(By.CSS_SELECTOR, f"#{name} .nsewdrag")
        left = -plot.size["width"] // 2 + 40
        mouse = ActionChains(browser).scroll_to_element(plot).move_to_element_with_offset(plot, left, 10)
        mouse.pause(0.3).move_by_offset(2, -9).perform()
        WebDriverWait(browser, 20).until(
            lambda d, name=name: d.find_elements(By.CSS_SELECTOR, f"#{name} .hoverlayer .hovertext")
        )
        shown = browser.find_element(By.CSS_SELECTOR, f"#{name} .hoverlayer").text
        assert HOSTILE.replace("\n", " ") in shown
        assert said in shown
    assert browser.title == "Learn2pFed · A table"
    assert not complaints(browser)
