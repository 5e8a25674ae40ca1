"""The full ECL: LD2011_2014.txt of the UCI archive, read in blocks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from learn2pfed.data.archives import opened
from learn2pfed.data.loads import LATE, Loads, counted, kept
from learn2pfed.data.sources import ECL
from learn2pfed.errors import Learn2pFedError

DAY = 24 * 60
"""Minutes."""

RECORD = re.compile(r"\d{4}-\d\d-\d\d")
"""How a line begins that is no header."""

FORMAT = "a line of names, then times such as 2012-01-01 00:15:00 and loads with decimal commas, semicolons between"
"""What such a file looks like."""

UCI = "ElectricityLoadDiagrams20112014, Trindade (2015), UCI Machine Learning Repository, CC BY 4.0"

BLOCK = 1 << 24
"""Bytes of text that are parsed at once."""


def read_diagrams(path: Path, years: tuple[int, int] | None = (2012, 2014), source: str = UCI) -> Loads:
    """LD2011_2014.txt of the UCI archive, in its zip or alone: 370 clients, mean kW of every quarter of an hour.

    A file of the same format may have another clock, of whole minutes that divide a day: the commonest distance of its
    records.

    A record's time is the end of its quarter: 2012 begins with 2012-01-01 00:15 and ends with 2013-01-01 00:00. Kept
    are the years from the first to the last named, which must be there from end to end, or all records (None) but the
    last where its line has no end: it may be cut off.

    Clients that joined later have zeros before: one without any load on the first day kept is dropped. The paper keeps
    313 clients by such a rule, which it does not give to the record; how many are kept here, `names` and `dropped` say.

    The clock is Portugal's, yet every day has 96 records: where the clocks go forward, in March, the hour from 1:00 is
    there with zeros, and where they go back, in October, the same hour holds the load of two. Both stay as they are.
    """
    with opened(path, ECL.file) as stream:
        names = _meters(path, stream.readline())
        times, values, cut_off = _records(path, stream, len(names), years)
    times, values, twice = _without_twins(path, times, values)
    minutes = _minutes(path, times)
    if years is not None:
        _check_covered(path, times, minutes, years)
    clock, rest = np.divmod(times - times[0], np.timedelta64(minutes, "m"))
    off = np.flatnonzero(rest)
    if len(off):
        raise Learn2pFedError(
            f"{path}: {times[off[0]]} is off the clock of {minutes} minutes that begins with {times[0]}: mend or drop "
            "that record."
        )
    gaps = np.diff(clock) - 1
    notes = [f"{counted(twice, 'record')} there twice, with the same loads: kept once"] if twice else []
    notes += ["1 record left out: the last line has no end, and may be cut off"] if cut_off else []
    if gaps.any():
        first = times[np.flatnonzero(gaps)[0]]
        missing = f"{counted(int(gaps.sum()), 'record')} missing in all"
        notes += [f"{counted(int(np.count_nonzero(gaps)), 'gap')}, the first after {first}, {missing}"]
    day = np.nan_to_num(values[:, : DAY // minutes])
    return kept(
        Loads(
            names,
            values,
            minutes,
            pd.Timestamp(times[0]),
            "kW",
            source,
            clock,
            {},
            tuple(notes),
        ),
        {LATE: ~day.any(axis=1)},
    )


def _meters(path: Path, header: bytes) -> tuple[str, ...]:
    """The meters' names, from the header; its first cell stands over the times."""
    try:
        first, *names = (cell.strip().strip('"') for cell in header.decode("utf-8-sig").strip("\r\n").split(";"))
    except UnicodeDecodeError as error:
        raise Learn2pFedError(f"{path}: the names in its first line are not in UTF-8: save it so.") from error
    if not names:
        raise Learn2pFedError(f"{path} has no semicolons in its first line: give {FORMAT}.")
    if RECORD.match(first):
        raise Learn2pFedError(f"{path} begins with the record {first}: begin with a line of names.")
    if "" in names:
        raise Learn2pFedError(f"{path}: column {names.index('') + 2} has no name in the first line: give it one.")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise Learn2pFedError(f"{path}: {name!r} is the name of {count} meters: rename all but one.")
    return tuple(names)


