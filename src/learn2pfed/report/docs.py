"""Tables inside documents: written by `learn2pfed report`, never by hand."""

from __future__ import annotations

import re
from pathlib import Path

from learn2pfed.errors import Learn2pFedError
from learn2pfed.report.tables import tables
from learn2pfed.results.records import Results
from learn2pfed.results.store import write_whole


def block(results: Results) -> str:
    """The experiment's tables as Markdown between its two marks."""
    name = results.experiment
    parts = [f"**{table.title}**\n\n{table.markdown()}" for table in tables(results)]
    return f"<!-- tables:{name} -->\n\n" + "\n\n".join(parts) + f"\n\n<!-- /tables:{name} -->"


def with_tables(text: str, results: Results) -> str:
    """The document with the experiment's tables replaced."""
    name = re.escape(results.experiment)
    pattern = re.compile(rf"<!-- tables:{name} -->.*?<!-- /tables:{name} -->", re.DOTALL)
    if not pattern.search(text):
        raise Learn2pFedError(
            f"The document has no place for {results.experiment}: "
            f"add <!-- tables:{results.experiment} --> and <!-- /tables:{results.experiment} -->."
        )
    return pattern.sub(lambda _: block(results), text)


def update_tables(document: Path, results: Results) -> None:
    """Rewrite the document in place."""
    try:
        text = document.read_text()
    except OSError as error:
        raise Learn2pFedError(f"{document} can't be read ({error.strerror}).") from error
    write_whole(document, with_tables(text, results))
