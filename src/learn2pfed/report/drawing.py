"""What a figure is: described once here, drawn twice, still (by matplotlib) and interactive (by plotly)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

COLOURS = ("#3969ac", "#e68310", "#11a579", "#7f3c8d", "#cf1c90", "#80ba5a", "#a5aa99", "#f2b701")
OWN_TO_SHARED = (COLOURS[1], "#f7f7f7", COLOURS[0])  # orange to blue: told apart by colour-blind eyes too
BLACK, MISSING = "#222222", "#c4c4c4"
DOT_OPACITY = 0.65  # of small points, of which there are many
SHAPES = (("o", "circle"), ("s", "square"), ("D", "diamond"), ("^", "triangle-up"))  # matplotlib's and plotly's names

LETTER = 0.068  # inches of a letter of a tick label
LONGEST = 26  # letters of a name that are shown; hovering shows all
MOST_ROWS, MOST_COLUMNS = 60, 40  # names beside an axis; of more only every second, third, ... is written
FEW_DECADES = 3  # that leave room for numbers between powers of ten


@dataclass(frozen=True)
class Series:
    """One curve, cloud of data, or marks over named places."""

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float]
    kind: Literal["line", "dots", "marks"] = "line"
    colour: str = COLOURS[0]
    dashed: bool = False
    legend: bool = True
    labels: Sequence[str] = ()  # beside the points


@dataclass(frozen=True)
class Panel:
    """One pair of axes with series."""

    title: str
    series: tuple[Series, ...]
    x_label: str = ""
    y_label: str = ""
    log_x: bool = False
    log_y: bool = False
    y_span: tuple[float, float] | None = None  # that is seen; none: all

    height = 3.1
    width = 4.2
    below = 0.0


@dataclass(frozen=True)
class Heat:
    """One coloured cell for every row and column; grey where there is no value."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    low: float = 0.0
    high: float = 1.0
    label: str = ""
    colours: tuple[str, str, str] = OWN_TO_SHARED
    whole: bool = False  # values are counts
    x_label: str = ""
    y_label: str = ""

    @property
    def cell_width(self) -> float:
        """Inches: as wide as the column names, if all columns fit."""
        return min(max(0.5, letters(self.columns) * LETTER), 7.5 / len(self.columns))

    @property
    def slanted(self) -> bool:
        """Whether the column names are too long to stand side by side."""
        return letters(self.columns) * LETTER > self.cell_width

    @property
    def below(self) -> float:
        """Inches that slanted column names need."""
        return letters(self.columns) * LETTER * 0.71 if self.slanted else 0.0

    @property
    def height(self) -> float:
        """Inches, by the number of rows."""
        return max(3.1, 1.0 + 0.2 * min(len(self.rows), MOST_ROWS)) + self.below

    @property
    def width(self) -> float:
        """Inches, by the number of columns."""
        return max(4.2, 1.2 + letters(self.rows) * LETTER + self.cell_width * len(self.columns))

    @property
    def cells(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The values as an array, NaN where there is none."""
        values = np.array(self.values, dtype=np.float64)
        return np.where(np.isfinite(values), values, np.nan)

    def written(self, value: float) -> str:
        """The value as text, with decimals that fit the scale; of counts 0 goes without saying."""
        decimals = 0 if self.whole else max(0, 2 - math.floor(math.log10(self.high - self.low or 1.0)))
        return "" if math.isnan(value) or (self.whole and not value) else f"{value:.{decimals}f}"

    @property
    def gap(self) -> int:
        """Between cells, unless they are too small for it."""
        return int(len(self.columns) <= MOST_COLUMNS and len(self.rows) <= MOST_ROWS)

    @property
    def roomy(self) -> bool:
        """Whether the values fit into the cells."""
        return len(self.columns) <= 12 and len(self.rows) <= 30


@dataclass(frozen=True)
class Dumbbell:
    """Several marks (name, colour, values by row) on one line per row; a mark without a value is left out."""

    title: str
    rows: Sequence[str]
    marks: Sequence[tuple[str, str, Sequence[float | None]]]
    x_label: str = ""

    width = 7.5
    below = 0.0

    @property
    def height(self) -> float:
        """Inches, by the number of rows."""
        return max(2.2, 1.1 + 0.2 * min(len(self.rows), MOST_ROWS))

    @property
    def values(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """One row for each mark, NaN where there is no value."""
        values = np.array([values for _, _, values in self.marks], dtype=np.float64)
        return np.where(np.isfinite(values), values, np.nan)

    @property
    def log_x(self) -> bool:
        """Whether the largest value is more than 30 times the smallest positive one."""
        positive = self.values[self.values > 0]
        return bool(positive.size and positive.max() > 30 * positive.min())

    def spans(self) -> Iterator[tuple[int, float, float]]:
        """Each row with its smallest and largest value."""
        for place, values in enumerate(self.values.T):
            shown = values[values > 0] if self.log_x else values[~np.isnan(values)]
            if shown.size:
                yield place, float(shown.min()), float(shown.max())


@dataclass(frozen=True)
class Figure:
    """Panels side by side, those with named rows one below the other, and a sentence that says what to see."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel | Heat | Dumbbell, ...]
    n_columns: int = 3

    @property
    def named(self) -> bool:
        """Whether a panel has named rows."""
        return not all(isinstance(panel, Panel) for panel in self.panels)

    @property
    def grid(self) -> list[tuple[Panel | Heat | Dumbbell, ...]]:
        """The panels, row by row, no row much shorter than another."""
        n_rows = len(self.panels) if self.named else math.ceil(len(self.panels) / self.n_columns)
        columns = math.ceil(len(self.panels) / n_rows)
        return [self.panels[i : i + columns] for i in range(0, len(self.panels), columns)]


def line_of(name: str, names: Sequence[str]) -> tuple[str, bool]:
    """Colour of a method's curve and whether it is dashed, by its place among all: the same in every figure.

    Learn2pFed's is black.
    """
    place = names.index(name)
    return (BLACK, False) if name == "Learn2pFed" else (COLOURS[place % len(COLOURS)], place >= len(COLOURS))


def shape(colour: str) -> tuple[str, str]:
    """The shape that goes with a colour, in every panel the same."""
    return SHAPES[COLOURS.index(colour) % len(SHAPES)]


def decades(values: Sequence[float]) -> float:
    """How many powers of ten lie between the smallest positive value and the largest."""
    positive = [value for value in values if value > 0]
    return math.log10(max(positive) / min(positive)) if positive else 0.0


# ---------------------------------------------------------------- names, which come from anybody's files


def short(name: str) -> str:
    """The name on one line; of a long one its beginning and its end."""
    line = "".join(letter if letter.isprintable() else " " for letter in name)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 10]}…{line[-9:]}"


def letters(names: Sequence[str]) -> int:
    """How long the longest is."""
    return max((len(short(name)) for name in names), default=0)


def ticks(names: Sequence[str], most: int) -> tuple[list[int], list[str]]:
    """Places and names along an axis, at most so many."""
    places = list(range(0, len(names), max(1, -(-len(names) // most))))
    return places, [short(names[place]) for place in places]
