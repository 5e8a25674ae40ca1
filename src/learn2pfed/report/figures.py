"""What the experiments show: curves and marks from the records of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from learn2pfed.data.polynomial import BASE, FEATURES
from learn2pfed.experiments.base import Column
from learn2pfed.experiments.registry import find
from learn2pfed.report.drawing import COLOURS, Dumbbell, Figure, Panel, Series, line_of
from learn2pfed.report.image_figures import (
    bytes_figure,
    confusion_figure,
    participation_figure,
    partition_figure,
    sharing_figure,
)
from learn2pfed.report.tables import LARGER_IS_BETTER, method_of, order, values_of
from learn2pfed.results.records import Detail, Details, Results


def figures(results: Results, details: Details) -> list[Figure]:
    """All figures that the records allow."""
    makers = MAKERS.get(results.experiment, ())
    finished = {(row.setting, row.algorithm, row.seed) for row in results.rows}  # a run that stopped may have one more
    known = [d for d in details.details if (d.setting, d.algorithm, d.seed) in finished]
    made = [maker(results, known) for maker in makers]
    return [figure for figure in made if figure is not None]


def _find(details: Sequence[Detail], algorithm: str, setting: str, key: str) -> Detail | None:
    """The first trial's detail that has `key`."""
    fitting = [d for d in details if (d.algorithm, d.setting) == (algorithm, setting) and d.series.get(key)]
    return min(fitting, key=lambda detail: detail.seed, default=None)


def _settings(details: Sequence[Detail]) -> list[str]:
    return sorted({detail.setting for detail in details})


def _said(*sentences: tuple[bool, str]) -> str:
    """Those sentences of a caption that are about something shown."""
    return " ".join(sentence for shown, sentence in sentences if shown)


def lambda_figure(results: Results, details: Sequence[Detail]) -> Figure | None:
    """fig. Λ: the start and the learned diagonal of Λ_i, five clients, by recipe."""
    panels = []
    for setting in _settings(details):
        for algorithm in ("Learn2pFed (paper)", "Learn2pFed"):
            detail = _find(details, algorithm, setting, "pull")
            if detail is None:
                continue
            lam = np.array(detail.series["pull"])
            start = detail.series.get("pull_start")
            series = [] if start is None else [Series("start", FEATURES, start, "marks", "#bbbbbb")]
            alike = bool(np.allclose(lam, lam[0], rtol=1e-6))
            series += [
                Series(
                    "all clients" if alike else f"client {i + 1}",
                    FEATURES,
                    row.tolist(),
                    "marks",
                    "#222222" if alike else COLOURS[i],
                )
                for i, row in enumerate(lam[: 1 if alike else 5])
            ]
            panels.append(
                Panel(
                    f"setting {setting} · {algorithm}",
                    tuple(series),
                    "coefficient of",
                    "Λ / typical curvature",
                    log_y=True,
                )
            )
    if not panels:
        return None
    shown = "\n".join(panel.title for panel in panels)
    caption = _said(
        (True, "A small Λ means that a coefficient is the client's own, a large one that it follows the others."),
        ("setting 1" in shown, "In setting 1 only x³ differs between clients."),
        ("setting 2" in shown, "In setting 2 x² and x³ differ between clients."),
        ("setting 3" in shown, "In setting 3 a client's own coefficients move together, and x and x² speak for x³."),
        ("· Learn2pFed\n" in f"{shown}\n", "Learn2pFed is supervised by held-out rows: Λ finds what differs."),
        (
            "(paper)" in shown,
            "The paper's recipe is supervised by the training loss (the first five clients, all from the grey start): "
            "Λ falls at most clients for shared and own coefficients alike; it learns not to share.",
        ),
    )
    return Figure("lambda", "Learned Λ against its start", caption, tuple(panels), 2)


def fits_figure(results: Results, details: Sequence[Detail]) -> Figure | None:
    """Curves over the data, and below them how far each fit is from the truth."""
    fits, errors = [], []
    for setting in _settings(details):
        ours = _find(details, "Learn2pFed", setting, "rows")
        local = _find(details, "Least squares, alone", setting, "rows")
        if ours is None or local is None:
            continue
        curves: list[Series] = []
        gaps: list[Series] = []
        for i, rows in enumerate(ours.series["rows"]):
            first = i == 0
            grid = np.linspace(min(rows["x"]), max(rows["x"]), 40)
            powers = np.vander(grid, len(BASE), increasing=True)
            truth = powers @ np.array(ours.series["truth"][i])
            curves.append(Series("data", rows["x"], rows["y"], "dots", "#999999", legend=first))
            curves.append(Series("truth", grid.tolist(), truth.tolist(), "line", "#222222", True, first))
            for name, detail, colour in (("least squares, alone", local, COLOURS[1]), ("Learn2pFed", ours, COLOURS[0])):
                fit = powers @ np.array(detail.series["models"][i])
                curves.append(Series(name, grid.tolist(), fit.tolist(), "line", colour, legend=first))
                gaps.append(Series(name, grid.tolist(), (fit - truth).tolist(), "line", colour, legend=False))
        fits.append(Panel(f"setting {setting}", tuple(curves), "x", "y"))
        errors.append(Panel(f"setting {setting}: fit - truth", tuple(gaps), "x", "error"))
    if not fits:
        return None
    caption = (
        "Each client sees its own stretch of x. Above: the fits, nearly on top of each other. Below: fit minus truth."
    )
    return Figure("fits", "Fits over the data, first trial", caption, (*fits, *errors), min(3, len(fits)))


