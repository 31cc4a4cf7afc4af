"""What `planner compare --rl` and `planner buy --rl` show: clusters in samples for the money."""

from __future__ import annotations

from collections.abc import Iterator

from planner.compare.interval import Range
from planner.compare.results import ChoiceLimits
from planner.compare.rl import RlComparison, RlRow
from planner.compare.settings import BASIS_NAMES
from planner.job.quantities import seconds
from planner.report.rl import engine_text, placement_text, trainer_text
from planner.report.said import days_text, described, money, spread_text
from planner.report.tables import Block, Facts, Notes, as_report, table

_BEST_BY = {"cost": "samples for the money", "time": "samples a second", "energy": "energy"}


@as_report
def rl_clusters_report(found: RlComparison, limits: ChoiceLimits) -> Iterator[Block]:
    """The clusters, best first, with their plans, and which one to take."""
    yield Facts(
        (
            ("model", f"{found.model}, {found.algorithm}"),
            ("best by", _BEST_BY[found.minimise]),
            ("prices", f"{BASIS_NAMES[found.basis]}, in {found.currency}"),
            ("take", found.best or "none: no cluster keeps the limits"),
        )
    )
    planned = [row for row in found.rows if row.plan is not None]
    if planned:
        yield _table(found, planned)
        yield _plans(planned)
    lost = [row for row in found.rows if row.plan is None or row.reason]
    if lost:
        yield Facts(tuple((row.name, row.reason) for row in lost), "Without a plan or a price")
    yield Notes(tuple(_notes(found, limits)))


def _table(found: RlComparison, rows: list[RlRow]) -> Block:
    with_days = "| days | cost" if found.samples is not None else ""
    return table(
        f"~cluster | step | samples/s | 80 % | {found.currency}/h | samples/\n{found.currency}"
        f" {with_days} | ~note",
        (
            (
                f"{'→ ' if row.name == found.best else ''}{row.name}",
                seconds(row.plan.step_s) if row.plan else "-",
                _three(row.samples_per_s),
                spread_text(row.samples_per_s) if row.samples_per_s else "-",
                money(row.price_per_hour),
                _three(row.samples_per_unit),
                *((_days(row.days), money(row.cost)) if found.samples is not None else ()),
                f"beyond {row.beyond}" if row.beyond else "front" if row.on_front else "",
            )
            for row in rows
        ),
    )


def _plans(rows: list[RlRow]) -> Block:
    return table(
        "~cluster | ~placement | ~trains | ~samples",
        (
            (
                row.name,
                placement_text(row.plan),
                f"{row.plan.trainer_gpus}: {trainer_text(row.plan)}",
                f"{row.plan.engine_gpus}: {engine_text(row.plan.engine)}",
            )
            for row in rows
            if row.plan is not None
        ),
        "The fastest plan of each",
    )


def _three(figure: Range | None) -> str:
    return (
        "-"
        if figure is None
        else f"{figure.value:,.3g}"
        if figure.value < 1e3
        else (f"{figure.value:,.0f}")
    )


def _days(figure: Range | None) -> str:
    return "-" if figure is None else days_text(figure.value)


def _notes(found: RlComparison, limits: ChoiceLimits) -> Iterator[str]:
    yield described("rl_front.money")
    if limits.given:
        yield described("rl_front.limits").format(certainty=f"{limits.certainty:.0%}")
    yield from found.notes
