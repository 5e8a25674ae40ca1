"""A user's own table: read, encoded the same way every time, and refused where a model would stumble."""

from __future__ import annotations

import bz2
import decimal
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from pydantic import ValidationError

from learn2pfed.data.schema import Column, Schema
from learn2pfed.data.tabular import hold_out, read_table
from learn2pfed.errors import Learn2pFedError

TABLE = "hospital,age,sex,cost\nnorth,50,f,1.5\nsouth,60,m,2.5\n"
NAMES = ["hospital", "age", "sex", "cost"]


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# ---------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", TABLE),
        ("A.CSV", TABLE.replace("\n", "\r\n")),
        ("a.b.csv", "\ufeff" + TABLE),
        ("a.csv", "\n  \n" + TABLE + "\n\n"),
        ("a.csv", TABLE.replace(",", ", ")),
        ("a.csv", TABLE.replace("hospital", '"hospital"').replace("north", '"north"')),
        ("a.csv", '"hospital", "age", "sex", "cost"\n' + TABLE.partition("\n")[2]),
        ("a.csv", TABLE.replace(",", ";")),
        ("a.csv", "\n  \n" + TABLE.replace(",", ";")),
        ("a.csv", TABLE.replace(",", "\t")),
        ("a.txt", TABLE.replace(",", "|")),
        ("a.txt", TABLE),
        ("a.tsv", TABLE.replace(",", "\t")),
        ("a.tab", TABLE.replace(",", "\t")),
        ("a.csv.gz", gzip.compress(TABLE.encode(), mtime=0)),
        ("a.csv.bz2", bz2.compress(TABLE.encode())),
        ("a.tsv.gz", gzip.compress(TABLE.replace(",", "\t").encode(), mtime=0)),
    ],
)
def test_text_files(tmp_path: Path, name: str, content: str | bytes) -> None:
    frame = read_table(written(tmp_path, name, content))
    assert list(frame.columns) == NAMES
    assert frame.to_numpy().tolist() == [["north", 50, "f", 1.5], ["south", 60, "m", 2.5]]


@pytest.mark.parametrize("name", ["a.parquet", "a.pq"])
def test_parquet(tmp_path: Path, name: str) -> None:
    frame = pd.DataFrame({"hospital": ["north", "south"], "age": [50, 60], "level": pd.Categorical(["b", "a"])})
    frame.set_index("hospital").to_parquet(tmp_path / name)
    back = read_table(tmp_path / name)
    assert sorted(back.columns) == ["age", "hospital", "level"]  # the index is a column again
    assert back["hospital"].tolist() == ["north", "south"]
    assert back["level"].tolist() == ["b", "a"]


def test_a_delimiter_in_quotes_does_not_count(tmp_path: Path) -> None:
    frame = read_table(written(tmp_path, "a.csv", '"a;b;c;d",e\n1,2\n'))
    assert list(frame.columns) == ["a;b;c;d", "e"]


def test_a_tab_file_may_have_commas_in_its_names(tmp_path: Path) -> None:
    frame = read_table(written(tmp_path, "a.tsv", "a,b,c,d\te\n1\t2\n"))
    assert list(frame.columns) == ["a,b,c,d", "e"]


def test_the_usual_signs_are_missing_but_none_is_a_word(tmp_path: Path) -> None:
    frame = read_table(written(tmp_path, "a.csv", "age,drug\n1,None\n,NA\nn/a,x\nNaN,\n"))
    assert frame["age"].isna().tolist() == [False, True, True, True]
    assert frame["drug"].isna().tolist() == [False, True, False, True]


