"""Turns costs into a `Plan`: the only place where arrays become a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from constraints.batch import ramp_columns
from constraints.context_exchange import exchange_kind
from constraints.rule import Layout
from planner.cost import fields as f
from planner.cost.tables import Array
from planner.job.job import Job
from planner.job.offload import offload_flags
from planner.job.optimizers import optimizer_flags
from planner.job.recomputation import layout_flags
from planner.job.schedules import plan_schedule
from planner.predict import assumptions
from planner.predict.configuration import Configuration
from planner.predict.cost_model import CostedShapes, CostModel, KernelLayout
from planner.predict.cost_tables import half_precision
from planner.predict.mixture import CostedLayout, cost_configuration, cost_layout
from planner.predict.ops.trained import trained_flop
from planner.predict.passes import step_passes
from planner.predict.plan import (
    Degrees,
    FullMemory,
    Interval,
    Plan,
    PlanBatch,
    SampleFigures,
    StageMemory,
    TimeTerms,
)
from planner.predict.shapes import rule_context
from planner.predict.sharp import or_by_hosts
from planner.predict.stage import named_terms
from planner.predict.techniques import technique_flags, used_techniques
from planner.predict.uncertainty import full_memory as full
from planner.predict.uncertainty import intervals
from planner.predict.uncertainty.sample_spread import with_unlike_samples

Status = Literal["optimal", "feasible", "evaluated"]
# Columns of the fields of `StageMemory`.
_STAGE_COLUMNS = {
    name: f.MEMORY_COLUMNS.get(name, getattr(f, f"STAGE_{name.upper()}"))
    for name in StageMemory.model_fields
    if name not in ("stage", "layers", "phase")
}
# Number of batches of a ramp that are costed; the step times of others are interpolated.
_COSTED = 12
_PHASES: tuple[Literal["backward", "optimizer", "forward"], ...]
_PHASES = ("backward", "optimizer", "forward")


def configured_plan(
    configuration: Configuration,
    cost_model: CostModel,
    status: Status,
    gap: float = 0.0,
    priced: CostedShapes | None = None,
) -> Plan:
    """The plan of a configuration, costed by the kernel. `cost_model`: of the configuration's job;
    `priced`: the costs of its shape, if the model has computed them. MFU is relative to the peaks
    of all GPUs together; memory is that of the stage with the least room."""
    job, degrees, layout = configuration.job, configuration.degrees, configuration.layout
    priced = priced or cost_model.price_shapes(configuration.columns)
    costed = cost_layout(cost_model, priced, 0, configuration)
    step, machines = costed.step, job.machines
    on_stages = [machines[machine] for machine in configuration.machines]
    heaviest = on_stages[int(step[f.STEP_PEAK_STAGE])]
    step_time_s, peak = float(step[f.STEP_TIME]), float(step[f.STEP_PEAK_BYTES])
    rooms = _rooms(configuration, costed)
    probability = min(intervals.fit_probability(*room) for room in rooms)
    stages = named_terms(costed.stages, costed.memory, configuration.machines)
    interval = _step_interval(configuration, cost_model, priced, step)
    full_s = full.full_step_time_s(heaviest, degrees, step_time_s)
    interval = full.with_full_memory(interval, step_time_s, full_s, 1.0 - probability)
    risk = full.full_memory(heaviest, degrees, step_time_s, probability)
    samples, row = degrees.gbs * job.rows, job.row(degrees.mbs * job.rows)
    computed = samples * row.computed / step_time_s / degrees.gpus
    flop = trained_flop(job, row.attended)
    full_square = computed * flop.total
    tokens_per_s = degrees.gbs * job.sample_tokens / step_time_s
    kind, sizes = exchange_kind(degrees.cp, priced.exchange(0))
    used = used_techniques(job, degrees)
    gpus = [on.cluster.gpu for on in on_stages]
    peak16 = _mean([gpu.peak(half_precision(gpu)) for gpu in gpus])
    return Plan(
        degrees=degrees,
        layout=layout,
        recompute=configuration.recompute,
        recompute_flags=layout_flags(configuration.mode, job.framework, layout),
        schedule=plan_schedule(job.schedule, degrees.pp, degrees.vpp),
        gbs=degrees.gbs,
        gbs_tokens=round(degrees.gbs * job.sample_tokens),
        seq=job.seq,
        step_time_s=step_time_s,
        step_time=interval,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / degrees.gpus,
        mfu=full_square / peak16,
        mfu_causal=computed * trained_flop(job, row.attended, causal=True).total / peak16,
        mfu_precision=full_square / _mean([gpu.peak(job.precision) for gpu in gpus]),
        # The forward pass is 1 / passes of the model's FLOP: a third if everything is trained.
        hfu=full_square
        * (1.0 + recomputed_share(costed.costs, costed.counts) / flop.passes)
        / peak16,
        peak_bytes=peak,
        peak_interval=intervals.peak_interval(heaviest, peak),
        allocated_bytes=float(step[f.STEP_ALLOCATED_BYTES]),
        usable_bytes=heaviest.cluster.gpu.hbm_usable_bytes,
        limit_bytes=heaviest.hbm_limit_bytes,
        heaviest_stage=int(step[f.STEP_PEAK_STAGE]),
        fits=all(taken <= limit for _, taken, limit in rooms),
        fit_probability=probability,
        time=TimeTerms(**{name: float(step[column]) for name, column in f.TIME_COLUMNS.items()}),
        stages=stage_memories(stages, layout),
        status=status,
        gap=gap,
        assumptions=_notes(configuration, interval, step, risk, stages),
        stage_gpus=tuple(gpu.name for gpu in gpus) if job.pool else (),
        optimizer=job.optimizer.name,
        optimizer_kernel=job.optimizer_setting.kernel,
        optimizer_offload=job.optimizer_offload,
        optimizer_flags=optimizer_flags(job.framework, job.optimizer_setting),
        activation_offload=job.activation_offload,
        activation_offload_fraction=job.offload_fraction,
        activation_offload_flags=offload_flags(
            job.framework, job.activation_offload, job.offload_fraction
        ),
        techniques=used,
        technique_flags=technique_flags(job, used),
        cp_comm_type=kind,
        cp_sizes=sizes,
        full_memory=risk,
        ramp=_ramp(cost_model, configuration),
        samples=_sample_figures(job, degrees, step_time_s, peak16),
        objective="" if job.objective.is_plain else str(job.objective),
        passes=step_passes(configuration, cost_model, costed),
    )


def _notes(
    configuration: Configuration,
    interval: Interval,
    step: Array,
    risk: FullMemory | None,
    stages: Array,
) -> tuple[str, ...]:
    """Assumptions and warnings of the plan, as sentences. `step`, `stages`: its STEP_* vector and
    [stage, STAGE_*] matrix; `risk`: the probability that memory is full, if known."""
    job, degrees = configuration.job, configuration.degrees
    heaviest = job.machines[configuration.machines[int(step[f.STEP_PEAK_STAGE])]]
    return (
        *assumptions.plan_assumptions(job, degrees),
        *assumptions.unmeasured_notes(interval),
        *((intervals.NO_MIXTURE_MEASURED,) if intervals.are_mixed(job.machines) else ()),
        *assumptions.waiting_notes(heaviest, intervals.plan_conditions(heaviest, degrees, step)),
        *full.full_memory_notes(risk),
        *assumptions.choice_notes(configuration, float(stages[:, f.STAGE_OFFLOADED].max())),
    )


def _sample_figures(
    job: Job, degrees: Degrees, step_time_s: float, peak_flop_per_s: float
) -> SampleFigures | None:
    """Figures of a step with samples of different lengths; None if rows are cut from one text."""
    samples, lengths = job.samples, job.samples.lengths
    if lengths is None:
        return None
    row, rows = job.row(degrees.mbs * job.rows), degrees.gbs * job.rows
    counted = rows * row.counted / step_time_s / degrees.gpus
    return SampleFigures(
        lengths=lengths.origin,
        packing=samples.packing,
        balance=samples.balance,
        mean_tokens=lengths.mean,
        cut=samples.cut,
        samples=degrees.gbs * row.samples,
        samples_per_s=degrees.gbs * row.samples / step_time_s,
        computed_tokens_per_s=rows * row.computed / step_time_s,
        mfu_counted=counted * trained_flop(job, lengths.attended).total / peak_flop_per_s,
    )


def _rooms(configuration: Configuration, costed: CostedLayout) -> list[tuple[Job, float, float]]:
    """One tuple for each machine that runs stages: its job, the largest memory peak of its stages
    in bytes, and the memory limit of its GPUs in bytes."""
    machines, most = configuration.job.machines, dict.fromkeys(configuration.machines, 0.0)
    for at, stage in zip(configuration.machines, costed.stages, strict=True):
        most[at] = max(most[at], float(stage[f.STAGE_PEAK]))
    return [(machines[at], taken, machines[at].hbm_limit_bytes) for at, taken in most.items()]


def _step_interval(
    configuration: Configuration, cost_model: CostModel, priced: CostedShapes, step: Array
) -> Interval:
    """80 % interval of the step time, the widest of the machines. It is wider if only the mean
    length of the samples is known, or if the switches reduce (SHARP), since no measured run shows
    their gain."""
    job, degrees = configuration.job, configuration.degrees
    interval = intervals.widest_interval(job.machines, degrees, step)
    if job.samples.differ:
        others = _other_lengths(configuration, cost_model)
        interval = with_unlike_samples(interval, float(step[f.STEP_TIME]), others)
    if not job.cluster.sharp:
        return interval
    bare = job.on_clusters(lambda cluster: cluster.model_copy(update={"sharp": ""}))
    hosts = CostModel(bare, compiled=cost_model.compiled)
    by_hosts = cost_layout(hosts, priced, 0, configuration).step
    beside = intervals.widest_interval(job.machines, degrees, by_hosts)
    return or_by_hosts(interval, float(step[f.STEP_TIME]), beside, float(by_hosts[f.STEP_TIME]))


def _other_lengths(configuration: Configuration, cost_model: CostModel) -> list[float]:
    """Step times, s, with each other distribution of the samples' lengths that agrees with the
    given facts; empty if the facts leave only one."""
    samples, found = configuration.job.samples, []
    for lengths in samples.lengths.unstated if samples.lengths else ():
        other = replace(configuration.job, samples=samples.spread_as(lengths))
        costed = cost_configuration(cost_model.of(other), replace(configuration, job=other))
        found.append(float(costed.step[f.STEP_TIME]))
    return found


def _mean(values: Sequence[float]) -> float:
    """Mean over stages; exactly the common value if all are equal."""
    return values[0] if len(set(values)) == 1 else sum(values) / len(values)


def _ramp(cost_model: CostModel, configuration: Configuration) -> tuple[PlanBatch, ...]:
    """The batches of a ramp except the last, with step times of the plan's layout. The kernel costs
    only some batches of a long ramp; step times between them are interpolated linearly in the
    number of micro-batches. Empty without a ramp."""
    job, degrees = configuration.job, configuration.degrees
    if not job.ramp:
        return ()
    rules = rule_context(job)
    at = [ramp_columns(configuration.columns, rules, goal) for goal in rules.ramp]
    counts = [int(batch["grad_acc"][0]) for batch in at]
    chosen = sorted({round(part) for part in np.linspace(0, len(at) - 1, min(len(at), _COSTED))})
    times = []
    for count in (counts[place] for place in chosen):
        batch_degrees = degrees.model_copy(update={"grad_acc": count})
        batch = replace(configuration, degrees=batch_degrees)
        times.append(float(cost_configuration(cost_model, batch).step[f.STEP_TIME]))
    steps = np.interp(counts, [counts[place] for place in chosen], times)
    return tuple(
        PlanBatch(
            gbs=int(batch["gbs"][0]),
            grad_acc=count,
            until_tokens=entry.until_tokens,
            step_time_s=float(step_time),
        )
        for entry, batch, count, step_time in zip(job.ramp, at, counts, steps, strict=True)
    )


def recomputed_share(costs: Array, layout: KernelLayout) -> float:
    """Seconds of recomputation divided by seconds of forward, over all pieces of a layout; it
    stands for the share of FLOP that is recomputed. 0 without forward seconds."""
    forward = float((layout.counts.sum(axis=1) * costs[:, f.PIECE_FORWARD]).sum())
    again = float((layout.recomputed.sum(axis=1) * costs[:, f.PIECE_RECOMPUTE]).sum())
    return again / forward if forward else 0.0


def stage_memories(stages: Array, layout: Layout) -> tuple[StageMemory, ...]:
    """Memory of every stage from its STAGE_* row."""
    return tuple(
        StageMemory(
            stage=index,
            layers=layout.stage_layers[index],
            phase=_PHASES[int(stage[f.STAGE_PHASE])],
            **{name: float(np.float64(stage[column])) for name, column in _STAGE_COLUMNS.items()},
        )
        for index, stage in enumerate(stages)
    )
