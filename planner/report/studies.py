"""Reports of `planner scale`, `buy` and `budget`."""

from __future__ import annotations

from collections.abc import Iterator

from planner.compare.budget import Budget
from planner.compare.buying import Buying, BuyRow
from planner.compare.comparison import CLEARLY_FASTER, Batch
from planner.compare.results import Run, Scaling
from planner.compare.run import HOURS_PER_DAY, facility_kw
from planner.compare.settings import BASIS_NAMES
from planner.job.quantities import HOUR_S, short_count
from planner.report.plan_table import plan_table
from planner.report.said import NONE, described, facts, notes, said, table_of
from planner.report.study_words import (
    budget_headline,
    critical_text,
    decision_facts,
    headline,
    percent,
    runs_note,
    share_text,
    taken_text,
)
from planner.report.tables import Block, Facts, Notes, TableData, as_report

_MOST_NAMED = 4


@as_report
def buying_report(buying: Buying) -> Iterator[Block]:
    decision = buying.decision
    if buying.reason:
        yield Notes((buying.reason,))
    if decision is not None:
        yield Notes((headline(decision, buying.currency),))
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
    groups: dict[tuple[str, str], list[BuyRow]] = {}
    for row in rows:
        if row.choice is None:
            why = row.reason + ("" if row.searched else " (not searched)")
            why = described("buying.beyond").get(row.beyond, why)
            groups.setdefault((row.job, why), []).append(row)
    for (job, why), alike in groups.items():
        names = ", ".join(row.cluster for row in alike[:_MOST_NAMED])
        more = f" and {len(alike) - _MOST_NAMED} more" if len(alike) > _MOST_NAMED else ""
        first = alike[0]
        example = f" (not searched); {first.cluster} {first.reason}" if first.beyond else ""
        yield f"{job} on {names}{more}: {why}{example}"


@as_report
def budget_report(found: Budget) -> Iterator[Block]:
    run = found.run
    price = run and run.batch_price
    yield Notes((budget_headline(found),))
    yield facts(
        "budget.facts", found, price=price, ratio=found.tokens.value / found.parameters,
        best_tokens=found.flop.value / 6.0 / found.best_parameters.value,
        critical=price and critical_text(price), extra=price and share_text(price.extra),
    )  # fmt: skip
    if run is not None:
        told = {"cost": run.cost(found.basis), "kind": BASIS_NAMES[found.basis]}
        yield facts("budget.run", found, title=f"On {found.gpus}", **told)
        yield plan_table([run.plan], None, title="Plan")
    yield Notes((*notes("budget.notes", found), *found.notes, *notes("budget.save", found)))


TITLES: dict[Batch, str] = {
    "fixed": "Strong scaling: the batch stays",
    "scaled": "Weak scaling: the batch grows with the GPUs",
}


@as_report
def scaling_report(scaling: Scaling) -> Iterator[Block]:
    tokens = short_count(scaling.tokens)
    if scaling.decision is not None:
        yield Notes((headline(scaling.decision, scaling.currency),))
        yield decision_facts(scaling.decision, scaling.currency)
    yield Facts((("model", scaling.model), ("GPUs", scaling.gpu), ("tokens", tokens)))
    yield from (_table(scaling, batch) for batch in TITLES if scaling.series(batch))
    yield _plan_table(scaling)
    if failed := tuple(
        f"{point.num_gpus:,} GPUs, {point.batch} batch: {point.reason}"
        for point in scaling.points
        if point.run is None
    ):
        yield Notes(failed, "No plan")
    yield Notes(tuple(_verdicts(scaling)), "Where it bends")
    yield Notes(tuple(_notes(scaling)))


def _table(scaling: Scaling, batch: Batch) -> TableData:
    knee = scaling.knees.get(batch)
    rows = (
        {
            "point": point, "run": run, "cost": run.cost(scaling.basis),
            "bubble": next(
                (one.share for one in run.shares if one.resource == "pipeline bubble"), 0.0
            ),
            "knee": "◄ knee" if point.num_gpus == knee else "",
        }
        for point in scaling.series(batch)
        if (run := point.run) is not None
    )  # fmt: skip
    return table_of(
        "scaling.table", rows, titled=TITLES[batch], currency=scaling.currency,
        kind=BASIS_NAMES[scaling.basis],
    )  # fmt: skip


def _plan_table(scaling: Scaling) -> TableData:
    drawn = {batch: bool(scaling.series(batch)) for batch in TITLES}
    by_place = {(point.batch, point.num_gpus): point.run for point in scaling.points}
    runs = {
        count: {batch: by_place.get((batch, count)) for batch in TITLES if drawn[batch]}
        for count in sorted({point.num_gpus for point in scaling.points})
    }
    rows = (
        {"count": count, "runs": some, "more_tokens": " / ".join(map(_price_text, some.values()))}
        for count, some in runs.items()
    )
    return table_of("scaling.plans", rows, fixed=drawn["fixed"], scaled=drawn["scaled"])


def _price_text(run: Run | None) -> str:
    return NONE if run is None or run.batch_price is None else percent(run.batch_price.extra.value)


def _verdicts(scaling: Scaling) -> Iterator[str]:
    for batch in TITLES:
        points = [point for point in scaling.series(batch) if point.run is not None]
        if len(points) < 2:
            continue
        name = TITLES[batch].partition(":")[0]
        knee = scaling.knees.get(batch)
        if knee is None:
            yield f"{name}: no knee up to {points[-1].num_gpus:,} GPUs"
        else:
            yield f"{name}: knee at {knee:,} GPUs, where efficiency times speedup is largest"
    yield from _limit(scaling)


def _limit(scaling: Scaling) -> Iterator[str]:
    if not (scaling.series("fixed") and scaling.series("scaled")):
        return
    words = described("scaling.limit")
    if scaling.batch_limit is None:
        yield said(words["never"], None, clearly=CLEARLY_FASTER) or ""
        return
    small, large = (
        next(point for point in scaling.series(batch) if point.num_gpus == scaling.batch_limit)
        for batch in TITLES
    )
    slow, fast = small.lasting_tokens_per_s, large.lasting_tokens_per_s
    known = slow is not None and fast is not None
    gain = fast / slow - 1 if slow is not None and fast is not None else 0.0
    text = words["slower" if known else "without"]
    yield said(text, scaling, small=small, large=large, gain=gain) or ""


def _notes(scaling: Scaling) -> Iterator[str]:
    runs = [point.run for point in scaling.points if point.run is not None]
    families = list(dict.fromkeys(run.plan.step_time.family for run in runs))
    yield from notes("scaling.notes.all", scaling, families=families)
    yield from runs_note(runs, scaling.tokens)
    prices = dict.fromkeys(
        f"{rental.per_gpu_hour:.2f} {scaling.currency} ({rental.price.provider}, {rental.age})"
        for run in runs
        for rental in run.rentals
        if rental.kind == scaling.basis
    )
    peaks = [facility_kw(run.energy.drawn_w, run.job.num_gpus) / 1e3 for run in runs]
    hours = [run.goodput.mtbf_s / HOUR_S for run in runs]
    yield from notes(
        "scaling.notes.prices", scaling, prices=list(prices), kind=BASIS_NAMES[scaling.basis],
        unpriced=not prices and scaling.basis != "owned", peaks=peaks,
        least_mw=min(peaks, default=0.0), most_mw=max(peaks, default=0.0),
        least_h=min(hours, default=0.0), most_days=max(hours, default=0.0) / HOURS_PER_DAY,
    )  # fmt: skip
    yield from scaling.notes
