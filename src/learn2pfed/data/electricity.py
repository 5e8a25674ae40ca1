"""Electricity: load curves of real meters, from the files as their sources ship them.

What is odd in a file is either refused with a sentence or dropped by a rule that stands in `Loads.dropped`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from learn2pfed.data.archives import is_archive, members, opened, packed_head, reading
from learn2pfed.data.diagrams import FORMAT, read_diagrams
from learn2pfed.data.households import read_households
from learn2pfed.data.loads import Loads, kept
from learn2pfed.data.sources import ECL, ECL_20, HOUSEHOLDS, cached_files, source_named
from learn2pfed.errors import Learn2pFedError

__all__ = ["Loads", "load", "read_diagrams", "read_ecl_20", "read_households"]

HOURS, CLIENTS = 5000, 20
"""The shape of the small ECL file."""

HEAD = 1 << 16
"""Bytes that are looked at to tell what a file is."""

R_DATA = b"RDX"
"""How a file of R begins."""

SAMPLE = Path(__file__).with_name("sample") / "ecl20.npz"


def load(source: str | Path) -> Loads:
    """Load curves by name or from a file.

    "sample" ships with the package; "ecl", "ecl-20" and "households" are in the cache after `learn2pfed data get`;
    anything else is the path of one of these files, told by what is in it, or of one's own in the format of the first,
    of which all years are kept. For a file called ecl write ./ecl.

    >>> load("sample").values.shape
    (20, 5000)
    """
    if source == "sample":
        return _ecl_20(np.load(SAMPLE)["values"])
    found = source_named(str(source))
    named = found if found and found.file in READERS else None
    path = cached_files(named)[0] if named else Path(source)
    reader = _reader(path)
    if named is None and reader is read_diagrams:  # anybody's meters may stand in such a file, and any years
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:12]
        return read_diagrams(path, years=None, source=f"{path} (sha256 {digest}...)")
    return reader(path)


def _reader(path: Path) -> Callable[[Path], Loads]:
    """Who reads this file, told by its content."""
    with reading(path):
        if is_archive(path):
            found = next((name for name, _ in members(path) if name in READERS), None)
            if found is None:
                raise Learn2pFedError(
                    f"{path} holds none of {', '.join(READERS)}: give the file that its source ships."
                )
            return READERS[found]
        with path.open("rb") as file:
            head = file.read(HEAD)
        packed = packed_head(path, len(R_DATA))
    if R_DATA in (packed, head[: len(R_DATA)]):
        return read_households
    if packed:
        raise Learn2pFedError(f"{path} is packed: unpack it, then give what is in it.")
    first = head.partition(b"\n")[0].decode(errors="replace").strip()
    if not first or "\0" in first:
        raise Learn2pFedError(f"{path} is {'no text' if first else 'empty'}: give one of {', '.join(READERS)}.")
    if ";" in first:
        return read_diagrams
    if all(_is_number(word) for word in first.split()):
        return read_ecl_20
    parted = "tabs" if "\t" in first else "commas" if "," in first else "no semicolons"
    raise Learn2pFedError(f"{path} has {parted} between its cells: give {FORMAT}.")


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def read_ecl_20(path: Path) -> Loads:
    """electricity.txt of the package imputegap, in its wheel or alone: 20 ECL clients, 5,000 hours.

    Hours go down, clients across, blanks between. Each client is standardised over all its hours, six digits kept; the
    file gives neither names nor dates. By the daily course of the loads the first record is at midnight.
    """
    with opened(path, ECL_20.file) as stream:
        lines = stream.read().decode(errors="replace").splitlines()
    rows = [line.split() for line in lines if line.strip()]
    for place, row in enumerate(rows, 1):
        if len(row) != CLIENTS:
            raise Learn2pFedError(f"{path}: row {place} has {len(row)} cells, not {CLIENTS}: get the file again.")
        odd = [word for word in row if not _is_number(word)]
        if odd:
            raise Learn2pFedError(f"{path}: row {place} has {odd[0]!r} where a number should be: get the file again.")
    if len(rows) != HOURS:
        raise Learn2pFedError(
            f"{path} has {len(rows)} hours, not {HOURS}: it is truncated or another file: get it again."
        )
    return _ecl_20(np.array(rows, dtype=np.float32).T.copy())


def _ecl_20(values: NDArray[np.float32]) -> Loads:
    """Standardised loads (20, 5000) with what is known about them."""
    source = "20 clients of ElectricityLoadDiagrams20112014, Trindade (2015), CC BY 4.0, through imputegap, MIT"
    names = tuple(f"ECL-{place:02d}" for place in range(1, len(values) + 1))
    return kept(Loads(names, values, 60, None, None, source, np.arange(values.shape[1]), {}))


READERS: dict[str, Callable[[Path], Loads]] = {
    ECL.file: read_diagrams,
    ECL_20.file: read_ecl_20,
    HOUSEHOLDS.file: read_households,
}
"""Who reads which file, by the name that it has in its archive."""
