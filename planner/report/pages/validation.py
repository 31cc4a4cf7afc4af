"""The page of `planner validate --html`: every run, drawn and in tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from planner.evidence.runs.rows import MeasuredRow
from planner.report.charts.drawing import specification
from planner.report.charts.scatter import scatter_chart
from planner.report.figures.measured import Point
from planner.report.pages.page import Drawing, Page, Section
from planner.report.tables import Column, Report, TableData

Record = dict[str, Any]

_SHOWN_GROUPS = 30
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
    folded = (_all_rows(rows, families, labels), _groups(summary["groups"]), _refused(summary))
    return Page(
        "Predicted against measured",
        lead,
        (
            Section(
                "Step time and peak memory",
                tuple(_drawings(rows, families, labels)),
                side_by_side=True,
            ),
            Section("Errors by family", blocks=report.blocks),
            Section("Worst rows, and why", blocks=(_worst(summary["worst"]),)),
            Section("Everything", folded=tuple(table for table in folded if table.rows)),
        ),
    )


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
                    f"({_error(value, found)})"
                )
                points.append(Point(value, found, family, text))
        if points:
            chart = scatter_chart(points, "", unit, "container")
            yield Drawing(measured, title, specification(chart))


def _number(row: Record, column: str) -> float | None:
    """A measurement as a number; None where empty, and for a refused row."""
    return None if row["error"] else MeasuredRow("", 0, row).measurement(column)


def _error(measured: float | None, predicted: float | None) -> str:
    return f"{(predicted / measured - 1) * 100:+.1f} %" if measured and predicted else ""


def _figure(value: float | None) -> str:
    return f"{value:.4g}" if value else ""


def _table(
    title: str, texts: Sequence[int], names: str, rows: Iterator[Sequence[str]]
) -> TableData:
    """A table; `texts` are the columns that are left-aligned."""
    columns = tuple(
        Column(name, "left" if index in texts else "right")
        for index, name in enumerate(names.split(" | "))
    )
    return TableData(columns, tuple(tuple(row) for row in rows), title)


def _worst(rows: Sequence[Record]) -> TableData:
    return _table(
        "",
        (0, 1, 5),
        "run | where | measured s | predicted s | error | why",
        (
            (
                row["description"],
                f"{row['source']}, {row['file']} line {row['line']}",
                _figure(row["measured_s"]),
                _figure(row["predicted_s"]),
                f"{row['error'] * 100:+.1f} %",
                row["why"],
            )
            for row in rows
        ),
    )


def _groups(groups: Sequence[Record]) -> TableData:
    worst = sorted(groups, key=lambda group: group["pick"])[:_SHOWN_GROUPS]
    return _table(
        "Groups of comparable runs, worst pick first",
        (0,),
        "group | runs | pick | rank",
        (
            (
                group["group"],
                f"{group['runs']:,}",
                f"{group['pick'] * 100:.1f} %",
                f"{group['rank_correlation']:.2f}",
            )
            for group in worst
        ),
    )


def _refused(summary: Record) -> TableData:
    refusals = summary["refusals"].items()
    return _table("Refused", (0,), "why | rows", ((why, f"{count:,}") for why, count in refusals))


def _all_rows(rows: Sequence[Record], families: Sequence[str], labels: Sequence[str]) -> TableData:
    return _table(
        f"All {len(rows):,} rows",
        (0, 1, 10),
        "row | family | measured s | predicted s | 80 % interval | error | measured GiB | "
        "predicted GiB | error | fits | assumed, or why refused",
        (
            _row_cells(row, family, label)
            for row, family, label in zip(rows, families, labels, strict=True)
        ),
    )


def _row_cells(row: Record, family: str, label: str) -> tuple[str, ...]:
    seconds, gibibytes = _number(row, "step_time_s"), _number(row, "peak_mem_gib")
    predicted_s, predicted_gib = row["predicted_step_time_s"], row["predicted_peak_mem_gib"]
    interval = f"{row['predicted_low_s']:.4g}–{row['predicted_high_s']:.4g}" if predicted_s else ""
    return (
        label,
        family,
        _figure(seconds),
        _figure(predicted_s),
        interval,
        _error(seconds, predicted_s),
        _figure(gibibytes),
        _figure(predicted_gib),
        _error(gibibytes, predicted_gib),
        {True: "yes", False: "no", None: ""}[row["predicted_fits"]],
        row["error"] or ", ".join(row["assumed"]),
    )
