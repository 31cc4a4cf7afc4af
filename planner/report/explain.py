"""Report of one plan (`planner explain`, `planner evaluate`), of `--what-if`, and of a measured
run."""

from __future__ import annotations

from collections.abc import Iterator

from planner.cost.terms import MEMORY_TERMS, TIME_WORDS
from planner.job.quantities import (
    GIB,
    gib,
    number_ranges,
    percent_sure,
    plural,
    run_lengths,
    seconds,
    share,
    signed_share,
    stated,
)
from planner.predict.diagnosis.findings import SAME, Findings, GapExplanation
from planner.predict.diagnosis.measured import MeasuredComparison
from planner.predict.link_account import LAUNCHES, LinkShare
from planner.predict.plan import Plan
from planner.predict.plan_text import (
    LIKELY_TO_FIT,
    batch_rows,
    batch_sentence,
    degrees_text,
    error_text,
    fit_text,
    layers_text,
    offload_text,
)
from planner.report.differences import beside_text, ends_text
from planner.report.passes import passes_blocks
from planner.report.plan_table import full_memory_facts, limit_text, stage_row
from planner.report.said import described, fact_rows, notes, said, table_of
from planner.report.search import error_note, job_facts, metric_note
from planner.report.tables import Block, Facts, Notes, TableData, as_report, table
from planner.report.verdict import PlanCard
from planner.search.explanation import (
    SAME_SPEED,
    Explanation,
    NeighbourReport,
    StageGroup,
    StagePlace,
    Term,
)
from planner.search.result import BindingConstraint, WhatIf, WhatIfRow

# Stages are called uneven if the slowest takes this many times the mean.
_UNEVEN = 1.1
_HEADED = [term for term in MEMORY_TERMS if term.heading]


@as_report
def explanation_report(
    explanation: Explanation,
    findings: Findings | None = None,
    taken: tuple[str, ...] = (),
    card: PlanCard | None = None,
) -> Iterator[Block]:
    """The whole report. `findings`: about a measured run; `taken`: defaults that were
    assumed; `card`: the answer, shown first."""
    plan = explanation.plan
    if card is not None:
        yield from card.blocks
    yield Facts(tuple(_plan_facts(explanation)))
    yield memory_table(explanation)
    yield stage_table(explanation)
    yield time_table(explanation)
    yield from vision_blocks(explanation)
    yield from passes_blocks(plan.passes)
    yield from link_blocks(explanation)
    yield Notes(metric_notes(explanation))
    if findings is not None:
        yield from measured_blocks(findings)
    if taken:
        yield Notes(taken)
    if explanation.assumptions:
        assumed = tuple((entry.about, entry.text) for entry in explanation.assumptions)
        yield Facts(assumed, "Assumed")
    if explanation.neighbours:
        yield neighbour_table(explanation.neighbours, plan)
    if explanation.what_if is not None and explanation.what_if.rows:
        yield from what_if_blocks(explanation.what_if, plan)


def _plan_facts(explanation: Explanation) -> Iterator[tuple[str, str]]:
    plan, job = explanation.plan, explanation.job
    pp, blocks = plan.degrees.pp, plan.layout.block_layers
    yield from job_facts(job)
    yield from fact_rows(
        "explain.head", explanation, batch_words=batch_sentence(plan, job.batch_target_sequences)
    )
    yield from batch_rows(plan)
    yield from fact_rows(
        "explain.rest", plan, pipelined=pp > 1,
        exchange=plan.degrees.cp > 1 and (plan.cp_comm_type or "p2p"),
        sizes=" and ".join(map(str, plan.cp_sizes)),
        not_used=explanation.not_used, layer_words=layers_text, mtp_stage=pp - 2,
        behind=len(blocks) > 1 and blocks[-2], blocks=run_lengths(blocks),
        uneven_blocks=plan.degrees.vpp > 1 and not plan.layout.is_even,
    )  # fmt: skip
    yield from (("placed", place_sentence(place)) for place in explanation.places)
    ratio = explanation.ratio_to_first
    yield from fact_rows(
        "explain.end", plan, peak_words=peak_sentence, beside_first=ratio and beside_text(ratio)
    )
    yield from full_memory_facts(plan)


