"""What `planner compare` shows: pace, money, energy, the front, and what prices are worth."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from hardware.prices import PRICE_KINDS
from planner.compare.quotes import STALE_DAYS
from planner.compare.results import Comparison, ComparisonRow, Rental, Run
from planner.compare.settings import BASIS_NAMES
from planner.report.amounts import NONE, money
from planner.report.comparison_trace import Step
from planner.report.plan_table import plan_table, techniques_row
from planner.report.said import fact_rows, notes, table_of
from planner.report.study_words import decision_facts, runs_note
from planner.report.tables import Block, Facts, Notes, TableData, as_report, headings, table

FRONT = "●"
MOST_NEEDS = 3
_FEWEST_LOSS = 0.005


@as_report
def comparison_report(comparison: Comparison) -> Iterator[Block]:
    """The whole report."""
    runs = [(row, row.run) for row in comparison.rows if row.run is not None]
    about = fact_rows("comparison.facts", comparison, count=len(comparison.rows))
    yield Facts((*about, *techniques_row([run.plan for _, run in runs])))
    if comparison.decision is not None:
        yield decision_facts(comparison.decision, comparison.currency)
    if runs:
        yield _rate_table(runs, comparison)
        yield _money_table(runs, comparison)
        yield _price_table(runs, comparison)
        names, plans = [row.name for row, _ in runs], [run.plan for _, run in runs]
        first = [(headings("~cluster")[0], names)]
        yield plan_table(plans, None, first=first, title="Plans", told=plans)
    if failed := tuple(_failures(comparison.rows)):
        yield Notes(failed, "No plan")
    yield Notes(tuple(_notes(runs, comparison)))


Runs = Sequence[tuple[ComparisonRow, Run]]


def _rate_table(runs: Runs, comparison: Comparison) -> TableData:
    several = len({row.precision for row, _ in runs}) > 1
    return table_of(
        "comparison.pace", (row for row, _ in runs), sort=comparison.sort,
        precise=lambda row: several and row.precision, loss=lambda row: _loss_text(row.run),
    )  # fmt: skip


def _loss_text(run: Run) -> str:
    losses = [share for share in run.shares if share.resource != "GPU"]
    if all(loss.share < _FEWEST_LOSS for loss in losses):
        return "nothing: the GPU itself limits"
    return losses[0].text


def _money_table(runs: Runs, comparison: Comparison) -> TableData:
    carbon = any(run.energy.co2_t is not None for _, run in runs)
    titles = (
        "~cluster | on\ndemand | reserved | spot | owned"
        f" | {BASIS_NAMES[comparison.basis]}\n/1 T tok. | MWh{' | t CO2' * carbon} | <front"
    )
    rows = (_money_row(row, run, comparison, carbon) for row, run in runs)
    return table(titles, rows, f"Cost of the run, {comparison.currency}")


def _money_row(
    row: ComparisonRow, run: Run, comparison: Comparison, carbon: bool
) -> tuple[str, ...]:
    chosen, co2 = run.priced(comparison.basis), run.energy.co2_t
    return (
        row.name,
        *(money(run.cost(basis)) for basis in BASIS_NAMES),
        money(None if chosen is None else chosen.per_trillion_tokens),
        f"{run.energy.mwh.value:,.0f}",
        *([NONE if co2 is None else f"{co2.value:,.0f}"] * carbon),
        FRONT if row.on_front else "",
    )


def _price_table(runs: Runs, comparison: Comparison) -> TableData:
    kinds = " | ".join(f"~{BASIS_NAMES[kind]}" for kind in PRICE_KINDS)
    rows = (
        (
            row.name,
            *(_price_text(run.rental(kind), row.name) for kind in PRICE_KINDS),
            NONE if run.owning is None else f"{run.owning.per_gpu_hour:.2f}",
        )
        for row, run in runs
    )
    title = f"Prices of a GPU hour, host included, {comparison.currency}"
    return table(f"~cluster | {kinds} | owned", rows, title)


def _price_text(rental: Rental | None, offer: str) -> str:
    """`2.46 coreweave`; of an offer that states its price, the price alone."""
    if rental is None:
        return NONE
    if rental.price.provider == offer:
        return f"{rental.per_gpu_hour:.2f}"
    old = f", {rental.age}" if rental.stale else ""
    small = f", {rental.price.instance_gpus}-GPU instance*" if rental.smaller_instance else ""
    return f"{rental.per_gpu_hour:.2f} {rental.price.provider}{old}{small}"


def _failures(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    for row in rows:
        if row.run is None:
            yield f"{row.name}: {row.reason}"
            if row.needs:
                yield f"  would fit (searched): {'; or '.join(row.needs[:MOST_NEEDS])}"


def failure_text(comparison: Comparison) -> str:
    """Why no cluster has a plan, and what each would need."""
    return "\n  ".join(("the job runs on none of the clusters:", *_failures(comparison.rows)))


def _notes(runs: Runs, comparison: Comparison) -> Iterator[str]:
    if not runs:
        return
    by_days = sorted(runs, key=lambda row: row[1].days.value)
    fastest, days = by_days[0][0].name, by_days[0][1].days
    yield from notes(
        "comparison.notes", comparison, front=FRONT, kind=BASIS_NAMES[comparison.basis],
        priced=any(run.cost(comparison.basis) is not None for _, run in runs), fastest=fastest,
        near=[row.name for row, run in by_days[1:] if run.days.low <= days.high],
    )  # fmt: skip
    yield from runs_note((run for _, run in runs), comparison.tokens)
    rentals = [rental for _, run in runs for rental in run.rentals]
    yield from notes(
        "comparison.prices", comparison, stale_days=STALE_DAYS,
        missing=list(dict.fromkeys(text for _, run in runs for text in run.missing)),
        small=any(rental.smaller_instance for rental in rentals),
        spot=any(rental.kind == "spot" for rental in rentals),
        several=any(rental.choices > 1 for rental in rentals),
    )  # fmt: skip
    yield from comparison.notes
    first = runs[0][0].name
    yield f"Every factor with its source: add --explain {shlex.quote(first)}"


@as_report
def trace_report(name: str, chapters: Mapping[str, Sequence[Step]]) -> Iterator[Block]:
    """The chain from plan to dollars of one cluster, and the sources that it names."""
    yield Facts((("cluster", name),))
    for title, steps in chapters.items():
        yield Facts(tuple((step.name, _step_text(step)) for step in steps), title)
    every = (step for steps in chapters.values() for step in steps)
    cited = {key: text for step in every for key, text in step.cited.items() if text}
    yield Facts(tuple(cited.items()), "Sources")


def _step_text(step: Step) -> str:
    source = f" [{step.source}]" if step.source else ""
    how = f": {step.how}" if step.how else ""
    return f"{step.value}{how}{source}"