def history_figure(results: Results, details: Sequence[Detail]) -> Figure | None:
    """The outer objective by epoch."""
    panels = []
    for algorithm in ("Learn2pFed (paper)", "Learn2pFed"):
        series = []
        for place, setting in enumerate(_settings(details)):
            detail = _find(details, algorithm, setting, "history")
            if detail is not None:
                history = detail.series["history"]
                epochs = list(range(1, len(history) + 1))
                series.append(Series(f"setting {setting}", epochs, history, "line", COLOURS[place % len(COLOURS)]))
        if series:
            panels.append(Panel(algorithm, tuple(series), "epoch", "outer objective"))
    shown = [panel.title for panel in panels]
    caption = "What supervises Θ, by epoch. " + _said(
        ("Learn2pFed (paper)" in shown, "The paper's recipe: the sum of training losses."),
        ("Learn2pFed" in shown, "Learn2pFed: ½ n log of the held-out error."),
    )
    return Figure("learning", "Learning Θ", caption, tuple(panels), 2) if panels else None


def depth_figure(results: Results, details: Sequence[Detail]) -> Figure | None:
    """Supplement fig. 7: the outer objective by epoch for each number of cells."""
    panels = []
    for recipe in ("as in the paper", "crossval"):
        for setting in _settings(details):
            chosen = [
                d for d in details if d.setting == setting and d.algorithm.endswith(recipe) and d.series.get("history")
            ]
            series = tuple(
                Series(
                    d.algorithm.partition(",")[0],
                    list(range(1, len(d.series["history"]) + 1)),
                    d.series["history"],
                    "line",
                    COLOURS[place % len(COLOURS)],
                )
                for place, d in enumerate(chosen)
            )
            if series:
                panels.append(Panel(f"{recipe} · setting {setting}", series, "epoch", "outer objective"))
    shown = " ".join(panel.title for panel in panels)
    caption = _said(
        (
            "as in the paper" in shown,
            "With a redrawn start (the paper) a deeper network lowers the training loss sooner; what it learns is to "
            "share less, and its error is no smaller.",
        ),
        (
            "crossval" in shown,
            "With a warm start every epoch goes on where the last ended, so that few cells do nearly as well as many.",
        ),
    )
    return Figure("layers", "Convergence by the number of cells L", caption, tuple(panels)) if panels else None


def lagrangian_figure(results: Results, details: Sequence[Detail]) -> Figure | None:
    """Theorem 1."""
    panels = []
    for setting in _settings(details):
        chosen = [d for d in details if d.setting == setting and "lagrangian" in d.series]
        series = tuple(
            Series(
                d.algorithm.partition(", ")[2],
                list(range(1, len(d.series["lagrangian"]) + 1)),
                d.series["lagrangian"],
                "line",
                COLOURS[place % len(COLOURS)],
            )
            for place, d in enumerate(chosen)
        )
        if series:
            panels.append(Panel(f"setting {setting}", series, "cell", "augmented Lagrangian", log_y=True))
    penalties = [float(series.name.rpartition("= ")[2]) for panel in panels for series in panel.series]
    caption = "Θ fixed; ρ in units of a client's mean curvature. " + _said(
        (max(penalties, default=0) >= 1, "From ρ = 1 on it falls at every cell, as Theorem 1 says for ρ large enough."),
        (
            min(penalties, default=1) < 1,
            "With a smaller ρ it rises, towards the same limit from below: falling at every cell is not what "
            "convergence needs.",
        ),
    )
    return Figure("lagrangian", "The augmented Lagrangian along cells", caption, tuple(panels)) if panels else None


