"""What `planner buy` shows: what to take, the front of money against time, the table behind it."""

from __future__ import annotations

from collections.abc import Iterator

from planner.compare.buying import Buying, BuyRow
from planner.compare.settings import BASIS_NAMES
from planner.report.said import notes, table_of
from planner.report.study_words import decision_facts, taken_text
from planner.report.tables import Block, Notes, as_report

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
            yield table_of(
                "buying.front", decision.front, within=decision.best is not None,
                currency=buying.currency, taken=taken_text,
            )  # fmt: skip
    if chosen := [row for row in buying.rows if row.choice is not None]:
        yield table_of("buying.jobs", chosen, currency=buying.currency)
    if reasons := tuple(_reasons(buying.rows)):
        yield Notes(reasons, "Not taken into account")
    long = sum(row.choice is not None and row.choice.days.value > 365.0 for row in chosen)
    yield Notes(tuple(notes("buying.notes", buying, kind=BASIS_NAMES[buying.basis], long=long)))


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
