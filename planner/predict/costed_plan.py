"""From costs to a `Plan`: the one place where arrays become a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from constraints.batch import ramp_columns
from constraints.context_exchange import exchange_kind
from constraints.rule import Layout
from planner.cost import fields as f
from planner.cost.tables import Array
from planner.job.offload import offload_flags
from planner.job.optimizers import optimizer_flags
from planner.job.recomputation import layout_flags
from planner.job.schedules import plan_schedule
from planner.predict.assumptions import (
    choice_notes,
    plan_assumptions,
    unmeasured_notes,
    waiting_notes,
)
from planner.predict.configuration import Configuration
from planner.predict.cost_model import CostedShapes, CostModel, KernelLayout
from planner.predict.cost_tables import half_precision
from planner.predict.mixture import cost_layout
from planner.predict.ops import flop_per_token
from planner.predict.plan import (
    FullMemory,
    Interval,
    Plan,
    PlanBatch,
    StageMemory,
    TimeTerms,
)
from planner.predict.shapes import rule_context
from planner.predict.sharp import or_by_hosts
from planner.predict.stage import named_terms
from planner.predict.techniques import technique_flags, used_techniques
from planner.predict.uncertainty.full_memory import (
    full_memory,
    full_memory_notes,
    full_step_time_s,
    with_full_memory,
)
from planner.predict.uncertainty.intervals import (
    NO_MIXTURE_MEASURED,
    are_mixed,
    fit_probability,
    peak_interval,
    plan_conditions,
    widest_interval,
)

Status = Literal["optimal", "feasible", "evaluated"]
# Columns of what a plan says of a stage.
_STAGE_COLUMNS = {
    name: f.MEMORY_COLUMNS.get(name, getattr(f, f"STAGE_{name.upper()}"))
    for name in StageMemory.model_fields
    if name not in ("stage", "layers", "phase")
}
# Batches of a ramp that are costed.
_COSTED = 12
_PHASES: tuple[Literal["backward", "optimizer", "forward"], ...] = (
    "backward",
    "optimizer",
    "forward",
)


def configured_plan(
    configuration: Configuration,
    cost_model: CostModel,
    status: Status,
    gap: float = 0.0,
    priced: CostedShapes | None = None,
) -> Plan:
    """The plan of a configuration, costed by the kernel; `cost_model`: of its job; `priced`: its
    shape, where the model has priced it. MFU is against all GPUs' peaks together; memory is that of
    the stage with the least room."""
    job, degrees = configuration.job, configuration.degrees
    priced = priced or cost_model.price_shapes(configuration.columns)
    costed = cost_layout(cost_model, priced, 0, configuration)
    step, machines = costed.step, job.machines
    on_stages = [machines[machine] for machine in configuration.machines]
    heaviest = on_stages[int(step[f.STEP_PEAK_STAGE])]
    step_time_s, peak = float(step[f.STEP_TIME]), float(step[f.STEP_PEAK_BYTES])
    most = dict.fromkeys(configuration.machines, 0.0)
    for at, stage in zip(configuration.machines, costed.stages, strict=True):
        most[at] = max(most[at], float(stage[f.STAGE_PEAK]))
    rooms = [(machines[at], most[at], machines[at].hbm_limit_bytes) for at in most]
    probability = min(fit_probability(*room) for room in rooms)
    stages = named_terms(costed.stages, costed.memory, configuration.machines)
    conditions = plan_conditions(heaviest, degrees, step)
    interval = widest_interval(machines, degrees, step)
    if job.cluster.sharp:
        bare = job.on_clusters(lambda cluster: cluster.model_copy(update={"sharp": ""}))
        hosts = CostModel(bare, compiled=cost_model.compiled)
        by_hosts = cost_layout(hosts, priced, 0, configuration).step
        beside = widest_interval(machines, degrees, by_hosts)
        interval = or_by_hosts(interval, step_time_s, beside, float(by_hosts[f.STEP_TIME]))
    interval = with_full_memory(
        interval, step_time_s, full_step_time_s(heaviest, degrees, step_time_s), 1.0 - probability
    )
    risk = full_memory(heaviest, degrees, step_time_s, probability)
    gpus = [on.cluster.gpu for on in on_stages]
    again = recomputed_share(costed.costs, costed.counts)
    return assemble_plan(
        CostedPlan(configuration, step, stages, priced.exchange(0), again, status, gap),
        Outlook(
            step_time=interval,
            peak_interval=peak_interval(heaviest, peak),
            peak_flop_per_s=_mean([gpu.peak(half_precision(gpu)) for gpu in gpus]),
            precision_flop_per_s=_mean([gpu.peak(job.precision) for gpu in gpus]),
            usable_bytes=heaviest.cluster.gpu.hbm_usable_bytes,
            limit_bytes=heaviest.hbm_limit_bytes,
            fits=all(taken <= limit for _, taken, limit in rooms),
            fit_probability=probability,
            assumptions=(
                *plan_assumptions(job, degrees),
                *unmeasured_notes(interval),
                *((NO_MIXTURE_MEASURED,) if are_mixed(machines) else ()),
                *waiting_notes(heaviest, conditions),
                *full_memory_notes(risk),
                *choice_notes(configuration, float(stages[:, f.STAGE_OFFLOADED].max())),
            ),
            full_memory=risk,
            ramp=_ramp(cost_model, configuration),
            stage_gpus=tuple(gpu.name for gpu in gpus) if job.pool else (),
        ),
    )


def _mean(values: Sequence[float]) -> float:
    """The mean of figures of stages; the figure itself where they are alike."""
    return values[0] if len(set(values)) == 1 else sum(values) / len(values)


def _ramp(cost_model: CostModel, configuration: Configuration) -> tuple[PlanBatch, ...]:
    """The smaller batches of a ramp, costed by the kernel in the plan's layout.

    Of a long ramp some: between them the step grows with its micro-batches as on a line.
    """
    job, degrees = configuration.job, configuration.degrees
    if not job.ramp:
        return ()
    rules = rule_context(job)
    at = [ramp_columns(configuration.columns, rules, goal) for goal in rules.ramp]
    counts = [int(batch["grad_acc"][0]) for batch in at]
    some = sorted({round(part) for part in np.linspace(0, len(at) - 1, min(len(at), _COSTED))})
    times = []
    for count in (counts[place] for place in some):
        batch_degrees = degrees.model_copy(update={"grad_acc": count})
        batch = replace(configuration, degrees=batch_degrees)
        step = cost_layout(cost_model, cost_model.price_shapes(batch.columns), 0, batch).step
        times.append(float(step[f.STEP_TIME]))
    steps = np.interp(counts, [counts[place] for place in some], times)
    return tuple(
        PlanBatch(
            gbs=int(batch["gbs"][0]),
            grad_acc=count,
            until_tokens=entry.until_tokens,
            step_time_s=float(step_time),
        )
        for entry, batch, count, step_time in zip(job.ramp, at, counts, steps, strict=True)
    )


@dataclass(frozen=True)
class CostedPlan:
    """A configuration and what the kernel says of it: `step[STEP_*]`, `stages[stage, STAGE_*]`.

    `exchange`: ranks that exchange heads in context parallelism (`KEY_EXCHANGE`); `again`: see
    `recomputed_share`.
    """

    configuration: Configuration
    step: Array
    stages: Array
    exchange: int
    again: float
    status: Status
    gap: float


@dataclass(frozen=True)
class Outlook:
    """What a plan means on its GPUs. FLOP/s: mean peaks of a GPU, dense 16-bit and of the job's
    precision; bytes: of the GPU of the heaviest stage. `stage_gpus`: where they differ."""

    step_time: Interval
    peak_interval: Interval
    peak_flop_per_s: float
    precision_flop_per_s: float
    usable_bytes: float
    limit_bytes: float
    fits: bool
    fit_probability: float
    assumptions: tuple[str, ...]
    stage_gpus: tuple[str, ...] = ()
    full_memory: FullMemory | None = None
    ramp: tuple[PlanBatch, ...] = ()


def assemble_plan(costed_plan: CostedPlan, outlook: Outlook) -> Plan:
    """The plan of a costed configuration, on GPUs of one type or of several."""
    configuration, step = costed_plan.configuration, costed_plan.step
    job, degrees, layout = configuration.job, configuration.degrees, configuration.layout
    step_time_s = float(step[f.STEP_TIME])
    tokens_per_s = degrees.gbs * job.seq / step_time_s
    per_gpu = tokens_per_s / degrees.gpus
    full_square = per_gpu * flop_per_token(job.model, job.seq)
    kind, sizes = exchange_kind(degrees.cp, costed_plan.exchange)
    used = used_techniques(job, degrees)
    peak16 = outlook.peak_flop_per_s
    return Plan(
        degrees=degrees,
        layout=layout,
        recompute=configuration.recompute,
        recompute_flags=layout_flags(configuration.mode, job.framework, layout),
        schedule=plan_schedule(job.schedule, degrees.pp, degrees.vpp),
        gbs=degrees.gbs,
        gbs_tokens=degrees.gbs * job.seq,
        seq=job.seq,
        step_time_s=step_time_s,
        step_time=outlook.step_time,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=per_gpu,
        mfu=full_square / peak16,
        mfu_causal=per_gpu * flop_per_token(job.model, job.seq, causal=True) / peak16,
        mfu_precision=full_square / outlook.precision_flop_per_s,
        # Backward is twice the forward pass, so forward is a third of the model's FLOP.
        hfu=full_square * (1.0 + costed_plan.again / 3.0) / peak16,
        peak_bytes=float(step[f.STEP_PEAK_BYTES]),
        peak_interval=outlook.peak_interval,
        allocated_bytes=float(step[f.STEP_ALLOCATED_BYTES]),
        usable_bytes=outlook.usable_bytes,
        limit_bytes=outlook.limit_bytes,
        heaviest_stage=int(step[f.STEP_PEAK_STAGE]),
        fits=outlook.fits,
        fit_probability=outlook.fit_probability,
        time=TimeTerms(**{name: float(step[column]) for name, column in f.TIME_COLUMNS.items()}),
        stages=stage_memories(costed_plan.stages, layout),
        status=costed_plan.status,
        gap=costed_plan.gap,
        assumptions=outlook.assumptions,
        stage_gpus=outlook.stage_gpus,
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
        full_memory=outlook.full_memory,
        ramp=outlook.ramp,
    )


def recomputed_share(costs: Array, layout: KernelLayout) -> float:
    """Recomputed seconds over forward seconds: stands for the share of recomputed FLOP."""
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
