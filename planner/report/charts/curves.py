"""Draws curves and points over two axes: scaling studies, clusters compared."""

from __future__ import annotations

import math
from dataclasses import asdict

from planner.report.charts.drawing import FILE_WIDTH, Row, Specification, Width, colours, table
from planner.report.charts.templates import BLUE, PALETTE, VERMILION, filled
from planner.report.figures.curves import CurvesFigure, Panel

_COLOURS = (BLUE, VERMILION)
_COLUMNS = 2


def curves_chart(figure: CurvesFigure) -> Specification:
    """The whole picture, two panels a row, with one legend below."""
    width = FILE_WIDTH // _COLUMNS - 60
    return {
        "concat": [panel_chart(panel, width, panel.title) for panel in figure.panels],
        "columns": _COLUMNS,
        "spacing": 40,
        "title": {"text": figure.title, "subtitle": figure.note},
    }


def panel_chart(panel: Panel, width: Width, title: str = "") -> Specification:
    """One pair of axes. Numbers of GPUs are marked where there are points."""
    points = panel.points
    names = list(dict.fromkeys(point.series for point in points))
    logarithmic_x, logarithmic_y = panel.logarithmic
    return filled(
        "curves",
        width=width,
        title=title,
        told=panel.title,
        x_title=panel.x_title,
        y_title=panel.y_title,
        x_scale="log" if logarithmic_x else "linear_x",
        y_scale="log" if logarithmic_y else "linear_y",
        x_axis="counts" if panel.whole_numbers else "amounts",
        from_zero=panel.from_zero,
        whole_numbers=sorted({point.x for point in points}),
        colours=colours(names, _COLOURS if len(names) <= len(_COLOURS) else PALETTE),
        points=table(_rows(panel)),
        joined=[name for name in names if panel.joined in ("", name)],
        marked=any(point.marked for point in points),
        labelled=any(point.label for point in points),
        ideal=table({"x": float(x), "y": y} for x, y in panel.ideal) if panel.ideal else None,
    )


def _rows(panel: Panel) -> list[Row]:
    # A bar without an upper end stops at its point.
    return [
        asdict(point)
        | {"x": float(point.x), "high": point.high if math.isfinite(point.high) else point.y}
        for point in panel.points
    ]
