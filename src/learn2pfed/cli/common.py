"""What all commands share: the application, the console, progress, tables, NAME=VALUE, where a run goes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from learn2pfed import __version__
from learn2pfed.errors import Learn2pFedError
from learn2pfed.experiments.registry import parse
from learn2pfed.report.tables import Table

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Personalised federated learning in which every parameter learns how far it follows the others.",
)
console = Console(markup=False, emoji=False)
"""Prints what it is given: a name such as `mine:ok` or `[a]` is never read as an emoji or as markup."""


def _version(wanted: bool) -> None:
    if wanted:
        console.print(__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")] = False,
) -> None:
    pass


def progress_bar() -> Progress:
    """What is being done, how far, since when and for how long still."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def goes_on(what: str, folder: Path) -> str:
    """Which command goes on with a run or a tuning."""
    return f"Stopped. What is finished is kept; go on with: learn2pfed {what} --resume --out {shlex.quote(str(folder))}"


@contextmanager
def stoppable(what: str, folder: Path) -> Iterator[None]:
    """Ctrl-C in here says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"\n{goes_on(what, folder)}", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None


def changes_of(pairs: list[str]) -> dict[str, Any]:
    """NAME=VALUE pairs; values are TOML where they parse as such, text otherwise."""
    changes: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise Learn2pFedError(f"--set takes NAME=VALUE, got {pair!r}.")
        changes[name.strip()] = parse(text)
    return changes


def folder_for(what: str, out: Path | None, resume: bool = False) -> Path:
    """The folder asked for, or runs/WHAT: the newest to go on with, else the first free number."""
    if out is not None:
        return out
    names = [Path("runs") / what] + [Path("runs") / f"{what}-{n}" for n in range(2, 10_000)]
    taken = [path for path in names if path.exists()]
    if resume and taken:
        return taken[-1]
    return next(path for path in names if path not in taken)


def rich_table(table: Table, bold: str = "Learn2pFed") -> RichTable:
    """For the terminal; the row that begins with `bold` stands out."""
    shown = RichTable(title=f"\n{table.title}", title_justify="left", header_style="bold underline", box=None)
    shown.padding, shown.pad_edge = (0, 1), False
    for head, text in zip(table.head, table.is_text, strict=True):
        shown.add_column(head, justify="left" if text else "right")
    for row in table.body:
        shown.add_row(*row, style="bold cyan" if row[0] == bold else None)
    return shown
