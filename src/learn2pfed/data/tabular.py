"""A user's own table, in which one column says whose row it is: reading it, its cells, and which rows are for test."""

from __future__ import annotations

import bz2
import csv
import difflib
import gzip
import io
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from learn2pfed.errors import Learn2pFedError

DELIMITERS = {".csv": ",;\t|", ".txt": ",;\t|", ".tsv": "\t", ".tab": "\t"}
"""What may part the cells, by the file's ending; of several, the one that the header has most of."""

PARQUET = (".parquet", ".pq")

OPENERS: dict[str, Callable[[Path], Any]] = {"": lambda path: path.open("rb"), ".gz": gzip.open, ".bz2": bz2.open}
"""How a file's bytes are read, by what follows its ending."""

MISSING = ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null"]
"""Cells that count as missing. 'None' is not among them: it is a level of many a column, such as a treatment."""

UNNAMED = re.compile(r"__index_level_\d+__")
"""What pandas calls an index without a name in a Parquet file."""

BLANK = " \t\r\n"
"""What a line may hold and still be skipped."""

HEAD = 1 << 16
"""Bytes that are looked at to see whether a file is text at all."""

SPLIT = {"0": False, "1": True, "false": False, "true": True, "train": False, "test": True}
"""What a test column may say, in any case."""

STREAM = 5
"""The place of the test rows among the random streams of a seed."""

Kind = Literal["number", "text", "dates", "other"]

INFERRED: dict[str, Kind] = {
    "boolean": "number",
    "integer": "number",
    "floating": "number",
    "mixed-integer-float": "number",
    "decimal": "number",
    "empty": "number",
    "string": "text",
    "mixed-integer": "text",
    "date": "dates",
    "datetime": "dates",
    "period": "dates",
}
"""What pandas infers from the cells of an object column, in our words."""


def read_table(path: Path, text: Sequence[str] = ()) -> pd.DataFrame:
    """A CSV, TSV, TXT (also .gz and .bz2) or Parquet file as a table, or one sentence that says why not.

    Columns named in `text` stay as they are written: a client called 007 is not 7.
    """
    endings = [ending.lower() for ending in path.suffixes]
    packed = endings.pop() if endings and endings[-1] in OPENERS else ""
    ending = endings[-1] if endings else ""
    if ending not in DELIMITERS and (packed or ending not in PARQUET):
        raise Learn2pFedError(
            f"{path.name}: the ending tells the format, and there are {', '.join(DELIMITERS)} (also with .gz or .bz2) "
            f"and {', '.join(PARQUET)}: rename or convert the file."
        )
    if path.is_dir():
        raise Learn2pFedError(f"{path} is a folder: give a file in it.")
    try:
        frame = _read_parquet(path) if ending in PARQUET else _read_text(path, DELIMITERS[ending], packed, text)
    except FileNotFoundError as error:
        raise Learn2pFedError(f"there is no file {path}: check the path.") from error
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise Learn2pFedError(f"{path} can't be read ({why}): check the file and who may read it.") from error
    if frame.empty:
        raise Learn2pFedError(f"{path.name} has a header but no rows: add some.")
    return frame


def _read_parquet(path: Path) -> pd.DataFrame:
    """All columns as columns: an index that pandas kept is one of them if it has a name, else row numbers."""
    try:
        with parquet.ParquetFile(path) as file:
            kept = [name for name in file.schema_arrow.names if not UNNAMED.fullmatch(name)]
            names = _names(path, kept)
            frame = file.read(kept).to_pandas(ignore_metadata=True, split_blocks=True, self_destruct=True)
    except pa.ArrowException as error:
        raise Learn2pFedError(f"{path.name} is no Parquet file, or a broken one: write it again.") from error
    frame.columns = names
    return frame


def _read_text(path: Path, delimiters: str, packed: str, text: Sequence[str]) -> pd.DataFrame:
    """The delimiter and the names from the header, the rows by pandas."""
    try:
        delimiter, names = _header(path, delimiters, packed)
        frame = pd.read_csv(
            path,
            sep=delimiter,
            encoding="utf-8-sig",
            dtype=dict.fromkeys(text, str),
            low_memory=False,  # one type per column, not one per chunk
            skipinitialspace=True,
            keep_default_na=False,
            na_values={name: [""] if name in text else MISSING for name in names},
        )
    except UnicodeDecodeError as error:
        raise Learn2pFedError(
            f"{path.name} is not UTF-8 text (line {_undecodable(path, packed)}): save it as UTF-8."
        ) from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, csv.Error) as error:
        raise Learn2pFedError(f"{path.name} is no proper table: {_complaint(str(error))}.") from error
    if frame.shape[1] != len(names):
        raise Learn2pFedError(f"{path.name} is no proper table: its header has no clear end: begin with the names.")
    frame.columns = names
    if delimiter == ";":
        for name in set(names).difference(text):
            frame[name] = _decimal_commas(frame[name])
    return frame


