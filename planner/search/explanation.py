"""Why a plan is what it is: memory and time by term, assumptions, and neighbouring configurations.

Typed data only; `planner.report.explain` turns it into text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from constraints.errors import ConstraintError
from hardware.frozen import Frozen
from planner.cost.terms import MEMORY_WORDS, TIME_WORDS
from planner.job.defaults import defaults_taken
from planner.job.errors import UsageError
from planner.job.frameworks.switches import site_of
from planner.job.job import Job, offered_exchanges
from planner.job.request import Request
from planner.predict.assumptions import Assumption, hardware_assumptions, unmeasured_notes
from planner.predict.layer_profile import StepProfile, step_profile
from planner.predict.link_account import LinkShare, link_account
from planner.predict.plan import Degrees, Plan, StageMemory
from planner.predict.techniques import works_with
from planner.predict.uncertainty.differences import Ratio, plan_ratio
from planner.search.neighbours import neighbours
from planner.search.result import JobSummary, SearchResult, WhatIf
from planner.search.vision_share import vision_shares

if TYPE_CHECKING:
    from constraints.rule import Layout
    from planner.predict.configuration import Configuration
    from planner.predict.cost_model import CostModel
    from planner.search.limit_results import Effort, Until
    from planner.search.neighbours import Neighbour

Evaluator = Callable[[Degrees, str], Plan]
Outcome = Literal["slower", "faster", "equal", "does-not-fit", "not-legal"]

# Multiple of a GPU's memory that is used where memory must not be a limit.
_NO_LIMIT = 1000.0
# Two plans whose sample time differs by less than this share are called equal.
SAME_SPEED = 0.0005


class Term(Frozen):
    """One term of a sum: bytes or seconds, and its share of the total."""

    name: str
    label: str
    amount: float
    share: float


class StageGroup(Frozen):
    """Pipeline stages with the same memory, and that memory."""

    stages: tuple[int, ...]
    memory: StageMemory


class NeighbourReport(Frozen):
    """The outcome for one neighbour. `faster_by`: its tokens/s over the plan's, minus one.

    `reason`: the time term (a field of plans) that explains the difference most, and `reason_s` its
    seconds at the plan's batch. `slowest_stage`: forward and backward time of the slowest pipeline
    stage over the mean. `text`: the rule or the user's conditions that it breaks. `ratio`: its
    seconds per token over the plan's with the 80 % interval; None in results written before the
    field existed.
    """

    change: str
    outcome: Outcome
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    peak_bytes: float | None = None
    limit_bytes: float | None = None
    fit_probability: float | None = None
    faster_by: float | None = None
    reason: str | None = None
    reason_s: float | None = None
    slowest_stage: float | None = None
    text: str = ""
    ratio: Ratio | None = None


class StagePlace(Frozen):
    """Consecutive pipeline stages on GPUs of one type. `ranks`: first and last rank."""

    gpu: str
    stages: tuple[int, ...]
    ranks: tuple[int, int]
    layers: int


class Explanation(Frozen):
    """Everything that `planner explain` shows about one plan.

    `places`: where the stages are, if there are several GPU types. `not_used`: techniques that a
    search would try and this given plan does not use. `compute`: parts of the compute term by their
    bottleneck. `profile`: layers op by op, with their collectives. Both are empty on several GPU
    types. `ratio_to_first`: seconds per token over the first plan's, with the 80 % interval; None
    for the first plan. `vision`: seconds of a step and peak bytes of the vision tower and its
    projector.
    """

    number: int
    of: int
    job: JobSummary
    plan: Plan
    memory: tuple[Term, ...]
    stages: tuple[StageGroup, ...]
    time: tuple[Term, ...]
    assumptions: tuple[Assumption, ...]
    neighbours: tuple[NeighbourReport, ...]
    what_if: WhatIf | None = None
    places: tuple[StagePlace, ...] = ()
    not_used: tuple[str, ...] = ()
    compute: tuple[Term, ...] = ()
    profile: StepProfile | None = None
    links: tuple[LinkShare, ...] = ()
    vision: tuple[Term, ...] = ()
    ratio_to_first: Ratio | None = None


def _not_used(job: Job, plan: Plan) -> tuple[str, ...]:
    """Techniques for `Explanation.not_used`, except those that only end waiting for the CPU, which
    are named where the waiting is shown."""
    site = site_of(
        job.framework, job.model, job.cluster, inside=True, tuning=job.tuning, samples=job.samples
    )
    return tuple(
        one.name
        for one in job.framework.techniques
        if one.use == "searched" and not (one.profile or one.least_waiting)
        if one.name not in plan.techniques
        if not site.obstacle(one) and works_with(job, plan.degrees, one.name)
    )


def explain(
    result: SearchResult,
    number: int,
    job: Job,
    evaluator: Evaluator | None = None,
    until: Until | None = None,
) -> Explanation:
    """Explain plan `number` (from 1). Without `evaluator` there are no neighbours; with no time
    left, they count as untried in `until`.

    UsageError if there is no such plan.
    """
    plan = pick_plan(result, number)
    profile = step_profile(job, plan)
    reports = (
        () if evaluator is None else neighbour_reports(plan, result.request, job, evaluator, until)
    )
    return Explanation(
        number=number,
        of=len(result.plans),
        job=result.job,
        plan=plan,
        memory=memory_terms(plan.stages[plan.heaviest_stage]),
        stages=stage_groups(plan),
        time=time_terms(plan),
        assumptions=assumptions(plan, job, result.request),
        neighbours=reports,
        not_used=_not_used(job, plan) if plan.status == "evaluated" else (),
        compute=_compute_terms(profile, plan),
        profile=profile,
        links=link_account(job, plan),
        vision=tuple(Term(**one._asdict()) for one in vision_shares(job, plan, profile)),
        places=stage_places(plan),
        ratio_to_first=(
            None if number == 1 else plan_ratio(result.plans[0], plan, job.model.moe is not None)
        ),
    )


def stage_places(plan: Plan) -> tuple[StagePlace, ...]:
    """The stages and ranks on each kind of GPU, if clusters of several kinds share a plan.

    The pipeline is the outermost rank axis in every framework that has one, so a stage occupies
    tp·cp·dp consecutive ranks.
    """
    each = plan.degrees.gpus // plan.degrees.pp
    found = []
    for gpu, members in groupby(range(len(plan.stage_gpus)), key=lambda at: plan.stage_gpus[at]):
        stages = tuple(members)
        ranks = (stages[0] * each, (stages[-1] + 1) * each - 1)
        layers = sum(plan.stages[stage].layers for stage in stages)
        found.append(StagePlace(gpu=gpu, stages=stages, ranks=ranks, layers=layers))
    return tuple(found)


def job_evaluator(job: Job, plan: Plan, until: Until | None = None) -> Evaluator:
    """A function that costs configurations of a job, ignoring its limits and conditions on the
    degrees.

    To compare with a searched plan, each configuration gets its best layout (CP-SAT), as the plan
    has. To compare with an evaluated plan, it gets that plan's layout if possible, else the even
    one.
    """
    from planner.predict.configuration import Configuration, place_of
    from planner.predict.cost_model import CostModel
    from planner.predict.costed_plan import configured_plan
    from planner.predict.shapes import broken_rules
    from planner.search.limit_results import Effort

    def evaluator(degrees: Degrees, recompute: str) -> Plan:
        mode = job.framework.recompute_mode(recompute)
        free = replace(job, limits={}, conditions=(), recompute=(mode,))
        moved = (degrees.tp, degrees.cp) != (plan.degrees.tp, plan.degrees.cp)
        if moved and plan.cp_comm_type not in ("", "p2p"):
            # The exchange of heads was chosen for these two degrees.
            kinds = offered_exchanges(job.framework, job.model, job.seq)
            free = replace(free, context_kinds=kinds, context_inner=0)
        if broken := broken_rules(free, degrees):
            raise UsageError("; ".join(broken.values()))
        cost_model = CostModel(free, compiled=plan.status != "evaluated")
        effort = Effort() if until is None else until.effort(Effort())
        place = place_of(free, degrees.pp, plan.stage_gpus)
        even = replace(Configuration.even(free, degrees, recompute), place=place)
        there = replace(even, layout=_layout(plan, even, cost_model, effort))
        return configured_plan(there, cost_model, "evaluated")

    return evaluator


def _layout(plan: Plan, neighbour: Configuration, cost_model: CostModel, effort: Effort) -> Layout:
    """Layout of a neighbour (see `job_evaluator`): the fastest that fits as surely as requested,
    else the fastest that fits, else the fastest."""
    from planner.predict.configuration import in_mode
    from planner.predict.uncertainty.likely import likely_limit_bytes
    from planner.search.explorer import Explorer

    job, degrees, even = neighbour.job, neighbour.degrees, neighbour.layout
    if plan.status == "evaluated" or job.offload_fraction != 1.0:
        one_degrees = plan.degrees
        if (one_degrees.pp, one_degrees.vpp) != (degrees.pp, degrees.vpp):
            return even
        split = plan.layout.block_layers
        even = replace(even, block_layers=split, mtp_standalone=plan.layout.mtp_standalone)
        return in_mode(even, neighbour.mode)
    likely = likely_limit_bytes(job, job.fit_probability)
    columns = neighbour.columns
    explorer = Explorer(cost_model, cost_model.cost_shapes(columns), columns, likely, effort)
    if explorer.only_even[0]:
        return even
    most = likely_limit_bytes(job, 0.0)
    for limit in (likely, most, _NO_LIMIT * most):
        layout = explorer.solution(0, limit).layout
        if layout is not None:
            return layout
    return even


def pick_plan(result: SearchResult, number: int) -> Plan:
    """Plan by its number in the table, from 1."""
    count = len(result.plans)
    if not 1 <= number <= count:
        has = "only plan 1" if count == 1 else f"plans 1 to {count}"
        raise UsageError(f"there is no plan {number}; the file contains {has}")
    return result.plans[number - 1]


def memory_terms(stage: StageMemory) -> tuple[Term, ...]:
    """Terms of a stage's memory at its peak, without those that are zero there."""
    return _terms(MEMORY_WORDS, stage, stage.peak)


