"""What `planner buy` shows: what to take, the front of money against time, the table behind it."""

from __future__ import annotations

from collections.abc import Iterator

from planner.compare.buying import Buying, BuyRow
from planner.compare.choice import Decision
from planner.compare.settings import BASIS_NAMES
from planner.job.quantities import plural
from planner.report.amounts import days_text, money, spread_text
from planner.report.study_words import decision_facts, taken_text
from planner.report.tables import Block, Notes, TableData, as_report, table

_BEYOND = {
    "deadline": "over the deadline",
    "budget": "over the budget",
    "power": "over the power",
    "racks": "over the racks",
    "another": "a plan on another cluster is better in all that counts",
}
_MOST_NAMED = 4


@as_report
def buying_report(buying: Buying) -> Iterator[Block]:
    """The whole report."""
    decision = buying.decision
    if buying.reason:
        yield Notes((buying.reason,))
    if decision is not None:
        yield decision_facts(decision, buying.currency)
        if len(decision.front) > 1:
            yield _front(decision, buying.currency)
    if any(row.choice is not None for row in buying.rows):
        yield _table(buying)
    if reasons := tuple(_reasons(buying.rows)):
        yield Notes(reasons, "Not taken into account")
    yield Notes(tuple(_notes(buying)))


def _front(decision: Decision, currency: str) -> TableData:
    within = "within the limits" if decision.best is not None else "without the limits"
    rows = (
        (taken_text(one), days_text(one.days), money(one.cost), f"{one.mwh:,.0f}",
         f"{one.power_kw:,.0f}")
        for one in decision.front
    )  # fmt: skip
    title = f"None both faster and cheaper, {within} (at most)"
    return table(f"~take | days | {currency} | MWh | kW", rows, title)


def _table(buying: Buying) -> TableData:
    rows = (
        (
            row.job,
            row.cluster,
            f"{days_text(one.days.value)} {spread_text(one.days)}",
            money(one.cost),
            f"{one.mwh.value:,.0f}",
            f"{one.power_kw:,.0f}",
            row.plan,
        )
        for row in buying.rows
        if (one := row.choice) is not None
    )
    titles = f"~job | ~cluster | days | {buying.currency} | MWh | kW | ~plan"
    return table(titles, rows, "Each job on each cluster, at its best plan, as predicted")


def _reasons(rows: tuple[BuyRow, ...]) -> Iterator[str]:
    """What was left out, clusters of one kind of reason together."""
    groups: dict[tuple[str, str], list[BuyRow]] = {}
    for row in rows:
        if row.choice is None:
            said = _BEYOND.get(row.beyond, row.reason + ("" if row.searched else " (not searched)"))
            groups.setdefault((row.job, said), []).append(row)
    for (job, said), alike in groups.items():
        names = ", ".join(row.cluster for row in alike[:_MOST_NAMED])
        more = f" and {len(alike) - _MOST_NAMED} more" if len(alike) > _MOST_NAMED else ""
        first = alike[0]
        example = f" (not searched); {first.cluster} {first.reason}" if first.beyond else ""
        yield f"{job} on {names}{more}: {said}{example}"


def _notes(buying: Buying) -> Iterator[str]:
    yield (
        "at most: bounds of days, money and energy, which share the error of the step time; of "
        "several jobs they are added as if every error went the same way."
    )
    yield f"Prices: {BASIS_NAMES[buying.basis]}; planner compare shows whose, and every factor."
    long = [row for row in buying.rows if row.choice is not None and row.choice.days.value > 365.0]
    if long:
        yield f"{plural(len(long), 'run')} would take over a year; models age faster than that."
