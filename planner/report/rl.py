"""Reports of plans of reinforcement learning."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from planner.job.quantities import gib, plural, seconds, share, short_count
from planner.predict.plan import OPTIMAL_WITHIN
from planner.predict.rl.plan import EngineLayout, Phase, Side
from planner.predict.rl.step import RlStep
from planner.report.rl_step import step_blocks
from planner.report.rl_verdict import verdict_blocks
from planner.report.said import described, fact_rows, lasting, table_of
from planner.report.tables import Block, Facts, Notes, TableData, as_report
from planner.search.rl.explain import RlExplanation
from planner.search.rl.result import RlPlan, RlResult, RlSummary

Row = tuple[str, str]


@as_report
def rl_search_report(result: RlResult, saved_as: str | None = None) -> Iterator[Block]:
    """The report of a search. `saved_as`: the plan file, if one was written."""
    yield from verdict_blocks(result, saved_as)
    yield front_table(result)
    yield Facts((*job_rows(result.job), *_searched_rows(result)), "What was searched")
    yield Notes(tuple(_front_notes(result)))
    yield Notes(_next_steps(saved_as, result.recommended))


@as_report
def rl_plan_report(
    result: RlResult, number: int, step: RlStep, saved_as: str | None = None
) -> Iterator[Block]:
    """One plan: its card, its settings, the phases of its step, memory and assumptions."""
    yield from verdict_blocks(result, saved_as, number)
    yield from plan_blocks(result, number, step)


@as_report
def rl_explanation_report(
    result: RlResult, explanation: RlExplanation, step: RlStep, saved_as: str
) -> Iterator[Block]:
    """One plan in full, its neighbours, and the effect of changing the job."""
    yield from rl_plan_report(result, explanation.number, step, saved_as).blocks
    if explanation.neighbours:
        yield neighbours_table(explanation)
    if explanation.what_if:
        yield table_of("rl_front.changes", explanation.what_if, best=explanation.best_s)


def neighbours_table(explanation: RlExplanation) -> TableData:
    """Layouts that differ in one choice."""
    now_s = explanation.plan.step_s
    return table_of(
        "rl_front.neighbours", explanation.neighbours,
        longer=lambda one: None if one.step_s is None else one.step_s / now_s - 1.0,
        fitting=lambda one: one.note or ("yes" if one.fits else "no"),
    )  # fmt: skip


def plan_blocks(result: RlResult, number: int, step: RlStep) -> Iterator[Block]:
    """The blocks about one plan."""
    plan = result.plans[number - 1]
    yield Facts((*job_rows(result.job), *plan_rows(plan)))
    yield from step_blocks(step)
    yield terms_table(plan)
    notes = [*result.notes, *_fit_notes(plan)]
    if notes:
        yield Notes(tuple(notes))
    if plan.trainer.assumptions:
        lines = tuple(f"- {text}" for text in plan.trainer.assumptions)
        yield Notes(lines, "Assumed of the trainer")


def job_rows(job: RlSummary) -> tuple[Row, ...]:
    """The job in words."""
    passes = job.minibatches if job.minibatches > 1 else 0
    return fact_rows("rl_front.job", job, passes=passes, again=job.epochs if job.epochs > 1 else 0)


def plan_rows(plan: RlPlan) -> tuple[Row, ...]:
    """A plan in words."""
    return fact_rows(
        "rl_front.plan", plan, placed=placement_text(plan), trained=trainer_text(plan),
        engines=engine_words(plan), transfer_s=plan.phase_s("transfer"),
    )  # fmt: skip


def placement_text(plan: RlPlan) -> str:
    """`colocated`, `separate`, `separate, 1 update old`."""
    behind = f", {plural(plan.staleness, 'update')} old" if plan.staleness else ""
    return f"{plan.placement}{behind}"


def trainer_text(plan: RlPlan) -> str:
    """`tp8 pp2 dp4 z1, full`: degrees and recomputation."""
    again = plan.trainer.recompute
    return f"{plan.trainer.degrees}" + (f", {again}" if again != "none" else "")


def engine_text(engine: EngineLayout) -> str:
    """`8 × tp2, kv 0.7`: number of engines, degrees of each, share of the memory."""
    degrees = [f"tp{engine.tp}"]
    degrees += [
        f"{name}{value}"
        for name, value in (("pp", engine.pp), ("dp", engine.dp), ("ep", engine.ep))
        if value > 1
    ]
    return f"{engine.replicas} × {' '.join(degrees)}, kv {engine.kv_share:g}"


def engine_words(plan: RlPlan) -> str:
    """The engines, and how many sequences each runs at once."""
    cache = f"KV cache of {short_count(plan.room_tokens)} tokens"
    count = f"{plan.running:,.0f}"
    running = f"{count} sequence{'' if count == '1' else 's'} at once in each, {cache}"
    lost = f", {share(plan.preempted)} of them preempted" if plan.preempted >= 0.001 else ""
    return f"{engine_text(plan.engine)}; {running}{lost}"


def training_text(plan: RlPlan, samples: int) -> str:
    """How long training on this number of samples takes, without interruptions."""
    steps = samples / plan.samples
    value, low, high = (
        lasting(steps * one / 86_400.0) for one in (plan.step_s, plan.low_s, plan.high_s)
    )
    return f"{samples:,} samples are {steps:,.0f} steps: {value} ({low} to {high})"


def front_table(result: RlResult) -> TableData:
    """One row for each plan."""
    marks = {id(plan): f"{number}" for number, plan in enumerate(result.plans, start=1)}
    marks[id(result.plans[result.recommended - 1])] = f"→{result.recommended}"
    return table_of(
        "rl_front.plans", result.plans, mark=lambda plan: marks[id(plan)], placed=placement_text,
        trained=trainer_text, engines=lambda plan: engine_text(plan.engine), gib=_memory_text,
    )  # fmt: skip


def _memory_text(plan: RlPlan) -> str:
    """GiB on the fullest GPU; if the sides use separate GPUs, for each side."""
    sides: tuple[Side, ...] = ("trainer", "engine")
    if plan.placement == "colocated":
        return gib(max(plan.peak(side).peak_bytes for side in sides))
    return "\n".join(gib(plan.peak(side).peak_bytes) for side in sides)


def terms_table(plan: RlPlan) -> TableData:
    """The parts of each phase's time."""
    phases = (phase for phase in plan.phases if phase.seconds > 0.0)
    return table_of(
        "rl_front.terms", phases, words=lambda phase: phase.name.replace("_", " "), of=_terms_text
    )