def time_terms(plan: Plan) -> tuple[Term, ...]:
    """Terms of the step time that are not zero."""
    return _terms(TIME_WORDS, plan.time, plan.step_time_s)


def _compute_terms(profile: StepProfile | None, plan: Plan) -> tuple[Term, ...]:
    """Parts of the compute term, as shares of the whole step."""
    parts = profile.compute_parts if profile else {}
    return tuple(
        Term(name=name, label=name, amount=amount, share=amount / plan.step_time_s)
        for name, amount in parts.items()
    )


def _terms(labels: dict[str, str], source: object, total: float) -> tuple[Term, ...]:
    amounts = {name: float(getattr(source, name)) for name in labels}
    return tuple(
        Term(name=name, label=labels[name], amount=amount, share=amount / total)
        for name, amount in amounts.items()
        if amount
    )


def stage_groups(plan: Plan) -> tuple[StageGroup, ...]:
    """Consecutive stages that differ only in their index, grouped."""

    def likeness(stage: StageMemory) -> tuple[object, ...]:
        return tuple(stage.model_dump(exclude={"stage"}).values())

    return tuple(
        StageGroup(stages=tuple(stage.stage for stage in group), memory=group[0])
        for _, members in groupby(plan.stages, key=likeness)
        for group in [list(members)]
    )