def test_a_late_text_does_not_change_the_cells_before_it(tmp_path: Path) -> None:
    rows = [str(i) for i in range(300_000)] + ["late"]
    frame = read_table(written(tmp_path, "a.csv", "a,b\n" + "".join(f"{text},1\n" for text in rows)))
    assert frame["a"].tolist() == rows


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.xlsx", "x", r"a.xlsx: .* there are .csv, .txt, .tsv, .tab .* and .parquet, .pq: rename or convert"),
        ("table", "x", r"table: the ending tells the format"),
        ("a.gz", b"x", "a.gz: the ending tells the format"),
        ("a.parquet.gz", b"x", "a.parquet.gz: the ending tells the format"),
        ("a.csv", "", "a.csv is empty: it needs a header and rows"),
        ("a.csv", "\n \n", "a.csv is empty"),
        ("a.csv", "\ufeff", "a.csv is empty"),
        ("a.csv", '""', "a.csv is empty"),
        ("a.csv", '""\na,b\n1,2\n', "a.csv is no proper table: its header has no clear end"),
        ("a.csv", "\v\na,b\n1,2\n", "a.csv: column 1 has no name"),
        ("a.csv", "\ufeff\ufeff", "a.csv is no proper table"),
        ("a.csv", "a,b\n", "a.csv has a header but no rows"),
        ("a.csv", "a,b\n\n\n", "a.csv has a header but no rows"),
        ("a.csv", b"PK\x03\x04\0\0\xff\xfe", "a.csv holds binary data, not text: export it as CSV"),
        ("a.csv", "a,b\n1,2\n3,4\n5,6,7\n", "line 4 has 3 cells where the header has 2: mend that line"),
        ("a.csv", "a,b\n1,2,3\n4,5,6\n", "line 2 has 3 cells where the header has 2"),
        ("a.csv", "a,b\n1,2,\n4,5,\n", "line 2 has 3 cells where the header has 2"),
        ("a.csv", 'a,b\n1,2\n"3,4\n5,6\n', "a.csv is no proper table: a quote that opens in line 3 is never closed"),
        ("a.csv", "a,b\n1,x\n2,é\n".encode("latin-1"), r"a.csv is not UTF-8 text \(line 3\): save it as UTF-8"),
        ("a.csv", "á,b\n1,x\n".encode("latin-1"), r"a.csv is not UTF-8 text \(line 1\)"),
        ("a.csv", ("a,b\n" + "1,x\n" * 200_000).encode() + b"1,\xe9\n", r"not UTF-8 text \(line 200002\)"),
        ("a.csv", TABLE.encode("utf-16"), "a.csv is not UTF-8 text"),
        ("a.csv.gz", gzip.compress("a,b\n1,é\n".encode("latin-1"), mtime=0), r"a.csv.gz is not UTF-8 text \(line 2\)"),
        ("a.csv", "x,y,x\n1,2,3\n", "a.csv: columns 1 and 3 are both named 'x': rename one"),
        ("a.csv", "x,y, x \n1,2,3\n", "columns 1 and 3 are both named 'x'"),
        ("a.csv", ",x,y\n0,1,2\n", "a.csv: column 1 has no name: name it or drop it"),
        ("a.csv", "x,y,\n1,2,\n", "column 3 has no name: name it or drop it"),
        ("a.parquet", "a,b\n1,2\n", "a.parquet is no Parquet file, or a broken one"),
        ("a.pq", "", "a.pq is no Parquet file"),
        ("a.csv.gz", "a,b\n1,2\n", "a.csv.gz can't be read"),
        ("a.csv.gz", gzip.compress(TABLE.encode(), mtime=0)[:-12], "a.csv.gz can't be read"),
        ("a.csv.bz2", "a,b\n1,2\n", "a.csv.bz2 can't be read"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: str | bytes, sentence: str) -> None:
    with pytest.raises(Learn2pFedError, match=sentence) as caught:
        read_table(written(tmp_path, name, content))
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("name", ["none.csv", "none.csv.gz", "none.parquet"])
def test_absent_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(Learn2pFedError, match=f"there is no file .*{name}: check the path"):
        read_table(tmp_path / name)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_folders(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(Learn2pFedError, match=f"{name} is a folder"):
        read_table(tmp_path / name)


def test_unreadable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = written(tmp_path, "a.csv", TABLE)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(Learn2pFedError, match=r"a.csv can't be read \(Permission denied\)"):
        read_table(path)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (pa.table([[1], [2]], names=["x", "x"]), "columns 1 and 2 are both named 'x'"),
        (pa.table([[1], [2]], names=["x", ""]), "column 2 has no name"),
        (pa.table({"x": pa.array([], pa.int64())}), "has a header but no rows"),
    ],
)
def test_bad_parquet(tmp_path: Path, table: pa.Table, sentence: str) -> None:
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(Learn2pFedError, match=sentence):
        read_table(tmp_path / "a.parquet")


def test_row_numbers_that_pandas_left_in_a_parquet_file_are_no_column(tmp_path: Path) -> None:
    pd.DataFrame({"x": [1, 2]}, index=[3, 7]).to_parquet(tmp_path / "a.parquet")
    assert list(read_table(tmp_path / "a.parquet")) == ["x"]


# ----------------------------------------------------------------------------------------------------------- schema


