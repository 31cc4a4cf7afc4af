"""Draws curves and points over two axes: scaling studies, clusters compared."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import altair as alt

from planner.report.charts.drawing import (
    BLUE,
    FILE_WIDTH,
    GREY,
    PALETTE,
    VERMILION,
    Width,
    colours,
    table,
)
from planner.report.figures.curves import CurvesFigure, Panel

_COLOURS = (BLUE, VERMILION)
_HEIGHT = 280
_COLUMNS = 2


def curves_chart(figure: CurvesFigure) -> Any:
    """The whole picture, two panels a row, with one legend below."""
    width = FILE_WIDTH // _COLUMNS - 60
    charts = [panel_chart(panel, width, panel.title) for panel in figure.panels]
    return alt.concat(*charts, columns=_COLUMNS, spacing=40).properties(
        title=alt.TitleParams(figure.title, subtitle=figure.note)
    )


def panel_chart(panel: Panel, width: Width, title: str = "") -> Any:
    """One pair of axes."""
    names = [line.name for line in panel.series]
    base = alt.Chart(table(_rows(panel))).encode(
        x=_axis(panel, 0),
        y=_axis(panel, 1),
        color=alt.Color(
            "series:N",
            title=None,
            scale=colours(names, _COLOURS if len(names) <= len(_COLOURS) else PALETTE),
        ),
        tooltip=alt.Tooltip("text:N", title=panel.title),
    )
    joined = [line.name for line in panel.series if line.joined]
    points = [point for line in panel.series for point in line.points]
    layers = [base.mark_rule().encode(y=alt.Y("low:Q"), y2=alt.Y2("high"))]
    if joined:
        only = alt.FieldOneOfPredicate(field="series", oneOf=joined)
        layers.append(
            base.mark_line(strokeWidth=2).transform_filter(only).encode(order=alt.Order("x:Q"))
        )
    layers.append(base.mark_point(filled=True, size=60, opacity=1))
    if any(point.marked for point in points):
        layers.append(base.mark_point(size=300).transform_filter("datum.marked"))
    if any(point.label for point in points):
        words = base.mark_text(align="left", dx=8, dy=-8, fontSize=11)
        words = words.transform_filter("datum.label")
        layers.append(words.encode(text=alt.Text("label:N")))
    if panel.ideal:
        layers.insert(0, _ideal(panel))
    return alt.layer(*layers).properties(width=width, height=_HEIGHT, title=title)


def _axis(panel: Panel, direction: int) -> Any:
    """The horizontal or the vertical axis. Numbers of GPUs are marked where there are points."""
    kind = alt.Y if direction else alt.X
    if direction:
        axis = alt.Axis(format=",~r", tickCount=6)
    elif panel.whole_numbers:
        counts = sorted({point.x for line in panel.series for point in line.points})
        axis = alt.Axis(grid=False, values=counts, format=",d", labelOverlap=True)
    else:
        axis = alt.Axis(grid=False, format=",~r", tickCount=8)
    if panel.logarithmic[direction]:
        scale = alt.Scale(type="log", nice=False, padding=16)
    elif direction:
        scale = alt.Scale(zero=panel.from_zero)
    else:
        scale = alt.Scale(zero=False, nice=False, padding=24)
    return kind(
        "y:Q" if direction else "x:Q",
        title=panel.y_title if direction else panel.x_title,
        scale=scale,
        axis=axis,
    )


def _rows(panel: Panel) -> list[dict[str, object]]:
    # A bar without an upper end stops at its point.
    return [
        {"series": line.name, **asdict(point), "x": float(point.x)}
        | ({} if math.isfinite(point.high) else {"high": point.y})
        for line in panel.series
        for point in line.points
    ]


def _ideal(panel: Panel) -> Any:
    rows = [{"x": float(x), "y": y} for x, y in panel.ideal]
    return (
        alt.Chart(table(rows))
        .mark_line(strokeDash=[5, 4], color=GREY)
        .encode(x=_axis(panel, 0), y=_axis(panel, 1))
    )
