"""The page of a sweep: the best point of each model, and every point of its grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.compare.sweep.journal import FIGURES
from planner.job.errors import UsageError, demand_installed
from planner.job.quantities import plural
from planner.report.charts.curves import CurvePoint, Panel, curves_panel
from planner.report.charts.drawing import Drawing
from planner.report.pages.page import Card, Page, Section
from planner.report.said import NONE, days_text, money
from planner.report.tables import TableData, table

RESULTS = "results.parquet"
# Most rows in the table of a page; the file has all.
_MOST_ROWS = 500
_MOST_LABELS = 6

Row = Mapping[str, Any]


def sweep_page(folder: Path) -> Page:
    """The page of the results in a sweep's folder. Raises UsageError if they are not those of a
    sweep."""
    rows = _read(folder / RESULTS)
    labels = _labels(rows)
    planned = [row for row in rows if row["status"] == "plan"]
    sections = [Section("Every point", blocks=(_table(planned, labels),))]
    if panels := [_panel(model, planned, labels) for model in _models(planned)]:
        drawings = [
            Drawing(f"sweep-{number}", panel.title, curves_panel(panel))
            for number, panel in enumerate(panels, start=1)
            if panel.points
        ]
        sections.insert(0, Section("Cost against time", drawings, side_by_side=len(panels) > 1))
    lead = f"{plural(len(rows), 'row')}, {len(planned):,} with a plan. Bars: 80 % intervals."
    return Page(f"Sweep {folder.name}", lead, sections, card=_card(rows, planned, labels))


def _read(path: Path) -> list[Row]:
    demand_installed("the page of a sweep needs", "sweep", "pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[Row] = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if rows and not set(FIGURES) <= set(rows[0]):
        raise UsageError(f"{path} is no result of planner sweep: some of its columns are missing")
    return rows


def _labels(rows: Sequence[Row]) -> list[str]:
    """The names of the axes by which points are labelled: those whose values differ, and always the
    model."""
    names = [name for name in rows[0] if name not in FIGURES] if rows else []
    varied = [name for name in names if len({row[name] for row in rows}) > 1]
    return [name for name in names if name == "model" or name in varied]


def _models(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(_model(row) for row in rows))


def _model(row: Row) -> str:
    return str(row.get("model", "the model"))


def _name(row: Row, labels: Sequence[str]) -> str:
    others = [name for name in labels if name != "model"]
    return ", ".join(
        f"{row[name]}" if name == "cluster" else f"{name} {row[name]}" for name in others
    )


def _card(rows: Sequence[Row], planned: Sequence[Row], labels: Sequence[str]) -> Card:
    """A sentence for each model with its cheapest point, or its fastest if no point has a price.
    `planned`: the rows that have a plan."""
    found = [_best(model, planned, labels) for model in _models(planned)]
    missing = len(rows) - len(planned)
    risk = f"{plural(missing, 'row')} without a plan; the column reason says why" if missing else (
        "the order of points whose bars overlap is uncertain"
    )  # fmt: skip
    return Card(
        " ".join(found) or "No point of the grid has a plan.",
        facts=(
            ("risk", risk),
            ("next", "planner search with the options of a point finds its plan and saves it"),
        ),
    )


def _best(model: str, planned: Sequence[Row], labels: Sequence[str]) -> str:
    mine = [row for row in planned if _model(row) == model and row["days"] is not None]
    if not mine:
        return f"{model}: plans, but no days without tokens."
    priced = [row for row in mine if row["cost"] is not None]
    row = min(priced or mine, key=lambda one: float(one["cost" if priced else "days"]))
    cost = f", {money(row['cost'])} {row['currency']}" if priced else ""
    how = "cheapest" if priced else "fastest"
    return f"{model} is {how} with {_name(row, labels)}: {days_text(row['days'])} days{cost}."


def _panel(model: str, planned: Sequence[Row], labels: Sequence[str]) -> Panel:
    rows = [row for row in planned if _model(row) == model and row["cost"] is not None]
    best = min((float(row["cost"]) for row in rows), default=0.0)
    points = tuple(
        CurvePoint(
            model, row["days"], row["cost"],
            row["cost_low"], row["cost_high"],
            f"{_name(row, labels)}: {days_text(row['days'])} days, {money(row['cost'])}",
            marked=row["cost"] == best,
            label=_label(row, labels, row["cost"] == best, len(rows)),
            left=row["days_low"], right=row["days_high"],
        )
        for row in rows
    )  # fmt: skip
    unit = rows[0]["currency"] if rows else ""
    return Panel(model, "days", unit, points, (True, True), joined="none")


def _label(row: Row, labels: Sequence[str], cheapest: bool, count: int) -> str:
    """The label next to a point. If there are many points, only the cheapest has one."""
    if cheapest:
        return "cheapest"
    return _name(row, labels) if count <= _MOST_LABELS else ""


def _table(planned: Sequence[Row], labels: Sequence[str]) -> TableData:
    titles = " | ".join(
        (*(f"~{name}" for name in labels), "days", "cost", "MFU %", "fits %", "~plan")
    )
    return table(titles, _cells(planned[:_MOST_ROWS], labels), "")


def _cells(rows: Sequence[Row], labels: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        cost = NONE if row["cost"] is None else f"{money(row['cost'])} {row['currency']}"
        yield (
            *(str(row[name]) for name in labels),
            NONE if row["days"] is None else days_text(row["days"]), cost,
            f"{100.0 * row['mfu']:.1f}", f"{100.0 * row['fit_probability']:.0f}", str(row["plan"]),
        )  # fmt: skip
