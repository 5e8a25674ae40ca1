"""Figures on the page, with hover and zoom: by plotly."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from plotly.graph_objects import Heatmap, Scatter
from plotly.io import to_html
from plotly.subplots import make_subplots

from learn2pfed.report.drawing import (
    DOT_OPACITY,
    FEW_DECADES,
    MISSING,
    MOST_COLUMNS,
    MOST_ROWS,
    Dumbbell,
    Figure,
    Heat,
    Panel,
    decades,
    shape,
    short,
    ticks,
)

PIXELS = 300 / 3.1  # for an inch of a still figure


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
            beside = {"text": [_escaped(short(label)) for label in series.labels], "textposition": "top center"}
            named = {"mode": "markers+text", "cliponaxis": False, **beside} if series.labels else {"mode": "markers"}
            page.add_trace(Scatter(**common, **named, marker=marker), **at)
        else:
            line = {"color": series.colour, "dash": "dash" if series.dashed else "solid", "width": 2}
            page.add_trace(Scatter(**common, mode="lines", line=line), **at)
    page.update_xaxes(title_text=_escaped(panel.x_label), **at)
    page.update_yaxes(title_text=_escaped(panel.y_label), exponentformat="power", **at)
    if panel.log_x:
        page.update_xaxes(**_log_axis([float(place) for series in panel.series for place in series.x]), **at)
    if panel.y_span is not None:
        page.update_yaxes(range=panel.y_span, **at)
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
    places, names = ticks(panel.columns, MOST_COLUMNS)
    angle = -45 if panel.slanted else None
    page.update_xaxes(tickvals=places, ticktext=[_escaped(name) for name in names], tickangle=angle, **at)
    page.update_xaxes(
        title={"text": _escaped(panel.x_label), "standoff": 4}, showgrid=False, zeroline=False, automargin=True, **at
    )
    _add_rows(page, panel.rows, at)
    page.update_yaxes(title_text=_escaped(panel.y_label), showgrid=False, **at)


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
                marker={"color": colour, "symbol": shape(colour)[1], "size": 10, "opacity": 0.85},
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
    wide = decades(values)
    step = {} if wide < 0.7 else {"dtick": "D2"} if wide < FEW_DECADES else {"dtick": 1}
    return {"type": "log", "tickformat": "~g", **step}


def _add_rows(page: Any, rows: Sequence[str], at: dict[str, int]) -> None:
    """Names beside the rows, the first on top."""
    places, names = ticks(rows, MOST_ROWS)
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


def _escaped(text: str) -> str:
    """Text that plotly doesn't take for markup."""
    return html.escape(text, quote=False)
