"""`learn2pfed tune`: settings from validation data, with the same number of trials for every method."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from learn2pfed.cli.common import app, changes_of, console, folder_for, progress_bar, rich_table, stoppable
from learn2pfed.errors import Learn2pFedError
from learn2pfed.experiments.processes import spread
from learn2pfed.experiments.registry import configure, differences, find, restore
from learn2pfed.experiments.tuning import Tuned, Tunings, chosen_values, searches, tune
from learn2pfed.report.tables import Table, number
from learn2pfed.results.records import versions
from learn2pfed.results.store import begun, to_toml, write_whole

SAME = {"experiment", "preset", "n_trials", "config"}
"""What a tuning that goes on must be asked with again; more trials are allowed."""


@app.command(
    "tune",
    epilog="Examples:\n\n  learn2pfed tune polynomial --trials 20\n\n"
    "  learn2pfed tune polynomial --algorithms ditto,learn2pfed --trials 50 --out runs/tuned\n\n"
    "  learn2pfed tune polynomial --algorithms ditto,learn2pfed --trials 80 --out runs/tuned --resume\n\n"
    "  learn2pfed run polynomial --tuned runs/tuned/tuned.toml",
)
def tune_(
    experiment: Annotated[str, typer.Argument(help="The experiment whose methods are tuned.")],
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials of every method, the first with its defaults; 20 if not given.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Tune for this preset; quick if not given.")] = None,
    algorithms: Annotated[str | None, typer.Option(help="Comma-separated methods; default: all.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE; may be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default runs/tune-EXPERIMENT, numbered if taken.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a tuning: interrupted, or with more --trials.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at once.")] = os.cpu_count() or 1,
) -> None:
    """Choose settings on validation data: trials.json has every trial, tuned.toml the best of each method."""
    chosen = find(experiment)
    changes = changes_of(change or []) | ({} if algorithms is None else {"algorithms": algorithms})
    folder = folder_for(f"tune-{experiment}", out, resume)
    file = folder / "trials.json"
    old = _read(file) if begun(folder, file.name, "tuning", resume=resume) else None
    if old is not None and not changes and trials is None and preset is None:  # as it was begun
        tunings, config = old, restore(chosen, old.config)
    else:
        config = configure(chosen, preset or "quick", changes, tuned={})  # not from an earlier tuning
        given = Tunings(
            experiment=experiment,
            preset=preset or "quick",
            n_trials=trials or 20,
            versions=versions("optuna"),
            config=config.model_dump(mode="json"),
            tuned=[],
        )
        tunings = old or given
        tunings.n_trials = max(tunings.n_trials, given.n_trials)
        if tunings.model_dump(include=SAME) != given.model_dump(include=SAME):
            raise Learn2pFedError(f"{folder} holds a tuning with other settings: repeat those or choose another --out.")
    chosen.tasks(config)  # refuses what it does not know
    wanted = searches(chosen, config)
    known = {tuned.method: tuned for tuned in tunings.tuned}
    todo = [
        search._replace(known=tuple(known[search.method].trials) if search.method in known else ())
        for search in wanted
        if search.method not in known or not known[search.method].complete(tunings.n_trials, chosen.finalists)
    ]
    with stoppable(f"tune {experiment}", folder), progress_bar() as bar:
        _write(file, tunings)
        shown = bar.add_task(f"Tuning {experiment}", total=len(wanted), completed=len(wanted) - len(todo))
        for _, tuned in spread(partial(tune, experiment, config.model_dump(), tunings.n_trials), todo, jobs):
            tunings.tuned = [other for other in tunings.tuned if other.method != tuned.method] + [tuned]
            _write(file, tunings)
            bar.advance(shown)
            bar.console.print(f"{tuned.method}: {_values(tuned)}", highlight=False, soft_wrap=True)
    order = [search.method for search in wanted]
    tunings.tuned.sort(key=lambda tuned: order.index(tuned.method))
    _write(file, tunings)
    changed = [f"--set {change}" for change in differences(chosen, tunings.preset, tunings.config, tuned={})]
    by = ["learn2pfed tune", experiment, "--preset", tunings.preset, "--trials", str(tunings.n_trials), *changed]
    said = f"# By: {' '.join(by)}; every trial is in trials.json.\n"
    write_whole(folder / "tuned.toml", said + to_toml(chosen_values(tunings)))
    console.print(rich_table(_table(tunings, chosen.validation)))
    console.print(f"Use them: learn2pfed run {experiment} --tuned {folder / 'tuned.toml'}", soft_wrap=True)


def _write(file: Path, tunings: Tunings) -> None:
    write_whole(file, tunings.model_dump_json(indent=1, exclude_defaults=True) + "\n")


def _read(file: Path) -> Tunings:
    """What is on disk to go on with."""
    try:
        return Tunings.model_validate_json(file.read_text())
    except (ValidationError, OSError, UnicodeDecodeError) as error:
        raise Learn2pFedError(f"{file} can't be read as a tuning: choose another --out.") from error


def _values(tuned: Tuned) -> str:
    return "diverged" if tuned.best is None else ", ".join(f"{key} = {v}" for key, v in tuned.best.values.items())


def _table(tunings: Tunings, measure: str) -> Table:
    body, twice = [], any(trial.again is not None for tuned in tunings.tuned for trial in tuned.trials)
    for tuned in tunings.tuned:
        both = (None, None) if tuned.best is None else (tuned.best.error, tuned.best.again)
        errors = [tuned.trials[0].error, *(both if twice else both[:1])]
        shown = ["diverged" if error is None else number(error) for error in errors]
        body.append((tuned.method, str(len(tuned.trials)), *shown, _values(tuned)))
    head = ("method", "trials", "with defaults", "of the best", *(("again",) if twice else ()), "values")
    return Table(f"{tunings.experiment}, {tunings.preset}: {measure}; smaller is better", head, tuple(body))
