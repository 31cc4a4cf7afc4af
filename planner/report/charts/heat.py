"""Draws what two degrees leave: a cell for each pair of values."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import altair as alt

from planner.report.charts.drawing import Width, table
from planner.report.figures.heat import HeatMap

_ROW_HEIGHT = 34
# Light enough for dark text in every cell, on light and dark pages; told apart by lightness too.
_SLOW, _FAST = "#e3f1fb", "#56b4e9"
_FILLS = {
    "may fit": "#fbeecb",
    "too large": "#f6d0a8",
    "forbidden": "#b9b9b9",
    "not tried": "#ececec",
}
_CELL_INK = "#1a1a1a"
_LABEL_PIXELS = 96


def heat_chart(found: HeatMap, width: Width, choose: bool = True) -> Any:
    """The cells of two degrees; `choose`: lists below the picture change which."""
    rows = [asdict(cell) for cell in found.cells]
    if not choose:
        rows = [row for row in rows if {row["a"], row["b"]} == set(found.first)]
    cells = (
        alt.Chart(table(rows))
        .transform_filter(
            "(datum.a == across && datum.b == up) || (datum.b == across && datum.a == up)"
        )
        .transform_calculate(
            column="datum.a == across ? datum.i : datum.j",
            row="datum.a == across ? datum.j : datum.i",
        )
        .encode(
            x=alt.X("column:O", axis=_axis(found, "across")),
            y=alt.Y("row:O", axis=_axis(found, "up"), sort="descending"),
            tooltip=alt.Tooltip("text:N", title="configuration"),
        )
    )
    boxes = cells.mark_rect(stroke="white", cursor="pointer")
    speed = alt.Scale(range=[_SLOW, _FAST], zero=False)
    kinds = alt.Scale(domain=list(_FILLS), range=list(_FILLS.values()))
    columns = alt.ExprRef("width < 400 ? 1 : 4")  # a phone has no place for more
    return (
        alt.layer(
            boxes.transform_filter("datum.kind == 'fits'").encode(
                color=alt.Color("speed:Q", title="fits: tokens/s of a GPU", scale=speed)
            ),
            boxes.transform_filter("datum.kind != 'fits'").encode(
                fill=alt.Fill("kind:N", title=None, scale=kinds, legend=alt.Legend(columns=columns))
            ),
            cells.mark_text(color=_CELL_INK, limit=_LABEL_PIXELS).encode(text=alt.Text("label:N")),
        )
        .add_params(*(_degree(found, name, at, choose) for at, name in enumerate(("across", "up"))))
        .properties(width=width, height=_ROW_HEIGHT * len(found.values[found.first[1]]))
    )


def _axis(found: HeatMap, degree: str) -> Any:
    """`tp 4`: the cells' places as the values that they stand for."""
    values = json.dumps(dict(found.values))
    return alt.Axis(
        title=None,
        labelAngle=0,
        ticks=False,
        domain=False,
        labelExpr=f"{degree} + ' ' + {values}[{degree}][datum.value]",
    )


def _degree(found: HeatMap, name: str, at: int, choose: bool) -> Any:
    title = {"across": "Across: ", "up": "Upwards: "}[name]
    choice = alt.binding_select(options=list(found.values), name=title)
    return alt.param(name=name, value=found.first[at], bind=choice if choose else alt.Undefined)
