"""Report of `planner sweep`: its progress, the time it took, and the best results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from planner.compare.interval import Range
from planner.compare.sweep.journal import Journal, provenance, rows
from planner.compare.sweep.run import SearchCounts
from planner.compare.sweep.work import Grid
from planner.report.said import NONE, facts, money, table_of
from planner.report.tables import Block, Notes, TableData, as_report

_MOST_REASONS = 5


@dataclass
class _Found:
    """Totals over the rows: plans, reasons for having none, and the best row of each model by cost
    and by days."""

    statuses: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    best: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)


def _found(grid: Grid, journal: Journal) -> _Found:
    found = _Found()
    for row in rows(grid, journal):
        found.statuses[row["status"]] += 1
        if row["status"] == "none":
            found.reasons[row["reason"]] += 1
        for figure in ("cost", "days"):
            key, value = (row["model"], figure), row.get(figure)
            if value is not None and (key not in found.best or value < found.best[key][figure]):
                found.best[key] = row
    return found


def sweep_document(grid: Grid, journal: Journal, count: SearchCounts) -> dict[str, Any]:
    """The counts, the time of the searches, and the reasons for points that failed or have no
    plan."""
    found = _found(grid, journal)
    return _effort(grid, journal, count) | {
        "rows": dict(sorted(found.statuses.items())),
        "no_plan": dict(found.reasons.most_common()),
        **{name: str(value) for name, value in journal.header.items()},
    }


def _effort(grid: Grid, journal: Journal, count: SearchCounts) -> dict[str, Any]:
    ran = [(float(one["seconds"]), str(one["host"])) for one in provenance(grid, journal)]
    seconds = [took for took, _ in ran]
    failures = (journal.failed.get(grid.key(index)) for index in range(len(grid)))
    return {
        "searches": count.total,
        "done": count.done,
        "failed": count.failed,
        "left": count.left,
        "search_seconds": sum(seconds),
        "median_seconds": median(seconds) if seconds else None,
        "hosts": sorted({host for _, host in ran}),
        "failures": dict(Counter(why for why in failures if why is not None).most_common()),
    }


@as_report
def sweep_report(grid: Grid, journal: Journal, count: SearchCounts) -> Iterator[Block]:
    effort, found = _effort(grid, journal, count), _found(grid, journal)
    hosts = effort["hosts"][:3]
    yield facts("sweep.facts", {**effort, "total": effort["searches"], "hosts": hosts})
    if found.best:
        yield _best(grid, found)
    for title, reasons in (("Failed", effort["failures"]), ("No plan", found.reasons)):
        if reasons:
            most = Counter(reasons).most_common(_MOST_REASONS)
            yield Notes(tuple(f"{number:,}: {text}" for text, number in most), title)


def _best(grid: Grid, found: _Found) -> TableData:
    names = {"cost": "cheapest", "days": "fastest"}
    lines = (
        {
            "model": model, "figure": names[figure], "days": row["days"], "plan": row["plan"],
            "axes": [row[name] for name in (*grid.axes, *grid.price_axes) if name != "model"],
            "interval": Range(value=row["days"], low=row["days_low"], high=row["days_high"]),
            "cost": NONE if row.get("cost") is None else f"{money(row['cost'])} {row['currency']}",
        }
        for (model, figure), row in sorted(found.best.items())
    )  # fmt: skip
    return table_of("sweep.best", lines)
