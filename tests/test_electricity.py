"""Electricity: what the readers make of the real files, and what they say about bad ones."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from learn2pfed.data import diagrams, households
from learn2pfed.data.electricity import Loads, load, read_diagrams, read_ecl_20, read_households
from learn2pfed.data.loads import BROKEN, CONSTANT, LATE, MOSTLY_ZERO, NEGATIVE
from learn2pfed.data.sources import ECL_20, HOUSEHOLDS, Source, cached_files
from learn2pfed.errors import Learn2pFedError

DAYS = 3
TIMES = pd.date_range("2012-01-01 00:15", periods=96 * DAYS, freq="15min").strftime("%Y-%m-%d %H:%M:%S").tolist()


def meters(**changed: Any) -> dict[str, list[str]]:
    """Two meters' cells over three days, as the archive writes them, and others that are asked for."""
    loads = {f"MT_{i:03d}": np.round(5 + np.sin(np.arange(len(TIMES)) / 8 + i), 3) for i in (1, 2)}
    written = {name: [str(value).replace(".", ",") for value in load] for name, load in loads.items()}
    return written | {name: list(cells) for name, cells in changed.items()}


def diagram(columns: dict[str, list[str]], times: Sequence[str] = TIMES, separator: str = ";") -> str:
    """A file in the archive's way: quoted names and times, semicolons."""
    head = separator.join(f'"{name}"' for name in ("", *columns))
    rows = (separator.join((f'"{time}"', *cells)) for time, *cells in zip(times, *columns.values(), strict=True))
    return "\n".join((head, *rows)) + "\n"


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(content: str | bytes, name: str = "some.file") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


Write = Callable[..., Path]


def zipped(name: str, content: str | bytes) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__MACOSX/._" + name, b"\0")
        archive.writestr("folder/" + name, content)
    return whole.getvalue()


def tarred(name: str, content: bytes) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as tar:
        folder, inside = tarfile.TarInfo("package/data"), tarfile.TarInfo(f"package/data/{name}")
        folder.type, inside.size = tarfile.DIRTYPE, len(content)
        tar.addfile(folder)
        tar.addfile(inside, io.BytesIO(content))
    return whole.getvalue()


def at_hand(source: Source) -> Path:
    """A real file that was got before, else the test is skipped with the command."""
    try:
        return cached_files(source)[0]
    except Learn2pFedError as error:
        pytest.skip(str(error))


def test_the_sample_is_the_source_to_the_last_byte() -> None:
    loads = load("sample")
    assert loads.values.shape == (20, 5000)
    assert loads.values.dtype == np.float32
    assert (loads.minutes, loads.unit, loads.start, loads.stretches, loads.dropped) == (60, None, None, (0,), {})
    text = "".join(" ".join(f"{value:.6g}" for value in hour) + "\n" for hour in loads.values.T.tolist())
    assert hashlib.sha256(text.encode()).hexdigest() == ECL_20.files[ECL_20.file]
    np.testing.assert_allclose(loads.values.std(axis=1), 1, atol=1e-3)


def test_diagrams_are_read_alone_and_zipped_under_any_name(written: Write) -> None:
    text = diagram(meters())
    alone = read_diagrams(written(text), years=None)
    assert alone.names == ("MT_001", "MT_002")
    assert alone.values.dtype == np.float32
    assert alone.values[0, 7] == np.float32(round(5 + np.sin(7 / 8 + 1), 3))
    assert (alone.minutes, alone.unit, alone.stretches, alone.notes) == (15, "kW", (0,), ())
    assert alone.start == pd.Timestamp("2012-01-01 00:15")
    inside = read_diagrams(written(zipped("LD2011_2014.txt", text), "some.other"), years=None)
    np.testing.assert_array_equal(alone.values, inside.values)