def place_sentence(place: StagePlace) -> str:
    """`stages 0-2 (48 layers) on H100-SXM5-80GB: ranks 0-47`."""
    noun = "stage" if len(place.stages) == 1 else "stages"
    first, last = place.ranks
    return (
        f"{noun} {number_ranges(place.stages)} ({plural(place.layers, 'layer')}) on {place.gpu}: "
        f"ranks {first}-{last}"
    )


def peak_sentence(plan: Plan) -> str:
    """Peak memory against the memory available, and the probability of fitting."""
    error = error_text(plan.peak_bytes, plan.peak_interval)
    limit = limit_text(plan.limit_bytes, plan.usable_bytes)
    verdict = fit_text(plan.peak_bytes, plan.limit_bytes, plan.fit_probability)
    return f"{gib(plan.peak_bytes)} GiB {error} {limit}: {verdict}"


def memory_table(explanation: Explanation) -> TableData:
    """Terms of the heaviest stage's peak."""
    stage, terms = explanation.plan.stages[explanation.plan.heaviest_stage], explanation.memory
    peak = ("peak", gib(stage.peak, 2), share(sum(term.share for term in terms)))
    return table_of("explain.memory", terms, (peak,), stage=stage)


def stage_table(explanation: Explanation) -> TableData:
    """Memory of every stage; equal neighbours share a row."""
    headed = " | ".join(term.heading for term in _HEADED)
    titles = f"<stage | layers | in\nflight | {headed} | rest | peak | <phase"
    return table(titles, map(_stage_row, explanation.stages), "Memory by pipeline stage, GiB")


def _stage_row(group: StageGroup) -> tuple[str, ...]:
    stage = group.memory
    shown = [float(getattr(stage, term.field)) for term in _HEADED]
    return stage_row(group.stages, stage, shown, stage.peak, stage.phase)


def time_table(explanation: Explanation) -> TableData:
    terms = explanation.time
    rows = [row for term in terms for row in _time_rows(term, explanation)]
    whole = sum(term.share for term in terms)
    rows.append(("step", seconds(explanation.plan.step_time_s), share(whole)))
    return table("~term | time | share", rows, "Time of one step, on the slowest stage")


def _time_rows(term: Term, explanation: Explanation) -> Iterator[tuple[str, str, str]]:
    """A term; below the compute term also its parts, each with the resource that limits it."""
    yield term.label, seconds(term.amount), share(term.share)
    if term.name == "compute_s" and len(explanation.compute) > 1:
        for part in explanation.compute:
            yield f"- {part.label}", seconds(part.amount), share(part.share)


def vision_blocks(explanation: Explanation) -> Iterator[Block]:
    """The vision tower's part of the step and of the peak; empty for text models."""
    rows = [
        (one.label, _vision_amount(one), f"{share(one.share)} of the {_whole(one)}")
        for one in explanation.vision
    ]
    if rows:
        yield table("~part | amount | <share", rows, "Vision tower and projector")


def _vision_amount(one: Term) -> str:
    return seconds(one.amount) if one.name.endswith("_s") else f"{gib(one.amount, 2)} GiB"


def _whole(one: Term) -> str:
    return "step" if one.name.endswith("_s") else "peak"


# A link gets a row if it takes at least this share of the step.
_LEAST_LINK = 0.001


