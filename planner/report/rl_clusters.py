"""Report of `planner compare --rl` and `planner buy --rl`."""

from __future__ import annotations

from collections.abc import Iterator

from planner.compare.interval import Range
from planner.compare.results import ChoiceLimits
from planner.compare.rl import RlComparison, RlRow
from planner.compare.settings import BASIS_NAMES
from planner.report.rl import engine_text, placement_text, trainer_text
from planner.report.said import described, facts, table_of
from planner.report.tables import Block, Facts, Notes, as_report

_BEST_BY = {"cost": "samples for the money", "time": "samples a second", "energy": "energy"}


@as_report
def rl_clusters_report(found: RlComparison, limits: ChoiceLimits) -> Iterator[Block]:
    """The clusters with their plans, best first, and the recommended cluster."""
    yield facts(
        "rl_front.clusters", found, aim=_BEST_BY[found.minimise], kind=BASIS_NAMES[found.basis],
        taken=found.best or "none: no cluster meets the limits",
    )  # fmt: skip
    planned = [row for row in found.rows if row.plan is not None]
    if planned:
        yield _table(found, planned)
        yield _plans(planned)
    lost = [row for row in found.rows if row.plan is None or row.reason]
    if lost:
        yield Facts(tuple((row.name, row.reason) for row in lost), "Without a plan or a price")
    yield Notes(tuple(_notes(found, limits)))


def _table(found: RlComparison, rows: list[RlRow]) -> Block:
    return table_of(
        "rl_front.pace", rows, currency=found.currency, timed=found.samples is not None,
        mark=lambda row: "→ " if row.name == found.best else "",
        rate=lambda row: _three(row.samples_per_s), worth=lambda row: _three(row.samples_per_unit),
        where=lambda row: f"beyond {row.beyond}" if row.beyond else "front" * row.on_front,
    )  # fmt: skip


def _plans(rows: list[RlRow]) -> Block:
    return table_of(
        "rl_front.fastest", rows, placed=lambda row: placement_text(row.plan),
        trained=lambda row: trainer_text(row.plan),
        engines=lambda row: engine_text(row.plan.engine),
    )  # fmt: skip


def _three(figure: Range | None) -> str:
    if figure is None:
        return "-"
    return f"{figure.value:,.3g}" if figure.value < 1e3 else f"{figure.value:,.0f}"


def _notes(found: RlComparison, limits: ChoiceLimits) -> Iterator[str]:
    yield described("rl_front.money")
    if limits.given:
        yield described("rl_front.limits").format(certainty=f"{limits.certainty:.0%}")
    yield from found.notes
