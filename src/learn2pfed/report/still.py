"""Figures as files: SVG and PNG, by matplotlib."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator

from learn2pfed.report.drawing import (
    DOT_OPACITY,
    FEW_DECADES,
    LETTER,
    MISSING,
    MOST_COLUMNS,
    MOST_ROWS,
    Dumbbell,
    Figure,
    Heat,
    Panel,
    decades,
    letters,
    shape,
    short,
    ticks,
)

LEGEND_LINE = 0.6
"""Inches that a name in the legend takes besides its letters."""


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
        fit = max(1, int(width * columns / (LETTER * letters(list(shown)) + LEGEND_LINE)))
        ncols = min(6, len(shown), fit)
        canvas.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=ncols, fontsize=8)
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
    axes.set_xlabel(_literal(panel.x_label), fontsize=8)
    if isinstance(panel, Heat):
        _draw_heat(panel, axes)
        return {}
    axes.grid(alpha=0.25)
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
            axes.annotate(_literal(short(label)), place, (4, 4), textcoords="offset points", fontsize=7)
        if series.legend:
            handles[_literal(series.name)] = handle
    if panel.log_x:
        axes.set_xscale("log", subs=())
        _label_log(axes.xaxis, [float(place) for series in panel.series for place in series.x])
    if panel.log_y:
        axes.set_yscale("log", subs=())
        _label_log(axes.yaxis, [value for series in panel.series for value in series.y])
    if panel.y_span is not None:
        axes.set_ylim(panel.y_span)
    axes.set_ylabel(_literal(panel.y_label), fontsize=8)
    return handles


def _label_log(axis: Any, values: Sequence[float]) -> None:
    """Numbers at powers of ten and, where these are few, at 2 and 5."""
    if decades(values) < FEW_DECADES:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")


def _draw_heat(panel: Heat, axes: Any) -> None:
    scale = LinearSegmentedColormap.from_list("scale", panel.colours).with_extremes(bad=MISSING)
    cells = np.ma.masked_invalid(panel.cells)
    mesh = axes.pcolormesh(cells, cmap=scale, vmin=panel.low, vmax=panel.high, edgecolors="white", linewidth=panel.gap)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    places, names = ticks(panel.rows, MOST_ROWS)
    axes.set_yticks([place + 0.5 for place in places], [_literal(name) for name in names])
    places, names = ticks(panel.columns, MOST_COLUMNS)
    slant = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if panel.slanted else {}
    axes.set_xticks([place + 0.5 for place in places], [_literal(name) for name in names], **slant)
    if panel.roomy:
        for (i, j), value in np.ndenumerate(panel.cells):
            dark = np.dot(scale(mesh.norm(value))[:3], (0.299, 0.587, 0.114)) < 0.55
            style = {"ha": "center", "va": "center", "fontsize": 7, "color": "white" if dark else "black"}
            axes.text(j + 0.5, i + 0.5, panel.written(value), **style)
    axes.set_ylabel(_literal(panel.y_label), fontsize=8)
    bar = axes.figure.colorbar(mesh, ax=axes, shrink=min(1.0, 3 / panel.height), anchor=(0, 1), pad=0.02)
    bar.set_label(_literal(panel.label), fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)


def _draw_dumbbell(panel: Dumbbell, axes: Any) -> dict[str, Any]:
    for place, low, high in panel.spans():
        axes.plot((low, high), (place, place), "-", color="#aaaaaa", linewidth=1, zorder=1)
    handles = {}
    for (name, colour, _), values in zip(panel.marks, panel.values, strict=True):
        (handle,) = axes.plot(values, range(len(values)), shape(colour)[0], color=colour, alpha=0.85, markersize=5.5)
        handles[_literal(name)] = handle
    if panel.log_x:
        axes.set_xscale("log", subs=(), nonpositive="mask")
        _label_log(axes.xaxis, panel.values.flatten().tolist())
    places, names = ticks(panel.rows, MOST_ROWS)
    axes.set_yticks(places, [_literal(name) for name in names])
    axes.set_ylim(len(panel.rows) - 0.4, -0.6)
    return handles


def _literal(text: str) -> str:
    """Text that matplotlib doesn't take for mathematics."""
    return text.replace("$", r"\$")
