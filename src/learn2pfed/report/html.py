"""One self-contained page: tables, interactive figures, the configuration. It opens without a network."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader
from plotly.offline import get_plotlyjs

from learn2pfed.experiments.registry import differences, find
from learn2pfed.report.figures import draw_files, draw_interactive, figures
from learn2pfed.report.tables import tables
from learn2pfed.results.records import Details, Results
from learn2pfed.results.store import to_toml, write_whole


def render(results: Results, details: Details) -> str:
    """The page as text."""
    environment = Environment(loader=PackageLoader("learn2pfed.report"), autoescape=True, trim_blocks=True)
    experiment = find(results.experiment)
    seeds = sorted({row.seed for row in results.rows})
    return environment.get_template("report.html").render(
        experiment=experiment,
        results=results,
        seeds=seeds,
        tables=tables(results),
        figures=[(figure, draw_interactive(figure)) for figure in figures(results, details)],
        config=to_toml(results.config),
        changes=differences(experiment, results.preset, results.config),
        plotly=get_plotlyjs(),
    )


def write_report(folder: Path, results: Results, details: Details) -> Path:
    """Figures as SVG and PNG, and report.html, into the run folder."""
    for figure in figures(results, details):
        for name, content in draw_files(figure).items():
            write_whole(folder / "figures" / name, content)
    page = folder / "report.html"
    write_whole(page, render(results, details))
    return page
