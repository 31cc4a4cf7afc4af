"""The legal shapes of a job, or the reason why there are none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from constraints.condition import UserCondition
from constraints.context import RuleContext
from constraints.numbers import BatchGoal, ClusterNumbers, Columns, DegreeLimit, IntArray
from constraints.registry import rules_of
from constraints.rule import ShapeRule, minimal_conflict
from planner.cost.layout import filled_pipelines
from planner.job.errors import UsageError
from planner.job.job import BatchTarget, Job, model_numbers
from planner.job.offload import grouped_modules
from planner.job.pool import Pool
from planner.predict.configuration import degree_columns
from planner.predict.cost_tables import greedy_costs, job_pieces
from planner.predict.links import link_inputs
from planner.predict.ops.offload import offloaded_rows
from planner.predict.plan import Degrees
from planner.predict.space import (
    LegalityReport,
    Shapes,
    enumerate_shapes,
    largest_usable,
    legal_shapes,
)


@dataclass(frozen=True)
class Candidates:
    """Legal shapes of a job. `job`: the job on the GPUs that the shapes use; `notes`: sentences
    that say so if these are fewer than were given; `report`: the candidates that each rule removed.
    """

    job: Job
    columns: dict[str, IntArray]
    report: LegalityReport
    notes: tuple[str, ...] = field(default=())


def rule_context(job: Job) -> RuleContext:
    """The facts about a job that the rules on shapes read: model, cluster, batch, framework and the
    user's limits."""
    cluster = job.cluster
    domain = int(link_inputs(cluster).scale_up_domain)
    layer, head = greedy_costs(job.model, job.framework.parallelism)
    context = RuleContext(
        model=model_numbers(job.model, job.seq),
        cluster=ClusterNumbers(cluster.num_gpus, cluster.gpus_per_node, domain),
        batch=_goal(job.batch),
        framework=job.framework.parallelism,
        framework_name=job.framework.name,
        precision=job.precision,
        recompute_modes=len(job.recompute),
        limits={name: degree_limit(values) for name, values in job.limits.items()},
        allow_tp_across_nodes=job.allow_tp_across_domains,
        least_zero=job.least_zero,
        gradients_leave=job.gradients_leave,
        weights_leave=job.framework.state.weights_home != "gpu",
        schedule=job.schedule,
        conditions=job.conditions,
        context_kinds=job.context_kinds,
        context_inner=job.context_inner,
        ramp=tuple(_goal(entry.batch) for entry in job.ramp),
        filled_pipelines=(
            filled_pipelines(len(job.model.piece_sequence), layer, head) if layer else frozenset()
        ),
    )
    if not job.activation_offload:
        return context
    return replace(
        context,
        offloaded={
            name: job.offload_fraction * size for name, size in offloaded_per_token(job).items()
        },
        host_bytes_per_gpu=cluster.host_memory_bytes_per_node / cluster.gpus_per_node,
        offload_modules=grouped_modules(job.framework, job.activation_offload),
    )


def _goal(batch: BatchTarget) -> BatchGoal:
    return BatchGoal(max(1, round(batch.sequences)), batch.tolerance, batch.exact)


def offloaded_per_token(job: Job) -> dict[str, float]:
    """Bytes of offloaded activations per token, summed over all layers, by the name of the
    parallelism that divides them among ranks."""
    found: dict[str, float] = {}
    kinds = job_pieces(job)[: len(job.model.piece_kinds)]
    for kind in job.model.piece_indices:
        for row in offloaded_rows(kinds[kind]):
            name = row.shard.name.lower()
            found[name] = found.get(name, 0.0) + row.leaves * row.bytes_per_token
    return found


def degree_limit(values: Iterable[int]) -> DegreeLimit:
    """A limit on a degree that allows exactly these values."""
    ordered = tuple(sorted(values))
    return DegreeLimit(
        ",".join(str(value) for value in ordered),
        tuple((value, value) for value in ordered),
        ordered,
    )


