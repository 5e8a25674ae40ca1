"""What `run images` shows: who has which classes, what was shared over the rounds, what it cost, what was mistaken."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from learn2pfed.experiments.base import Column
from learn2pfed.experiments.registry import find
from learn2pfed.experiments.sharing import BY_PARAMETER, LEARNED
from learn2pfed.report.drawing import COLOURS, Figure, Heat, Panel, Series, line_of
from learn2pfed.report.tables import order, settings_judged, values_of
from learn2pfed.results.records import Detail, Results

COUNTS = ("#ffffff", "#9ecae1", "#08306b")
"""From none to many."""

MOST_CLIENTS = 4
"""Clients whose mistakes are shown."""


def _first(results: Results, details: Sequence[Detail], key: str) -> list[Detail]:
    """The first trial's details that have `key`, of the last method that has, settings in the order of the table."""
    settings = list(dict.fromkeys(column.setting for column in find(results.experiment).columns(results.rows)))
    found: dict[str, Detail] = {}
    names = order(results)
    for detail in sorted(details, key=lambda detail: (detail.seed, -names.index(detail.algorithm))):
        if detail.series.get(key):
            found.setdefault(detail.setting, detail)
    return [found[setting] for setting in settings if setting in found]


def partition_figure(results: Results, details: Sequence[Detail]) -> Figure | None:
    """Classes by clients."""
    panels = []
    for detail in _first(results, details, "counts"):
        counts = np.array(detail.series["counts"])
        clients = [str(i) for i in range(counts.shape[1])]
        classes = [f"class {c}" for c in range(len(counts))]
        top = float(counts.max())
        panels.append(
            Heat(detail.setting, classes, clients, counts.tolist(), 0.0, top, "images", COUNTS, True, "client")
        )
    caption = "How many images of each class each client has, for training and testing together, first trial."
    return Figure("partition", "Who has which classes", caption, tuple(panels), 1) if panels else None


def participation_figure(results: Results, details: Sequence[Detail]) -> Figure | None:
    """1 - s of every tensor, round by round."""
    panels = []
    for detail in _first(results, details, "shares"):
        shares, blocks = np.array(detail.series["shares"]), np.array(detail.series["blocks"])
        names = list(dict.fromkeys(blocks.tolist()))
        shared = [(1 - shares[:, blocks == name].mean(1)).tolist() for name in names]
        rounds = [str(t + 1) for t in range(len(shares))]
        panels.append(Heat(detail.setting, names, rounds, shared, label="follows the others", x_label="round"))
    caption = (
        "Round by round, how far each tensor follows the others (1) or is the client's own (0), as learned from images "
        "that were set aside. At 0 it is no longer sent."
    )
    return Figure("participation", "Learned participation", caption, tuple(panels), 1) if panels else None


def bytes_figure(results: Results, details: Sequence[Detail]) -> Figure | None:
    """Accuracy against all that was sent so far; who sends nothing is a level that has to be passed."""
    names, panels = order(results), []
    for setting in settings_judged(results):
        found = {d.algorithm: d.series for d in details if d.setting == setting and d.series.get("sent")}
        sending = {name: series for name, series in found.items() if all(series["sent"])}
        if not sending:
            continue
        ends = [sent for series in sending.values() for sent in (series["sent"][0], series["sent"][-1])]
        levels = {name: series["curve"][-1] for name, series in found.items() if name not in sending}
        drawn = [
            Series(name, series["sent"], series["curve"], "line", *line_of(name, names))
            if name in sending
            else Series(name, [min(ends), max(ends)], [levels[name]] * 2, "line", *line_of(name, names))
            for name, series in sorted(found.items(), key=lambda item: names.index(item[0]))
        ]
        best = max(max(series["curve"]) for series in sending.values())
        above = best - max(levels.values(), default=best)
        span = (best - 2 * above, best + above / 5) if above > 0 else None
        panels.append(Panel(setting, tuple(drawn), "MB sent, both ways", "accuracy", log_x=True, y_span=span))
    caption = (
        "Mean accuracy over clients if the run ended there, against all bytes sent by then, to and from all clients, "
        "the last message to everybody included; first trial. What sends nothing is drawn across, at its last round's "
        "accuracy; what is further below it than the best is above it is cut off."
    )
    return Figure("bytes", "Accuracy against communication", caption, tuple(panels), 2) if panels else None


def sharing_figure(results: Results, details: Sequence[Detail]) -> Figure | None:
    """Accuracy over s, held and learned."""
    panels = []
    for setting in settings_judged(results):
        points = {}
        for name in order(results):
            values, shares = (values_of(results.rows, name, Column(setting, metric)) for metric in ("accuracy", "s"))
            if values and shares:
                points[name] = float(np.mean(shares)), float(np.mean(values))
        learned = [(name, points.pop(name)) for name in (LEARNED, BY_PARAMETER) if name in points]
        held = sorted(points.values())
        series = [Series("s held", [s for s, _ in held], [mean for _, mean in held])] if held else []
        series += [
            Series(name, [s], [mean], "dots", colour)
            for (name, (s, mean)), colour in zip(learned, COLOURS[1:], strict=False)
        ]
        if series:
            panels.append(Panel(setting, tuple(series), "s", "accuracy"))
    caption = (
        "Mean accuracy over clients and trials, with s held at one value for all tensors (0: all shared, 1: the "
        "client's own) and learned, shown at the mean of s over blocks."
    )
    return Figure("sharing", "Accuracy over s", caption, tuple(panels), 2) if panels else None


def confusion_figure(results: Results, details: Sequence[Detail]) -> Figure | None:
    """Of a few clients, what was taken for what."""
    panels, whose = [], ""
    for detail in _first(results, details, "confusion")[:1]:
        whose = detail.algorithm
        for i, table in enumerate(detail.series["confusion"][:MOST_CLIENTS]):
            classes = [str(c) for c in range(len(table))]
            top = float(np.max(table))
            panels.append(
                Heat(
                    f"client {i}, {detail.setting}",
                    classes,
                    classes,
                    table,
                    0.0,
                    top,
                    "images",
                    COUNTS,
                    True,
                    "taken for class",
                    "class",
                )
            )
    caption = (
        f"Test images by their class (row) and by what {whose} takes them for (column); first trial, the first "
        f"{MOST_CLIENTS} clients of the first setting. details.json has all clients."
    )
    return Figure("confusion", "Mistakes of a few clients", caption, tuple(panels), 1) if panels else None