def _decimal_commas(values: pd.Series) -> pd.Series:
    """Numbers that are written 12,5, as most of Europe does, and then between semicolons; other columns as they are."""
    if kind_of(values) != "text":
        return values
    written = values.dropna().astype(str).str.strip()
    if not written.str.fullmatch(r"[+-]?\d+(,\d+)?").all():
        return values
    return pd.to_numeric(values.astype(object).where(values.notna(), None).map(_with_point))


def _with_point(cell: object) -> object:
    return cell.strip().replace(",", ".") if isinstance(cell, str) else cell


def _header(path: Path, delimiters: str, packed: str) -> tuple[str, list[str]]:
    """The delimiter and the names of the columns; pandas would quietly take longer rows for an index."""
    with OPENERS[packed](path) as file:
        head = file.read(HEAD)
        if b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):  # the marks of UTF-16
            raise Learn2pFedError(f"{path.name} holds binary data, not text: export it as CSV.")
        file.seek(0)
        lines = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        first = next((text for text in lines if text.strip(BLANK)), "")
        delimiter = max(delimiters, key=re.sub(r'"[^"]*"', "", first).count)
        lines.seek(0)
        records = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
        rows = (row for row in records if len(row) > 1 or "".join(row).strip(BLANK))
        names = _names(path, next(rows, []))
        if not names:
            raise Learn2pFedError(f"{path.name} is empty: it needs a header and rows.")
        cells = len(next(rows, []))
        if cells > len(names):
            raise Learn2pFedError(
                f"{path.name} is no proper table: line {records.line_num} has {cells} cells where the header has "
                f"{len(names)}: mend that line, or name every column."
            )
    return delimiter, names


def _names(path: Path, header: Sequence[str]) -> list[str]:
    """The columns' names without blanks around them, each there and each once."""
    names = [name.strip() for name in header]
    for place, name in enumerate(names):
        if not name:
            raise Learn2pFedError(
                f"{path.name}: column {place + 1} has no name: name it or drop it (pandas writes such a column unless "
                "told index=False)."
            )
        if name in names[:place]:
            raise Learn2pFedError(
                f"{path.name}: columns {names.index(name) + 1} and {place + 1} are both named {name!r}: rename one."
            )
    return names


def _undecodable(path: Path, packed: str) -> int:
    """The first line that is not UTF-8."""
    with OPENERS[packed](path) as file:
        return next(number for number, text in enumerate(file, 1) if text.decode(errors="ignore").encode() != text)


def _complaint(error: str) -> str:
    """What pandas says about a broken file, as something to do."""
    if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", error):
        wanted, place, saw = found.groups()
        return f"line {place} has {saw} cells where the header has {wanted}: mend that line"
    if found := re.search(r"EOF inside string starting at row (\d+)", error):
        return f"a quote that opens in line {int(found[1]) + 1} is never closed: close it"
    return f"{error.strip().rstrip('.')}: mend it or export it again"


@dataclass(frozen=True)
class Texts:
    """A column's cells as texts: cell i reads names[codes[i]], or is missing or blank where codes[i] is -1."""

    codes: NDArray[np.int64]
    names: list[str]

    def counts(self, rows: NDArray[np.bool_] | slice = slice(None)) -> NDArray[np.int64]:
        """How often each text occurs in `rows`."""
        codes = self.codes[rows]
        return np.bincount(codes[codes >= 0], minlength=len(self.names))

    def first(self, rows: NDArray[np.bool_]) -> str:
        """The text in the first of `rows`."""
        return self.names[int(self.codes[np.flatnonzero(rows)[0]])]


def texts(values: pd.Series) -> Texts:
    """Cells as texts without blanks around them; 7 and 7.0 both read '7'."""
    try:
        codes, cells = pd.factorize(values)
    except TypeError as error:
        raise Learn2pFedError(f"column {values.name!r} holds neither numbers nor text: leave it out.") from error
    merged, names = pd.factorize(np.array([_text(cell) for cell in cells], dtype=object))
    merged = np.append(np.where(names[merged] == "", -1, merged), -1)  # the last for codes of -1
    return Texts(merged[codes], list(names))


def _text(cell: object) -> str:
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


def kind_of(values: pd.Series) -> Kind:
    """What a column holds, by its type or, if that says nothing, by its cells."""
    if isinstance(values.dtype, (pd.StringDtype, pd.CategoricalDtype)):
        return "text"
    if values.dtype.kind in "biuf":
        return "number"
    if values.dtype.kind == "M":
        return "dates"
    return INFERRED.get(pd.api.types.infer_dtype(values, skipna=True), "other")


