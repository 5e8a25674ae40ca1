"""`learn2pfed data list`, `get`: real data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from learn2pfed.cli.common import app, console, rich_table
from learn2pfed.data.sources import DATASETS, DataSet, Source, cache, find_dataset, get, known_names, take
from learn2pfed.report.tables import Table

data = typer.Typer(no_args_is_help=True, help="Real data sets: what there is, and getting them.")
app.add_typer(data, name="data")


@data.command("list", epilog="Examples:\n\n  learn2pfed data list")
def list_() -> None:
    """Show the data sets, their licences, and where they are or how to get them."""
    for dataset in DATASETS.values():
        rows = tuple(_row(source) for source in dataset.sources)
        head = ("load it as", "what it is", "licence", "where")
        console.print(rich_table(Table(f"{dataset.name}: {dataset.title}", head, rows)))
    console.print("\nsample, the same as ecl-20, comes with the package.", highlight=False)
    console.print(f"Cache: {cache()}", highlight=False, soft_wrap=True)


def _row(source: Source) -> tuple[str, ...]:
    where = "in the cache" if source.cached else f"learn2pfed data get {source.name} ({source.megabytes} MB)"
    return source.name, source.about, source.licence, where


@data.command(
    "get",
    epilog="Examples:\n\n  learn2pfed data get electricity\n\n"
    "  learn2pfed data get ecl --from electricityloaddiagrams20112014.zip\n\n"
    "  learn2pfed data get households --from ResidentialEnergyConsumption_1.1.0.tar.gz\n\n"
    "  learn2pfed data get cifar10\n\n"
    "  learn2pfed data get fashion-mnist --from FOLDER",
)
def get_(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(known_names())}.")],
    at_hand: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            help="A file at hand, the archive or what is in it, in place of a download; repeat it for several files. "
            "For images also a folder.",
        ),
    ] = None,
) -> None:
    """Put a data set into the cache: downloaded, or from a file at hand; checked by its digest either way."""
    wanted = find_dataset(name)
    source, failed = (take(wanted, *at_hand), list[str]()) if at_hand else _get(wanted)
    for reason in failed:
        console.print(f"Not had: {reason}.", highlight=False, soft_wrap=True)
    console.print(f"{source.name}: {source.about} ({source.licence}): {source.folder}", highlight=False, soft_wrap=True)
    best = wanted.sources[0]
    if source is not best and not best.cached:
        console.print(
            f"This is not the full data, {best.name} ({best.about}): get {best.by_hand} by other means, then: "
            f"learn2pfed data get {best.name} --from PATH",
            highlight=False,
            soft_wrap=True,
        )


def _get(wanted: DataSet) -> tuple[Source, list[str]]:
    """With a bar while bytes come in; Ctrl-C keeps the part of a download, where there is one."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}", markup=False), *columns, console=console, transient=True) as bar:
        shown = bar.add_task(f"Getting {wanted.name}", total=None)
        try:
            return get(wanted, lambda done, total: bar.update(shown, completed=done, total=total))
        except KeyboardInterrupt:
            kept = any(path for source in wanted.sources for path in source.folder.glob("*.part"))
            what, how = ("What is there is kept", "go on") if kept else ("Nothing is kept", "begin again")
            console.print(f"\nStopped. {what}; {how} with: learn2pfed data get {wanted.name}", highlight=False)
            raise typer.Exit(130) from None