def link_blocks(explanation: Explanation) -> Iterator[Block]:
    """A table of the time lost to each link, split into bandwidth and latency, and of the time for
    which the CPU launches kernels; with a note. Empty if every link's share of the step is
    negligible."""
    waits = [one for one in explanation.links if one.part != "term" and one.share >= _LEAST_LINK]
    launches = [one for one in explanation.links if one.term == LAUNCHES]
    if not waits:
        return
    rows = [
        (f"{one.resource} ({one.traffic})" if one.traffic else one.resource, *_amounts(one))
        for one in waits
    ]
    rows += [("the CPU to launch kernels, links beside it", *_amounts(one)) for one in launches]
    yield table("~waits for | time | share", rows, "Which link binds")
    yield Notes((described("explain.links"),))


def _amounts(part: LinkShare) -> tuple[str, str]:
    return seconds(part.seconds), share(part.share)


def metric_notes(explanation: Explanation) -> tuple[str, ...]:
    """How MFU is defined, and how the intervals were obtained."""
    plan, job = explanation.plan, explanation.job
    other = ""
    if job.precision_peak_flop_per_s != job.peak_flop_per_s:
        other = f"{share(plan.mfu_precision)} of the {job.precision} peak"
    return (
        said(described("explain.metrics"), plan, other=other) or "",
        metric_note(job, (plan,)),
        error_note((plan,)),
        f"Memory ±: 80 % interval, from {plan.peak_interval.basis}.",
    )


def neighbour_table(reports: tuple[NeighbourReport, ...], plan: Plan) -> TableData:
    """Each neighbour and how it compares with the plan."""

    def compared(near: NeighbourReport | Plan) -> str:
        if isinstance(near, Plan):
            return ""
        known = near.step_time_s is not None and near.peak_bytes is not None
        return neighbour_sentence(near) if known else f"not legal: {near.text}"

    def change(near: NeighbourReport | Plan) -> str:
        return "this plan" if isinstance(near, Plan) else near.change

    return table_of("explain.neighbours", (plan, *reports), compared=compared, change=change)


def neighbour_sentence(near: NeighbourReport) -> str:
    """How a neighbouring plan compares, and the term that differs most: `12.1 % slower, TP traffic
    +0.9 s`. If it does not fit: `does not fit in 79.1 GiB, 0.3 % slower`. The probability of
    fitting is added if the plan fits but not surely."""
    doubt, probability = "", near.fit_probability
    if near.outcome != "does-not-fit" and probability is not None and probability < LIKELY_TO_FIT:
        doubt = f"; fits with {percent_sure(probability)}"
    against = f"; against your {near.text}" if near.text else ""
    return f"{_comparison(near)}{doubt}{against}"


def _comparison(near: NeighbourReport) -> str:
    if near.outcome == "does-not-fit":
        but = " though" if (near.faster_by or 0.0) > 0 else ""
        return f"does not fit in {gib(near.limit_bytes or 0.0)} GiB,{but} {_slowdown(near)}"
    if near.outcome == "equal":
        return "equally fast"
    label = TIME_WORDS.get(near.reason or "", "").removeprefix("exposed ")
    reason_s = near.reason_s or 0.0
    sign = "+" if reason_s >= 0 else "-"
    return f"{_slowdown(near)}, {label} {sign}{seconds(abs(reason_s))}{_uneven(near)}"


def _uneven(near: NeighbourReport) -> str:
    """Words to add if more compute is exposed because the slowest stage takes much longer than the
    mean: `: its slowest stage takes 1.3 times the mean`. Empty otherwise."""
    ratio = stated(near.slowest_stage, 1.0)
    if near.reason != "compute_s" or (near.reason_s or 0.0) < 0.0 or ratio < _UNEVEN:
        return ""
    return f": its slowest stage takes {ratio:.1f} times the mean"


def _slowdown(near: NeighbourReport) -> str:
    faster_by = near.faster_by or 0.0
    if abs(faster_by) < SAME_SPEED:
        return "equally fast"
    kind = "faster" if faster_by > 0 else "slower"
    per = " a token" if "gbs" in near.change else ""  # the step then has other tokens
    bar = "" if near.ratio is None else f" ({ends_text(near.ratio)})"
    return f"{share(abs(1 / (1 + faster_by) - 1))} {kind}{bar}{per}"


