"""Explain one reinforcement-learning plan: its neighbours, and the effect of changes to the job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hardware.frozen import Frozen
from planner.job.errors import NothingFitsError, UsageError
from planner.job.rl.job import RlJob
from planner.job.rl.request import RlRequest
from planner.predict.evaluate import Proposal
from planner.predict.rl.plan import RlLayout, Training
from planner.search.limit_results import Progress, Until
from planner.search.rl.costs import Costs
from planner.search.rl.engines import demand_engine
from planner.search.rl.plans import layout_of
from planner.search.rl.result import RlPlan, RlResult
from planner.search.rl.search import find_rl_plans
from planner.search.rl.sides import memory_share, ways_of
from planner.search.rl.trainers import critic_of, with_any_batch
from planner.search.rl.why import RlDoesNotFitError, changes


class RlNeighbour(Frozen):
    """A layout that differs in one choice. `change`: the choice in words. `step_s`: its step time;
    None if it is not legal, for the reason in `note`. `peak_share`: share of a GPU's memory."""

    change: str
    step_s: float | None = None
    peak_share: float | None = None
    fits: bool = False
    note: str = ""


class RlChange(Frozen):
    """The best plan after a change. `effect`: relative difference of its step from the best plan
    now (negative: shorter); None if nothing fits, for the reason in `note`."""

    change: str
    step_s: float | None = None
    samples_per_gpu_hour: float | None = None
    effect: float | None = None
    note: str = ""


class RlExplanation(Frozen):
    """A plan, its neighbours, and the effects of changes to the job."""

    number: int
    plan: RlPlan
    neighbours: tuple[RlNeighbour, ...] = ()
    best_s: float | None = None
    what_if: tuple[RlChange, ...] = ()


def explain_rl(
    result: RlResult,
    number: int,
    *,
    neighbours: bool = True,
    what_if: bool = False,
    until: Until | None = None,
    progress: Progress | None = None,
) -> RlExplanation:
    """Explain plan `number` of a result, from 1. `until`: when to stop searching."""
    plan = result.plans[number - 1]
    found = tuple(neighbours_of(result.request, plan)) if neighbours else ()
    explanation = RlExplanation(number=number, plan=plan, neighbours=found)
    if not what_if:
        return explanation
    end = until or Until()
    best = _fastest(result.request, end, progress)
    best_s = best.step_s if best else None
    rows = tuple(_changed_rows(result.request, best_s, end, progress))
    return explanation.model_copy(update={"best_s": best_s, "what_if": rows})


# --- neighbours -----------------------------------------------------------------------------------


def neighbours_of(request: RlRequest, plan: RlPlan) -> Iterator[RlNeighbour]:
    """Layouts that differ from a plan's in one choice of either side."""
    job, layout = layout_of(request, plan)
    costs = Costs()
    training = costs.train(job, layout.trainer, layout.critic)
    for change, other in _engine_changes(job, layout):
        yield _costed(job, change, other, training, costs)
    for change, made in _trainer_changes(request, job, layout):
        if isinstance(made, str):
            yield RlNeighbour(change=change, note=made)
        else:
            yield _costed(job, change, made, costs.train(job, made.trainer, made.critic), costs)


def _costed(
    job: RlJob, change: str, layout: RlLayout, training: Training, costs: Costs
) -> RlNeighbour:
    try:
        demand_engine(job, layout.engine)
    except UsageError as error:
        return RlNeighbour(change=change, note=str(error))
    step = costs.step(job, layout, training)
    return RlNeighbour(
        change=change, step_s=step.step_s, peak_share=memory_share(step), fits=step.fits
    )


def neighbour_layouts(request: RlRequest, plan: RlPlan) -> Iterator[tuple[str, RlJob, RlLayout]]:
    """Legal layouts that differ from a plan's in one choice, each with the change in words."""
    job, layout = layout_of(request, plan)
    made = (*_engine_changes(job, layout), *_trainer_changes(request, job, layout))
    for change, other in made:
        if isinstance(other, str):
            continue
        try:
            demand_engine(job, other.engine)
        except UsageError:
            continue
        yield change, job, other


