"""`learn2pfed tune`: settings from validation data, with the same number of trials for every method."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.markup import escape

from learn2pfed.cli.common import app, changes_of, console, folder_for, progress_bar, rich_table
from learn2pfed.errors import Learn2pFedError
from learn2pfed.experiments.registry import configure, find, spread
from learn2pfed.experiments.tuning import Tuned, Tunings, chosen_values, searches, tune
from learn2pfed.report.tables import Table, number
from learn2pfed.results.records import versions
from learn2pfed.results.store import to_toml, write_whole


@app.command(
    "tune",
    epilog="Examples:\n\n  learn2pfed tune polynomial --trials 20\n\n"
    "  learn2pfed tune polynomial --algorithms ditto,learn2pfed --trials 50 --out runs/tuned\n\n"
    "  learn2pfed run polynomial --tuned runs/tuned/tuned.toml",
)
def tune_(
    experiment: Annotated[str, typer.Argument(help="The experiment whose methods are tuned.")],
    trials: Annotated[int, typer.Option(min=1, help="Trials of every method; the first has its defaults.")] = 20,
    preset: Annotated[str, typer.Option(help="Tune for this preset.")] = "quick",
    algorithms: Annotated[str | None, typer.Option(help="Comma-separated methods; default: all.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE; may be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default runs/tune-EXPERIMENT, numbered if taken.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted tuning.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at once.")] = os.cpu_count() or 1,
) -> None:
    """Choose settings on validation data: trials.json has every trial, tuned.toml the best of each method."""
    chosen = find(experiment)
    changes = changes_of(change or []) | ({} if algorithms is None else {"algorithms": algorithms})
    config = configure(chosen, preset, changes, tuned=Path(os.devnull))  # from the defaults, not from an earlier tuning
    chosen.tasks(config)  # refuses what it does not know
    wanted = searches(chosen, config)
    folder = folder_for(f"tune-{experiment}", out, resume)
    fresh = Tunings(
        experiment=experiment,
        preset=preset,
        n_trials=trials,
        versions=versions("optuna"),
        config=config.model_dump(mode="json"),
    )
    tunings = _begun(folder / "trials.json", fresh, resume)
    done = {tuned.method for tuned in tunings.tuned}
    todo = [search for search in wanted if search.method not in done]
    try:
        with progress_bar() as bar:
            shown = bar.add_task(f"Tuning {experiment}", total=len(wanted), completed=len(wanted) - len(todo))
            for _, tuned in spread(partial(tune, experiment, config.model_dump(), trials), todo, jobs):
                tunings.tuned.append(tuned)
                write_whole(folder / "trials.json", tunings.model_dump_json(indent=1) + "\n")
                bar.advance(shown)
                bar.console.print(escape(f"{tuned.method}: {_values(tuned)}"), highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        again = f"learn2pfed tune {experiment} --resume --out {folder}"
        console.print(f"\nStopped. What is finished is kept; go on with: {escape(again)}", soft_wrap=True)
        raise typer.Exit(130) from None
    order = [search.method for search in wanted]
    tunings.tuned.sort(key=lambda tuned: order.index(tuned.method))
    write_whole(folder / "trials.json", tunings.model_dump_json(indent=1) + "\n")
    said = f"# By: learn2pfed tune {experiment} --preset {preset} --trials {trials}; every trial is in trials.json.\n"
    write_whole(folder / "tuned.toml", said + to_toml(chosen_values(tunings)))
    console.print(rich_table(_table(tunings)))
    console.print(f"Use them: learn2pfed run {experiment} --tuned {escape(str(folder / 'tuned.toml'))}", soft_wrap=True)


def _begun(file: Path, fresh: Tunings, resume: bool) -> Tunings:
    """What is on disk to go on with, or a new start."""
    if not file.exists():
        return fresh
    if not resume:
        raise Learn2pFedError(f"{file.parent} already holds a tuning: add --resume to go on, or choose another --out.")
    try:
        old = Tunings.model_validate_json(file.read_text())
    except (ValidationError, OSError) as error:
        raise Learn2pFedError(f"{file} can't be read as a tuning: choose another --out.") from error
    same: list[Any] = [(t.experiment, t.preset, t.n_trials, t.config) for t in (old, fresh)]
    if same[0] != same[1]:
        raise Learn2pFedError(
            f"{file.parent} holds a tuning with other settings: repeat those or choose another --out."
        )
    return old


def _values(tuned: Tuned) -> str:
    return ", ".join(f"{key} = {value}" for key, value in tuned.best.values.items())


def _table(tunings: Tunings) -> Table:
    body = []
    for tuned in tunings.tuned:
        first, best = tuned.trials[0].error, tuned.best.error
        shown = ["diverged" if error is None else number(error) for error in (first, best)]
        body.append((tuned.method, str(len(tuned.trials)), *shown, _values(tuned)))
    head = ("method", "trials", "error with defaults", "smallest", "values")
    return Table(f"{tunings.experiment}, {tunings.preset}: validation error", head, tuple(body))