def _records(
    path: Path, stream: IO[bytes], n_meters: int, years: tuple[int, int] | None
) -> tuple[NDArray[np.datetime64], NDArray[np.float32], bool]:
    """Times (T,) and loads (M, T) of the years, block by block: only what is kept stays in memory.

    Where all years are kept, a last line without an end is not: then the third is true.
    """
    columns = [str(place) for place in range(n_meters + 1)]
    types = {name: pa.float32() for name in columns} | {columns[0]: pa.timestamp("s")}
    times, values = [np.empty(0, "datetime64[s]")], [np.empty((n_meters, 0), np.float32)]
    before, cut_off = 1, False  # lines above the block: the header
    for text in _blocks(stream):
        if years is None and not text.endswith(b"\n"):
            cut_off = True
            break
        try:
            block = csv.read_csv(
                pa.BufferReader(text),
                csv.ReadOptions(column_names=columns, use_threads=False),  # errors then name the row
                csv.ParseOptions(delimiter=";"),
                csv.ConvertOptions(column_types=types, decimal_point=","),
            )
        except pa.ArrowInvalid as error:
            raise Learn2pFedError(f"{path}: {_complaint(str(error), text, before)}.") from error
        if block.column(0).null_count:
            row = 1 + block.column(0).is_null().to_pylist().index(True)
            raise Learn2pFedError(f"{path}: line {_line(text, row, before)} has no time: mend or drop it.")
        before += text.count(b"\n")
        when = block.column(0).to_numpy()
        inside = _inside(when, years)
        if inside.any():
            times.append(when[inside])
            values.append(np.stack([column.to_numpy()[inside] for column in block.columns[1:]]))
    if len(times) == 1:
        what = "records below its first line" if years is None else f"records of {_words(years)}"
        raise Learn2pFedError(f"{path} has no {what}: it is truncated: get it again.")
    return np.concatenate(times), np.concatenate(values, axis=1), cut_off


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    """Whole lines, about BLOCK bytes at a time. (Arrow's own reader of streams leaves a thread behind.)"""
    rest = b""
    while text := stream.read(BLOCK):
        head, newline, tail = text.rpartition(b"\n")
        if newline:
            yield rest + head + newline
            rest = tail
        else:
            rest += text
    if rest.strip():
        yield rest


def _inside(when: NDArray[np.datetime64], years: tuple[int, int] | None) -> NDArray[np.bool_]:
    """Which records end in the years."""
    if years is None:
        return np.ones(len(when), dtype=bool)
    first, end = _span(years)
    inside: NDArray[np.bool_] = (when > first) & (when <= end)
    return inside


def _span(years: tuple[int, int]) -> tuple[np.datetime64, np.datetime64]:
    """The years' beginning and end."""
    return np.datetime64(f"{years[0]}-01-01", "s"), np.datetime64(f"{years[1] + 1}-01-01", "s")


def _words(years: tuple[int, int]) -> str:
    return f"{years[0]} to {years[1]}"


def _line(text: bytes, row: int, before: int) -> int:
    """Where a row of the block stands in the file; rows are counted from 1 without empty lines, `before` lines above.

    >>> _line(b"a\\n\\nb\\n", 2, 10)
    13
    """
    filled = [place for place, line in enumerate(text.split(b"\n"), 1) if line.strip(b"\r")]
    return before + filled[row - 1]


def _complaint(error: str, text: bytes, before: int) -> str:
    """What the parser says of a block, as something to do."""
    place = re.search(r"Row #(\d+)", error)
    line = f"line {_line(text, int(place[1]), before)}" if place else "a line"
    if found := re.search(r"Expected (\d+) columns, got (\d+)", error):
        return f"{line} has {found[2]} cells where the header has {found[1]}: it is truncated or damaged: get it again"
    if found := re.search(r"column #(\d+).*'(.*)'", error, re.DOTALL):
        wanted = "a time such as 2012-01-01 00:15:00" if found[1] == "0" else "a number with a decimal comma"
        return f"{line} has {found[2][:40]!r} in column {int(found[1]) + 1} where {wanted} should be: mend it"
    return f"no table of loads ({error.splitlines()[0]}): give {FORMAT}"


def _minutes(path: Path, times: NDArray[np.datetime64]) -> int:
    """The clock: the commonest distance of records."""
    if len(times) < 2:
        raise Learn2pFedError(f"{path} has one record, at {times[0]}: give a longer file.")
    apart, count = np.unique(np.diff(times).astype(np.int64), return_counts=True)
    seconds = int(apart[count.argmax()])
    if seconds % 60 or DAY * 60 % seconds:
        raise Learn2pFedError(
            f"{path}: most of its records are {seconds:,} seconds apart, which are no minutes that divide a day: give "
            "records every 15, 30 or 60 minutes, or the like."
        )
    return seconds // 60


def _check_covered(path: Path, times: NDArray[np.datetime64], minutes: int, years: tuple[int, int]) -> None:
    """Refuse a file that begins or ends inside the years."""
    first, end = _span(years)
    if times[0] > first + np.timedelta64(minutes, "m") or times[-1] < end:
        raise Learn2pFedError(
            f"{path} has records from {times[0]} to {times[-1]}, not all of {_words(years)}: it is truncated: get "
            "it again."
        )


def _without_twins(
    path: Path, times: NDArray[np.datetime64], values: NDArray[np.float32]
) -> tuple[NDArray[np.datetime64], NDArray[np.float32], int]:
    """Each time once, and how many were there twice with the same loads; contradictions and disorder are refused."""
    steps = np.diff(times).astype(np.int64)
    if (steps < 0).any():
        back = times[np.flatnonzero(steps < 0)[0] + 1]
        raise Learn2pFedError(f"{path}: its records are not in the order of time, the first is {back}: sort them.")
    again = np.flatnonzero(steps == 0)
    if not len(again):
        return times, values, 0
    differ = [not np.array_equal(values[:, at], values[:, at + 1], equal_nan=True) for at in again]
    if any(differ):
        at = times[again[differ.index(True)]]
        raise Learn2pFedError(
            f"{path}: {counted(sum(differ), 'time')} there twice with other loads, the first {at}: keep one record."
        )
    return np.delete(times, again), np.delete(values, again, axis=1), len(again)