def _engine_changes(job: RlJob, layout: RlLayout) -> Iterator[tuple[str, RlLayout]]:
    engine, told = layout.engine, job.framework.told_sequences
    for tp in (2 * engine.tp, engine.tp // 2):
        replicas, rest = divmod(engine.replicas * engine.tp, tp) if tp else (0, 1)
        if not rest and replicas:
            ep = 1 if engine.ep == 1 else tp * engine.dp
            other = replace(engine, tp=tp, replicas=replicas, ep=ep)
            if not told:
                usual = job.usual_sequences(layout.placement, replicas)
                other = replace(other, sequences=usual)
            yield f"engines of tp {tp}", replace(layout, engine=other)
    for share in (engine.kv_share - 0.1, engine.kv_share + 0.1):
        if 0.05 < share < 1.0:
            other = replace(engine, kv_share=round(share, 2))
            yield f"engines take {share:.0%} of a GPU", replace(layout, engine=other)
    for count in (engine.sequences // 2, engine.sequences * 2) if told else ():
        other = replace(engine, sequences=max(1, count))
        yield f"{count} sequences at once", replace(layout, engine=other)
    if layout.placement == "colocated":
        words = "stays on the GPU" if layout.trainer_leaves else "goes to the host meanwhile"
        yield f"the trainer {words}", replace(layout, trainer_leaves=not layout.trainer_leaves)
    else:
        yield from _apart(job, layout)


def _apart(job: RlJob, layout: RlLayout) -> Iterator[tuple[str, RlLayout]]:
    """Changes for two sides on separate GPUs: synchronous or one update behind, and other ways to
    send new weights."""
    if layout.staleness and job.framework.separate_synchronous:
        yield "synchronous", replace(layout, staleness=0, streams=False)
    elif not layout.staleness and job.framework.most_staleness:
        streams = job.partial_rollouts
        yield "samples one update behind", replace(layout, staleness=1, streams=streams)
    for way in ways_of(job, layout.placement):
        if way != layout.way:
            yield f"new weights by {way}", replace(layout, way=way)


def _trainer_changes(
    request: RlRequest, job: RlJob, layout: RlLayout
) -> Iterator[tuple[str, RlLayout | str]]:
    """Trainers with one degree doubled or halved, or the reason why they are not legal."""
    degrees, part = layout.trainer.degrees, with_any_batch(layout.trainer.job)
    for name in ("tp", "pp", "cp"):
        for value in (getattr(degrees, name) * 2, getattr(degrees, name) // 2):
            dp = degrees.dp * getattr(degrees, name) / value if value else 0.5
            if dp < 1 or dp != int(dp):
                continue
            count = max(1, round(part.batch.sequences / (dp * degrees.mbs)))
            other = degrees.model_copy(update={name: value, "dp": int(dp), "grad_acc": count})
            words = f"trainer of {name} {value}, dp {int(dp)}"
            try:
                made = Proposal(request.trainer, other, layout.trainer.recompute).of(part)
            except UsageError as error:
                yield words, _reason(error)
                continue
            yield words, replace(layout, trainer=made, critic=critic_of(job, made))


def _reason(error: Exception) -> str:
    """The first rule that a refusal lists, else its first line."""
    first, *rules = str(error).splitlines()
    return rules[0].strip().removeprefix("- ") if rules and first.endswith(":") else first


# --- what changes would bring ---------------------------------------------------------------------


def _changed_rows(
    request: RlRequest, best_s: float | None, until: Until, progress: Progress | None
) -> Iterator[RlChange]:
    for words, changed in changes(request, request.resolve()):
        if until.over(words):
            continue
        try:
            plan = _fastest(changed, until, progress)
        except (UsageError, NothingFitsError) as error:
            yield RlChange(change=words, note=_reason(error))
            continue
        effect = None if best_s is None or plan is None else plan.step_s / best_s - 1.0
        yield RlChange(
            change=words,
            step_s=plan.step_s if plan else None,
            samples_per_gpu_hour=plan.samples_per_gpu_hour if plan else None,
            effect=effect,
            note="" if plan else "nothing fits",
        )


def _fastest(request: RlRequest, until: Until, progress: Progress | None) -> RlPlan | None:
    """The plan with the shortest step; None if nothing fits."""
    try:
        found = find_rl_plans(
            request, fastest_only=True, time_limit_s=until.seconds_left, progress=progress,
            remedies=False,
        )  # fmt: skip
    except RlDoesNotFitError:
        return None
    return found.plans[0]
