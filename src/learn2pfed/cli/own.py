"""`learn2pfed fit`, `predict`, `explain`, `adapt`: a person's own table."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
import typer

from learn2pfed.cli.common import app, changes_of, console, folder_for, progress_bar, rich_table
from learn2pfed.data.schema import Schema
from learn2pfed.data.tabular import read_table
from learn2pfed.errors import Learn2pFedError
from learn2pfed.owndata.answer import Question, Stage, fit_table
from learn2pfed.owndata.folder import new_folder, write_answer, write_participation
from learn2pfed.owndata.later import adapt_table, judge_table, predict_table
from learn2pfed.owndata.words import (
    client_table,
    error_table,
    gain_words,
    parameter_table,
    sharing_words,
    shown_clients,
)
from learn2pfed.report.tables import Table, number
from learn2pfed.results.store import check_free, write_whole
from learn2pfed.storage import Model, load_model, save_model

SHOWN = 20
"""Clients in the terminal's table; the others are in clients.csv."""

Data = Annotated[Path, typer.Argument(help="A table: .csv, .tsv or .parquet.")]
ModelFolder = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that learn2pfed fit wrote.")]


@contextmanager
def _stages() -> Iterator[Stage]:
    """A bar for each stage; Ctrl-C ends with a sentence, since a fit writes nothing before its end."""
    with progress_bar() as bar:

        def stage(words: str, n_steps: int) -> Callable[..., None]:
            shown = bar.add_task(words, total=n_steps)
            return lambda *_: bar.advance(shown)

        try:
            yield stage
        except KeyboardInterrupt:
            console.print("\nStopped. Nothing was written.")
            raise typer.Exit(130) from None


def _read(stage: Stage, path: Path, client: str) -> pd.DataFrame:
    step = stage(f"reading {path.name}", 1)
    frame = read_table(path, text=[client])
    step()
    return frame


@app.command(
    epilog="Examples:\n\n  learn2pfed fit visits.csv --client hospital --target days --out runs/mine\n\n"
    "  learn2pfed fit loans.parquet --client bank --target repaid --task classification\n\n"
    "  learn2pfed fit meters.csv --client meter --target load --time day --test 0.1 --features temperature,weekend"
)
def fit(
    data: Data,
    client: Annotated[str, typer.Option(help="The column that says whose row it is.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    features: Annotated[
        str | None, typer.Option(help="Comma-separated columns to predict from; default: all others.")
    ] = None,
    task: Annotated[Literal["regression", "classification"], typer.Option(help="A number, or a class.")] = "regression",
    test: Annotated[
        float | None, typer.Option(help="Share of each client's rows held out to judge by; default 0.2, 0 for none.")
    ] = None,
    test_column: Annotated[
        str | None, typer.Option(help="Instead: a column of 0/1 or train/test that says which rows judge.")
    ] = None,
    time: Annotated[str | None, typer.Option(help="Hold out each client's latest rows by this column.")] = None,
    impute: Annotated[bool, typer.Option("--impute", help="Fill missing features by mean or commonest.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder to write; default runs/fit, numbered if taken.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the held-out rows and the folds.")] = 0,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE, e.g. sharing=mixed; names: learn2pfed list.")
    ] = None,
) -> None:
    """Fit a model for each client of your table: errors, what is shared in words, figures, report.html."""
    if test is not None and test_column is not None:
        raise Learn2pFedError("--test and --test-column both say which rows judge: give one of them.")
    question = Question(
        client=client,
        target=target,
        features=None if features is None else tuple(name.strip() for name in features.split(",") if name.strip()),
        task=task,
        test=0.2 if test is None else test,
        test_column=test_column,
        time=time,
        impute=impute,
        seed=seed,
        settings=changes_of(change or []),
    )
    folder = folder_for("fit", out)
    check_free(folder)
    with _stages() as stage:
        answer = fit_table(_read(stage, data, client), question, stage)
        step = stage("writing", 1)
        page = write_answer(folder, answer, f"learn2pfed {shlex.join(sys.argv[1:])}")
        step()
    console.print(rich_table(error_table(answer, SHOWN), bold="all rows"))
    console.print()
    _say([*gain_words(answer), *sharing_words(answer.model)])
    console.print(f"\nReport: {page}", soft_wrap=True)
    console.print(f"Next:   learn2pfed explain {shlex.quote(str(folder))}", soft_wrap=True)


