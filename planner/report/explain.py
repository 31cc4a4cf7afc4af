"""What `planner explain` and `planner evaluate` show of one plan."""

from __future__ import annotations

from planner.job.quantities import (
    gib,
    number_ranges,
    percent_sure,
    plural,
    run_lengths,
    seconds,
    share,
)
from planner.predict.plan import Plan
from planner.predict.plan_text import (
    LIKELY_TO_FIT,
    activations_text,
    batch_sentence,
    batch_text,
    degrees_text,
    error_text,
    fit_text,
    layers_text,
    optimizer_text,
    ramp_rows,
    recompute_text,
    status_text,
    step_time_text,
    techniques_text,
)
from planner.report.full_memory import full_memory_facts, limit_text
from planner.report.search import error_note, job_facts, metric_note
from planner.report.tables import Block, Facts, Notes, Report, TableData, headings
from planner.report.what_if import what_if_blocks
from planner.search.explanation import (
    SAME_SPEED,
    TIME_TERMS,
    Explanation,
    NeighbourReport,
    StageGroup,
    StagePlace,
    Term,
)

# Stages are called uneven where the slowest takes so many times the mean.
_UNEVEN = 1.1
_STAGE_TERMS = ("weights", "gradients", "optimizer", "activations")


def explanation_report(explanation: Explanation) -> Report:
    """The whole report."""
    plan = explanation.plan
    blocks: list[Block] = [
        Facts(_plan_facts(explanation)),
        memory_table(explanation),
        stage_table(explanation),
        time_table(explanation),
        Notes(metric_notes(explanation)),
    ]
    if explanation.assumptions:
        blocks.append(
            Facts(tuple((entry.about, entry.text) for entry in explanation.assumptions), "Assumed")
        )
    if explanation.neighbours:
        blocks.append(neighbour_table(explanation.neighbours, plan))
    if explanation.what_if is not None:
        blocks += what_if_blocks(explanation.what_if, plan)
    return Report(tuple(blocks))


def _plan_facts(explanation: Explanation) -> tuple[tuple[str, str], ...]:
    plan, job = explanation.plan, explanation.job
    layers = layers_text(plan)
    facts = [
        *job_facts(job),
        ("plan", f"{explanation.number} of {explanation.of}, {status_text(plan)}"),
        ("degrees", degrees_text(plan.degrees)),
        ("batch", batch_sentence(plan, job.batch_target_sequences)),
        *ramp_rows(plan),
        ("mbs×acc", batch_text(plan.degrees)),
        ("recompute", recompute_text(plan)),
        ("optimizer", optimizer_text(plan)),
    ]
    if plan.activation_offload:
        facts.append(("on the host", activations_text(plan)))
    if plan.degrees.pp > 1:
        facts.append(("schedule", plan.schedule))
    if plan.degrees.cp > 1:
        sizes = " and ".join(map(str, plan.cp_sizes))
        over = f" over {sizes}" if sizes else ""
        facts.append(("context", f"{plan.cp_comm_type or 'p2p'}{over} exchange"))
    if plan.techniques:
        facts.append(("techniques", techniques_text(plan)))
    flags = {
        "technique": plan.technique_flags,
        "recompute": plan.recompute_flags,
        "optimizer": plan.optimizer_flags,
        "offload": plan.activation_offload_flags,
    }
    facts += [(f"{name} flags", text) for name, text in flags.items() if text]
    if layers:
        facts.append(("layers", f"{layers} (stages in order)"))
    if plan.layout.mtp_standalone:
        stage = plan.degrees.pp - 2
        where = "behind its layers" if plan.layout.block_layers[-2] else "alone in its block"
        facts.append(("MTP", f"on stage {stage}, {where}; head and loss follow alone"))
    if plan.degrees.vpp > 1 and not plan.layout.is_even:
        facts.append(("blocks", f"{run_lengths(plan.layout.block_layers)} (layers, in order)"))
    facts += [("placed", place_sentence(place)) for place in explanation.places]
    return (*facts, *_result_facts(plan))


def place_sentence(place: StagePlace) -> str:
    """`stages 0-2 (48 layers) on H100-SXM5-80GB: ranks 0-47`."""
    noun = "stage" if len(place.stages) == 1 else "stages"
    first, last = place.ranks
    return (
        f"{noun} {number_ranges(place.stages)} ({plural(place.layers, 'layer')}) on {place.gpu}: "
        f"ranks {first}-{last}"
    )


def _result_facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    return (
        ("step time", f"{step_time_text(plan)}, {plan.tokens_per_s:,.0f} tokens/s"),
        ("peak", peak_sentence(plan)),
        *full_memory_facts(plan),
    )


def peak_sentence(plan: Plan) -> str:
    """Peak memory against what is there, and how likely it fits."""
    error = error_text(plan.peak_bytes, plan.peak_interval)
    limit = limit_text(plan.limit_bytes, plan.usable_bytes)
    verdict = fit_text(plan.peak_bytes, plan.limit_bytes, plan.fit_probability)
    return f"{gib(plan.peak_bytes)} GiB {error} {limit}: {verdict}"


