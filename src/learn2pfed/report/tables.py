"""Rows into tables: mean ± standard deviation over seeds, for the terminal, Markdown and the page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from pydantic import ValidationError

from learn2pfed.experiments.base import Column
from learn2pfed.experiments.panels import sizes_of
from learn2pfed.experiments.registry import find
from learn2pfed.results.records import DIVERGED, Detail, Results, Row

LARGER_IS_BETTER = {"RMSE": False, "accuracy": True}
"""The metrics by which methods are compared."""


@dataclass(frozen=True)
class Table:
    """A table of finished text."""

    title: str
    head: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]

    @property
    def is_text(self) -> list[bool]:
        """Which columns stand on the left: the first, and those without numbers or with sentences."""
        columns = [[row[place] for row in self.body] for place in range(len(self.head))]
        return [
            place == 0
            or not any(cell.lstrip("-")[:1].isdigit() for cell in column)
            or any(len(cell.split()) > 3 for cell in column)
            for place, column in enumerate(columns)
        ]

    def markdown(self) -> str:
        """GitHub's form."""
        lines = [
            "| " + " | ".join(self.head) + " |",
            "|" + "|".join(" --- " if text else " ---: " for text in self.is_text) + "|",
        ]
        return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in self.body])


def number(value: float, digits: int = 3) -> str:
    """So many significant digits, without an exponent between 1e-8 and 1e6.

    >>> number(0.00014312), number(0.0204), number(12.3456), number(5.1638e-06, 2), number(0.00012, 3)
    ('0.000143', '0.0204', '12.3', '0.0000052', '0.000120')
    """
    if value == 0 or not 1e-8 <= abs(value) < 1e6:
        return f"{value:.{digits}g}"
    before = math.floor(math.log10(abs(value))) + 1
    return f"{value:.{max(0, digits - before)}f}"


def mean_std(values: Sequence[float]) -> str:
    """`mean ± std`; the std is the sample's, left out for one value."""
    if len(values) == 1 and values[0].is_integer():
        return str(int(values[0]))
    mean = number(statistics.fmean(values))
    return mean if len(values) < 2 else f"{mean} ± {number(statistics.stdev(values), 2)}"


def values_of(rows: Sequence[Row], algorithm: str, column: Column) -> list[float]:
    """The values of one entry of the table, by seed; none where a trial diverged: the others' mean would flatter."""
    own = [row for row in rows if (row.algorithm, row.setting) == (algorithm, column.setting)]
    chosen = [row for row in own if row.metric == column.metric]
    gone = any(row.metric == DIVERGED for row in own)
    return [] if gone else [row.value for row in sorted(chosen, key=lambda row: row.seed)]


def _shown(rows: Sequence[Row], algorithm: str, column: Column) -> str:
    """One entry of the table: `mean ± std`, or in how many trials the method diverged."""
    values = values_of(rows, algorithm, column)
    own = [row for row in rows if (row.algorithm, row.setting) == (algorithm, column.setting)]
    gone, seeds = sum(row.metric == DIVERGED for row in own), len({row.seed for row in own})
    return mean_std(values) if values else f"diverged ({gone}/{seeds})" if gone else ""


def order(results: Results) -> list[str]:
    """Algorithms in the order of the experiment's table."""
    return sorted(dict.fromkeys(row.algorithm for row in results.rows), key=find(results.experiment).rank)


def metric_table(results: Results, metric: str) -> Table:
    """Every method by setting, one metric; where a method runs in several variants, these stand side by side."""
    rows, experiment = results.rows, find(results.experiment)
    columns = [column for column in experiment.columns(rows) if column.metric == metric]
    known = experiment.variants(results.config)
    variants = [v for v in known if any(row.algorithm.endswith(f", {v}") for row in rows)] or [""]
    heads = {" · ".join(filter(None, (f"setting {c.setting}", v))): (c, v) for c in columns for v in variants}
    body = []
    for method in dict.fromkeys(method_of(algorithm, known) for algorithm in order(results)):
        entries = [_entry(rows, method, *place, variants) for place in heads.values()]
        if any(entries):
            body.append((method, *entries))
    return _without_empty(Table(f"{experiment.title}: {metric}", (metric, *heads), tuple(body)))