def panels_figure(results: Results, details: Sequence[Detail]) -> Figure | None:
    """Every method's error on every panel, to that of the better of alone and together."""
    names = dict.fromkeys(row.algorithm for row in results.rows)
    panels = list(dict.fromkeys(row.setting for row in results.rows))
    means = {
        name: [np.mean(values_of(results.rows, name, Column(panel, "RMSE")) or [np.nan]) for panel in panels]
        for name in names
    }
    if not {"Local-Only", "One global model"} <= means.keys():
        return None
    best = np.minimum(means["Local-Only"], means["One global model"])
    colours = dict(zip(("Local-Only", "One global model", "Learn2pFed", "REML"), (1, 6, 0, 3), strict=True))
    marks = [(name, COLOURS[colours[name]], (np.array(means[name]) / best).tolist()) for name in names]
    caption = (
        "Error on held-out rows, as a multiple of the better of alone and together (1). A grey line joins the methods."
    )
    panel = Dumbbell("", panels, marks, "RMSE / the better of alone and together")
    return Figure("panels", "Real panels", caption, (panel,), 1)


def methods_figure(results: Results, details: Sequence[Detail]) -> Figure | None:
    """Every method's error, its variants side by side, by setting."""
    experiment, rows = find(results.experiment), results.rows
    variants = experiment.variants(results.config)
    every = list(dict.fromkeys(method_of(algorithm, variants) for algorithm in order(results)))
    panels = []
    for column in experiment.columns(rows):
        if column.metric not in LARGER_IS_BETTER:
            continue
        here = {method_of(row.algorithm, variants) for row in rows if (row.setting, row.metric) == column}
        methods = [method for method in every if method in here]
        marks = []
        for place, variant in enumerate(("", *variants)):
            names = [f"{method}, {variant}" if variant else method for method in methods]
            found = [values_of(rows, name, column) for name in names]
            values = [float(np.mean(entry)) if entry else None for entry in found]
            if any(found):
                marks.append((variant or ("own solver" if variants else "mean"), COLOURS[place], values))
        metric = column.metric
        panels.append(Dumbbell(f"setting {column.setting}", methods, marks, metric))
    shown, both = {name for panel in panels for name, _, _ in panel.marks}, " and ".join(variants)
    better = "larger" if panels and LARGER_IS_BETTER[metric] else "smaller"
    caption = f"Every method, mean over trials; {better} is better. " + _said(
        (len(shown & set(variants)) > 1, f"A grey line joins the two ways to run a method, {both}."),
        ("own solver" in shown, "Methods with a solver of their own have one mark."),
    )
    return Figure("methods", "All methods", caption, tuple(panels), 1) if panels else None


def rounds_figure(results: Results, details: Sequence[Detail]) -> Figure | None:
    """Each method with rounds, by round, first trial."""
    panels = []
    metric = next((row.metric for row in results.rows if row.metric in LARGER_IS_BETTER), "")
    experiment = find(results.experiment)
    known = experiment.variants(results.config)
    methods = list(dict.fromkeys(method_of(name, known) for name in order(results)))
    there = set(_settings(details))
    settings = dict.fromkeys(c.setting for c in experiment.columns(results.rows) if c.setting in there)
    for variant in known or ("",):
        for setting in settings:
            of_variant = f", {variant}" if variant else ""
            found = [d for d in details if d.setting == setting and d.algorithm.endswith(of_variant)]
            chosen = sorted(found, key=lambda d: experiment.rank(d.algorithm))
            series = tuple(
                Series(
                    d.algorithm.removesuffix(of_variant),
                    d.series["rounds"],
                    d.series["curve"],
                    "line",
                    *line_of(method_of(d.algorithm, known), methods),
                )
                for d in chosen
                if "curve" in d.series
            )
            if series:
                title = f"{variant} · setting {setting}" if variant else setting
                panels.append(Panel(title, series, "round", metric, log_y=not LARGER_IS_BETTER[metric]))
    caption = f"{metric} of every client's own model after a round, mean over clients. Only the last round counts."
    return Figure("rounds", "Round by round, first trial", caption, tuple(panels)) if panels else None


def plane_figure(results: Results, details: Sequence[Detail]) -> Figure | None:
    """Setting 1: where the chosen meters lie among all."""
    detail = _find(details, "Learn2pFed, linear", "1", "plane")
    if detail is None:
        return None
    plane, picked = np.array(detail.series["plane"]), detail.series["picked"]
    others = [i for i in range(len(plane)) if i not in picked]
    x, y = plane.T
    series = (
        Series("other meters", x[others].tolist(), y[others].tolist(), "dots", "#666666"),
        Series(
            "take part",
            x[picked].tolist(),
            y[picked].tolist(),
            "marks",
            COLOURS[1],
            labels=detail.series.get("names", ()),
        ),
    )
    caption = "Meters with average weeks alike lie near each other (t-SNE); those of setting 1 lie farthest apart."
    return Figure("map", "The most distinct meters", caption, (Panel("", series, "", ""),), 1)