def _say(sentences: list[str]) -> None:
    for sentence in sentences:
        console.print(sentence, highlight=False, soft_wrap=True)


@app.command(
    epilog="Examples:\n\n  learn2pfed predict runs/mine new.csv\n\n"
    "  learn2pfed predict runs/mine new.parquet --out answers.csv"
)
def predict(
    folder: ModelFolder,
    data: Data,
    out: Annotated[Path | None, typer.Option(help="Where to write; default DATA with -predicted.csv.")] = None,
) -> None:
    """Predict each row of a table with its client's model; clients never seen get the global one."""
    model, table = _load(folder)
    path = out or Path(f"{data.name.removesuffix(''.join(data.suffixes[-1:]))}-predicted.csv")
    if path.suffix != ".csv":
        raise Learn2pFedError(f"predictions are written as CSV: let --out end in .csv, not {path.name!r}.")
    if path.resolve() == data.resolve():
        raise Learn2pFedError(f"--out {path} is the table itself: choose another name.")
    with _stages() as stage:
        frame = _read(stage, data, table.client)
        step = stage("predicting", 1)
        predicted, n_strange = predict_table(frame, model, table)
        error = judge_table(frame, model, table)
        write_whole(path, predicted.to_csv(index=False))
        step()
    strange = f", {n_strange} of them by the global model (clients never seen)" if n_strange else ""
    console.print(f"{len(predicted)} rows predicted{strange}: {path}", highlight=False, soft_wrap=True)
    if error is not None:
        what = "error rate" if table.classes else "RMSE"
        console.print(f"{what} on them: {number(error)}", highlight=False)


@app.command(epilog="Examples:\n\n  learn2pfed explain runs/mine\n\n  learn2pfed explain runs/mine --client north")
def explain(
    folder: ModelFolder,
    client: Annotated[str | None, typer.Option(help="One client's parameters in place of everyone's.")] = None,
) -> None:
    """Say which parameters are shared, which are each client's own, and who goes its own way."""
    model, _ = _load(folder)
    console.print(rich_table(parameter_table(model) if client is None else _client_table(model, client)))
    console.print()
    _say(sharing_words(model))


def _client_table(model: Model, client: str) -> Table:
    names = [str(name) for name in model.clients_]
    if client not in names:
        raise Learn2pFedError(f"There is no client {client!r}; there are {shown_clients(names)}.")
    return client_table(model, names.index(client))


@app.command(
    epilog="Examples:\n\n  learn2pfed adapt runs/mine first_week.csv --client north\n\n"
    "  learn2pfed adapt runs/mine first_week.csv --client north --out runs/mine-with-north"
)
def adapt(
    folder: ModelFolder,
    data: Data,
    client: Annotated[str, typer.Option(help="The newcomer's name.")],
    out: Annotated[Path | None, typer.Option(help="Write the model to a new folder; default: into DIR itself.")] = None,
) -> None:
    """Give a newcomer a model from the shared one, even from a single row; nobody else's changes."""
    model, table = _load(folder)
    if out is not None:
        check_free(out)
    with _stages() as stage:
        n_rows = adapt_table(_read(stage, data, table.client), model, table, client)
    if out is None:
        save_model(model, folder, table)
        write_participation(folder, model)
    else:
        with new_folder(out) as place:
            save_model(model, place, table)
            write_participation(place, model)
    console.print(rich_table(client_table(model, -1)))
    what = f"\n{client} has a model from {n_rows} row{'s' if n_rows > 1 else ''} and the shared one: {out or folder}"
    console.print(what, highlight=False, soft_wrap=True)


def _load(folder: Path) -> tuple[Model, Schema]:
    model, table = load_model(folder)
    if table is None:
        raise Learn2pFedError(f"{folder} was not fitted to a table: use it from Python, load_model({str(folder)!r}).")
    return model, table