def memory_table(explanation: Explanation) -> TableData:
    """Terms of the heaviest stage's peak."""
    stage = explanation.plan.stages[explanation.plan.heaviest_stage]
    return TableData(
        title=f"Memory of the heaviest stage ({stage.stage}), at its peak ({stage.phase})",
        columns=headings("~term | GiB | share"),
        rows=(
            *((term.label, gib(term.amount, 2), share(term.share)) for term in explanation.memory),
            ("peak", gib(stage.peak, 2), share(_total(explanation.memory))),
        ),
    )


def _total(terms: tuple[Term, ...]) -> float:
    return sum(term.share for term in terms)


def stage_table(explanation: Explanation) -> TableData:
    """Memory of every stage; equal neighbours share a row."""
    return TableData(
        title="Memory by pipeline stage, GiB",
        columns=headings(
            "<stage | layers | in\nflight | weights | grads | optim. | activ. | rest",
            "peak | <phase",
        ),
        rows=tuple(_stage_row(group) for group in explanation.stages),
    )


def _stage_row(group: StageGroup) -> tuple[str, ...]:
    stage = group.memory
    shown = [float(getattr(stage, name)) for name in _STAGE_TERMS]
    return (
        number_ranges(group.stages),
        str(stage.layers),
        f"{stage.in_flight:.3g}",
        *(gib(size) for size in shown),
        gib(stage.peak - sum(shown)),
        gib(stage.peak),
        stage.phase,
    )


def time_table(explanation: Explanation) -> TableData:
    """Terms of the step time."""
    plan = explanation.plan
    return TableData(
        title="Time of one step, on the slowest stage",
        columns=headings("~term | time | share"),
        rows=(
            *((term.label, seconds(term.amount), share(term.share)) for term in explanation.time),
            ("step", seconds(plan.step_time_s), share(_total(explanation.time))),
        ),
    )


def metric_notes(explanation: Explanation) -> tuple[str, ...]:
    """Every form of MFU, and what error bars rest on."""
    plan, job = explanation.plan, explanation.job
    forms = [
        f"MFU {share(plan.mfu)} (causal attention halved: {share(plan.mfu_causal)})",
        f"HFU {share(plan.hfu)} (with recomputed FLOP)",
    ]
    if job.precision_peak_flop_per_s != job.peak_flop_per_s:
        forms.append(f"{share(plan.mfu_precision)} of the {job.precision} peak")
    return (
        "; ".join(forms) + ".",
        metric_note(job, (plan,)),
        error_note((plan,)),
        f"Memory ±: 80 % interval, from {plan.peak_interval.basis}.",
    )


def neighbour_table(reports: tuple[NeighbourReport, ...], plan: Plan) -> TableData:
    """Each neighbour and what became of it."""
    return TableData(
        title="Neighbours: one degree changed (what follows from it in brackets), best layout",
        columns=headings("~change | step time | peak GiB | ~compared with this plan"),
        rows=(
            ("this plan", seconds(plan.step_time_s), gib(plan.peak_bytes), ""),
            *(_neighbour_row(report) for report in reports),
        ),
    )


def _neighbour_row(report: NeighbourReport) -> tuple[str, ...]:
    if report.step_time_s is None or report.peak_bytes is None:
        return (report.change, "", "", f"not legal: {report.text}")
    return (
        report.change,
        seconds(report.step_time_s),
        gib(report.peak_bytes),
        neighbour_sentence(report),
    )


def neighbour_sentence(report: NeighbourReport) -> str:
    """`12.1 % slower, TP traffic +0.9 s`, or `does not fit in 79.1 GiB, 0.3 % slower`."""
    against = f"; against your {report.text}" if report.text else ""
    return f"{_comparison(report)}{_doubt(report)}{against}"


def _doubt(report: NeighbourReport) -> str:
    """How likely one fits that does so nominally but is not safe to recommend."""
    probability = report.fit_probability
    if report.outcome == "does-not-fit" or probability is None or probability >= LIKELY_TO_FIT:
        return ""
    return f"; fits with {percent_sure(probability)}"


def _comparison(report: NeighbourReport) -> str:
    if report.outcome == "does-not-fit":
        but = " though" if (report.faster_by or 0.0) > 0 else ""
        return f"does not fit in {gib(report.limit_bytes or 0.0)} GiB,{but} {_slowdown(report)}"
    if report.outcome == "equal":
        return "equally fast"
    label = TIME_TERMS.get(report.reason or "", "").removeprefix("exposed ")
    reason_s = report.reason_s or 0.0
    sign = "+" if reason_s >= 0 else "-"
    return f"{_slowdown(report)}, {label} {sign}{seconds(abs(reason_s))}{_uneven(report)}"


def _uneven(report: NeighbourReport) -> str:
    """Why more compute is exposed, where stages differ: whole layers, or layers moved to fit."""
    ratio = report.slowest_stage or 1.0
    if report.reason != "compute_s" or (report.reason_s or 0.0) < 0.0 or ratio < _UNEVEN:
        return ""
    return f": its slowest stage takes {ratio:.1f} times the mean"


def _slowdown(report: NeighbourReport) -> str:
    faster_by = report.faster_by or 0.0
    if abs(faster_by) < SAME_SPEED:
        return "equally fast"
    return f"{share(abs(1 / (1 + faster_by) - 1))} {'faster' if faster_by > 0 else 'slower'}"