def line(values: pd.Series, rows: NDArray[np.bool_]) -> int:
    """The line, counting the header, of the first of `rows`; a part of a table keeps the lines of the whole."""
    first = int(np.flatnonzero(rows)[0])
    return int(values.index[first] if values.index.dtype.kind in "iu" else first) + 2


def listed(names: Sequence[str]) -> str:
    """At most twenty names, and how many more there are."""
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def need_columns(frame: pd.DataFrame, names: Sequence[str]) -> None:
    """Refuse a table without these columns; the sentence lists what there is."""
    for name in names:
        if name not in frame.columns:
            there = [str(column) for column in frame.columns]
            near = difflib.get_close_matches(name, there, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise Learn2pFedError(f"there is no column {name!r}{hint}: the table has {listed(there)}.")


def client_texts(frame: pd.DataFrame, client: str) -> Texts:
    """Whose row each is; rows without a name are refused."""
    need_columns(frame, [client])
    found = texts(frame[client])
    nameless = found.codes < 0
    if nameless.any():
        raise Learn2pFedError(
            f"the client column {client!r} is empty in {nameless.sum()} row(s), the first in line "
            f"{line(frame[client], nameless)}: name the client or drop those rows."
        )
    return found


def hold_out(
    frame: pd.DataFrame, *, client: str, fraction: float, time: str | None, test_column: str | None, seed: int
) -> NDArray[np.bool_]:
    """True for test rows: those a column marks, else of each client a fraction, its latest or drawn at random."""
    if not 0 <= fraction < 1:
        raise Learn2pFedError(f"the fraction of test rows must be at least 0 and below 1, got {fraction}.")
    if time is not None and test_column is not None:
        raise Learn2pFedError("test rows are chosen by a time column or by a test column: name one of the two.")
    owners = client_texts(frame, client)
    if test_column is not None:
        return _marked(frame, test_column, owners)
    # one draw per row, in the order of the file: neither names nor the order of clients matter
    when = np.random.default_rng([seed, STREAM]).random(len(frame)) if time is None else _times(frame, time)
    order = np.lexsort((when, owners.codes))  # client after client, each from its earliest row to its latest
    sizes = owners.counts()
    n_test = np.minimum(np.rint(fraction * sizes).astype(np.int64), sizes - 1)
    rest = np.repeat(sizes.cumsum(), sizes) - np.arange(len(frame))  # 1 for a client's latest row
    test = np.empty(len(frame), dtype=bool)
    test[order] = rest <= np.repeat(n_test, sizes)
    return test


def _marked(frame: pd.DataFrame, column: str, owners: Texts) -> NDArray[np.bool_]:
    """The rows that the user's own column marks as test."""
    need_columns(frame, [column])
    found = texts(frame[column])
    meaning = np.array([SPLIT.get(name.lower(), -1) for name in found.names] + [-1])[found.codes]
    odd = meaning < 0
    if odd.any():
        what = "empty" if (found.codes[odd] < 0).all() else f"such as {found.first(odd & (found.codes >= 0))!r}"
        raise Learn2pFedError(
            f"the test column {column!r} must say 0 or 1, true or false, train or test, but {odd.sum()} row(s) don't "
            f"({what}): mend them."
        )
    test: NDArray[np.bool_] = meaning == 1
    if test.all() or not test.any():
        raise Learn2pFedError(f"the test column {column!r} marks {'every' if test.all() else 'no'} row: mark some.")
    sizes = owners.counts()
    lost = np.flatnonzero(owners.counts(test) == sizes)
    if len(lost):
        more = f", and so are those of {len(lost) - 1} more client(s)" if len(lost) > 1 else ""
        raise Learn2pFedError(
            f"all {sizes[lost[0]]} rows of client {owners.names[lost[0]]!r} are in test{more}: leave it some to learn "
            "from."
        )
    return test


def _times(frame: pd.DataFrame, column: str) -> NDArray[np.int64]:
    """The rank of each row's time: a number, a date, or ISO text."""
    need_columns(frame, [column])
    values = frame[column]
    if kind_of(values) == "text":
        values = pd.to_datetime(values.astype("str"), format="ISO8601", errors="coerce", utc=True)
    try:
        ranks: NDArray[np.int64] = pd.factorize(values, sort=True)[0]
    except TypeError as error:
        raise Learn2pFedError(f"the time column {column!r} holds neither numbers nor dates: name another.") from error
    timeless = ranks < 0
    if timeless.any():
        raise Learn2pFedError(
            f"the time column {column!r} has no readable time in {timeless.sum()} row(s), the first in line "
            f"{line(values, timeless)}: write numbers or dates such as 2024-01-31."
        )
    return ranks
