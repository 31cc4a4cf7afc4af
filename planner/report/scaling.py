"""What `planner scale` shows: one row a number of GPUs, the knee, and where the batch limits."""

from __future__ import annotations

from collections.abc import Iterator

from planner.compare.goodput import HOUR_S
from planner.compare.results import Run, ScalePoint, Scaling
from planner.compare.run import HOURS_PER_DAY, facility_kw
from planner.compare.scaling import CLEARLY_FASTER, Batch
from planner.compare.settings import BASIS_NAMES
from planner.job.quantities import short_count
from planner.predict.plan_text import batch_text, degrees_text
from planner.report.amounts import NONE, days_text, money, spread_text
from planner.report.study_words import decision_facts, percent, runs_note
from planner.report.tables import Block, Facts, Notes, TableData, as_report, table

TITLES: dict[Batch, str] = {
    "fixed": "Strong scaling: the batch stays",
    "scaled": "Weak scaling: the batch grows with the GPUs",
}


@as_report
def scaling_report(scaling: Scaling) -> Iterator[Block]:
    """The whole report."""
    tokens = short_count(scaling.tokens)
    yield Facts((("model", scaling.model), ("GPUs", scaling.gpu), ("tokens", tokens)))
    if scaling.decision is not None:
        yield decision_facts(scaling.decision, scaling.currency)
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
    return table(
        "GPUs | batch\ntokens | tokens/s | MFU\n% | bubble\n% | useful\n% | effi-\nciency %"
        f" | days | {scaling.currency}\n{BASIS_NAMES[scaling.basis]} | <",
        (
            _row(point, point.run, scaling, knee)
            for point in scaling.series(batch)
            if point.run is not None
        ),
        TITLES[batch],
    )


def _row(point: ScalePoint, run: Run, scaling: Scaling, knee: int | None) -> tuple[str, ...]:
    plan, cost = run.plan, run.cost(scaling.basis)
    bubble = next((share.share for share in run.shares if share.resource == "pipeline bubble"), 0.0)
    return (
        f"{point.num_gpus:,}",
        short_count(point.gbs_tokens),
        short_count(plan.tokens_per_s),
        f"{plan.mfu * 100:.1f}",
        f"{bubble * 100:.1f}",
        f"{run.goodput.share * 100:.1f}",
        NONE if point.efficiency is None else f"{point.efficiency * 100:.0f}",
        f"{days_text(run.days.value)} {spread_text(run.days)}",
        money(cost),
        "◄ knee" if point.num_gpus == knee else "",
    )


def _plan_table(scaling: Scaling) -> TableData:
    batches = [batch for batch in TITLES if scaling.series(batch)]
    plans = " | ".join(f"~{batch} batch: degrees, mbs×grad_acc" for batch in batches)
    by_place = {(point.batch, point.num_gpus): point.run for point in scaling.points}
    rows = (
        (f"{count:,}", *map(_plan_text, runs), " / ".join(map(_price_text, runs)))
        for count in sorted({point.num_gpus for point in scaling.points})
        if (runs := [by_place.get((batch, count)) for batch in batches])
    )
    return table(f"GPUs | {plans} | more\ntokens %", rows, "Plans")


def _plan_text(run: Run | None) -> str:
    if run is None:
        return NONE
    return f"{degrees_text(run.plan.degrees)}, {batch_text(run.plan.degrees)}"


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
            yield f"{name}: knee at {knee:,} GPUs, the most efficiency times speedup"
    yield from _limit(scaling)


def _limit(scaling: Scaling) -> Iterator[str]:
    if not (scaling.series("fixed") and scaling.series("scaled")):
        return
    gain = f"{CLEARLY_FASTER * 100:.0f} %"
    if scaling.batch_limit is None:
        yield f"The batch does not limit: grown with the GPUs it is nowhere {gain} faster a GPU"
        return
    count = scaling.batch_limit
    pair = [
        next(point for point in scaling.series(batch) if point.num_gpus == count)
        for batch in ("fixed", "scaled")
    ]
    slow, fast = (point.lasting_tokens_per_s for point in pair)
    if slow is None or fast is None:
        yield f"The batch limits from {count:,} GPUs on: without a larger one there is no plan"
        return
    yield (
        f"The batch limits from {count:,} GPUs on: with {short_count(pair[1].gbs_tokens)} tokens "
        f"instead of {short_count(pair[0].gbs_tokens)} they are "
        f"{(fast / slow - 1) * 100:.0f} % faster"
    )


def _notes(scaling: Scaling) -> Iterator[str]:
    runs = [point.run for point in scaling.points if point.run is not None]
    yield (
        "efficiency: lasting tokens/s a GPU over those of the first row. days: interruptions "
        "included; 80 % interval of the step time, and published failure rates and restart times, "
        "which differ most up to 1,000 GPUs, where people restart jobs; cost scales with it."
    )
    families = dict.fromkeys(run.plan.step_time.family for run in runs)
    yield f"Step times: from {'; '.join(families)}."
    yield (
        "more tokens: that the batch needs for the same loss, against small ones; days and cost "
        "do not count them."
    )
    yield from runs_note(runs, scaling.tokens)
    prices = dict.fromkeys(
        f"{rental.per_gpu_hour:.2f} {scaling.currency} ({rental.price.provider}, {rental.age})"
        for run in runs
        for rental in run.rentals
        if rental.kind == scaling.basis
    )
    if prices:
        yield f"A GPU hour at {'; '.join(prices)}; such quotes hold for few GPUs, not thousands."
    elif scaling.basis != "owned":
        kind = BASIS_NAMES[scaling.basis]
        yield f"No {kind} price for {scaling.gpu}; --prices FILE.csv gives one."
    if runs:
        peaks = [facility_kw(run.energy.drawn_w, run.job.num_gpus) / 1e3 for run in runs]
        yield f"Power at the meter: {min(peaks):.2g} to {max(peaks):.2g} MW."
        hours = [run.goodput.mtbf_s / HOUR_S for run in runs]
        longest = f"{max(hours) / HOURS_PER_DAY:,.1f} days"
        yield f"Mean time between interruptions: {min(hours):,.1f} h to {longest}."
    yield from scaling.notes
