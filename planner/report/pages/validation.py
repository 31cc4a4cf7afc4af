"""The page of `planner validate --plot FILE.html`: every run drawn, errors by family, the worst."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.evidence.runs.families import Family
from planner.evidence.runs.predict import Prediction
from planner.evidence.runs.report import known
from planner.evidence.runs.worst import describe, worst_rows
from planner.job.quantities import GIB
from planner.predict.uncertainty.families import Figure
from planner.report.charts.drawing import Drawing
from planner.report.charts.measured import RunPoint, scatter_chart
from planner.report.pages.page import Page, Section
from planner.report.tables import Report, TableData, table

# Name of the drawing, title, unit and its size.
_DRAWN: dict[Figure, tuple[str, str, str, float]] = {
    "time": ("step_time_s", "Step time", "s", 1.0),
    "memory": ("peak_mem_gib", "Peak memory", "GiB", GIB),
}


def validation_page(predictions: Sequence[Prediction], family: Family, report: Report) -> Page:
    """The page of predicted rows above the tables of their report."""
    predicted = sum(one.error is None for one in predictions)
    lead = (
        f"{predicted:,} of {len(predictions):,} measured runs predicted from their configuration "
        "alone. One dot a run; point at it for its row."
    )
    sections = (
        Section("Step time and peak memory", [*_drawings(predictions, family)], side_by_side=True),
        Section("Errors by family", blocks=report.blocks),
        Section("Worst rows, and why", blocks=(_worst(predictions),)),
    )
    return Page("Predicted against measured", lead, sections)


def _drawings(predictions: Sequence[Prediction], family: Family) -> Iterator[Drawing]:
    for figure, (name, title, unit, size) in _DRAWN.items():
        points = []
        for one in predictions:
            if pair := known(one, figure):
                predicted, measured = (value / size for value in pair)
                text = (
                    f"{one.row.place}: {describe(one)}: measured {measured:.4g} {unit}, predicted "
                    f"{predicted:.4g} {unit} ({(predicted / measured - 1) * 100:+.1f} %)"
                )
                points.append(RunPoint(measured, predicted, family(one), text))
        if points:
            chart = scatter_chart(points, "", unit)
            yield Drawing(name, title, chart)


def _worst(predictions: Sequence[Prediction]) -> TableData:
    rows = (
        (
            row.description,
            f"{row.source}, {row.file} line {row.line}",
            f"{row.measured_s:.4g}",
            f"{row.predicted_s:.4g}",
            f"{row.error * 100:+.1f} %",
            row.why,
        )
        for row in worst_rows(predictions)
    )
    return table("<run | <where | measured s | predicted s | error | <why", rows)
