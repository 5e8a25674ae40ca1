"""`learn2pfed run`, `report`, `list`: experiments."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic.fields import FieldInfo
from rich.text import Text

from learn2pfed.algorithms.learn2pfed import Learn2pFed
from learn2pfed.algorithms.local import LocalSettings
from learn2pfed.algorithms.registry import BASELINES, OURS
from learn2pfed.cli.common import (
    app,
    changes_of,
    console,
    folder_for,
    goes_on,
    progress_bar,
    rich_table,
    stoppable,
)
from learn2pfed.errors import DivergenceError, Learn2pFedError
from learn2pfed.experiments.base import Experiment, Task
from learn2pfed.experiments.registry import (
    EXPERIMENTS,
    configure,
    differences,
    find,
    restore,
    run_all,
    tuned_for,
)
from learn2pfed.models.modules import MODELS
from learn2pfed.report.docs import update_tables
from learn2pfed.report.html import write_report
from learn2pfed.report.tables import Table, mean_std, tables
from learn2pfed.results.records import DIVERGED, Detail, Results, Row, versions
from learn2pfed.results.store import RunFolder, begun, read_details, read_results
from learn2pfed.unrolled.settings import Settings


@app.command(
    epilog="Examples:\n\n  learn2pfed run polynomial\n\n"
    "  learn2pfed run polynomial --seeds 20 --set learn2pfed.n_cells=5\n\n"
    "  learn2pfed run layers --out runs/depth\n\n  learn2pfed run quality --resume\n\n"
    "  learn2pfed run images --set own.learn2pfed.lr=0.01 --reuse runs/images"
)
def run(
    experiment: Annotated[str, typer.Argument(help=f"One of {', '.join(EXPERIMENTS)}.")],
    preset: Annotated[
        str | None,
        typer.Option(
            help="quick, the default, fits a laptop's minutes; paper is the paper's protocol; households, of power, is "
            "about Swiss households; all-images and ten-rounds, of images, are one column with all of them, and four "
            "columns in fewer rounds."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds (trials).")] = None,
    algorithms: Annotated[
        str | None, typer.Option(help="Comma-separated methods, where an experiment has several.")
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE, e.g. learn2pfed.n_cells=5; may be repeated.")
    ] = None,
    tuned: Annotated[
        Path | None,
        typer.Option(help="Settings by learn2pfed tune, to use on top of the tuned ones that come along."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/EXPERIMENT, numbered if taken.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(help="Take fits with the same settings from this run, or results file; may be repeated."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at once.")] = os.cpu_count() or 1,
) -> None:
    """Run an experiment: a table in the terminal, results.json, figures and report.html."""
    chosen = find(experiment)
    changes = changes_of(change or [])
    if seeds is not None:
        changes["n_seeds"] = seeds
    if algorithms is not None:
        changes["algorithms"] = algorithms
    path = folder_for(experiment, out, resume)
    old = begun(path, "results.json", "run", resume=resume)
    if old and not changes and tuned is None and preset is None:  # as it was begun
        before = read_results(path)
        if before.experiment != experiment:
            raise Learn2pFedError(
                f"{path} holds a run of {before.experiment}: go on with learn2pfed run {before.experiment} --resume "
                f"--out {path}, or choose another --out."
            )
        config, preset = restore(chosen, before.config), before.preset
    else:
        preset = preset or "quick"
        if tuned is not None and not os.path.exists(tuned):
            raise Learn2pFedError(f"{tuned} does not exist: make it with learn2pfed tune {experiment}.")
        config = configure(chosen, preset, changes, tuned_for(chosen, tuned))
    kept = config.model_dump(mode="json")
    file = None if tuned is None else str(tuned)
    tasks, notes = chosen.tasks(config), chosen.notes(config)
    fresh = Results(experiment=experiment, preset=preset, versions=versions(), config=kept, tuned=file, notes=notes)
    known = [_known(chosen, fresh, tasks, other) for other in reuse or []]
    for note in notes:
        console.print(note, highlight=False, soft_wrap=True)
    with stoppable(f"run {experiment}", path):
        folder = RunFolder.go_on(path, fresh) if old else RunFolder.begin(path, fresh)
        for rows, details in known:
            console.print(f"{folder.take(rows, details)} of {len(tasks)} fits taken over.", highlight=False)
        done = folder.results.done()
        try:
            _work(chosen, config, folder, tasks, [task for task in tasks if tuple(task) not in done], jobs)
        except Exception:
            folder.discard_if_empty()
            if not folder.results.empty:
                console.print(f"\n{goes_on(f'run {experiment}', path)}", highlight=False, soft_wrap=True)
            raise
        chosen.leave(config, folder.path)
        page = write_report(folder.path, folder.results, folder.details)
    for table in tables(folder.results, folder.details.details):
        console.print(rich_table(table))
    console.print(f"Report: {page}", soft_wrap=True)


def _known(chosen: Experiment, fresh: Results, tasks: list[Task], path: Path) -> tuple[list[Row], list[Detail]]:
    """The fits of another run that would come out the same here."""
    other = read_results(path)
    if (other.experiment, other.versions) != (fresh.experiment, fresh.versions):
        raise Learn2pFedError(
            f"--reuse: {path} is of {other.experiment} with {other.made_with}; this run is of {fresh.experiment} with "
            f"{fresh.made_with}: leave it out."
        )
    if not chosen.same_data(other.notes, fresh.notes):
        said = next((note for note in other.notes if note not in fresh.notes), "nothing was said of them")
        raise Learn2pFedError(f"--reuse: {path} is on other data ({said.rstrip('.')}): leave it out.")
    same = {tuple(task) for task in tasks if chosen.behind(other.config, task) == chosen.behind(fresh.config, task)}
    rows = [row for row in other.rows if (row.setting, row.algorithm, row.seed) in same]
    details = [d for d in read_details(path).details if (d.setting, d.algorithm, d.seed) in same]
    return rows, details


def _work(chosen: Experiment, config: Any, folder: RunFolder, tasks: list[Task], todo: list[Task], jobs: int) -> None:
    """Do what is left to do, with a bar, and a line whenever a method is through with a setting; where every fit
    diverged there is nothing to show.
    """
    complaints = []
    with progress_bar() as bar:
        shown = bar.add_task(chosen.title, total=len(tasks), completed=len(tasks) - len(todo))
        for task, done in run_all(chosen, config, todo, jobs, folder.partial):
            folder.add(done.rows, done.detail)
            bar.advance(shown)
            if done.complaint:
                complaints.append(done.complaint)
                bar.console.print(done.complaint, highlight=False, soft_wrap=True)
            group = _group(folder, task)
            if len({row.seed for row in group}) == sum(other[:2] == task[:2] for other in tasks):
                bar.console.print(_line(task, group), highlight=False, soft_wrap=True)
    folder.tidy()
    if complaints and folder.results.empty:
        raise DivergenceError(complaints[0])


def _group(folder: RunFolder, task: Task) -> list[Row]:
    """What was measured of the method in the setting."""
    rows = [row for row in folder.results.rows if row.metric != DIVERGED]
    return [row for row in rows if (row.setting, row.algorithm) == (task.setting, task.algorithm)]


def _line(task: Task, rows: list[Row]) -> str:
    metrics = list(dict.fromkeys(row.metric for row in rows))[:2]
    values = (f"{metric} {mean_std([r.value for r in rows if r.metric == metric])}" for metric in metrics)
    return f"setting {task.setting} · {task.algorithm}: {', '.join(values)}"


@app.command(
    epilog="Examples:\n\n  learn2pfed report runs/polynomial\n\n"
    "  learn2pfed report docs/results/quality.json --into docs/results.md"
)
def report(
    path: Annotated[Path, typer.Argument(help="A run folder, or a results file.")],
    into: Annotated[Path | None, typer.Option(help="Rewrite this document's tables for the experiment.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where report.html goes; default: the run folder.")] = None,
) -> None:
    """Make the tables, figures and the page again from what is on disk."""
    results = read_results(path)
    if results.experiment == "fit":
        raise Learn2pFedError(f"{path} is of learn2pfed fit: open its report.html, or see learn2pfed explain {path}.")
    details = read_details(path)
    if into is not None:
        update_tables(into, results, details.details)
        console.print(f"Tables of {results.experiment} written into {into}.", soft_wrap=True)
        return
    for table in tables(results, details.details):
        console.print(rich_table(table))
    target = out or (path if path.is_dir() else None)
    if target is not None:
        page = write_report(target, results, details)
        console.print(f"Report: {page}", soft_wrap=True)


@app.command(
    "list",
    epilog="Examples:\n\n  learn2pfed list\n\n  learn2pfed list algorithms",
)
def list_(
    what: Annotated[
        Literal["all", "algorithms", "models", "experiments"], typer.Argument(help="What to show.")
    ] = "all",
) -> None:
    """Show algorithms with objective, citation and settings; models; experiments, their presets and what can be set."""
    if what in ("all", "algorithms"):
        _list_algorithms()
    if what in ("all", "models"):
        known = tuple((name, about) for name, (about, _, _) in MODELS.items())
        console.print(rich_table(Table("Models, by name; any nn.Module works too", ("name", "what it is"), known)))
    if what in ("all", "experiments"):
        _list_experiments()


def _list_algorithms() -> None:
    found = [("learn2pfed", Learn2pFed.objective, Learn2pFed.citation)]
    found += [(name, method.objective, method.citation) for name, method in BASELINES.items()]
    found += [(f"{name}, networks", method.objective, method.citation) for name, method in OURS.items()]
    console.print(rich_table(Table("Algorithms", ("name", "objective", "citation"), tuple(found)), "learn2pfed"))
    common = LocalSettings.model_fields
    rows = [("most", *_field(name, common[name])) for name in common]
    for method in (BASELINES | OURS).values():
        fields = method.settings_class.model_fields
        own = [name for name in fields if name not in common or fields[name].description != common[name].description]
        rows += [(method.name, *_field(name, fields[name])) for name in own]
    head = ("of", "name", "default", "what it is")
    console.print(rich_table(Table("Settings of methods with rounds", head, tuple(rows))))
    console.print("pfedme, lp-proj and plug-in take n_rounds, join, batch_size and seed of the first group.")
    ours, theirs = Settings(), Settings.paper()
    both = tuple(
        (name, _value(getattr(ours, name)), _value(getattr(theirs, name)), field.description or "")
        for name, field in Settings.model_fields.items()
    )
    head = ("name", "default", "the paper's recipe", "what it is")
    console.print(rich_table(Table("Learn2pFed's settings", head, both)))
    console.print("An experiment may set others, or use tuned ones: learn2pfed list experiments.\n")


def _field(name: str, field: FieldInfo) -> tuple[str, str, str]:
    return name, _value(field.default), field.description or ""


def _list_experiments() -> None:
    for experiment in EXPERIMENTS.values():
        console.print(Text.assemble((experiment.name, "bold"), f"  {experiment.title}"))
        console.print(f"  {experiment.about}", highlight=False)
        quick = configure(experiment, "quick", {})
        for preset in experiment.presets:
            changes = differences(experiment, "quick", configure(experiment, preset, {}).model_dump(mode="json"))
            console.print(f"  --preset {preset}: {' '.join(changes) or 'the values below'}", highlight=False)
        fields = experiment.config_class.model_fields.items()
        groups = [name for name, _ in fields if isinstance(getattr(quick, name), (Settings, dict))]
        plain = [(name, field) for name, field in fields if name not in groups]
        rows = tuple((name, _value(getattr(quick, name)), field.description or "") for name, field in plain)
        console.print(rich_table(Table("--set NAME=VALUE", ("name", "quick", "what it is"), rows)))
        if groups:
            names = ", ".join(f"{group}.*" for group in groups)
            console.print(f"and {names}: the methods' own settings (learn2pfed list algorithms)", highlight=False)
        _list_tuned(experiment)
        console.print()


def _list_tuned(experiment: Experiment) -> None:
    """The values that are used where neither --set nor --tuned says otherwise, a line for each method."""
    by_method: dict[str, list[str]] = {}
    for name, value in tuned_for(experiment).items():
        method, _, last = name.rpartition(".")
        by_method.setdefault(method, []).append(f"{last} = {_value(value)}")
    rows = tuple((method, ", ".join(values)) for method, values in by_method.items())
    if rows:
        console.print(rich_table(Table("Tuned: what runs unless --set or --tuned changes it", ("of", "values"), rows)))


def _value(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
