"""Tables inside documents: written by `learn2pfed report`, never by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from learn2pfed.errors import Learn2pFedError
from learn2pfed.report.tables import tables
from learn2pfed.results.records import Detail, Results
from learn2pfed.results.store import write_whole


def with_tables(text: str, results: Results, details: Sequence[Detail] = ()) -> str:
    """The document with the experiment's tables replaced between its marks.

    `<!-- tables:polynomial -->` to `<!-- /tables -->` takes all tables, `<!-- tables:polynomial MSE -->` only that one;
    a run of the preset paper goes to `<!-- tables:polynomial-paper -->` where the document has it.
    """
    for name in (f"{results.experiment}-{results.preset}", results.experiment):
        pattern = re.compile(rf"(<!-- tables:{re.escape(name)}( [^>]*?)? -->).*?<!-- /tables -->", re.DOTALL)
        if pattern.search(text):
            return pattern.sub(lambda found: _block(results, details, found[1], (found[2] or "").strip()), text)
    mark = f"<!-- tables:{results.experiment} -->"
    raise Learn2pFedError(f"The document has no place for {results.experiment}: add {mark} and <!-- /tables -->.")


def _block(results: Results, details: Sequence[Detail], mark: str, wanted: str) -> str:
    chosen = [table for table in tables(results, details) if not wanted or table.title.endswith(f": {wanted}")]
    parts = [table.markdown() if wanted else f"**{table.title}**\n\n{table.markdown()}" for table in chosen]
    return "\n\n".join([mark, *parts, "<!-- /tables -->"])


def update_tables(document: Path, results: Results, details: Sequence[Detail] = ()) -> None:
    """Rewrite the document in place."""
    try:
        text = document.read_text()
    except OSError as error:
        raise Learn2pFedError(f"{document} can't be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise Learn2pFedError(f"{document} is no text in UTF-8: save it as that.") from error
    write_whole(document, with_tables(text, results, details))