def _without_empty(table: Table) -> Table:
    """The table without columns in which no row has anything."""
    kept = [place for place in range(len(table.head)) if place == 0 or any(row[place] for row in table.body)]
    head, *body = (tuple(row[place] for place in kept) for row in (table.head, *table.body))
    return Table(table.title, head, tuple(body))


def method_of(algorithm: str, variants: Sequence[str]) -> str:
    """The method without its variant.

    >>> method_of("FedAvg, MLP", ("MLP", "polynomial")), method_of("Learn2pFed", ("MLP", "polynomial"))
    ('FedAvg', 'Learn2pFed')
    """
    name, _, variant = algorithm.rpartition(", ")
    return name if variant in variants else algorithm


def _entry(rows: Sequence[Row], method: str, column: Column, variant: str, variants: Sequence[str]) -> str:
    """Of a method's variant; a method without variants stands in the last column."""
    entry = _shown(rows, f"{method}, {variant}", column)
    return entry or (_shown(rows, method, column) if variant == variants[-1] else "")


def cost_table(results: Results) -> Table:
    """CPU seconds and encoded bytes of one fit, averaged over seeds, and over settings where these cost alike."""
    experiment = find(results.experiment)
    judged = [row for row in results.rows if row.metric in ("RMSE", "MSE", "accuracy")]
    settings = list(dict.fromkeys(column.setting for column in experiment.columns(judged)))
    groups = [{setting} for setting in settings] if experiment.costs_by_setting else [set(settings)]
    body = []
    for algorithm, group in product(order(results), groups):
        own = [row for row in judged if row.algorithm == algorithm and row.setting in group]
        if not own:
            continue
        cost = [statistics.fmean(getattr(row, name) for row in own) for name in ("seconds", "bytes_up", "bytes_down")]
        alone = algorithm.startswith(("Local-Only", "Seasonal naive")) or algorithm.endswith(", alone")
        sent = [number(count / 1e6) for count in cost[1:]] if any(cost[1:]) or alone else ("pooled", "pooled")
        where = group if experiment.costs_by_setting else ()
        body.append((algorithm, *where, f"{cost[0]:.2f}", *sent))
    head = ("", *(("setting",) if experiment.costs_by_setting else ()), "CPU seconds")
    return Table("Cost of a fit", (*head, "MB sent by clients", "MB sent to clients"), tuple(body))


def tables(results: Results, details: Sequence[Detail] = ()) -> list[Table]:
    """All tables of the experiment; some need what was seen along the way."""
    if results.empty:
        return []
    metrics = dict.fromkeys(column.metric for column in find(results.experiment).columns(results.rows))
    extra = [make(results) for name, make in EXTRA.items() if name == results.experiment]
    return [
        *(table for table in extra if table.body),
        *(metric_table(results, metric) for metric in metrics),
        *(table for table in _costs(results, details) if table.body),
        *settings_tables(results),
    ]


def _costs(results: Results, details: Sequence[Detail]) -> list[Table]:
    by_bytes = [bytes_table(results), *equal_tables(results, details)] if results.experiment == "images" else []
    return [*by_bytes, cost_table(results)]


def settings_tables(results: Results) -> list[Table]:
    """What each method was set to, of what tuning can choose."""
    experiment = find(results.experiment)
    try:
        config = experiment.config_class.model_validate(results.config)
    except ValidationError:  # a run of another version
        return []
    body = []
    for method, space in experiment.tunable(config).items():
        own = results.config
        for part in method.split("."):
            own = own.get(part, {})
        if own.keys() >= space.keys():
            body.append((method, ", ".join(f"{key} = {'none' if own[key] is None else own[key]}" for key in space)))
    body += [(name, str(results.config[name])) for name in experiment.also_set(config) if name in results.config]
    return [Table("Settings of the methods", ("--set METHOD.NAME=VALUE", "values"), tuple(body))] if body else []


