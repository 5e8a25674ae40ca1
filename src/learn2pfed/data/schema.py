"""What the columns of a user's table mean: whose row it is, what is asked, and how the rest becomes numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, model_validator

from learn2pfed.data.tabular import Texts, client_texts, kind_of, line, listed, need_columns, texts
from learn2pfed.errors import Learn2pFedError

MAX_LEVELS = 50
"""A text column with more different texts is taken for an identifier."""

MAX_CLASSES = 100
"""A target with more different labels is taken for a number or a name."""

HUGE = 1e100
"""Larger numbers are typing errors, and sums of their squares could leave float64."""

COPY = 1e-12
"""Two columns whose correlation is within this of 1 or -1 say the same."""

NEARLY = 0.8
"""A text column of which this share reads as numbers (or dates) was meant to hold numbers (or dates)."""

DATE = re.compile(r"(\d{4}([-/])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4})([T ]+\d{1,2}:\d{2}.*)?")

DECORATION = str.maketrans("", "", ", %$€£")
"""What stands in numbers that a person wrote: '12,5', '1,200', '3 %'."""

CHUNK = 1 << 16
"""Rows compared at once when looking for copies: memory stays small however long the table is."""

ADVICE = "leave it out of --features"

DATES = f"holds dates: turn it into numbers (days since a start, month, weekday), or {ADVICE}."


class Column(BaseModel):
    """A feature column: a number, or a category whose first level is the one that the others are compared to."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    kind: Literal["number", "category"]
    levels: tuple[str, ...] = ()
    fill: float | str | None = None

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        number = self.kind == "number"
        if bool(self.levels) == number or len(set(self.levels)) < len(self.levels):
            raise ValueError(f"column {self.name!r}: a category has levels, each once, and a number has none")
        if self.fill is not None and not (isinstance(self.fill, float) if number else self.fill in self.levels):
            raise ValueError(f"column {self.name!r}: the fill {self.fill!r} is not one of its values")
        return self

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the encoded features: its own, or one for each level but the first."""
        return (self.name,) if self.kind == "number" else tuple(f"{self.name}={level}" for level in self.levels[1:])

    def encode(self, values: pd.Series, out: NDArray[np.float64]) -> int:
        """Write the encoded features into the zeros of `out` (N, features); returns how many rows stay missing."""
        if self.kind == "number":
            out[:, 0] = _numbers(values, f"column {self.name!r}")
            missing = np.isnan(out[:, 0])
            if self.fill is not None:
                out[missing, 0] = self.fill
        else:
            level = self._levels_of(values)
            missing = level < 0
            if self.fill is not None:
                level[missing] = self.levels.index(str(self.fill))
            other = np.flatnonzero(level > 0)
            out[other, level[other] - 1] = 1.0
        return 0 if self.fill is not None else int(missing.sum())

    def _levels_of(self, values: pd.Series) -> NDArray[np.int64]:
        """Each row's level, -1 where it is missing; levels that training never saw are refused, or count as missing."""
        found = texts(values)
        level = _places(found, self.levels)
        strange = (level < 0) & (found.codes >= 0)
        if self.fill is None and strange.any():
            raise Learn2pFedError(
                f"column {self.name!r} has {strange.sum()} row(s) with levels that no training row has (the first, "
                f"{found.first(strange)!r}, in line {line(values, strange)}): drop them, give them another level, or "
                "fit with --impute."
            )
        return level