def ward(n: int = 40, **columns: object) -> pd.DataFrame:
    """A harmless table, with columns replaced or added."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "hospital": rng.choice(["north", "south"], n),
            "age": rng.normal(50, 9, n),
            "region": ["hill", "coast", "hill", "lake"] * (n // 4),
            "cost": rng.normal(size=n),
            "ill": ["yes", "no"] * (n // 2),
        }
    )
    return frame.assign(**columns)


def learn(frame: pd.DataFrame, train: object = None, **changes: Any) -> Schema:
    asked: dict[str, Any] = {
        "client": "hospital",
        "target": "cost",
        "features": None,
        "leave_out": ["ill"],
        "task": "regression",
        "impute": False,
    }
    mask = np.ones(len(frame), dtype=bool) if train is None else np.asarray(train)
    return Schema.learn(frame, mask, **(asked | changes))


CLASSES: dict[str, Any] = {"task": "classification", "target": "ill", "leave_out": ["cost"]}


def at(values: Any, row: int, value: object) -> list[object]:
    """The values with one replaced."""
    changed = list(values)
    changed[row] = value
    return changed


def test_a_schema_names_its_features() -> None:
    schema = learn(ward())
    assert schema.columns[0] == Column(name="age", kind="number")
    assert schema.columns[1].levels == ("hill", "coast", "lake")  # the most frequent first, then by name
    assert schema.features == ("age", "region=coast", "region=lake")
    assert schema.classes == ()


def test_ties_for_the_reference_go_by_name() -> None:
    assert learn(ward(region=["b", "c", "a", "d"] * 10)).columns[1].levels == ("a", "b", "c", "d")


def test_encoding() -> None:
    frame = ward(old=[True, False] * 20, age=list(range(40)), region=["hill", " coast ", "hill", "lake"] * 10)
    schema = learn(frame, features=["region", "age", "old"])
    X = schema.encode(frame)
    assert X.dtype == np.float64
    assert schema.features == ("region=coast", "region=lake", "age", "old")
    assert X[:4].tolist() == [[0, 0, 0, 1], [1, 0, 1, 0], [0, 0, 2, 1], [0, 1, 3, 0]]
    shuffled = frame[["old", "ill", "age", "hospital", "region"]].assign(extra="x")
    assert (schema.encode(shuffled) == X).all()
    assert (schema.encode(frame.iloc[20:]) == X[20:]).all()


def test_decimal_commas_between_semicolons_are_numbers(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("who;x;y;z\nNA;1,5;7;u\nb;-2;;1,5\n")
    frame = read_table(file, text=["who"])
    assert frame["x"].tolist() == [1.5, -2.0]
    assert frame["z"].tolist() == ["u", "1,5"]
    assert frame["who"].tolist() == ["NA", "b"]
    assert frame["y"].isna().tolist() == [False, True]


def test_clients_keep_their_leading_zeros(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("who,x\n007,1\n7,2\n")
    assert read_table(file, text=["who", "absent"])["who"].tolist() == ["007", "7"]
    assert read_table(file)["who"].tolist() == [7, 7]


def test_two_features_of_one_name_are_refused() -> None:
    frame = pd.DataFrame({"c": list("aabb"), "y": [1.0, 2, 3, 5], "r": list("uvuv"), "r=v": [1.0, 5, 2, 2]})
    with pytest.raises(Learn2pFedError, match="two features would be called 'r=v'"):
        Schema.learn(frame, np.ones(4, bool), client="c", target="y", features=None, task="regression", impute=False)


def test_a_schema_survives_json() -> None:
    frame = ward(age=at(range(40), 3, np.nan), region=at(["hill", "coast"] * 20, 5, None))
    for schema in (learn(frame, impute=True), learn(frame, impute=True, **CLASSES)):
        back = Schema.model_validate_json(schema.model_dump_json())
        assert back == schema
        assert (back.encode(frame) == schema.encode(frame)).all()
        assert (back.answers(frame) == schema.answers(frame)).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "x", "kind": "number", "levels": ["a"]},
        {"name": "x", "kind": "category"},
        {"name": "x", "kind": "category", "levels": ["a", "a"]},
        {"name": "x", "kind": "category", "levels": ["a", "b"], "fill": "c"},
        {"name": "x", "kind": "number", "fill": "a"},
        {"name": "x", "kind": "number", "fill": float("nan")},
        {"name": "x", "kind": "date"},
        {"name": "x", "kind": "number", "unit": "m"},
    ],
)
def test_bad_columns_in_a_file_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Column.model_validate(wrong)


def test_a_schema_forbids_what_it_does_not_know_and_is_frozen() -> None:
    schema = learn(ward())
    with pytest.raises(ValidationError, match="extra"):
        Schema.model_validate(schema.model_dump() | {"extra": 1})
    for model, name in ((schema, "client"), (schema.columns[0], "name")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(model, name, "other")


def test_only_training_rows_decide_on_levels_and_fills() -> None:
    train = np.arange(40) < 20
    frame = ward(age=[1.0, 3.0] * 10 + [1000.0] * 20, region=["a", "b", "b", "b"] * 5 + ["a"] * 20)
    schema = learn(frame, train, impute=True)
    assert schema.columns[0].fill == 2.0
    assert schema.columns[1] == Column(name="region", kind="category", levels=("b", "a"), fill="b")


def test_imputing() -> None:
    frame = ward(age=at([1.0, 3.0] * 20, 0, np.nan), region=at(at(["a", "b", "b", "b"] * 10, 4, ""), 8, None))
    schema = learn(frame, impute=True)
    X = schema.encode(frame)
    mean = (19 * 1 + 20 * 3) / 39
    assert X[:3, 0].tolist() == [pytest.approx(mean), 3.0, 1.0]
    assert X[[0, 4, 8], 1].tolist() == [1.0, 0.0, 0.0]  # a gap becomes the most frequent level, b
    later = pd.DataFrame({"age": [np.nan], "region": ["never seen"]})
    assert schema.encode(later).tolist() == [[pytest.approx(mean), 0.0]]


def test_a_gap_becomes_the_fill_whichever_level_it_is() -> None:
    column = Column(name="x", kind="category", levels=("a", "b", "c"), fill="c")
    schema = Schema(client="hospital", target="cost", task="regression", columns=(column,))
    assert schema.encode(pd.DataFrame({"x": ["a", None, "b", "z"]})).tolist() == [[0, 0], [0, 1], [1, 0], [0, 1]]


@pytest.mark.parametrize(
    "values",
    [
        pd.Series([1, 2] * 20, dtype="Int64"),
        pd.Series([True, False] * 20, dtype="boolean"),
        pd.Series([True, False] * 20, dtype=object),
        pd.Series([1, 2] * 20, dtype="int8"),
        pd.Series([1.5, 2] * 20, dtype="float32"),
        pd.Series([1, 2] * 20, dtype="int64[pyarrow]"),
        pd.Series([decimal.Decimal("1.5"), decimal.Decimal(2)] * 20),
        pd.Series([1, 2.5] * 20, dtype=object),
    ],
    ids=lambda values: str(values.dtype),
)
def test_all_sorts_of_numbers(values: pd.Series) -> None:
    frame = ward(age=values)
    assert learn(frame).columns[0].kind == "number"
    assert learn(frame).encode(frame)[:, 0].tolist() == [float(value) for value in values]
    gap = frame.assign(age=values.where(np.arange(40) != 7))
    with pytest.raises(Learn2pFedError, match="there are missing values: age 1:"):
        learn(gap)
    assert learn(gap, impute=True).encode(gap)[7, 0] == pytest.approx(values.drop(7).astype(float).mean())


@pytest.mark.parametrize("dtype", ["str", "object", "string", "category"])
def test_all_sorts_of_text(dtype: str) -> None:
    frame = ward(region=pd.Series(at(["hill", "coast"] * 20, 0, None), dtype=dtype))
    with pytest.raises(Learn2pFedError, match="there are missing values: region 1:"):
        learn(frame)
    schema = learn(frame, impute=True)
    assert schema.columns[1].levels == ("coast", "hill")
    assert schema.encode(frame)[:4, 1].tolist() == [0, 0, 1, 0]


def test_numbers_of_categorical_type_are_categories() -> None:
    frame = ward(region=pd.Categorical([1.0, 2.0, 2.0, 10.0] * 10))
    assert learn(frame).columns[1].levels == ("2", "1", "10")


FORTY = list(range(40))
AGES = [str(i + 0.5) for i in FORTY]


@pytest.mark.parametrize(
    ("columns", "asked", "sentence"),
    [
        # names
        (
            {},
            {"client": "hopital"},
            r"no column 'hopital' \(did you mean 'hospital'\?\): the table has hospital, age, ",
        ),
        ({}, {"target": "zzz"}, "no column 'zzz': the table has hospital, age, region, cost, ill"),
        ({}, {"features": ["age", "regions"]}, r"no column 'regions' \(did you mean 'region'\?\)"),
        ({}, {"leave_out": ["when"]}, "no column 'when'"),
        ({f"x{i}": FORTY for i in range(30)}, {"target": "zzz"}, "x14 and 15 more"),
        ({}, {"features": ["age", "hospital"]}, "the client column 'hospital' can't be a feature too"),
        ({}, {"features": ["age", "cost"]}, "the target column 'cost' can't be a feature too"),
        ({}, {"features": ["age", "region", "age"]}, "feature 'age' is named twice"),
        ({}, {"features": []}, "there are no features"),
        ({}, {"leave_out": ["ill", "age", "region"]}, "there are no features"),
        ({}, {"target": "hospital"}, "'hospital' is named as client and as target"),
        ({}, {"train": 0}, "there are no training rows"),
        # dates
        ({"age": pd.date_range("2024", periods=40)}, {}, r"'age' holds dates: turn .*, or leave it out of --features"),
        ({"age": pd.date_range("2024", periods=40).date}, {}, "column 'age' holds dates"),
        ({"age": pd.period_range("2024", periods=40, freq="D")}, {}, "column 'age' holds dates"),
        ({"age": ["2024-01-31", "2024-02-01"] * 20}, {}, "column 'age' holds dates"),
        ({"age": ["2024-01-31 12:00", "2024-02-01T09:30:00Z"] * 20}, {}, "column 'age' holds dates"),
        ({"age": ["31/01/2024", "1/2/2024"] * 20}, {}, "column 'age' holds dates"),
        ({"age": at(["31.01.2024", "01.02.2024"] * 20, 3, "soon")}, {}, "column 'age' holds dates"),
        # texts
        ({"age": [f"p{i}" for i in range(60)]}, {}, "column 'age' has 60 different texts: it looks like an identifier"),
        ({"region": [*(f"r{i}" for i in range(51)), "r0"]}, {}, "column 'region' has 51 different texts"),
        ({"region": ["1", "2", "3", "4", "old"] * 8}, {}, "column 'region' has 8 entries that are not numbers"),
        ({"age": at(at(AGES, 15, "old"), 2, None)}, {}, "'age' has 1 entry that is not a number"),
        (
            {"age": at(AGES, 15, "old")},
            {},
            r"'age' has 1 entry that is not a number \(the first, 'old', in line 17\)",
        ),
        ({"age": at(at(AGES, 7, "12,5"), 9, "n.a.")}, {}, r"has 2 entries .* \(the first, '12,5', in line 9\)"),
        ({"age": [f"{i},5" for i in FORTY]}, {}, r"'age' has 40 entries that are not numbers \(the first, '0,5', in "),
        ({"age": [f"{i} %" for i in FORTY]}, {}, "'age' has 40 entries that are not numbers"),
        ({"age": AGES}, {}, "column 'age' holds numbers that are stored as text"),
        ({"age": [[1]] * 40}, {}, "column 'age' holds neither numbers nor text"),
        ({"age": pd.to_timedelta(FORTY, unit="D")}, {}, "column 'age' holds neither numbers nor text"),
        # constants
        ({"age": [1.0] * 40}, {}, "column 'age' has the same value in every training row: drop it"),
        ({"age": [1.0] * 39 + [2.0]}, {"train": 39}, "column 'age' has the same value in every training row"),
        ({"region": ["a"] * 40}, {}, "column 'region' has the same value in every training row"),
        ({"region": ["a"] * 39 + ["b"]}, {"train": 39}, "column 'region' has the same value in every training row"),
        ({"age": at([1.0] * 40, 2, np.nan)}, {"impute": True}, "column 'age' has the same value"),
        ({"age": [np.nan] * 40}, {"impute": True}, "column 'age' is empty in every training row"),
        ({"region": ["  "] * 40}, {"impute": True}, "column 'region' is empty in every training row"),
        # missing, infinite
        (
            {"age": at(at(FORTY, 1, np.nan), 2, np.nan), "region": at(["a", "b"] * 20, 4, " ")},
            {},
            "there are missing values: age 2, region 1: fill or drop them, or fit with --impute",
        ),
        ({"age": at(FORTY, 39, np.nan)}, {"train": 39}, "there are missing values: age 1"),
        ({"age": at(FORTY, 39, np.inf)}, {"train": 39}, r"'age' has 1 infinite .* \(the first in line 41\)"),
        (
            {"age": at(FORTY, 4, -1e101)},
            {"impute": True},
            "column 'age' has 1 infinite or huge value.s., beyond 1e.100",
        ),
        ({"age": pd.Series(at(FORTY, 4, 10**400), dtype=object)}, {}, "column 'age' has huge values, beyond 1e.100"),
        # copies
        ({"y2": lambda f: f.cost}, {}, "column 'y2' says the same as the target 'cost' in every row: leave it out"),
        ({"y2": lambda f: 3 - 1e6 * f.cost, "y3": lambda f: f.cost}, {}, "column 'y2' says the same as the target"),
        ({"cost": [0, 1] * 20, "region": ["a", "b"] * 20}, {}, "column 'region' says the same as the target 'cost'"),
        ({"years": lambda f: f.age}, {}, "columns 'age' and 'years' say the same in every row: drop 'years'"),
        ({"heat": lambda f: 1.8 * f.age + 32}, {}, "columns 'age' and 'heat' say the same"),
        ({"age": [0, 1] * 20, "region": ["b", "a"] * 20}, {}, "columns 'age' and 'region' say the same"),
        ({"label": lambda f: f.ill}, CLASSES, "column 'label' says the same as the target 'ill'"),
        ({"ill": [0, 1, 2, 1] * 10, "age": [0.0, 1.0, 2.0, 1.0] * 10}, CLASSES, "column 'age' says the same as the "),
        # client
        (
            {"hospital": at(["a", "b"] * 20, 3, None)},
            {},
            "client column 'hospital' is empty in 1 row.s., the first in line 5",
        ),
        ({"hospital": ["a", " "] * 20}, {}, "the client column 'hospital' is empty in 20 row.s., the first in line 3"),
        ({"hospital": [["a"]] * 40}, {}, "column 'hospital' holds neither numbers nor text"),
        # target
        (
            {"cost": at(FORTY, 0, np.nan)},
            {"impute": True},
            "the target 'cost' is missing in 1 row.s., the first in line 2",
        ),
        ({"ill": at(["a", "b"] * 20, 0, "")}, CLASSES | {"impute": True}, "the target 'ill' is missing in 1 row"),
        (
            {"cost": ["low", "high"] * 20},
            {},
            "the target 'cost' holds text, not numbers: fit with --task classification",
        ),
        ({"cost": [True, False] * 20}, {}, "the target 'cost' holds true and false, .* fit with --task classification"),
        ({"cost": at([True, False] * 20, 3, None)}, {}, "the target 'cost' holds true and false"),
        ({"cost": at(AGES, 3, "?")}, {}, r"the target 'cost' has 1 entry that is not a number \(the first, '\?', in"),
        ({"cost": pd.date_range("2024", periods=40)}, {}, "the target 'cost' holds dates"),
        ({"cost": [2.5] * 39 + [1]}, {"train": 39}, "the target 'cost' is 2.5 in every training row"),
        ({"cost": at(FORTY, 1, np.inf)}, {}, "the target 'cost' has 1 infinite"),
        ({"cost": at(FORTY, 1, 1e200)}, {}, "the target 'cost' has 1 infinite or huge value.s., beyond"),
        ({"ill": ["yes"] * 39 + ["no"]}, CLASSES | {"train": 39}, "the target 'ill' is 'yes' in every training row"),
        ({"ill": [*range(101), 0, 0, 0]}, CLASSES, "has 101 different labels"),
        ({"ill": [i / 2 for i in range(120)]}, CLASSES, "has 120 different labels, .* add --task regression"),
    ],
)
def test_refusals(columns: dict[str, Any], asked: dict[str, Any], sentence: str) -> None:
    n = max([40, *(len(values) for values in columns.values() if not callable(values))])
    asked = dict(asked)
    train = np.arange(n) < asked.pop("train", n)
    with pytest.raises(Learn2pFedError, match=sentence) as caught:
        learn(ward(n, **columns), train, **asked)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("columns", "asked"),
    [
        ({"heat": lambda f: f.age + 1e-3 * f.cost}, {}),  # close, but no copy
        ({"region": ["2024-01-31", "spring", "summer", "autumn"] * 10}, {}),  # one of four is a date
        ({"region": ["1", "2", "3a", "3b"] * 10}, {}),  # half of them are numbers
        ({"region": ["1", "2", "3", "K"] * 10}, {}),
        ({"region": ["a"] * 38 + ["b", "c"], "zone": ["u"] * 38 + ["v", "w"]}, {}),  # rare levels that go together
        ({"age": at([1.0] * 40, 3, 1.0 + 1e-9)}, {}),
        ({"age": at(FORTY, 3, 9e99)}, {}),
        ({"region": [f"r{i:02}" for i in range(50)] * 2}, {}),
        ({"region": ["", *(f"r{i:02}" for i in range(50)), "r00"]}, {"impute": True}),
        ({"age": [0, 1, 2, 1] * 10, "ill": [2, 1, 0, 1] * 10}, CLASSES),  # a label backwards is not the label
        ({"ill": list(range(100))}, CLASSES),
    ],
)
def test_what_is_not_refused(columns: dict[str, Any], asked: dict[str, Any]) -> None:
    n = max([40, *(len(values) for values in columns.values() if not callable(values))])
    frame = ward(n, **columns)
    assert np.isfinite(learn(frame, **asked).encode(frame)).all()


def test_two_training_rows_can_not_tell_a_copy_but_three_can() -> None:
    frame = ward(other=lambda f: f.age**2)
    assert learn(frame, np.arange(40) < 2).features == ("age", "region=hill", "other")
    with pytest.raises(Learn2pFedError, match="'age' and 'other' say the same"):
        learn(ward(other=lambda f: 2 * f.age), np.arange(40) < 3)


def test_copies_are_found_in_a_long_table() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"hospital": "a", "age": rng.normal(1e6, 1, 200_000), "cost": rng.normal(size=200_000)})
    assert learn(frame, leave_out=()).features == ("age",)
    with pytest.raises(Learn2pFedError, match="'age' and 'months' say the same"):
        learn(frame.assign(months=12 * frame.age), leave_out=())


def test_named_features_may_include_what_is_left_out_otherwise() -> None:
    assert learn(ward(day=FORTY), leave_out=["day", "ill"]).features == ("age", "region=coast", "region=lake")
    assert learn(ward(day=FORTY), leave_out=["day", "ill"], features=["day"]).features == ("day",)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"age": None}, r"there is no column 'age'.*: the table has hospital, region, cost, ill"),
        ({"age": at(FORTY, 3, np.nan), "region": at(["hill"] * 40, 0, None)}, "missing values: age 1, region 1: fill"),
        ({"age": at(FORTY, 3, np.inf)}, "column 'age' has 1 infinite"),
        ({"age": ["old", "young"] * 20}, r"'age' has 40 entries that are not numbers \(the first, 'old', in line 2\)"),
        ({"age": AGES}, "column 'age' holds numbers that are stored as text"),
        ({"age": pd.date_range("2024", periods=40)}, "column 'age' holds dates"),
        ({"age": pd.Series([None] * 40, dtype="str")}, "missing values: age 40"),
        (
            {"region": at(at(["hill"] * 40, 6, "moon"), 9, "sea")},
            r"'region' has 2 row.s. with levels that no training row has \(the first, 'moon', in line 8\)",
        ),
        ({"region": at(["hill"] * 40, 0, "moon")}, r"'region' has 1 row.s. .* \(the first, 'moon', in line 2\)"),
    ],
)
def test_encoding_refuses(changes: dict[str, Any], sentence: str) -> None:
    schema = learn(ward())
    gone = [name for name, values in changes.items() if values is None]
    frame = ward(**{name: values for name, values in changes.items() if values is not None}).drop(columns=gone)
    with pytest.raises(Learn2pFedError, match=sentence):
        schema.encode(frame)


def test_a_part_of_a_table_keeps_its_lines() -> None:
    frame = ward(region=at(["hill"] * 40, 30, "moon"))
    with pytest.raises(Learn2pFedError, match="in line 32"):
        learn(ward()).encode(frame.iloc[20:])
    with pytest.raises(Learn2pFedError, match="in line 12"):
        learn(ward()).encode(frame.iloc[20:].set_axis([f"row {i}" for i in range(20)]))


@pytest.mark.parametrize(
    ("names", "read"),
    [
        ([7, 8], ["7", "8"]),
        ([7.0, 8.0], ["7", "8"]),
        ([7.0, 8.5], ["7", "8.5"]),
        ([" north ", "south"], ["north", "south"]),
        ([True, False], ["True", "False"]),
        (pd.Series([7, 8], dtype="float32"), ["7", "8"]),
        (pd.Series([7, 8], dtype="Int64"), ["7", "8"]),
        (pd.Series(["a", "b"], dtype="category"), ["a", "b"]),
        ([12345678901234567890123, 12345678901234567890124], ["12345678901234567890123", "12345678901234567890124"]),
    ],
)
def test_clients(names: Any, read: list[str]) -> None:
    assert learn(ward()).clients(pd.DataFrame({"hospital": names})).tolist() == read


def test_names_that_differ_by_blanks_are_one_client() -> None:
    frame = pd.DataFrame({"hospital": ["a", "a ", "b", " a"]})
    assert learn(ward()).clients(frame).tolist() == ["a", "a", "b", "a"]
    with pytest.raises(Learn2pFedError, match="the client column 'hospital' is empty in 1 row"):
        learn(ward()).clients(pd.DataFrame({"hospital": ["a", ""]}))


def test_answers_of_a_regression() -> None:
    schema = learn(ward())
    answers = schema.answers(pd.DataFrame({"cost": [1, 3]}))
    assert answers.dtype == np.float64
    assert answers.tolist() == [1.0, 3.0]
    for wrong, sentence in (([1.0, None], "missing in 1 row"), (["a", "b"], "holds text"), ([1.0, np.inf], "infinite")):
        with pytest.raises(Learn2pFedError, match=sentence):
            schema.answers(pd.DataFrame({"cost": wrong}))
    with pytest.raises(Learn2pFedError, match="there is no column 'cost'"):
        schema.answers(pd.DataFrame({"x": [1]}))


@pytest.mark.parametrize(
    ("labels", "classes", "answers"),
    [
        (["yes", "no", " no", "maybe"], ("maybe", "no", "yes"), [2, 1, 1, 0]),
        ([10, 9, 2, 9], ("2", "9", "10"), [2, 1, 0, 1]),
        ([1.0, 0.0, 0.0, 1.0], ("0", "1"), [1, 0, 0, 1]),
        ([1.5, -1.0, 2.0, 1.5], ("-1", "1.5", "2"), [1, 0, 2, 1]),
        ([True, False, False, True], ("False", "True"), [1, 0, 0, 1]),
        (["10", "9", "x", "9"], ("10", "9", "x"), [0, 1, 2, 1]),
    ],
)
def test_answers_of_a_classification(labels: list[object], classes: tuple[str, ...], answers: list[int]) -> None:
    frame = ward(ill=labels * 10)
    schema = learn(frame, **CLASSES)
    assert schema.classes == classes
    assert schema.answers(frame).dtype == np.int64
    assert schema.answers(frame)[:4].tolist() == answers


def test_labels_that_no_training_row_has_are_refused() -> None:
    schema = learn(ward(), **CLASSES)
    with pytest.raises(Learn2pFedError, match=r"1 row.s. with labels .* 'perhaps', in line 3\): drop .* no, yes"):
        schema.answers(pd.DataFrame({"ill": ["yes", "perhaps"]}))
    with pytest.raises(Learn2pFedError, match="the target 'ill' is missing in 1 row"):
        schema.answers(pd.DataFrame({"ill": ["yes", None]}))


# --------------------------------------------------------------------------------------------------------- hold-out


def held(frame: pd.DataFrame, **changes: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    asked: dict[str, Any] = {"client": "c", "fraction": 0.25, "time": None, "test_column": None, "seed": 0}
    return hold_out(frame, **(asked | changes))


SIZES = {"a": 1, "b": 2, "c": 3, "d": 6, "e": 10, "f": 40}
ROWS = pd.DataFrame({"c": np.random.default_rng(1).permutation(np.repeat(list(SIZES), list(SIZES.values())))})


@pytest.mark.parametrize("fraction", [0, 0.1, 0.25, 0.5, 0.99])
@pytest.mark.parametrize("time", [None, "t"])
def test_each_client_gives_its_share_but_keeps_a_row(fraction: float, time: str | None) -> None:
    test = held(ROWS.assign(t=range(62)), fraction=fraction, time=time)
    assert test.dtype == bool
    for client, size in SIZES.items():
        assert test[ROWS.c == client].sum() == min(round(fraction * size), size - 1)


def test_the_draw_depends_on_the_seed_and_not_on_names() -> None:
    test = held(ROWS)
    assert (held(ROWS) == test).all()
    assert (held(ROWS.assign(c=ROWS.c.map({name: f"{i} x" for i, name in enumerate("fedcba")}))) == test).all()
    assert (held(ROWS, seed=1) != test).any()


def test_every_row_is_drawn_as_often_as_any_other() -> None:
    frame = pd.DataFrame({"c": ["a", "b", "a", "b", "a", "b", "a", "b"]})
    share = np.mean([held(frame, seed=seed) for seed in range(400)], axis=0)
    assert np.abs(share - 0.25).max() < 0.08


DAYS = ["2024-03-01", "2024-01-09", "2024-01-10", "2023-12-31"]


@pytest.mark.parametrize(
    "times",
    [
        [9, 2, 3, 1],
        [2.5, -1.0, 0.0, -np.inf],
        pd.Series([9, 2, 3, 1], dtype="Int64"),
        DAYS,
        pd.to_datetime(DAYS),
        pd.to_datetime(DAYS).date,
        pd.to_datetime(DAYS).tz_localize("Europe/Vienna"),
        pd.Categorical(DAYS),
        ["2024-03-01T10:00:00+02:00", "2024-01-01", "2024-01-01 08:00", "2023"],
    ],
)
def test_the_latest_rows(times: Any) -> None:
    frame = pd.DataFrame({"c": "a", "t": times})
    assert held(frame, time="t").tolist() == [True, False, False, False]
    assert held(frame, time="t", fraction=0.5).tolist() == [True, False, True, False]


def test_of_equal_times_the_later_row_is_later() -> None:
    frame = pd.DataFrame({"c": list("abab" * 2), "t": [1, 5, 1, 5, 1, 5, 0, 5]})
    assert held(frame, time="t").tolist() == [False, False, False, False, True, False, False, True]


@pytest.mark.parametrize(
    "marks",
    [
        [0, 1, 0],
        [0.0, 1.0, 0.0],
        [False, True, False],
        ["train", "Test ", "TRAIN"],
        ["False", "true", "FALSE"],
        pd.Series([0, 1, 0], dtype="Int64"),
        pd.Categorical(["train", "test", "train"]),
    ],
)
def test_a_column_may_mark_test_rows(marks: Any) -> None:
    assert held(pd.DataFrame({"c": ["a", "a", "b"], "s": marks}), test_column="s").tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("columns", "asked", "sentence"),
    [
        ({}, {"fraction": 1.0}, "the fraction of test rows must be at least 0 and below 1, got 1.0"),
        ({}, {"fraction": -0.1}, "got -0.1"),
        ({}, {"fraction": float("nan")}, "got nan"),
        ({}, {"client": "d"}, "there is no column 'd': the table has c"),
        ({}, {"time": "when"}, "there is no column 'when': the table has c"),
        ({}, {"test_column": "split"}, "there is no column 'split'"),
        ({"s": [0, 1, 0, 1]}, {"test_column": "s", "time": "s"}, "name one of the two"),
        ({"c": ["a", "", "b", None]}, {}, "the client column 'c' is empty in 2 row.s., the first in line 3"),
        ({"t": ["2024-01-01", "x", "2024-01-02", None]}, {"time": "t"}, "no readable time in 2 row.s., .* line 3"),
        ({"t": [1, 2, np.nan, 3]}, {"time": "t"}, "'t' has no readable time in 1 row.s., the first in line 4"),
        ({"t": ["31.01.2024"] * 4}, {"time": "t"}, "no readable time in 4 row.s.*: write numbers or dates such as"),
        ({"t": [[1]] * 4}, {"time": "t"}, "the time column 't' holds neither numbers nor dates"),
        ({"s": [0, 1, 2, 0]}, {"test_column": "s"}, r"'s' must say 0 or 1, .* but 1 row.s. don't \(such as '2'\)"),
        ({"s": ["dev", "test", "train", "train"]}, {"test_column": "s"}, r"1 row.s. don't \(such as 'dev'\)"),
        ({"s": ["train", "valid", "", "test"]}, {"test_column": "s"}, r"2 row.s. don't \(such as 'valid'\)"),
        ({"s": [0, 1, np.nan, 0]}, {"test_column": "s"}, r"1 row.s. don't \(empty\)"),
        ({"s": [0] * 4}, {"test_column": "s"}, "the test column 's' marks no row"),
        ({"s": [1] * 4}, {"test_column": "s"}, "the test column 's' marks every row"),
        ({"s": [0, 0, 1, 1]}, {"test_column": "s"}, "all 2 rows of client 'b' are in test: leave it some to learn"),
        (
            {"c": ["a", "b", "b", "d"], "s": [0, 1, 1, 1]},
            {"test_column": "s"},
            "all 2 rows of client 'b' are in test, and so are those of 1 more client",
        ),
    ],
)
def test_bad_hold_outs(columns: dict[str, Any], asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Learn2pFedError, match=sentence) as caught:
        held(pd.DataFrame({"c": ["a", "a", "b", "b"]} | columns), **asked)
    assert str(caught.value).endswith(".")


def test_a_file_from_end_to_end(tmp_path: Path) -> None:
    frame = ward(200, day=range(200))
    for name in ("a.csv", "a.parquet"):
        frame.to_csv(tmp_path / name, index=False) if name == "a.csv" else frame.to_parquet(tmp_path / name)
        back = read_table(tmp_path / name)
        test = hold_out(back, client="hospital", fraction=0.2, time="day", test_column=None, seed=0)
        schema = learn(back, ~test, leave_out=["day", "ill"])
        assert schema == learn(frame, ~test, leave_out=["day", "ill"])
        np.testing.assert_allclose(schema.encode(back), schema.encode(frame), rtol=1e-12)
        assert set(schema.clients(back)) == {"north", "south"}
