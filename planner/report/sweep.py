"""What `planner sweep` shows: how far it is, what it took, and the best of what it found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Any

from planner.compare.sweep.grid import Grid
from planner.compare.sweep.journal import Journal
from planner.compare.sweep.results import provenance, rows
from planner.compare.sweep.run import Count
from planner.report.comparison import NONE
from planner.report.comparison_trace import money
from planner.report.decision import days_text
from planner.report.tables import Block, Column, Facts, Notes, Report, TableData

_MOST_REASONS = 5


def sweep_document(grid: Grid, journal: Journal, count: Count) -> dict[str, Any]:
    """The counts, what the searches took, and the reasons of what failed or has no plan."""
    seconds = [float(row["seconds"]) for row in provenance(grid, journal)]
    statuses = Counter(row["status"] for row in rows(grid, journal))
    return {
        "searches": count.total,
        "done": count.done,
        "failed": count.failed,
        "left": count.left,
        "rows": dict(sorted(statuses.items())),
        "search_seconds": sum(seconds),
        "median_seconds": median(seconds) if seconds else None,
        "hosts": sorted({str(row["host"]) for row in provenance(grid, journal)}),
        "failures": dict(Counter(_failures(grid, journal)).most_common()),
        **{name: str(value) for name, value in journal.header.items()},
    }


def _failures(grid: Grid, journal: Journal) -> Iterator[str]:
    """Why each search of the grid failed that did."""
    for index in range(len(grid)):
        if (why := journal.failed.get(grid.key(index))) is not None:
            yield why


def sweep_report(grid: Grid, journal: Journal, count: Count) -> Report:
    """The whole report."""
    document = sweep_document(grid, journal, count)
    took = "nothing yet"
    if count.done:
        took = (
            f"{document['search_seconds']:,.0f} s of search, {document['median_seconds']:.2g} s "
            f"each (median), on {', '.join(document['hosts'][:3])}"
        )
    blocks: list[Block] = [
        Facts(
            (
                ("searches", f"{count.total:,}"),
                ("done", f"{count.done:,}"),
                ("failed", f"{count.failed:,}" + (" (tried again next time)" * (count.failed > 0))),
                ("left", f"{count.left:,}"),
                ("took", took),
            )
        )
    ]
    if best := _best(grid, journal):
        blocks.append(best)
    for title, found in (
        ("Failed", Counter(_failures(grid, journal))),
        ("No plan", Counter(r["reason"] for r in rows(grid, journal) if r["status"] == "none")),
    ):
        if found:
            lines = (f"{number:,}: {text}" for text, number in found.most_common(_MOST_REASONS))
            blocks.append(Notes(tuple(lines), title))
    return Report(tuple(blocks))


def _best(grid: Grid, journal: Journal) -> TableData | None:
    """The cheapest and the fastest row of each model."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows(grid, journal):
        for figure in ("cost", "days"):
            key = (row["model"], figure)
            value = row.get(figure)
            if value is not None and (key not in found or value < found[key][figure]):
                found[key] = row
    if not found:
        return None
    names = {"cost": "cheapest", "days": "fastest"}
    columns = (
        Column("model", "left", wrap=True), Column("", "left"), Column("with", "left", wrap=True),
        Column("days"), Column("cost"), Column("plan", "left", wrap=True),
    )  # fmt: skip
    lines = tuple(
        (
            model,
            names[figure],
            ", ".join(row[name] for name in (*grid.axes, *grid.price_axes) if name != "model"),
            days_text(row["days"]),
            NONE if row.get("cost") is None else f"{money(row['cost'])} {row['currency']}",
            row["plan"],
        )
        for (model, figure), row in sorted(found.items())
    )
    return TableData(columns, lines, "Best of what is done")