def quality_table(results: Results) -> Table:
    """By setting: MSE of Learn2pFed against REML and against the exact inner solution, seed by seed."""
    rows, ours = results.rows, "Learn2pFed"
    needed = (ours, "REML (limit)", "Learn2pFed (exact inner)")
    body = []
    for setting in sorted({row.setting for row in rows}):
        column = Column(setting, "MSE")
        mse = {name: values_of(rows, name, column) for name in order(results)}
        counts = {len(mse.get(name, ())) for name in needed}
        if 0 in counts or len(counts) > 1:
            continue  # not all of them have run, or not for every seed
        beaten = [name for name in mse if statistics.fmean(mse[ours]) < statistics.fmean(mse[name])]
        body.append(
            (
                setting,
                str(len(mse[ours])),
                median_ratio(mse[ours], mse["REML (limit)"]),
                median_ratio(mse[ours], mse["Learn2pFed (exact inner)"]),
                f"{statistics.fmean(mse[ours]) / statistics.fmean(mse['Learn2pFed (exact inner)']):.3f}",
                "; ".join(name for name in beaten if name.startswith("Least squares") or name == "Learn2pFed (paper)"),
            )
        )
    head = (
        "setting",
        "seeds",
        "MSE / REML, median",
        "MSE / exact inner, median",
        "mean MSE / exact inner's",
        "lower mean MSE than",
    )
    return Table("Against the limits", head, tuple(body))


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """The median over seeds of the ratio."""
    return f"{statistics.median(a / b for a, b in zip(ours, theirs, strict=True)):.3f}"


def panels_table(results: Results) -> Table:
    """By panel: its size, the mean error of each method, and ours to the better of alone and together and to REML."""
    rows, ours = results.rows, "Learn2pFed"
    names = ("Local-Only", "One global model", ours, "REML")
    body, ratios = [], []
    for panel in dict.fromkeys(row.setting for row in rows):
        errors = [values_of(rows, name, Column(panel, "RMSE")) for name in names]
        if len({len(entry) for entry in errors}) > 1 or not errors[0]:
            continue  # not all of them have run, or not on every split
        local, together, personal, limit = (statistics.fmean(entry) for entry in errors)
        ratios.append((personal / min(local, together), personal / limit))
        sizes = sizes_of(rows, panel)
        counts = [str(sizes[what]) for what in ("clients", "training rows", "features")]
        body.append((panel, *counts, *map(number, (local, together, personal, limit)), *map(_ratio, ratios[-1])))
    if ratios:
        means = (statistics.geometric_mean(column) for column in zip(*ratios, strict=True))
        body.append(("geometric mean", *[""] * 7, *map(_ratio, means)))
    head = ("panel", "clients", "rows", "features", *names, "ours / better of alone, together", "ours / REML")
    return Table("Held-out rows, mean over splits: RMSE by panel", head, tuple(body))


def _ratio(value: float) -> str:
    return f"{value:.3f}"


def lead_table(results: Results) -> Table:
    """By setting, Learn2pFed and the best of all other methods, and the lead: mean ± std of the differences by seed."""
    rows, experiment = results.rows, find(results.experiment)
    ours = [name for name in order(results) if method_of(name, experiment.variants(results.config)) == "Learn2pFed"]
    others = [name for name in order(results) if not name.startswith("Learn2pFed")]
    columns = experiment.columns(rows)
    metric = columns[0].metric
    sign = 1 if LARGER_IS_BETTER[metric] else -1
    body = []
    for column in (column for column in columns if column.metric == metric):
        found = {name: values_of(rows, name, column) for name in others}
        rivals = {name: sign * statistics.fmean(values) for name, values in found.items() if values}
        best = max(rivals, key=rivals.__getitem__, default="")
        for name in ours:
            own, its = values_of(rows, name, column), found.get(best, [])
            if not own or len(own) != len(its):
                continue  # not run, or not for every seed
            lead = [sign * (a - b) for a, b in zip(own, its, strict=True)]
            relative = f"{statistics.fmean(lead) / statistics.fmean(its):.1%}" if any(its) else ""
            ahead = f"{sum(value > 0 for value in lead)} of {len(lead)}"
            body.append((column.setting, name, mean_std(own), best, mean_std(its), mean_std(lead), relative, ahead))
    head = (
        "setting",
        "ours",
        metric,
        "best of the others",
        f"its {metric}",
        "lead, seed by seed",
        "of its",
        "ahead in",
    )
    return Table(f"{experiment.title}: Learn2pFed against the best of the others", head, tuple(body))