def _terms_text(phase: Phase) -> str:
    pairs = sorted(phase.terms.items(), key=lambda term: -term[1])
    return ", ".join(f"{name} {seconds(value)}" for name, value in pairs[:5] if value > 0.0)


def _searched_rows(result: RlResult) -> Iterator[Row]:
    counts = result.counts
    yield (
        "searched",
        f"{plural(counts.groups, 'placement')} with their splits and staleness, {counts.trainers:,}"
        f" legal trainers, {counts.engines:,} engines that fit; {seconds(counts.seconds)}",
    )
    if result.proven:
        proof = f"proven optimal to {share(OPTIMAL_WITHIN)} within the cost model"
    else:
        proof = f"not proven: a step shorter by up to {share(result.gap)} may exist"
    yield (
        "proof",
        f"bounds left {counts.costed:,} trainers to be costed in full and {counts.pairs:,} of them "
        f"with an engine; {'CP-SAT finds no better pair: ' if result.proven else ''}{proof}",
    )


def _front_notes(result: RlResult) -> Iterator[str]:
    yield described("rl_front.columns")
    if any(plan.placement == "separate" for plan in result.plans):
        yield described("rl_front.apart")
    yield from result.notes


def _fit_notes(plan: RlPlan) -> Iterator[str]:
    if plan.fits:
        return
    worst = max(plan.phases, key=lambda one: one.peak_bytes / plan.usable_bytes[one.side])
    missing = worst.peak_bytes - plan.usable_bytes[worst.side]
    if missing > 0.0:
        yield (
            f"Does not fit: {worst.name.replace('_', ' ')} takes {gib(worst.peak_bytes)} GiB, "
            f"{gib(missing)} GiB more than the GPU has."
        )
    if plan.placement == "colocated" and not plan.trainer_leaves:
        yield described("rl_front.stays")


def _next_steps(saved_as: str | None, number: int) -> tuple[str, ...]:
    if saved_as is None:
        return (
            "Next: add -o plans.json to this command to keep the plans, then",
            "    planner explain plans.json",
        )
    return (
        f"Plans written to {saved_as}. Next: where time goes, and a folder that starts it:",
        f"    planner explain {shlex.quote(saved_as)} {number}",
        f"    planner launch {shlex.quote(saved_as)} {number} -o run/",
    )