def test_blocks_make_no_difference(written: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(diagram(meters()))
    whole = read_diagrams(path, years=None)
    monkeypatch.setattr(diagrams, "BLOCK", 1000)
    np.testing.assert_array_equal(read_diagrams(path, years=None).values, whole.values)


def test_the_years_are_kept_from_the_end_of_their_first_quarter(written: Write) -> None:
    times = pd.date_range("2011-12-31 23:45", "2013-01-01 00:15", freq="15min").strftime("%Y-%m-%d %H:%M:%S").tolist()
    cells = {"MT_001": [f"{place % 90 + 1},5" for place in range(len(times))]}
    path = written(diagram(cells, times))
    loads = read_diagrams(path, years=(2012, 2012))
    assert loads.values.shape == (1, 366 * 96)
    assert loads.start == pd.Timestamp("2012-01-01 00:15")
    with pytest.raises(Learn2pFedError, match="not all of 2012 to 2014: it is truncated"):
        read_diagrams(path)
    own = load(path)  # told by its content; one's own file keeps its years and is called by its name
    assert own.values.shape == (1, len(times))
    assert own.source.startswith(str(path))
    with pytest.raises(Learn2pFedError, match="no records of 2015 to 2016"):
        read_diagrams(path, years=(2015, 2016))


def test_meters_are_dropped_by_stated_rules_and_named(written: Write) -> None:
    n = len(TIMES)
    columns = meters(
        late=["0"] * 96 + ["3,5", "4"] * ((n - 96) // 2),
        absent=[""] * 96 + ["3,5", "4"] * ((n - 96) // 2),
        missing=["1", ""] * (n // 2),
        infinite=["1", "inf"] * (n // 2),
        constant=["2,5"] * n,
        zero=["0"] * n,
        idle=["0", "0", "1"] * (n // 3),
        half=["0", "1"] * (n // 2),
        negative=["1", "2"] * (n // 2 - 1) + ["1", "-2"],
    )
    loads = read_diagrams(written(diagram(columns)), years=None)
    assert loads.names == ("MT_001", "MT_002", "half")
    assert len(loads.values) == 3
    assert np.isfinite(loads.values).all()
    assert loads.dropped == {
        CONSTANT: ("constant", "zero"),
        LATE: ("late", "absent"),
        BROKEN: ("missing", "infinite"),
        MOSTLY_ZERO: ("idle",),
        NEGATIVE: ("negative",),
    }


def test_a_file_without_a_usable_meter_is_refused_with_the_rules(written: Write) -> None:
    late = ["0"] * 96 + ["3,5", "4"] * ((len(TIMES) - 96) // 2)
    columns = {"a": late, "b": ["1"] * len(TIMES)}
    path = written(diagram(columns))
    with pytest.raises(Learn2pFedError, match=rf"No meter of {path} .* is left \(1 by 'constant', 1 by 'no load on"):
        load(path)


def test_a_last_line_without_an_end_is_left_out_and_said(written: Write) -> None:
    whole = diagram(meters())
    for cut in (1, 3, 9, 20):
        loads = read_diagrams(written(whole[:-cut]), years=None)
        assert loads.values.shape[1] == len(TIMES) - 1
        assert loads.notes == ("1 record left out: the last line has no end, and may be cut off",)
    with pytest.raises(Learn2pFedError, match="line 289 has 2 cells where the header has 3: it is truncated"):
        read_diagrams(written(whole[:-9]), years=(2012, 2012))


def test_meters_may_be_named_by_numbers_and_letters(written: Write) -> None:
    columns = dict(zip(("101", "e1"), meters().values(), strict=True))
    assert load(written(diagram(columns))).names == ("101", "e1")
    with pytest.raises(Learn2pFedError, match="names in its first line are not in UTF-8: save it so"):
        load(written(diagram({"Müller": ["1"] * len(TIMES)}).encode("latin-1")))


def test_a_packed_text_is_to_be_unpacked(written: Write) -> None:
    for pack in (gzip, bz2, lzma):
        with pytest.raises(Learn2pFedError, match="is packed: unpack it, then give what is in it"):
            load(written(pack.compress(diagram(meters()).encode())))


def test_a_file_of_ones_own_is_named_with_its_digest(written: Write) -> None:
    sources = [load(written(diagram(meters(third=cells)))).source for cells in (["1", "2"] * 144, ["1", "3"] * 144)]
    assert all("some.file (sha256 " in source for source in sources)
    assert sources[0] != sources[1]


GAPS = "2 gaps, the first after 2012-01-01T12:30:00, 11 records missing in all"


def test_records_there_twice_and_gaps_are_counted(written: Write) -> None:
    first, *rows = diagram(meters()).splitlines()
    twice = [first, *rows[:5], rows[4], *rows[5:50], *rows[60:100], *rows[101:]]
    loads = read_diagrams(written("\n".join([*twice, ""])), years=None)
    assert loads.stretches == (0, 50, 90)
    assert loads.values.shape == (2, len(rows) - 11)
    assert loads.notes == ("1 record there twice, with the same loads: kept once", GAPS)
    assert np.diff(loads.clock)[[49, 89]].tolist() == [11, 2]


@pytest.mark.parametrize("minutes", [1, 30, 60, 480])
def test_any_clock_that_divides_a_day_is_read(written: Write, minutes: int) -> None:
    times = pd.date_range("2012-01-01 00:15", periods=len(TIMES), freq=f"{minutes}min")
    rows = diagram(meters(), times.strftime("%Y-%m-%d %H:%M:%S").tolist()).splitlines()
    del rows[100]
    loads = load(written("\n".join([*rows, ""])))
    assert loads.minutes == minutes
    assert loads.stretches == (0, 99)
    assert loads.notes == (f"1 gap, the first after {times[98].isoformat()}, 1 record missing in all",)


def test_a_meter_is_late_by_the_first_day_of_its_own_clock(written: Write) -> None:
    times = pd.date_range("2012-01-01 01:00", periods=len(TIMES), freq="h").strftime("%Y-%m-%d %H:%M:%S").tolist()
    late, early = (["0"] * n + ["3,5", "4"] * ((len(TIMES) - n) // 2) for n in (24, 22))
    assert load(written(diagram(meters(late=late, early=early), times))).dropped == {LATE: ("late",)}


def every_seconds(seconds: int, n: int = len(TIMES)) -> str:
    times = pd.date_range("2012-01-01", periods=n, freq=f"{seconds}s").strftime("%Y-%m-%d %H:%M:%S").tolist()
    return diagram({name: cells[:n] for name, cells in meters().items()}, times)


def lines(*changes: tuple[int, str, str]) -> str:
    """A good file with a change in some lines, the header being line 1."""
    rows = diagram(meters()).splitlines()
    for line, old, new in changes:
        assert old in rows[line - 1]
        rows[line - 1] = rows[line - 1].replace(old, new)
    return "\n".join(rows) + "\n"


SECOND, THIRD = TIMES[1], TIMES[2]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (lines((7, "5,", "five")), "line 7 has 'five.* in column 2 where a number with a decimal comma should be"),
        (lines((7, "5,", "5.")), r"line 7 has '5\..* where a number with a decimal comma"),
        (lines((4, THIRD, "soon")), "line 4 has 'soon' in column 1 where a time such as"),
        (lines((4, f'"{THIRD}"', "")), "line 4 has no time: mend or drop it"),
        (lines((4, THIRD, f"{THIRD}+01:00")), "line 4 has '.*' in column 1 where a time such as"),
        (lines((9, "5,", "five")).replace("\n", "\n\n\r\n", 1), "line 11 has 'five"),
        (lines((4, THIRD, SECOND)), f"1 time there twice with other loads, the first {SECOND.replace(' ', 'T')}"),
        (lines((4, THIRD, TIMES[0])), "not in the order of time"),
        (lines((4, THIRD, "2012-01-01 00:46:00")), "00:46:00 is off the clock of 15 minutes"),
        (every_seconds(7 * 60), "most of its records are 420 seconds apart.*: give records every 15, 30 or 60 minutes"),
        (every_seconds(90), "most of its records are 90 seconds apart"),
        (every_seconds(60, 1), "has one record, at 2012-01-01T00:00:00: give a longer file"),
        (lines((7, ";", ",")), "line 7 has 1 cells where the header has 3: it is truncated"),
        (lines((9, ";", ";1;")), "line 9 has 5 cells where the header has 3"),
        (lines((1, "MT_002", "MT_001")), "'MT_001' is the name of 2 meters: rename all but one"),
        (lines((1, '"MT_002"', "")), "column 3 has no name in the first line"),
        (lines().partition("\n")[2], f"begins with the record {TIMES[0]}: begin with a line of names"),
        (lines().partition("\n")[0], "no table of loads|no records"),
        (lines().partition("\n")[0] + "\n", "has no records below its first line: it is truncated"),
        (diagram(meters(), separator="\t"), "has no semicolons in its first line"),
    ],
)
def test_bad_diagrams_are_refused_with_a_sentence(written: Write, text: str, complaint: str) -> None:
    with pytest.raises(Learn2pFedError, match=complaint):
        read_diagrams(written(text), years=None)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (diagram(meters(), separator="\t"), "has tabs between its cells: give a line of names, then times such as"),
        (diagram(meters(), separator=","), "has commas between its cells"),
        ("some words", "has no semicolons between its cells"),
        ("", "is empty"),
        (b"\x89PNG\0\0", "is no text"),
        (zipped("other.txt", "1 2 3"), "holds none of LD2011_2014.txt, electricity.txt, elcons_15min.rda"),
        (zipped("LD2011_2014.txt", diagram(meters()))[:-30], "is truncated or damaged"),
        ("1 2 3\n4 5 6\n", "row 1 has 3 cells, not 20"),
        (b"BZh91AY&SY and then nonsense", "is truncated or damaged"),
        (bz2.compress(b"RDX3 and then nonsense"), "truncated, damaged or no .rda file"),
    ],
)
def test_files_are_told_by_content_and_others_refused(written: Write, content: str | bytes, complaint: str) -> None:
    if complaint.endswith(".rda file"):
        pytest.importorskip("rdata")
    with pytest.raises(Learn2pFedError, match=complaint):
        load(written(content))


def test_a_damaged_zip_is_refused(written: Write) -> None:
    whole = bytearray(zipped("LD2011_2014.txt", diagram(meters())))
    whole[len(whole) // 2] ^= 0xFF
    with pytest.raises(Learn2pFedError, match=r"damaged|should be"):
        read_diagrams(written(bytes(whole)), years=None)


def test_no_file_a_folder_and_an_empty_cache_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEARN2PFED_DATA", str(tmp_path))
    with pytest.raises(Learn2pFedError, match="there is no file"):
        load(tmp_path / "nothing")
    with pytest.raises(Learn2pFedError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(Learn2pFedError, match="'ecl' is not in the cache: get it with learn2pfed data get ecl"):
        load("ecl")


def hours(n: int = 5000, odd: str = "0.25") -> str:
    cells = [[f"{(hour * (client + 1)) % 23 - 11}" for client in range(20)] for hour in range(n)]
    cells[10][3] = odd
    return "\n".join(" ".join(row) for row in cells) + "\n"


def test_the_twenty_clients_are_read_alone_and_from_the_wheel(written: Write) -> None:
    alone = read_ecl_20(written(hours()))
    assert alone.values.shape == (20, 5000)
    assert alone.values[3, 10] == np.float32(0.25)
    assert alone.values.min() == -11  # standardised loads may be negative
    assert (alone.unit, alone.dropped) == (None, {})
    np.testing.assert_array_equal(load(written(zipped("electricity.txt", hours()), "wheel")).values, alone.values)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (hours(4999), "has 4999 hours, not 5000: it is truncated"),
        (hours()[:-3], "row 5000 has 19 cells, not 20"),
        (hours(odd="much"), "row 11 has 'much' where a number should be"),
    ],
)
def test_a_bad_file_of_the_twenty_is_refused(written: Write, text: str, complaint: str) -> None:
    with pytest.raises(Learn2pFedError, match=complaint):
        load(written(text))


def test_missing_numbers_of_the_twenty_drop_the_client(written: Write) -> None:
    assert load(written(hours(odd="nan"))).dropped == {BROKEN: ("ECL-04",)}


def test_the_wheels_file_is_the_sample() -> None:
    np.testing.assert_array_equal(load(at_hand(ECL_20)).values, load("sample").values)


def week(n: int = 3, scale: float = 1.0, readings: int = households.WEEK) -> pd.DataFrame:
    """A week of n households as the R package has it."""
    loads = {f"V{place:03d}": scale * (1 + (np.arange(n) + place) % 5) for place in range(1, readings + 1)}
    return pd.DataFrame({"VID": np.arange(100, 100 + n)} | loads)


@pytest.fixture
def weeks(written: Write, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Loads]:
    """The loads that come of these weeks, as if an .rda file held them."""

    def read(tables: dict[str, pd.DataFrame]) -> Loads:
        monkeypatch.setattr(households, "_r_objects", lambda path, stream: {"elcons_15min": tables})
        return read_households(written(b"BZh"))

    return read


Weeks = Callable[..., Loads]


def test_weeks_in_a_row_are_one_stretch_and_households_keep_their_place(weeks: Weeks) -> None:
    loads = weeks({"w44": week(), "w45": week(scale=2).iloc[::-1], "w47": week()})
    assert loads.names == ("100", "101", "102")
    assert (loads.minutes, loads.unit, loads.start) == (15, "kWh", None)
    assert loads.stretches == (0, 2 * 672)
    assert loads.notes == ("1 gap between weeks",)
    assert loads.clock[2 * 672] == 3 * 672
    assert weeks({"w52": week(), "w1": week()}).stretches == (0, 672)
    np.testing.assert_array_equal(loads.values[:, 672:1344], 2 * loads.values[:, :672])


def test_equal_rows_are_kept_once_and_other_oddities_of_weeks_refused(weeks: Weeks) -> None:
    twice = weeks({"w44": pd.concat([week(), week(1)])})
    assert twice.notes == ("1 row there twice, with the same loads: kept once",)
    assert len(twice.names) == 3
    with pytest.raises(Learn2pFedError, match="household 100 is twice in week w44 with other loads"):
        weeks({"w44": pd.concat([week(), week(1, scale=3)])})
    with pytest.raises(Learn2pFedError, match=r"1 households are not in every week, the first 102 \(week w45"):
        weeks({"w44": week(), "w45": week(2)})
    with pytest.raises(Learn2pFedError, match="week w45 has 672 columns, not VID and V001 to V672"):
        weeks({"w44": week(), "w45": week(readings=671)})
    with pytest.raises(Learn2pFedError, match="has text where loads should be"):
        weeks({"w44": week().assign(V007="much")})
    with pytest.raises(Learn2pFedError, match="holds no elcons_15min"):
        weeks({})


def test_the_real_households(written: Write) -> None:
    pytest.importorskip("rdata", reason="pip install 'learn2pfed[households]'")
    path = at_hand(HOUSEHOLDS)
    loads = load(path)
    assert loads.values.shape == (517, 7 * 672)
    assert loads.stretches == (0,)
    assert {rule: len(names) for rule, names in loads.dropped.items()} == {CONSTANT: 6, MOSTLY_ZERO: 13, NEGATIVE: 1}
    with pytest.raises(Learn2pFedError, match=r"truncated, damaged or no \.rda file"):
        load(written(path.read_bytes()[:-1000]))


def test_the_r_package_itself_is_read_too(written: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        households, "_r_objects", lambda path, stream: {"elcons_15min": {"w1": week(len(stream.read()))}}
    )
    assert len(load(written(tarred("elcons_15min.rda", b"RDX"))).names) == len(b"RDX")


def test_without_the_package_for_r_the_sentence_says_how_to_get_it(
    written: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rdata", None)
    with pytest.raises(Learn2pFedError, match=r"pip install 'learn2pfed\[households\]'"):
        load(written(b"RDX3\n"))