def legal_candidates(job: Job) -> Candidates:
    """Legal shapes on all GPUs. If no configuration can use all of them, even without the user's
    limits, legal shapes on the largest number that works. UsageError if there are none.

    The user's limits do not affect this choice: otherwise a further limit could make the answer
    faster.
    """
    if job.pool is not None:
        return _pool_candidates(job, job.pool)
    ctx = rule_context(job)
    shapes = enumerate_shapes(ctx)
    columns, report = legal_shapes(ctx, shapes)
    if report.legal:
        return Candidates(job, columns, report)
    free = replace(ctx, limits={}, conditions=())
    usable = largest_usable(free)
    if not 0 < usable < job.cluster.num_gpus:
        raise UsageError(no_legal_shape(ctx, shapes))
    conflict = minimal_conflict(enumerate_shapes(free).columns, free, rules_of(free))
    reason = "; ".join(rule.explain(free) for rule in conflict)
    note = (
        f"planned on {usable:,} of the {job.cluster.num_gpus:,} GPUs: no configuration uses all "
        f"of them ({reason})"
    )
    smaller = replace(job, cluster=job.cluster.with_gpus(usable))
    ctx = rule_context(smaller)
    shapes = enumerate_shapes(ctx)
    columns, report = legal_shapes(ctx, shapes)
    if not report.legal:
        raise UsageError(f"{note}\n{no_legal_shape(ctx, shapes)}")
    return Candidates(smaller, columns, report, (note,))


def _pool_candidates(job: Job, pool: Pool) -> Candidates:
    """Shapes that are legal on every machine of a pool and whose stages fill each machine, with
    every assignment of stages to machines (column `place`). UsageError if there are none."""
    legal: list[dict[tuple[int, ...], None]] = []
    names: tuple[str, ...] = ()
    considered = 0
    for machine in job.machines:
        ctx = rule_context(machine)
        shapes = enumerate_shapes(ctx)
        columns, report = legal_shapes(ctx, shapes)
        if not report.legal:
            raise UsageError(no_legal_shape(ctx, shapes))
        names, considered = tuple(columns), max(considered, _placed(shapes, pool))
        table = np.column_stack(list(columns.values()))
        legal.append(dict.fromkeys(map(tuple, table.tolist())))
    pp = names.index("pp")
    rows = [
        (*row, place)
        for row in legal[0]
        if all(row in others for others in legal)
        for place in pool.places_of(row[pp])
    ]
    if not rows:
        raise UsageError(unfilled(pool))
    found = np.array(rows, dtype=np.int64)
    placed = {name: found[:, index].copy() for index, name in enumerate((*names, "place"))}
    return Candidates(job, placed, LegalityReport(considered, len(rows), {}))


def _placed(shapes: Shapes, pool: Pool) -> int:
    """Number of candidates on a pool: each shape counts once for every assignment of its stages to
    machines, or once if there is none."""
    degrees, counts = np.unique(shapes.degrees["pp"], return_counts=True)
    places = [max(1, len(pool.places_of(pp))) for pp in degrees.tolist()]
    return shapes.modes * int(counts @ places)


def unfilled(pool: Pool) -> str:
    """Why no stages fill the clusters of a pool, and a remedy."""
    counts = " and ".join(str(part.num_gpus) for part in pool.parts)
    return (
        f"no legal configuration has pipeline stages that fill {counts} GPUs: tp·cp·dp must "
        "divide each number, and the sum of the quotients is pp, so pp is at least "
        f"{len(pool.parts)}; give numbers with a larger common divisor, or looser conditions"
    )


def _with_name(text: str, name: str) -> str:
    """A rule's sentence, with the rule's name if the sentence does not contain it."""
    is_named = name in text or name.replace(", which needs", " needs") in text
    return text if is_named else f"{text}  [{name}]"