class Schema(BaseModel):
    """How a table is read: learned from the training rows once, kept with the model, applied to any later table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    client: str
    target: str
    task: Literal["regression", "classification"]
    columns: tuple[Column, ...]
    classes: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the encoded features, in the order of `encode`."""
        return tuple(name for column in self.columns for name in column.features)

    @classmethod
    def learn(
        cls,
        frame: pd.DataFrame,
        train: NDArray[np.bool_],
        *,
        client: str,
        target: str,
        features: Sequence[str] | None,
        leave_out: Sequence[str] = (),
        task: Literal["regression", "classification"],
        impute: bool,
    ) -> Schema:
        """Levels, fills and classes from the rows `train`; whatever a model could stumble over is refused."""
        if not train.any():
            raise Learn2pFedError("there are no training rows: hold out fewer.")
        names = _chosen(frame, client, target, features, leave_out)
        client_texts(frame, client)
        classes = _learn_target(frame[target], train, task)
        learned = [_learn_column(frame[name], train, impute) for name in names]
        if not impute:
            _refuse_missing({column.name: missing for column, missing in learned})
        columns = tuple(column for column, _ in learned)
        schema = cls(client=client, target=target, task=task, columns=columns, classes=classes)
        twice = [name for name, count in Counter(schema.features).items() if count > 1]
        if twice:
            raise Learn2pFedError(f"two features would be called {twice[0]!r}: rename a column.")
        if task == "classification":
            _refuse_labels(schema, frame, train)
        _refuse_copies(schema, frame, np.flatnonzero(train))
        return schema

    def encode(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """Rows as numbers (N, k); the order of the columns does not matter, and others are ignored."""
        need_columns(frame, [column.name for column in self.columns])
        out = np.zeros((len(frame), len(self.features)))
        missing, start = {}, 0
        for column in self.columns:
            end = start + len(column.features)
            missing[column.name] = column.encode(frame[column.name], out[:, start:end])
            start = end
        _refuse_missing(missing)
        return out

    def clients(self, frame: pd.DataFrame) -> NDArray[np.object_]:
        """Whose row each is, as text."""
        found = client_texts(frame, self.client)
        names: NDArray[np.object_] = np.array(found.names, dtype=object)[found.codes]
        return names

    def answers(self, frame: pd.DataFrame) -> NDArray[np.float64] | NDArray[np.int64]:
        """What is asked: the target's numbers, or each label's place in `classes`."""
        need_columns(frame, [self.target])
        values = frame[self.target]
        if self.task == "regression":
            return _target_numbers(values)
        found = _target_texts(values)
        place = _places(found, self.classes)
        strange = place < 0
        if strange.any():
            raise Learn2pFedError(
                f"the target {self.target!r} has {strange.sum()} row(s) with labels that no training row has (the "
                f"first, {found.first(strange)!r}, in line {line(values, strange)}): drop them; known are "
                f"{listed(self.classes)}."
            )
        return place


def _places(found: Texts, known: Sequence[str]) -> NDArray[np.int64]:
    """Each row's place among the known texts, -1 where it has none."""
    place = np.append(pd.Index(known, dtype=object).get_indexer(found.names), -1).astype(np.int64)
    return place[found.codes]


def _chosen(
    frame: pd.DataFrame, client: str, target: str, features: Sequence[str] | None, leave_out: Sequence[str]
) -> list[str]:
    """The feature columns: those asked for, or all but client, target and what is to be left out."""
    need_columns(frame, [client, target, *leave_out, *(features or ())])
    if client == target:
        raise Learn2pFedError(f"column {client!r} is named as client and as target: name two columns.")
    left = [name for name in frame.columns if name not in {client, target, *leave_out}]
    names = left if features is None else list(features)
    for role, name in (("client", client), ("target", target)):
        if name in names:
            raise Learn2pFedError(f"the {role} column {name!r} can't be a feature too: take it out of --features.")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise Learn2pFedError(f"feature {twice[0]!r} is named twice: name it once in --features.")
    if not names:
        raise Learn2pFedError("there are no features: name a column besides client and target.")
    return names


def _numbers(values: pd.Series, what: str) -> NDArray[np.float64]:
    """A column of numbers as float64, NaN where one is missing; `what` names the column in a sentence."""
    kind = kind_of(values)
    if kind == "text":
        _refuse_mistyped(values, texts(values), what, share=0.0)
        return np.full(len(values), np.nan)  # blanks only
    if kind == "dates":
        raise Learn2pFedError(f"{what} {DATES}")
    if kind == "other":
        raise Learn2pFedError(f"{what} holds neither numbers nor text ({values.dtype}): turn it into numbers.")
    try:
        x: NDArray[np.float64] = values.to_numpy(dtype=np.float64, na_value=np.nan)
    except OverflowError as error:
        raise Learn2pFedError(f"{what} has huge values, beyond {HUGE:g}: mend them or drop those rows.") from error
    wild = np.abs(x) > HUGE
    if wild.any():
        raise Learn2pFedError(
            f"{what} has {wild.sum()} infinite or huge value(s), beyond {HUGE:g} (the first in line "
            f"{line(values, wild)}): mend them or drop those rows."
        )
    return x


def _refuse_mistyped(values: pd.Series, found: Texts, what: str, share: float = NEARLY) -> None:
    """Refuse text of which at least this share are numbers, also those with a decimal comma or a percent sign."""
    counts = found.counts()
    if not counts.any():
        return
    bare = [name.translate(DECORATION) for name in found.names]
    like = pd.to_numeric(pd.Series(bare, dtype=object), errors="coerce").notna().to_numpy()
    if counts[like].sum() < share * counts.sum():
        return
    proper = pd.to_numeric(pd.Series(found.names, dtype=object), errors="coerce").notna().to_numpy()
    bad = ~np.append(proper, True)[found.codes]
    if not bad.any():
        raise Learn2pFedError(
            f"{what} holds numbers that are stored as text: store them as numbers, or as a categorical type."
        )
    some = "1 entry that is not a number" if bad.sum() == 1 else f"{bad.sum()} entries that are not numbers"
    raise Learn2pFedError(
        f"{what} has {some} (the first, {found.first(bad)!r}, in line {line(values, bad)}): mend them (12.5, with a "
        "point), or write every entry as a word if it is a category."
    )


def _refuse_missing(counts: dict[str, int]) -> None:
    """Refuse columns with missing values, with how many there are."""
    gaps = [f"{name} {count}" for name, count in counts.items() if count]
    if gaps:
        raise Learn2pFedError(f"there are missing values: {listed(gaps)}: fill or drop them, or fit with --impute.")


def _refuse_same(name: str, values: Sequence[object]) -> None:
    """Refuse a column whose different values in the training rows are fewer than two."""
    if len(values) < 2:
        what = "has the same value" if values else "is empty"
        raise Learn2pFedError(f"column {name!r} {what} in every training row: drop it, or {ADVICE}.")


def _learn_column(values: pd.Series, train: NDArray[np.bool_], impute: bool) -> tuple[Column, int]:
    """A feature column, and how many of all rows have no value."""
    name = str(values.name)
    if kind_of(values) == "text":
        return _learn_category(name, values, train, impute)
    x = _numbers(values, f"column {name!r}")
    missing = np.isnan(x)
    seen = x[train & ~missing]
    _refuse_same(name, sorted({seen.min(), seen.max()}) if len(seen) else [])
    return Column(name=name, kind="number", fill=float(seen.mean()) if impute else None), int(missing.sum())


def _learn_category(name: str, values: pd.Series, train: NDArray[np.bool_], impute: bool) -> tuple[Column, int]:
    """A text column: its levels are those of the training rows, the most frequent first."""
    found = texts(values)
    counts, seen = found.counts(), found.counts(train)
    dates = sum(int(n) for text, n in zip(found.names, counts, strict=True) if DATE.fullmatch(text))
    if dates > NEARLY * counts.sum():
        raise Learn2pFedError(f"column {name!r} {DATES}")
    if not isinstance(values.dtype, pd.CategoricalDtype):
        _refuse_mistyped(values, found, f"column {name!r}")
    if (counts > 0).sum() > MAX_LEVELS:
        raise Learn2pFedError(
            f"column {name!r} has {(counts > 0).sum()} different texts: it looks like an identifier; {ADVICE}."
        )
    often = {text: int(n) for text, n in zip(found.names, seen, strict=True) if n}
    _refuse_same(name, list(often))
    reference = min(often, key=lambda text: (-often[text], text))
    levels = (reference, *sorted(often.keys() - {reference}))
    column = Column(name=name, kind="category", levels=levels, fill=reference if impute else None)
    return column, int((found.codes < 0).sum())


def _refuse_gaps(values: pd.Series, gaps: NDArray[np.bool_]) -> None:
    """A target must be there: a guess would be learned as if it were true."""
    if gaps.any():
        raise Learn2pFedError(
            f"the target {values.name!r} is missing in {gaps.sum()} row(s), the first in line {line(values, gaps)}: "
            "drop those rows."
        )


def _target_numbers(values: pd.Series) -> NDArray[np.float64]:
    """The target of a regression."""
    what = f"the target {values.name!r}"
    kind = kind_of(values)
    if kind == "text":
        _refuse_mistyped(values, _target_texts(values), what)
    if kind == "text" or pd.api.types.infer_dtype(values, skipna=True) == "boolean":
        held = "text" if kind == "text" else "true and false"
        raise Learn2pFedError(f"{what} holds {held}, not numbers: fit with --task classification.")
    y = _numbers(values, what)
    _refuse_gaps(values, np.isnan(y))
    return y


def _target_texts(values: pd.Series) -> Texts:
    """The target of a classification."""
    found = texts(values)
    _refuse_gaps(values, found.codes < 0)
    return found


def _learn_target(values: pd.Series, train: NDArray[np.bool_], task: str) -> tuple[str, ...]:
    """The classes, in numerical order if all are numbers; none for a regression, whose numbers are checked."""
    if task == "regression":
        y = _target_numbers(values)[train]
        if y.min() == y.max():
            raise Learn2pFedError(f"the target {values.name!r} is {y[0]:g} in every training row: nothing to learn.")
        return ()
    found = _target_texts(values)
    classes = [name for name, n in zip(found.names, found.counts(train), strict=True) if n]
    if len(classes) < 2:
        raise Learn2pFedError(
            f"the target {values.name!r} is {classes[0]!r} in every training row: a classification needs two classes."
        )
    if len(classes) > MAX_CLASSES:
        raise Learn2pFedError(
            f"the target {values.name!r} has {len(classes)} different labels, more than {MAX_CLASSES}: if they are "
            "numbers, add --task regression."
        )
    numbers = pd.to_numeric(pd.Series(classes, dtype=object), errors="coerce")
    order = zip(numbers, classes, strict=True) if numbers.notna().all() else zip(classes, classes, strict=True)
    return tuple(name for _, name in sorted(order))


def _refuse_labels(schema: Schema, frame: pd.DataFrame, train: NDArray[np.bool_]) -> None:
    """Refuse a feature that reads like the label in every training row."""
    labels = frame.loc[train, schema.target]
    place = _places(texts(labels), schema.classes)
    for column in schema.columns:
        values = frame.loc[train, column.name]
        if values.nunique() <= len(schema.classes) and (_places(texts(values), schema.classes) == place).all():
            _refuse_copy(column.name, schema.target)


def _refuse_copy(name: str, target: str) -> None:
    raise Learn2pFedError(
        f"column {name!r} says the same as the target {target!r} in every row: leave it out, or the model only copies "
        "it."
    )


def _refuse_copies(schema: Schema, frame: pd.DataFrame, rows: NDArray[np.int64]) -> None:
    """Refuse columns that follow from another, or from the target of a regression, by a factor and a constant."""
    single = schema.model_copy(update={"columns": tuple(c for c in schema.columns if len(c.features) == 1)})
    names = [column.name for column in single.columns]
    regression = schema.task == "regression"
    if len(rows) < 3:  # two points always lie on a line
        return

    def block(start: int) -> NDArray[np.float64]:
        part = frame.iloc[rows[start : start + CHUNK]]
        X = single.encode(part)
        return np.column_stack([X, _target_numbers(part[schema.target])]) if regression else X

    starts = range(0, len(rows), CHUNK)
    mean = np.sum([block(start).sum(0) for start in starts], axis=0) / len(rows)
    gram = np.zeros((len(mean), len(mean)))
    for start in starts:
        centred = block(start) - mean
        gram += centred.T @ centred
    size = np.sqrt(gram.diagonal())
    same = np.triu(np.abs(gram) > (1 - COPY) * np.outer(size, size), 1)
    if regression and same[:, -1].any():
        _refuse_copy(names[int(same[:, -1].argmax())], schema.target)
    for i, j in np.argwhere(same)[:1]:
        raise Learn2pFedError(f"columns {names[i]!r} and {names[j]!r} say the same in every row: drop {names[j]!r}.")
