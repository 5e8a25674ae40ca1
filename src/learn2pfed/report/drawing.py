"""Figures described once and drawn twice: by matplotlib (SVG, PNG) and by plotly (hover, zoom)."""

from __future__ import annotations

import html
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator
from plotly.graph_objects import Heatmap, Scatter
from plotly.io import to_html
from plotly.subplots import make_subplots

COLOURS = ("#3969ac", "#e68310", "#11a579", "#7f3c8d", "#cf1c90", "#80ba5a", "#a5aa99", "#f2b701")
OWN_TO_SHARED = (COLOURS[1], "#f7f7f7", COLOURS[0])  # orange to blue: told apart by colour-blind eyes too
MISSING = "#c4c4c4"
DOT_OPACITY = 0.65  # of small points, of which there are many
SHAPES = (("o", "circle"), ("s", "square"), ("D", "diamond"), ("^", "triangle-up"))  # matplotlib's and plotly's names

LETTER = 0.068  # inches of a letter of a tick label
LONGEST = 26  # letters of a name that are shown; hovering shows all
MOST_ROWS, MOST_COLUMNS = 60, 40  # names beside an axis; of more only every second, third, ... is written
FEW_DECADES = 3  # that leave room for numbers between powers of ten
PIXELS = 300 / 3.1  # of plotly for an inch of matplotlib


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
    log_y: bool = False

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

    @property
    def cell_width(self) -> float:
        """Inches: as wide as the column names, if all columns fit."""
        return min(max(0.5, _letters(self.columns) * LETTER), 7.5 / len(self.columns))

    @property
    def slanted(self) -> bool:
        """Whether the column names are too long to stand side by side."""
        return _letters(self.columns) * LETTER > self.cell_width

    @property
    def below(self) -> float:
        """Inches that slanted column names need."""
        return _letters(self.columns) * LETTER * 0.71 if self.slanted else 0.0

    @property
    def height(self) -> float:
        """Inches, by the number of rows."""
        return max(3.1, 1.0 + 0.2 * min(len(self.rows), MOST_ROWS)) + self.below

    @property
    def width(self) -> float:
        """Inches, by the number of columns."""
        return max(4.2, 1.2 + _letters(self.rows) * LETTER + self.cell_width * len(self.columns))

    @property
    def cells(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The values as an array, NaN where there is none."""
        values = np.array(self.values, dtype=np.float64)
        return np.where(np.isfinite(values), values, np.nan)

    def written(self, value: float) -> str:
        """The value as text, with decimals that fit the scale."""
        decimals = 0 if self.whole else max(0, 2 - math.floor(math.log10(self.high - self.low or 1.0)))
        return "" if math.isnan(value) else f"{value:.{decimals}f}"

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
        """The panels, row by row."""
        columns = 1 if self.named else self.n_columns
        return [self.panels[i : i + columns] for i in range(0, len(self.panels), columns)]


# ---------------------------------------------------------------- names, which come from anybody's files


def _short(name: str) -> str:
    """The name on one line; of a long one its beginning and its end."""
    line = "".join(letter if letter.isprintable() else " " for letter in name)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 10]}…{line[-9:]}"


def _letters(names: Sequence[str]) -> int:
    return max((len(_short(name)) for name in names), default=0)


def _literal(text: str) -> str:
    """Text that matplotlib doesn't take for mathematics."""
    return text.replace("$", r"\$")


def _escaped(text: str) -> str:
    """Text that plotly doesn't take for markup."""
    return html.escape(text, quote=False)


def _ticks(names: Sequence[str], most: int) -> tuple[list[int], list[str]]:
    """Places and names along an axis, at most so many."""
    places = list(range(0, len(names), max(1, -(-len(names) // most))))
    return places, [_short(names[place]) for place in places]


# ---------------------------------------------------------------- matplotlib


def draw_files(figure: Figure) -> dict[str, bytes]:
    """The figure as SVG and PNG."""
    columns = len(figure.grid[0])
    heights = [max(panel.height for panel in row) for row in figure.grid]
    width = max(panel.width for panel in figure.panels)
    canvas = Canvas(figsize=(width * columns, sum(heights)), layout="constrained")
    FigureCanvasAgg(canvas)
    grid = canvas.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
    for axes in grid.flat[len(figure.panels) :]:
        axes.set_axis_off()
    shown: dict[str, Any] = {}
    for panel, axes in zip(figure.panels, grid.flat, strict=False):
        shown |= _draw_panel(panel, axes)
    if len(shown) > 1:
        canvas.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=min(6, len(shown)), fontsize=8)
    canvas.suptitle(_literal(figure.title), fontsize=11)
    files = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in letters that the font lacks is drawn as boxes
        for kind in ("svg", "png"):
            buffer = BytesIO()
            canvas.savefig(buffer, format=kind, dpi=130, metadata={"Date": None} if kind == "svg" else None)
            files[f"{figure.name}.{kind}"] = buffer.getvalue()
    return files


def _draw_panel(panel: Panel | Heat | Dumbbell, axes: Any) -> dict[str, Any]:
    """Draw one panel; returns what belongs in the legend."""
    axes.set_title(_literal(panel.title), fontsize=9)
    axes.tick_params(labelsize=7)
    if isinstance(panel, Heat):
        _draw_heat(panel, axes)
        return {}
    axes.grid(alpha=0.25)
    axes.set_xlabel(_literal(panel.x_label), fontsize=8)
    return _draw_dumbbell(panel, axes) if isinstance(panel, Dumbbell) else _draw_series(panel, axes)


def _draw_series(panel: Panel, axes: Any) -> dict[str, Any]:
    handles = {}
    for series in panel.series:
        x = [_literal(place) if isinstance(place, str) else place for place in series.x]
        if series.kind == "marks":
            (handle,) = axes.plot(x, series.y, "o", color=series.colour, alpha=0.85, markersize=7)
        elif series.kind == "dots":
            (handle,) = axes.plot(x, series.y, ".", color=series.colour, alpha=DOT_OPACITY, markersize=5)
        else:
            (handle,) = axes.plot(x, series.y, "--" if series.dashed else "-", color=series.colour, linewidth=1.3)
        for label, place in zip(series.labels, zip(x, series.y, strict=True), strict=False):
            axes.annotate(_literal(_short(label)), place, (4, 4), textcoords="offset points", fontsize=7)
        if series.legend:
            handles[_literal(series.name)] = handle
    if panel.log_y:
        axes.set_yscale("log", subs=())
        _label_log(axes.yaxis, [value for series in panel.series for value in series.y])
    axes.set_ylabel(_literal(panel.y_label), fontsize=8)
    return handles


def _label_log(axis: Any, values: Sequence[float]) -> None:
    """Numbers at powers of ten and, where these are few, at 2 and 5."""
    if _decades(values) < FEW_DECADES:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")


def _decades(values: Sequence[float]) -> float:
    """How many powers of ten lie between the smallest positive value and the largest."""
    positive = [value for value in values if value > 0]
    return math.log10(max(positive) / min(positive)) if positive else 0.0


def _draw_heat(panel: Heat, axes: Any) -> None:
    scale = LinearSegmentedColormap.from_list("scale", panel.colours).with_extremes(bad=MISSING)
    cells = np.ma.masked_invalid(panel.cells)
    mesh = axes.pcolormesh(cells, cmap=scale, vmin=panel.low, vmax=panel.high, edgecolors="white", linewidth=panel.gap)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    places, names = _ticks(panel.rows, MOST_ROWS)
    axes.set_yticks([place + 0.5 for place in places], [_literal(name) for name in names])
    places, names = _ticks(panel.columns, MOST_COLUMNS)
    slant = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if panel.slanted else {}
    axes.set_xticks([place + 0.5 for place in places], [_literal(name) for name in names], **slant)
    if panel.roomy:
        for (i, j), value in np.ndenumerate(panel.cells):
            dark = np.dot(scale(mesh.norm(value))[:3], (0.299, 0.587, 0.114)) < 0.55
            style = {"ha": "center", "va": "center", "fontsize": 7, "color": "white" if dark else "black"}
            axes.text(j + 0.5, i + 0.5, panel.written(value), **style)
    bar = axes.figure.colorbar(mesh, ax=axes, shrink=min(1.0, 3 / panel.height), anchor=(0, 1), pad=0.02)
    bar.set_label(_literal(panel.label), fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)


def _shape(colour: str) -> tuple[str, str]:
    """The shape that goes with a colour, in every panel the same."""
    return SHAPES[COLOURS.index(colour) % len(SHAPES)]


def _draw_dumbbell(panel: Dumbbell, axes: Any) -> dict[str, Any]:
    for place, low, high in panel.spans():
        axes.plot((low, high), (place, place), "-", color="#aaaaaa", linewidth=1, zorder=1)
    handles = {}
    for (name, colour, _), values in zip(panel.marks, panel.values, strict=True):
        (handle,) = axes.plot(values, range(len(values)), _shape(colour)[0], color=colour, alpha=0.85, markersize=5.5)
        handles[_literal(name)] = handle
    if panel.log_x:
        axes.set_xscale("log", subs=(), nonpositive="mask")
        _label_log(axes.xaxis, panel.values.flatten().tolist())
    places, names = _ticks(panel.rows, MOST_ROWS)
    axes.set_yticks(places, [_literal(name) for name in names])
    axes.set_ylim(len(panel.rows) - 0.4, -0.6)
    return handles


# ---------------------------------------------------------------- plotly


def draw_interactive(figure: Figure) -> str:
    """The figure as an HTML fragment that needs plotly's script on the page."""
    below = PIXELS * max(panel.below for panel in figure.panels)
    heights = [PIXELS * max(panel.height - panel.below for panel in row) + below for row in figure.grid]
    page = make_subplots(
        rows=len(heights),
        cols=len(figure.grid[0]),
        subplot_titles=[_escaped(panel.title) for panel in figure.panels],
        row_heights=heights,
        vertical_spacing=(100 + below) / (sum(heights) - 50) if figure.named else None,
    )
    add: dict[type, Callable[..., None]] = {Panel: _add_series, Heat: _add_heat, Dumbbell: _add_dumbbell}
    for i, row in enumerate(figure.grid):
        for j, panel in enumerate(row):
            add[type(panel)](page, panel, {"row": i + 1, "col": j + 1})
    named: set[str] = set()
    for trace in page.data:  # a name that several panels share stands in the legend once
        trace.showlegend = trace.showlegend and trace.name not in named
        named |= {trace.name} if trace.showlegend else set()
    height = round(60 + sum(heights))
    above = {"xref": "container", "x": 0, "yref": "container", "y": 1 - 26 / height, "yanchor": "top"}
    page.update_layout(
        height=height,
        template="plotly_white",
        hovermode="closest",
        hoverdistance=-1,  # the nearest point, however far the mouse is from it
        margin={"l": 50, "r": 20, "t": 70, "b": 40},
        legend={"orientation": "h", **(above if figure.named else {"y": -0.12 / len(heights) - 0.06})},
        font={"size": 12},
    )
    fragment: str = to_html(
        page, full_html=False, include_plotlyjs=False, config={"displaylogo": False, "responsive": True}
    )
    return fragment


def _add_series(page: Any, panel: Panel, at: dict[str, int]) -> None:
    for series in panel.series:
        name = _escaped(series.name)
        common = {
            "x": [_escaped(place) if isinstance(place, str) else place for place in series.x],
            "y": list(series.y),
            "name": name,
            "legendgroup": name,
            "showlegend": series.legend,
        }
        if series.kind != "line":
            small = series.kind == "dots"
            marker = {"color": series.colour, "size": 6 if small else 11, "opacity": DOT_OPACITY if small else 0.85}
            beside = {"text": [_escaped(_short(label)) for label in series.labels], "textposition": "top center"}
            named = {"mode": "markers+text", "cliponaxis": False, **beside} if series.labels else {"mode": "markers"}
            page.add_trace(Scatter(**common, **named, marker=marker), **at)
        else:
            line = {"color": series.colour, "dash": "dash" if series.dashed else "solid", "width": 2}
            page.add_trace(Scatter(**common, mode="lines", line=line), **at)
    page.update_xaxes(title_text=_escaped(panel.x_label), **at)
    page.update_yaxes(title_text=_escaped(panel.y_label), exponentformat="power", **at)
    if panel.log_y:
        page.update_yaxes(**_log_axis([value for series in panel.series for value in series.y]), **at)


def _add_heat(page: Any, panel: Heat, at: dict[str, int]) -> None:
    cells = panel.cells
    hover = [
        [
            f"{_escaped(row)}<br>{_escaped(column)}: {'no value' if math.isnan(value) else f'{value:.3g}'}"
            for column, value in zip(panel.columns, values, strict=True)
        ]
        for row, values in zip(panel.rows, cells, strict=True)
    ]
    common = {"hovertext": hover, "hoverinfo": "text", "xgap": panel.gap, "ygap": panel.gap}
    if np.isnan(cells).any():
        grey = np.where(np.isnan(cells), 0.0, np.nan)
        page.add_trace(Heatmap(z=grey.tolist(), colorscale=[MISSING, MISSING], showscale=False, **common), **at)
    page.add_trace(
        Heatmap(
            z=cells.tolist(),
            zmin=panel.low,
            zmax=panel.high,
            colorscale=list(panel.colours),
            colorbar=_colour_bar(panel, page.get_subplot(**at).yaxis.domain[1]),
            text=[[panel.written(value) for value in row] for row in cells],
            texttemplate="%{text}" if panel.roomy else None,
            hoverongaps=False,
            **common,
        ),
        **at,
    )
    places, names = _ticks(panel.columns, MOST_COLUMNS)
    angle = -45 if panel.slanted else None
    page.update_xaxes(tickvals=places, ticktext=[_escaped(name) for name in names], tickangle=angle, **at)
    page.update_xaxes(showgrid=False, zeroline=False, automargin=True, **at)
    _add_rows(page, panel.rows, at)
    page.update_yaxes(showgrid=False, **at)


def _colour_bar(panel: Heat, top: float) -> dict[str, Any]:
    return {
        "title": {"text": _escaped(panel.label), "side": "right"},
        "y": top,
        "yanchor": "top",
        "lenmode": "pixels",
        "len": min(280, PIXELS * (panel.height - panel.below) - 80),
        "ypad": 0,
        "thickness": 14,
        "outlinewidth": 0,
    }


def _add_dumbbell(page: Any, panel: Dumbbell, at: dict[str, int]) -> None:
    lines = [(point, place) for place, low, high in panel.spans() for point in (low, high, None)]
    x, y = zip(*lines, strict=True) if lines else ((), ())
    line = {"color": "#aaaaaa", "width": 1.5}
    page.add_trace(Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False), **at)
    for (name, colour, _), values in zip(panel.marks, panel.values, strict=True):
        text = [
            f"{_escaped(row)}<br>{_escaped(name)}: {value:.4g}" for row, value in zip(panel.rows, values, strict=True)
        ]
        page.add_trace(
            Scatter(
                x=values.tolist(),
                y=list(range(len(values))),
                mode="markers",
                marker={"color": colour, "symbol": _shape(colour)[1], "size": 10, "opacity": 0.85},
                name=_escaped(name),
                legendgroup=_escaped(name),
                showlegend=True,
                hovertext=text,
                hoverinfo="text",
            ),
            **at,
        )
    page.update_xaxes(title_text=_escaped(panel.x_label), exponentformat="power", zeroline=False, **at)
    if panel.log_x:
        page.update_xaxes(**_log_axis(panel.values.flatten().tolist()), **at)
    _add_rows(page, panel.rows, at)


def _log_axis(values: Sequence[float]) -> dict[str, Any]:
    """Whole numbers at powers of ten and, where these are few, at 2 and 5; plotly would write bare digits."""
    decades = _decades(values)
    step = {} if decades < 0.7 else {"dtick": "D2"} if decades < FEW_DECADES else {"dtick": 1}
    return {"type": "log", "tickformat": "~g", **step}


def _add_rows(page: Any, rows: Sequence[str], at: dict[str, int]) -> None:
    """Names beside the rows, the first on top."""
    places, names = _ticks(rows, MOST_ROWS)
    page.update_yaxes(
        tickvals=places,
        ticktext=[_escaped(name) for name in names],
        range=[len(rows) - 0.5, -0.5],
        zeroline=False,
        automargin=True,
        ticks="outside",
        tickcolor="white",
        **at,
    )