def settings_judged(results: Results) -> list[str]:
    """The settings with accuracies, in the order of the table."""
    return [setting for setting, metric in find(results.experiment).columns(results.rows) if metric == "accuracy"]


def _byte_table(results: Results, what: str, entry: Callable[[str, str], str]) -> Table:
    """By setting, an entry for every method that is none of ours."""
    settings, ours = settings_judged(results), "Learn2pFed"
    others = [name for name in order(results) if name != ours and not name.startswith(f"{ours}, ")]
    body = [(name, *(entry(name, setting) for setting in settings)) for name in others]
    head = (f"bytes of {ours} / of", *(f"setting {setting}" for setting in settings))
    title = f"{find(results.experiment).title}: {what}"
    return _without_empty(Table(title, head, tuple(row for row in body if any(row[1:]))))


def bytes_table(results: Results) -> Table:
    """By setting, what Learn2pFed sends in all over what another method sends that is at most as accurate."""
    rows, ours = results.rows, "Learn2pFed"

    def mean(name: str, setting: str) -> tuple[float, float] | None:
        own = [row for row in rows if (row.algorithm, row.setting, row.metric) == (name, setting, "accuracy")]
        values = values_of(rows, name, Column(setting, "accuracy"))
        sent = [row.bytes_up + row.bytes_down for row in own]
        return (statistics.fmean(values), statistics.fmean(sent)) if values else None

    what = f"bytes, where {ours} is at least as accurate"
    return _byte_table(results, what, lambda name, setting: _at_most_as_good(mean(ours, setting), mean(name, setting)))


def equal_tables(results: Results, details: Sequence[Detail]) -> list[Table]:
    """By setting, what Learn2pFed has sent until it is as accurate as another method, over what that has sent: for what
    the other has in the end, and the largest such ratio of all that was seen of it. Above the last accuracy of
    Local-Only alone, which sends nothing.
    """
    curves = {(d.algorithm, d.setting): d.series for d in details if d.series.get("sent")}

    def table(what: str, first: int) -> Table:
        def entry(name: str, setting: str) -> str:
            return _largest(first, *(curves.get((each, setting)) for each in ("Learn2pFed", name, "Local-Only")))

        return _byte_table(results, f"bytes at equal accuracy, {what}, first trial", entry)

    return [table("that of the other in the end", -1), table("the largest ratio of all looks", 0)]


def _largest(
    first: int, ours: dict[str, Any] | None, other: dict[str, Any] | None, alone: dict[str, Any] | None
) -> str:
    """Of one setting and the other's looks from `first` on; between two looks ours goes straight."""
    if ours is None or other is None or alone is None or not any(other["sent"]):
        return ""
    looks = list(zip(other["sent"], other["curve"], strict=True))[first:]
    seen = [(sent, value) for sent, value in looks if value > alone["curve"][-1]]
    if not seen:
        return "not above alone"
    if any(value > max(ours["curve"]) for _, value in seen):
        return "more accurate"
    return _ratio(max(_sent_until(value, ours["sent"], ours["curve"]) / sent for sent, value in seen))


def _sent_until(value: float, sent: Sequence[float], curve: Sequence[float]) -> float:
    """Where the curve first is at this value, straight from look to look."""
    k = next(k for k, seen in enumerate(curve) if seen >= value)
    return float(np.interp(value, curve[k - 1 : k + 1], sent[k - 1 : k + 1])) if k else sent[0]


def _at_most_as_good(ours: tuple[float, float] | None, other: tuple[float, float] | None) -> str:
    """The ratio of bytes, where the other communicates."""
    if ours is None or other is None or not other[1]:
        return ""
    return _ratio(ours[1] / other[1]) if other[0] <= ours[0] else "more accurate"


EXTRA = {"quality": quality_table, "panels": panels_table, "power": lead_table, "images": lead_table}
