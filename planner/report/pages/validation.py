"""The page of `planner validate --plot FILE.html`: every run drawn, errors by family, the worst."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from planner.evidence.runs.rows import MeasuredRow
from planner.report.charts.drawing import specification
from planner.report.charts.scatter import Point, scatter_chart
from planner.report.pages.page import Drawing, Page, Section
from planner.report.tables import Report, TableData, table

Record = dict[str, Any]

_FIGURES = (
    ("Step time", "step_time_s", "predicted_step_time_s", "s"),
    ("Peak memory", "peak_mem_gib", "predicted_peak_mem_gib", "GiB"),
)


def validation_page(
    content: Record, report: Report, families: Sequence[str], labels: Sequence[str]
) -> Page:
    """The page for a document of `planner.evidence.runs.document` and its report; `families` and
    `labels` name the family of each of its rows, and where the row stands."""
    rows, summary = content["rows"], content["summary"]
    predicted = summary["rows"] - summary["refused"]
    lead = (
        f"{predicted:,} of {summary['rows']:,} measured runs predicted from their configuration "
        "alone. One dot a run; point at it for its row."
    )
    drawings = tuple(_drawings(rows, families, labels))
    sections = (
        Section("Step time and peak memory", drawings, side_by_side=True),
        Section("Errors by family", blocks=report.blocks),
        Section("Worst rows, and why", blocks=(_worst(summary["worst"]),)),
    )
    return Page("Predicted against measured", lead, sections)


def _drawings(
    rows: Sequence[Record], families: Sequence[str], labels: Sequence[str]
) -> Iterator[Drawing]:
    for title, measured, predicted, unit in _FIGURES:
        points = []
        for row, family, label in zip(rows, families, labels, strict=True):
            value, found = _number(row, measured), row[predicted]
            if value and found:
                text = (
                    f"{label}: measured {value:.4g} {unit}, predicted {found:.4g} {unit} "
                    f"({(found / value - 1) * 100:+.1f} %)"
                )
                points.append(Point(value, found, family, text))
        if points:
            chart = scatter_chart(points, "", unit, "container")
            yield Drawing(measured, title, specification(chart))


def _number(row: Record, column: str) -> float | None:
    """A measurement as a number; None where empty, and for a refused row."""
    return None if row["error"] else MeasuredRow("", 0, row).measurement(column)


def _worst(rows: Sequence[Record]) -> TableData:
    return table(
        "<run | <where | measured s | predicted s | error | <why",
        (
            (
                row["description"],
                f"{row['source']}, {row['file']} line {row['line']}",
                *(
                    f"{row[name]:.4g}" if row[name] else ""
                    for name in ("measured_s", "predicted_s")
                ),
                f"{row['error'] * 100:+.1f} %",
                row["why"],
            )
            for row in rows
        ),
    )
