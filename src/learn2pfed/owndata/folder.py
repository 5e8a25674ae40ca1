"""What came of it on disk: a folder that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from learn2pfed.errors import Learn2pFedError
from learn2pfed.owndata.answer import ALGORITHMS, Answer, Question
from learn2pfed.owndata.words import error_table, gain_words, parameter_table, sharing_words
from learn2pfed.report.drawing import COLOURS, Dumbbell, Figure, Heat
from learn2pfed.report.html import Page, write_page
from learn2pfed.results.records import Results, versions
from learn2pfed.results.store import check_free, to_toml, write_results, write_whole
from learn2pfed.storage import Model, save_model

MOST_SHOWN = 60
"""Clients in a figure; a table in the terminal has fewer."""


def figures_of(answer: Answer) -> list[Figure]:
    """The participation of every client and parameter, and the error of every client before and after."""
    model, frame = answer.model, answer.clients
    order = np.argsort(model.participation_.mean(1), kind="stable")
    chosen = order[np.linspace(0, len(order) - 1, min(MOST_SHOWN, len(order))).astype(int)]
    which = "" if len(chosen) == len(order) else f" {len(chosen)} of {len(order)} clients, from the least to the most."
    heat = Heat(
        "",
        [str(name) for name in model.clients_[chosen]],
        list(model.parameters_),
        model.participation_[chosen].tolist(),
        label="0: its own · 1: follows the others",
    )
    made = [
        Figure(
            "participation",
            "How far each parameter of each client follows the others",
            "Blue: the client's parameter follows the others'. Orange: it is the client's own." + which,
            (heat,),
            1,
        )
    ]
    tested = frame.dropna(subset=["learn2pfed"])
    if len(tested):
        shown = tested.nlargest(MOST_SHOWN, "test rows", keep="first").sort_values("learn2pfed", kind="stable")
        colours = (COLOURS[1], COLOURS[6], COLOURS[0])
        marks = [
            (words, colour, shown[name].tolist())
            for (name, words), colour in zip(ALGORITHMS.items(), colours, strict=True)
        ]
        some = "" if len(shown) == len(tested) else f" The {len(shown)} clients with most test rows."
        made.append(
            Figure(
                "errors",
                f"{answer.metric[0].upper()}{answer.metric[1:]} of each client",
                "Alone, with one model for all, and personalised, on rows that were held out." + some,
                (Dumbbell("", [str(name) for name in shown["client"]], marks, answer.metric),),
                1,
            )
        )
    return made


def page_of(answer: Answer, command: str) -> Page:
    """The report."""
    asked, model = answer.question, answer.model
    about = (
        f"A model of {asked.target!r} for each of {len(model.clients_)} clients ({asked.client!r}), in which every "
        "parameter learns how far it follows the other clients'."
    )
    held = f"the latest rows by {asked.time!r}" if asked.time else "a random part"
    lead = (
        f"{int(answer.clients['training rows'].sum())} rows to learn from, {int(answer.clients['test rows'].sum())} "
        f"held out ({'marked by ' + repr(asked.test_column) if asked.test_column else held} of each client's)."
    )
    return Page(
        title=f"{asked.target} by {asked.client}",
        about=about,
        lead=lead,
        tables=[error_table(answer, MOST_SHOWN), parameter_table(model)],
        figures=figures_of(answer),
        command=command,
        config=config_of(asked),
        versions=versions(),
        words=[("In words", [*gain_words(answer), *sharing_words(model)])],
        highlight="all rows",
    )


def config_of(question: Question) -> dict[str, Any]:
    """What was asked, as config.toml keeps it."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(question).items()}


def write_answer(folder: Path, answer: Answer, command: str) -> Path:
    """Everything into a new folder, which appears whole or not at all; returns the report."""
    with new_folder(folder) as place:
        save_model(answer.model, place, answer.table)
        write_results(
            place / "results.json",
            Results(
                experiment="fit",
                preset="none",
                versions=versions(),
                config=config_of(answer.question),
                rows=answer.rows,
            ),
        )
        write_whole(place / "config.toml", to_toml(config_of(answer.question)))
        write_participation(place, answer.model)
        write_whole(place / "clients.csv", answer.clients.to_csv(index=False))
        write_page(place, page_of(answer, command))
    return folder / "report.html"


def write_participation(folder: Path, model: Model) -> None:
    """participation.csv: clients by parameters."""
    frame = pd.DataFrame(model.participation_, index=model.clients_, columns=model.parameters_)
    write_whole(folder / "participation.csv", frame.to_csv(index_label="client"))


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A place beside `folder` that becomes it at the end, and is gone if anything goes wrong."""
    check_free(folder)
    folder = folder.resolve()
    given = folder.exists()  # an empty folder, perhaps another disk: it is filled in place
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(dir=folder if given else folder.parent, prefix=f".{folder.name}."))
    except OSError as error:
        raise Learn2pFedError(f"{folder} can't be made ({error.strerror}): choose another with --out.") from error
    try:
        yield place
        if given:
            for entry in place.iterdir():
                os.replace(entry, folder / entry.name)
            place.rmdir()
        else:
            place.chmod(0o755)
            os.replace(place, folder)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