def assumptions(plan: Plan, job: Job, request: Request) -> tuple[Assumption, ...]:
    """Assumptions of the plan, the framework profile and the hardware catalogue, and options left
    to their defaults. How far the plan is outside the measured range is shown with the error bar
    instead."""
    taken = ", ".join(defaults_taken(request, job))
    return (
        *((Assumption(about="not given", text=f"as by default: {taken}"),) if taken else ()),
        *(
            Assumption(about="plan", text=text)
            for text in plan.assumptions
            if text not in (*job.framework.assumptions, *unmeasured_notes(plan.step_time))
        ),
        *(
            Assumption(about=job.framework.name, text=text)
            for text in job.framework.assumptions
            if text in plan.assumptions
        ),
        *dict.fromkeys(fact for on in job.machines for fact in hardware_assumptions(on)),
    )


def neighbour_reports(
    plan: Plan, request: Request, job: Job, evaluator: Evaluator, until: Until | None = None
) -> tuple[NeighbourReport, ...]:
    """Cost every neighbour and compare it with the plan, as far as time allows."""
    from planner.predict.evaluate import Proposal

    given = Proposal(request, plan.degrees, plan.recompute)
    return tuple(
        _report(plan, near, evaluator, job)
        for near in neighbours(given, job, plan.gbs)
        if until is None or not until.over(f"neighbour {near[0]}")
    )


