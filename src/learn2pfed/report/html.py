"""One self-contained page: tables, interactive figures, the configuration. It opens without a network."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from plotly.offline import get_plotlyjs

from learn2pfed.experiments.base import Experiment
from learn2pfed.experiments.registry import differences, find, tuned_file, tuned_for
from learn2pfed.report.drawing import Figure
from learn2pfed.report.figures import figures
from learn2pfed.report.interactive import draw_interactive
from learn2pfed.report.still import draw_files
from learn2pfed.report.tables import EXTRA, Table, tables
from learn2pfed.results.records import Details, Results
from learn2pfed.results.store import to_toml, write_whole


@dataclass(frozen=True)
class Page:
    """What a page shows, from top to bottom; `words` are headings with sentences, `highlight` a row's first cell."""

    title: str
    about: str
    lead: str
    tables: Sequence[Table]
    figures: Sequence[Figure]
    command: str
    config: dict[str, Any]
    versions: Mapping[str, str]
    words: Sequence[tuple[str, Sequence[str]]] = ()
    highlight: str = "Learn2pFed"
    n_above: int = 1  # tables before the figures


def page_of_experiment(results: Results, details: Details) -> Page:
    """The page of a run."""
    experiment = find(results.experiment)
    shown = tables(results, details.details)
    introduction = experiment.introduction({row.setting for row in results.rows})
    return Page(
        title=experiment.title,
        about=" ".join(filter(None, (introduction, tuning_words(experiment, results)))),
        lead=_lead(sorted({row.seed for row in results.rows}), shown),
        tables=shown,
        figures=figures(results, details),
        command=command_of(experiment, results),
        config=results.config,
        versions=results.versions,
        words=[("The data", results.notes)] if results.notes else (),
        n_above=2 if results.experiment in EXTRA else 1,
    )


def command_of(experiment: Experiment, results: Results) -> str:
    """The command that does the same again; where the file of --tuned is gone, its values are said one by one."""
    file = Path(results.tuned) if results.tuned and Path(results.tuned).is_file() else None
    words = ["learn2pfed", "run", results.experiment, "--preset", results.preset]
    words += ["--tuned", str(file)] if file else []
    for change in differences(experiment, results.preset, results.config, tuned_for(experiment, file)):
        words += ["--set", change]
    return shlex.join(words)


def tuning_words(experiment: Experiment, results: Results) -> str:
    """Where the methods' settings are from, for an experiment that comes with tuned ones."""
    if not tuned_file(experiment).exists():
        return ""
    groups = {name.partition(".")[0] for name in tuned_for(experiment)}
    changes = differences(experiment, results.preset, results.config)
    if any(change.partition(".")[0] in groups for change in changes):
        return "Settings of the methods were changed for this run: see how it was made."
    return experiment.tuning


def _lead(seeds: Sequence[int], shown: Sequence[Table]) -> str:
    if not seeds:
        return "Nothing has been measured yet."
    over = f"Mean ± standard deviation over {len(seeds)} seeds, {seeds[0]} to {seeds[-1]}."
    said = over if len(seeds) > 1 else f"One seed, {seeds[0]}."
    pooled = any("pooled" in row for table in shown for row in table.body)
    return f'{said} "pooled": computed from all rows in one place, nothing is sent.' if pooled else said


def render_page(page: Page) -> str:
    """The page as text."""
    environment = Environment(loader=PackageLoader("learn2pfed.report"), autoescape=True, trim_blocks=True)
    return environment.get_template("report.html").render(
        page=page,
        drawings=[(figure, draw_interactive(figure)) for figure in page.figures],
        config=to_toml(page.config),
        plotly=get_plotlyjs(),
    )


def write_page(folder: Path, page: Page) -> Path:
    """Figures as SVG and PNG, and report.html, into the folder."""
    for figure in page.figures:
        for name, content in draw_files(figure).items():
            write_whole(folder / "figures" / name, content)
    file = folder / "report.html"
    write_whole(file, render_page(page))
    return file


def write_report(folder: Path, results: Results, details: Details) -> Path:
    """The page of a run and its figures, into the run folder."""
    return write_page(folder, page_of_experiment(results, details))