_BAR_CELLS = 8


def what_if_blocks(found: WhatIf, plan: Plan) -> tuple[Block, ...]:
    """Binding constraints, then the changes by effect."""
    constraints = tuple((each.name, _constraint(each, found)) for each in found.constraints)
    title = "Constraints (binding: without it the step would be shorter)"
    shown = (Facts(constraints, title),) if constraints else ()
    return *shown, tornado_table(found, plan), Notes(_what_if_notes(found))


def _constraint(constraint: BindingConstraint, found: WhatIf) -> str:
    """Whether a constraint binds, and its effect: `binding: stage 1 holds 64.6 of 69.5 GiB (to fit
    with 80 %), 4.9 GiB free; 8 GiB more: -1.20 s a step`. For constraints other than memory, the
    effect of leaving it out."""
    row = next(row for row in found.rows if row.name == constraint.row)
    verdict = "binding" if constraint.binding else "not shown to bind"
    if constraint.held_bytes is None:
        return f"{verdict}; without it: {_worth(row)}"
    free = found.limit_bytes - constraint.held_bytes
    left = f"{gib(free)} GiB free" if free >= 0 else f"{gib(-free)} GiB too much"
    # The limit is the usable HBM minus the error of memory, or the peak of a plan chosen for its
    # memory.
    sure = f"to fit with {percent_sure(found.fit_probability)}"
    why = "as light as this plan" if found.chosen_for_memory else sure
    sizes = f"{gib(constraint.held_bytes)} of {gib(found.limit_bytes)} GiB ({why})"
    held = f"stage {constraint.stage} holds {sizes}, {left}"
    return f"{verdict}: {held}; 8 GiB more: {_worth(row)}"


def _worth(row: WhatIfRow) -> str:
    """The effect of a change on the step time, such as `-1.20 s a step`. If the effect is unknown,
    the note of the row instead; if it is smaller than the search can tell, a text that says so."""
    if row.effect_s is None:
        return row.note
    if not row.resolved:
        return f"less than the search resolves ({share(row.resolution, 0)})"
    sign = "-" if row.effect_s < 0 else "+"
    return f"{sign}{seconds(abs(row.effect_s))} a step"


def tornado_table(found: WhatIf, plan: Plan) -> TableData:
    """One row for each change, the largest effect first."""
    now = "this one" if found.best_is_this else degrees_text(found.best_degrees)
    largest = max((abs(row.effect or 0.0) for row in found.rows if row.resolved), default=0.0)
    interval, scale = plan.step_time, found.best_s / plan.step_time_s
    ends = {"low": interval.low * scale, "high": interval.high * scale}
    error = error_text(found.best_s, interval.model_copy(update=ends))
    rows = [("now", f"{seconds(found.best_s)} {error}", "", "", "", now)]
    rows += (_tornado_row(row, largest) for row in found.rows)
    titles = "~change | step time | effect | < | this\nplan | ~best plan then"
    return table(titles, rows, "What if: the best plan after a single change, solved again")


def _tornado_row(row: WhatIfRow, largest: float) -> tuple[str, str, str, str, str, str]:
    kept = "" if row.kept_effect is None else signed_share(row.kept_effect)
    if row.step_time_s is None or row.step_time is None or row.effect is None:
        return (row.change, "", "", "", kept, row.note)
    return (
        row.change,
        f"{seconds(row.step_time_s)} {error_text(row.step_time_s, row.step_time)}",
        signed_share(row.effect) if row.resolved else f"<{share(row.resolution)}",
        _bar(row.effect, largest) if row.resolved else "",
        kept,
        _plan_text(row),
    )