def forecasts_figure(results: Results, details: Sequence[Detail]) -> Figure | None:
    """The last week, of meters that took part and of meters that did not."""
    panels: list[Panel] = []
    for key, who in (("weeks", "took part"), ("apart", "took no part")):
        detail = _find(details, "Learn2pFed, linear", "1", key)
        for week in detail.series[key] if detail is not None else ():
            hours = list(range(1, len(week["truth"]) + 1))
            curves = (
                Series("truth", hours, week["truth"], "line", "#222222", legend=not panels),
                Series("forecast", hours, week["forecast"], "line", COLOURS[0], legend=not panels),
            )
            panels.append(Panel(f"{week['name']}, {who}", curves, "record of the last week", "standardised load"))
    caption = (
        "One record ahead. Meters that took no part follow the others' model as far as the learned participation says, "
        "with what they have of their own."
    )
    return Figure("forecasts", "Forecasts over a week, Learn2pFed", caption, tuple(panels)) if panels else None


def lags_figure(results: Results, details: Sequence[Detail]) -> Figure | None:
    """How far the coefficient of each lag follows the others."""
    panels = []
    for setting in ("1", "2", "scarce"):
        detail = _find(details, "Learn2pFed, linear", setting, "lam")
        if detail is None or len(detail.series["lam"]) != 1 + len(detail.series["lags"]):
            continue
        lags, lam = detail.series["lags"], detail.series["lam"][1:]
        series = Series("Λ", lags, lam, "marks", COLOURS[0], legend=False)
        panels.append(Panel(f"setting {setting}", (series,), "lag, in records", "Λ / typical curvature", log_y=True))
    caption = "A small Λ: each meter has a coefficient of its own for this lag. A large one: all have nearly the same."
    return Figure("lags", "Learned participation by lag", caption, tuple(panels)) if panels else None


def clients_figure(results: Results, details: Sequence[Detail]) -> Figure | None:
    """Every client's error, by method: ours, the references and the best others, at most six, in the table's order."""
    panels, errors = [], _errors(results, details)
    places: dict[str, int] = {}  # by method, the best in any setting
    for found in errors.values():
        for place, name in enumerate(sorted(found, key=lambda name: found[name].mean())):
            places[name] = min(place, places.get(name, place))
    wanted = sorted(places, key=lambda name: (not name.startswith(ALWAYS), places[name]))[:MOST_METHODS]
    shown = [name for name in order(results) if name in wanted]
    for setting, found in errors.items():
        names = [name for name in shown if name in found]
        ours = [name for name in names if name.startswith("Learn2pFed")]
        line = min(ours or names, key=lambda name: found[name].mean())
        clients = np.argsort(found[line])
        series = tuple(
            Series(
                name,
                list(range(1, len(clients) + 1)),
                found[name][clients].tolist(),
                "line" if name == line else "dots",
                COLOURS[shown.index(name)],
            )
            for name in names
        )
        panels.append(Panel(f"setting {setting}", series, f"client, by its error with {line}", "RMSE", log_y=True))
    caption = (
        "Clients in the order of their error with the method that is drawn as a line: a dot above it is a client that "
        "this method serves better. Of the other methods the best are shown."
    )
    return Figure("clients", "Error of every client, first trial", caption, tuple(panels)) if panels else None


def _errors(results: Results, details: Sequence[Detail]) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Every client's error in the first trial, by setting and method, settings in the table's order."""
    columns = find(results.experiment).columns(results.rows)
    found: dict[str, dict[str, NDArray[np.float64]]] = {column.setting: {} for column in columns}
    for detail in sorted(details, key=lambda detail: detail.seed, reverse=True):
        if "errors" in detail.series:
            found[detail.setting][detail.algorithm] = np.array(detail.series["errors"])
    return {setting: by_method for setting, by_method in found.items() if by_method}


ALWAYS = ("Learn2pFed", "Least squares")
"""Methods of which every client's error is shown."""

MOST_METHODS = 6

Maker = Callable[[Results, Sequence[Detail]], Figure | None]

MAKERS: dict[str, tuple[Maker, ...]] = {
    "polynomial": (methods_figure, lambda_figure, fits_figure, rounds_figure, history_figure),
    "quality": (lambda_figure,),
    "panels": (panels_figure,),
    "layers": (depth_figure, lagrangian_figure),
    "power": (methods_figure, forecasts_figure, lags_figure, clients_figure, plane_figure, rounds_figure),
    "images": (methods_figure, participation_figure, bytes_figure, rounds_figure, partition_figure, confusion_figure),
    "sharing": (sharing_figure, rounds_figure),
    "start-layer": (methods_figure, bytes_figure, rounds_figure),
}