def no_legal_shape(ctx: RuleContext, shapes: Shapes) -> str:
    """The rules that contradict each other, and batch sizes or GPUs that would work."""
    conflict = minimal_conflict(shapes.columns, ctx, rules_of(ctx))
    lines = ["no configuration obeys these rules together:"]
    lines += [f"  - {_with_name(rule.explain(ctx), rule.name)}" for rule in conflict]
    if any(rule.name == "batch-size" for rule in conflict):
        batches = nearest_batches(ctx)
        if batches:
            sizes = " or ".join(f"{size:,}" for size in batches)
            lines.append(f"nearest global batch that works: {sizes} sequences (--gbs)")
    usable = largest_usable(ctx)
    if usable:
        lines.append(f"largest number of these GPUs that works: {usable:,} (--gpus)")
    lines += condition_hints(ctx, shapes, conflict)
    return "\n".join(lines)


def nearest_batches(ctx: RuleContext) -> tuple[int, ...]:
    """The nearest global batches below and above the goal that some legal shape has, sequences.

    Candidates are multiples of the data-parallel degrees that the other rules allow; each is tried
    against all rules.
    """
    others = tuple(rule for rule in rules_of(ctx) if rule.name != "batch-size")
    columns, report = legal_shapes(ctx, enumerate_shapes(ctx), others)
    if not report.legal:
        return ()
    steps = np.unique(columns["dp"] * columns["mbs"])
    goal = ctx.batch.sequences
    below = np.unique((goal - 1) // steps * steps)[::-1]
    above = np.unique((goal + steps) // steps * steps)
    found = [_first_legal(ctx, sizes) for sizes in (below, above)]
    return tuple(size for size in found if size is not None)


def _first_legal(ctx: RuleContext, sizes: IntArray) -> int | None:
    for size in sizes[sizes > 0].tolist():
        exact = replace(ctx, batch=BatchGoal(size, 0.0, True), recompute_modes=1)
        if legal_shapes(exact, enumerate_shapes(exact))[1].legal:
            return int(size)
    return None


def broken_rules(job: Job, degrees: Degrees) -> dict[str, str]:
    """By name, each rule that the degrees violate on some machine, with a sentence that says what
    the rule demands; empty if all are legal."""
    broken: dict[str, str] = {}
    for machine in job.machines:
        broken = _broken_on(machine, degrees) | broken
    if job.pool is not None and not job.pool.places_of(degrees.pp):
        broken["pool-stages"] = f"{unfilled(job.pool)}  [pool-stages]"
    return broken


def _broken_on(job: Job, degrees: Degrees) -> dict[str, str]:
    """`broken_rules` on one machine."""
    ctx = replace(rule_context(job), given=True)
    columns = degree_columns([degrees])
    return {
        rule.name: _with_name(rule.why(columns, ctx), rule.name)
        for rule in rules_of(ctx)
        if not rule.mask(columns, ctx)[0]
    }


def condition_hints(
    ctx: RuleContext, shapes: Shapes, conflict: Sequence[ShapeRule]
) -> Iterator[str]:
    """Sentences about the user's conditions that are part of a conflict. If the condition is the
    only member: the choices that were tried, none of which obeys it. For a condition given as an
    option: the number of configurations that would be legal without it, among those that were
    enumerated and obey every other rule."""
    names = {rule.name for rule in conflict}
    for condition in ctx.conditions:
        if condition.option not in names:
            continue
        count, legal = without(ctx, condition)
        if len(conflict) == 1:
            tried = condition.values_tried(legal if count else shapes.columns, ctx)
            what = f"{count:,} legal" if count else f"{shapes.considered:,}"
            yield f"none of the {what} configurations that are tried obeys it" + (
                f"; {tried}" if tried else ""
            )
        # A condition that part of the model demands cannot be left out.
        if count and condition.option.startswith("-"):
            noun = "configuration is" if count == 1 else "configurations are"
            yield f"without {condition.option}: {count:,} {noun} legal"


def without(ctx: RuleContext, dropped: UserCondition) -> tuple[int, Columns]:
    """(number of configurations that are legal if one of the user's conditions is dropped, columns
    of their degrees)."""
    others = tuple(condition for condition in ctx.conditions if condition is not dropped)
    freed = replace(ctx, conditions=others)
    columns, report = legal_shapes(freed, enumerate_shapes(freed))
    return report.legal, columns