def _plan_text(row: WhatIfRow) -> str:
    if row.same_plan or row.degrees is None:
        return "the same"
    fraction = row.activation_offload_fraction
    offload = offload_text(row.optimizer_offload, row.activation_offload, fraction)
    parts = (degrees_text(row.degrees), row.recompute, offload)
    return ", ".join(part for part in parts if part)


def _bar(effect: float, largest: float) -> str:
    """A bar as long as the effect, hollow if the step becomes longer."""
    cells = max(1, round(_BAR_CELLS * abs(effect) / largest))
    return ("█" if effect < 0 else "░") * cells


def _what_if_notes(found: WhatIf) -> tuple[str, ...]:
    chosen = f"which fits with {share(found.fit_probability, 0)} probability"
    if found.chosen_for_memory:
        chosen = "as this one, which was chosen for its memory"
    slower = any((row.effect or 0.0) > 0.0 and row.resolved for row in found.rows)
    return tuple(notes("explain.what-if", found, chosen=chosen, slower=slower))


# Number of causes whose test is described below the table.
_TESTED = 3


def measured_blocks(findings: Findings) -> Iterator[Block]:
    """The comparison of the plan with a measured run: figures, possible causes of each gap and how
    to test them, where the predicted step loses time, and what the run's stated MFU may mean. Parts
    without content are left out."""
    if findings.comparisons:
        yield table_of(
            "diagnosis.compared", findings.comparisons,
            verdict=lambda one: "within" if one.agrees else "above" if one.ratio > 1 else "below",
            measured_words=lambda one: _amount(one.figure, one.measured),
            predicted_words=_predicted_amount,
        )  # fmt: skip
    for comparison in findings.comparisons:
        yield from _cause_blocks(findings, comparison)
    if findings.losses:
        named = ", ".join(f"{one.label} {share(one.share, 0)}" for one in findings.losses)
        yield Notes(tuple(notes("diagnosis.losses", None, named=named)))
    if findings.conventions:
        yield table_of("diagnosis.conventions", findings.conventions)
        if findings.verdicts:
            yield Notes(findings.verdicts)


def _cause_blocks(findings: Findings, gap: MeasuredComparison) -> Iterator[Block]:
    found = [one for one in findings.explanations if one.figure == gap.figure]
    if not found:
        if abs(gap.ratio - 1.0) > SAME:
            yield Notes(("No cause that was tried explains the difference.",))
        return
    numbers = {id(one): number for number, one in enumerate(found, start=1)}
    figure = "the step time" if gap.figure == "step time" else "the peak of memory"
    rows = (
        {
            "number": number, "what": one.what, "effect": one.effect,
            "predicted_words": _amount(one.figure, one.predicted), "explains": _explains(one, gap),
        }
        for number, one in enumerate(found, start=1)
    )  # fmt: skip
    yield table_of("diagnosis.causes", rows, explained=figure)
    tested = [*found[:_TESTED], *(one for one in found[_TESTED:] if one.any_gap)]
    tests = tuple(f"{numbers[id(one)]}: {one.test}." for one in tested if one.test)
    yield Notes(tests, "How to test")


def _explains(explanation: GapExplanation, gap: MeasuredComparison) -> str:
    """How much of the gap between prediction and measurement a cause would explain: `40 % of the
    gap`, `more than it`, `the measurement` or `a gap of any size`."""
    if explanation.any_gap:
        return "a gap of any size"
    if explanation.near:
        return "the measurement"
    beyond = (explanation.predicted - gap.measured) * (gap.ratio - 1.0) > 0.0
    if beyond:
        return "more than it"
    part = (explanation.predicted - gap.predicted) / (gap.measured - gap.predicted)
    return f"{share(part, 0)} of the gap"


def _predicted_amount(comparison: MeasuredComparison) -> str:
    error = error_text(comparison.predicted, comparison.interval)
    return f"{_amount(comparison.figure, comparison.predicted)} {error}"


def _amount(figure: str, value: float) -> str:
    return seconds(value) if figure == "step time" else f"{value / GIB:.1f} GiB"