def _report(plan: Plan, near: Neighbour, evaluator: Evaluator, job: Job) -> NeighbourReport:
    change, there = near
    try:
        other = evaluator(there.degrees, there.recompute)
    except (UsageError, ConstraintError) as error:
        return NeighbourReport(change=change, outcome="not-legal", text=str(error))
    faster_by = other.tokens_per_s / plan.tokens_per_s - 1
    reason, reason_s = main_difference(plan, other)
    return NeighbourReport(
        change=change,
        outcome=_outcome(other, faster_by),
        step_time_s=other.step_time_s,
        tokens_per_s=other.tokens_per_s,
        peak_bytes=other.peak_bytes,
        limit_bytes=other.limit_bytes,
        fit_probability=other.fit_probability,
        faster_by=faster_by,
        reason=reason,
        reason_s=reason_s,
        slowest_stage=slowest_stage(other),
        text=_disobeyed(job, there.degrees),
        ratio=plan_ratio(plan, other, job.model.moe is not None),
    )


def slowest_stage(plan: Plan) -> float:
    """Forward and backward time of the slowest pipeline stage over the mean."""
    stage_s = [stage.forward_s + stage.backward_s for stage in plan.stages]
    return max(stage_s) * len(stage_s) / sum(stage_s)


def _disobeyed(job: Job, degrees: Degrees) -> str:
    if not job.conditions:
        return ""
    from planner.predict.configuration import degree_columns
    from planner.predict.shapes import rule_context

    ctx, columns = rule_context(job), degree_columns([degrees])
    broken = [
        condition.option for condition in job.conditions if not condition.mask(columns, ctx)[0]
    ]
    return "; ".join(broken)


def _outcome(other: Plan, faster_by: float) -> Outcome:
    if not other.fits:
        return "does-not-fit"
    if abs(faster_by) < SAME_SPEED:
        return "equal"
    return "faster" if faster_by > 0 else "slower"


def main_difference(plan: Plan, other: Plan) -> tuple[str, float]:
    """The time term that explains a difference in sample time most, and its seconds.

    The other plan's times are scaled to this plan's batch. Only terms with the sign of the total
    count.
    """
    scale = plan.gbs_tokens / other.gbs_tokens
    ours, theirs = plan.time.model_dump(), other.time.model_dump()
    differences = {name: theirs[name] * scale - ours[name] for name in ours}
    slower = sum(differences.values()) >= 0
    name = (max if slower else min)(differences, key=lambda term: differences[term])
    return name, differences[name]
