"""From costs to a `Plan`: the one place where arrays become a plan, and the cost of a given one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from constraints.context_exchange import exchange_kind
from constraints.layout import shared_count
from constraints.rule import Layout
from planner.cost import fields as f
from planner.cost.tables import Array
from planner.cost_model import Columns, CostedShapes, CostModel
from planner.cost_model import Layout as KernelLayout
from planner.device import half_precision
from planner.errors import UsageError
from planner.frameworks import RecomputeMode
from planner.full_memory import (
    full_memory,
    full_memory_notes,
    full_step_time_s,
    with_full_memory,
)
from planner.host_notes import waiting_notes
from planner.job import Job
from planner.layout_wording import layout_problems
from planner.links import link_inputs
from planner.offload_rules import offload_flags
from planner.ops import flop_per_token, parameter_count
from planner.optimizer_rules import optimizer_flags
from planner.optimizer_terms import CPU_ADAM_BYTES_PER_S_PER_NODE, host_bytes_per_parameter
from planner.plan import Degrees, FullMemory, Interval, LayerLayout, Plan, StageMemory, TimeTerms
from planner.recomputation import recomputation
from planner.recompute import demand_parts, layout_flags
from planner.request import MOST_SEQUENCES, Request
from planner.schedules import plan_schedule, schedule_named
from planner.search.arrays import even_layout, plain_context
from planner.search.mixture import other_modes
from planner.search.offload_share import cost_any_layout, row_shares
from planner.search.shapes import broken_rules, given_columns
from planner.sharp import or_by_hosts, sharp_notes
from planner.uncertainty import (
    fit_probability,
    peak_interval,
    plan_conditions,
    step_time_interval,
)

GIB = 2.0**30

Status = Literal["optimal", "feasible", "evaluated"]

# Plans that fit with less probability than this carry a warning.
SAFE_FIT = 0.9

TIME_TERMS = {
    "compute_s": f.STEP_COMPUTE,
    "recompute_s": f.STEP_RECOMPUTE,
    "tp_s": f.STEP_TP,
    "cp_s": f.STEP_CP,
    "ep_s": f.STEP_EP,
    "fsdp_s": f.STEP_FSDP,
    "pp_s": f.STEP_PP,
    "bubble_s": f.STEP_BUBBLE,
    "dp_s": f.STEP_DP,
    "optimizer_s": f.STEP_OPTIMIZER,
    "straggler_s": f.STEP_STRAGGLERS,
    "offload_s": f.STEP_OFFLOAD,
    "host_s": f.STEP_HOST,
}
_PHASES: tuple[Literal["backward", "optimizer", "forward"], ...] = (
    "backward",
    "optimizer",
    "forward",
)
_STAGE_TERMS = {
    "in_flight": f.STAGE_IN_FLIGHT,
    "weights": f.STAGE_WEIGHTS,
    "gradients": f.STAGE_GRADIENTS,
    "optimizer": f.STAGE_OPTIMIZER,
    "activations": f.STAGE_ACTIVATIONS,
    "working": f.STAGE_WORKING,
    "logits": f.STAGE_LOGITS,
    "gather_buffers": f.STAGE_GATHER,
    "optimizer_temporary": f.STAGE_OPTIMIZER_TEMPORARY,
    "fragmentation": f.STAGE_FRAGMENTATION,
    "context": f.STAGE_CONTEXT,
    "communication": f.STAGE_COMMUNICATION,
    "allocated": f.STAGE_ALLOCATED,
    "peak": f.STAGE_PEAK,
    "forward_s": f.STAGE_FORWARD_S,
    "backward_s": f.STAGE_BACKWARD_S,
    "offloaded": f.STAGE_OFFLOADED,
}


def evaluate(
    request: Request,
    degrees: Degrees,
    recompute: str = "none",
    block_layers: Sequence[int] | None = None,
    recomputed: Sequence[int] | None = None,
    others: Mapping[str, Sequence[int]] | None = None,
    mtp_apart: bool = False,
) -> Plan:
    """Cost one given configuration, without searching.

    `block_layers`: layers of each block in pipeline order (default: even). `recomputed`: layers
    of each stage that recompute (default: all, unless the mode is `none`). `others`: a mix, for
    each further mode the layers of each stage that recompute in it. `mtp_apart`: multi-token
    prediction in the block before the last. The plan may not fit: read `fits`. Without
    `request.cp_comm_type` context parallelism exchanges as is usual in the framework. UsageError
    names every rule that the configuration breaks.
    """
    _demand_range(degrees)
    job = request.resolve()
    modes = tuple(job.framework.recompute_mode(name) for name in (recompute, *(others or ())))
    for mode in modes:
        demand_parts(mode, job.model)
    job = replace(job, recompute=modes)
    if request.cp_comm_type is None:
        job = replace(job, context_kinds=job.context_kinds[:1])
    layout = given_layout(
        job, degrees, block_layers, recomputed, tuple((others or {}).values()), mtp_apart
    )
    cost_model = CostModel(job)
    columns = given_columns(degrees)
    costed = cost_model.cost_shapes(columns)
    return job_plan(cost_model, costed, 0, layout, columns, "evaluated")


def _demand_range(degrees: Degrees) -> None:
    """UsageError if a product of degrees would leave 64-bit integers."""
    for what, number in (("GPUs", degrees.gpus), ("sequences a step", degrees.gbs)):
        if number > MOST_SEQUENCES:
            raise UsageError(
                f"these degrees make {number:,} {what}, beyond 64-bit integers once they are "
                f"multiplied; give at most {MOST_SEQUENCES:,}"
            )


def given_layout(
    job: Job,
    degrees: Degrees,
    block_layers: Sequence[int] | None,
    recomputed: Sequence[int] | None,
    others: Sequence[Sequence[int]] = (),
    mtp_apart: bool = False,
) -> Layout:
    """The layout that was given, completed. UsageError if it or the degrees break a rule.

    `job.recompute` holds the mode, and those that `others` counts; the rest as `evaluate`.
    """
    broken = broken_rules(job, degrees)
    if broken:
        raise UsageError("this configuration breaks rules:\n  - " + "\n  - ".join(broken))
    recomputes = bool(job.recompute[0].mask)
    even = even_layout(job, degrees.pp, degrees.vpp, recomputes, mtp_apart)
    blocks = even.block_layers if block_layers is None else tuple(block_layers)
    _demand_length("block_layers", blocks, degrees.pp * degrees.vpp, "pp·vpp blocks")
    layout = replace(even, block_layers=blocks, offload_fraction=job.at_fraction)
    again = layout.stage_layers if recomputes else (0,) * degrees.pp
    if job.recompute[0].block:
        again = _block_recomputed(layout, job.recompute[0].block)
        if recomputed is not None:
            raise UsageError("give the layers once: --recompute full:block=N, or numbers of layers")
    if recomputed is not None:
        again = tuple(recomputed)
        _demand_length("recomputed", again, degrees.pp, "pp stages")
    for counts in others:
        _demand_length("others", tuple(counts), degrees.pp, "pp stages")
    layout = replace(layout, recomputed=again, others=tuple(tuple(own) for own in others))
    _demand_mix(job, len(others))
    _demand_checkpoints(job, layout)
    kind = recomputation(job.recompute[0], job.framework)
    ctx = plain_context(job, degrees.pp, degrees.vpp, kind, len(others))
    ctx = replace(ctx, offload=row_shares(job, given_columns(degrees), 0))
    broken = layout_problems(job, layout, ctx)
    if broken:
        raise UsageError("\n".join(broken))
    return layout


def _block_recomputed(layout: Layout, count: int) -> tuple[int, ...]:
    """Recomputed layers of each stage where every block of it (model chunk) recomputes `count`."""
    return layout.per_stage([min(count, layers) for layers in layout.block_layers])


def _demand_mix(job: Job, others: int) -> None:
    """UsageError if the framework cannot give single layers other modes."""
    if len(other_modes(job, job.recompute[0])) == others or not others:
        return
    names = ", ".join(mode.name for mode in job.recompute)
    raise UsageError(
        f"recompute modes {names} in one plan: {job.framework.name} takes one mode for all layers; "
        "llm-foundry can mix, with full as the first mode  [recompute-expressible]"
    )


def _demand_checkpoints(job: Job, layout: Layout) -> None:
    """UsageError if a checkpoint would hold more layers than a block has."""
    span, least = job.recompute[0].span, min(layout.block_layers, default=0)
    if span > 1 and span > least:
        raise UsageError(
            f"--recompute full:uniform={span}: a block of the pipeline holds {least} layers, and "
            f"a checkpoint no more than that; give uniform={max(1, least)} or less  "
            "[recompute-uniform]"
        )


def _demand_length(name: str, given: tuple[int, ...], wanted: int, what: str) -> None:
    if len(given) != wanted or min(given) < 0:
        raise UsageError(
            f"{name} {list(given)}: give {wanted} numbers of layers, one for each of the {what}"
        )


def job_plan(
    cost_model: CostModel,
    costed: CostedShapes,
    row: int,
    layout: Layout,
    columns: Columns,
    status: Status,
    gap: float = 0.0,
) -> Plan:
    """The plan of one shape in one layout, costed by the kernel."""
    job = cost_model.job
    degrees = Degrees(**{name: int(columns[name][row]) for name in Degrees.model_fields})
    mode = job.recompute[int(columns["recompute"][row])]
    modes = other_modes(job, mode) if layout.others else ()
    again = recomputation(mode, job.framework)
    ctx = plain_context(job, degrees.pp, degrees.vpp, again, len(modes))
    ctx = replace(ctx, offload=row_shares(job, columns, row))
    costed_layout = cost_any_layout(cost_model, costed, row, layout, ctx, modes)
    step = costed_layout.step
    step_time_s, peak = float(step[f.STEP_TIME]), float(step[f.STEP_PEAK_BYTES])
    limit = job.hbm_limit_bytes
    probability = fit_probability(job, peak, limit)
    stages = costed_layout.stages
    at = plan_conditions(job, degrees, step)
    interval = step_time_interval(job, step_time_s, at=at)
    if job.cluster.sharp:
        hosts = CostModel(replace(job, cluster=job.cluster.model_copy(update={"sharp": ""})))
        by_hosts = cost_any_layout(hosts, costed, row, layout, ctx, modes).step
        interval = or_by_hosts(interval, step_time_s, float(by_hosts[f.STEP_TIME]))
    interval = with_full_memory(
        interval, step_time_s, full_step_time_s(job, degrees, step_time_s), 1.0 - probability
    )
    gpu, risk = job.cluster.gpu, full_memory(job, degrees, step_time_s, probability)
    return assemble_plan(
        job,
        CostedPlan(
            degrees, mode, modes, layout, step, stages, costed.exchange(row),
            recomputed_share(costed_layout.costs, costed_layout.counts), status, gap,
        ),
        Outlook(
            step_time=interval,
            peak_interval=peak_interval(job, peak),
            peak_flop_per_s=gpu.peak(half_precision(gpu)),
            precision_flop_per_s=gpu.peak(job.precision),
            usable_bytes=gpu.hbm_usable_bytes,
            limit_bytes=limit,
            fits=peak <= limit,
            fit_probability=probability,
            assumptions=(
                *plan_assumptions(job, probability),
                *_apart_notes(layout),
                *unmeasured_notes(interval),
                *sharp_notes(job, degrees),
                *waiting_notes(job, at),
                *full_memory_notes(risk),
                *_offload_notes(job, degrees),
                *_activation_notes(
                    job, float(stages[:, f.STAGE_OFFLOADED].max()), layout.offload_fraction
                ),
            ),
            full_memory=risk,
        ),
    )  # fmt: skip


@dataclass(frozen=True)
class CostedPlan:
    """A configuration and what the kernel says of it: `step[STEP_*]`, `stages[stage, STAGE_*]`.

    `modes`: those that `layout.others` counts; `exchange`: ranks that exchange heads in
    context parallelism (`KEY_EXCHANGE`); `again`: see `recomputed_share`.
    """

    degrees: Degrees
    mode: RecomputeMode
    modes: tuple[RecomputeMode, ...]
    layout: Layout
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


def assemble_plan(job: Job, own: CostedPlan, outlook: Outlook) -> Plan:
    """The plan of a costed configuration, on GPUs of one type or of several."""
    degrees, layout, step = own.degrees, own.layout, own.step
    step_time_s = float(step[f.STEP_TIME])
    tokens_per_s = degrees.gbs * job.seq / step_time_s
    per_gpu = tokens_per_s / degrees.gpus
    full_square = per_gpu * flop_per_token(job.model, job.seq)
    kind, sizes = exchange_kind(degrees.cp, own.exchange)
    peak16 = outlook.peak_flop_per_s
    others = {
        mode.name: counts for mode, counts in zip(own.modes, layout.others, strict=True)
        if any(counts)
    }  # fmt: skip
    return Plan(
        degrees=degrees,
        layout=LayerLayout(
            block_layers=layout.block_layers,
            recomputed=layout.recomputed,
            placement=layout.placement,
            others=others,
            mtp_apart=layout.mtp_apart,
        ),
        recompute=own.mode.name,
        recompute_flags=layout_flags(
            own.mode,
            job.framework.recomputing,
            layout.recomputed,
            layout.stage_layers,
            shared_count(layout),
            {mode: others[mode.name] for mode in own.modes if mode.name in others},
        ),
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
        hfu=full_square * (1.0 + own.again / 3.0) / peak16,
        peak_bytes=float(step[f.STEP_PEAK_BYTES]),
        peak_interval=outlook.peak_interval,
        allocated_bytes=float(step[f.STEP_ALLOCATED_BYTES]),
        usable_bytes=outlook.usable_bytes,
        limit_bytes=outlook.limit_bytes,
        heaviest_stage=int(step[f.STEP_PEAK_STAGE]),
        fits=outlook.fits,
        fit_probability=outlook.fit_probability,
        time=TimeTerms(**{name: float(step[column]) for name, column in TIME_TERMS.items()}),
        stages=stage_memories(own.stages, layout),
        status=own.status,
        gap=own.gap,
        assumptions=outlook.assumptions,
        stage_gpus=outlook.stage_gpus,
        optimizer=job.optimizer.name,
        optimizer_kernel=job.optimizer_setting.kernel,
        optimizer_offload=job.optimizer_offload,
        optimizer_flags=optimizer_flags(job.framework, job.optimizer_setting),
        activation_offload=job.activation_offload,
        activation_offload_fraction=layout.offload_fraction,
        activation_offload_flags=offload_flags(
            job.framework, job.activation_offload, layout.offload_fraction
        ),
        cp_comm_type=kind,
        cp_sizes=sizes,
        full_memory=outlook.full_memory,
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
            **{name: float(np.float64(stage[column])) for name, column in _STAGE_TERMS.items()},
        )
        for index, stage in enumerate(stages)
    )


def _offload_notes(job: Job, degrees: Degrees) -> tuple[str, ...]:
    """What an offloaded optimizer takes of the host, and how fast the host is taken to be."""
    setting, cluster = job.optimizer_setting, job.cluster
    if not setting.offload:
        return ()
    shard = degrees.shard or degrees.dp * degrees.cp
    copies = degrees.dp * degrees.cp / shard if degrees.zero else degrees.dp * degrees.cp
    total = parameter_count(job.model).total * copies
    share = min(1.0, cluster.gpus_per_node / degrees.gpus)
    size = total * share * host_bytes_per_parameter(job.framework, setting) / GIB
    there = cluster.host_memory_bytes_per_node / GIB
    verdict = "MORE than the" if size > there else "of the"
    hidden = job.framework.optimizer.offload_overlap
    return (
        f"offloaded optimizer: {size:,.0f} GiB {verdict} {there:,.0f} GiB of a node's memory; "
        f"CPU-Adam at {CPU_ADAM_BYTES_PER_S_PER_NODE / 1e9:.0f} GB/s a node (arXiv 2101.06840); "
        f"{hidden:.0%} of the way down beside backward, the way back exposed",
    )


def _apart_notes(layout: Layout) -> tuple[str, ...]:
    """What a plan with multi-token prediction apart takes for granted."""
    if not layout.mtp_apart:
        return ()
    return (
        "multi-token prediction apart from the loss: Megatron-Core then exchanges shapes before "
        "every transfer between stages, counted as a message and a launch each; the final norm "
        "counts with the head, though it follows the last layer; no measured run has it, so the "
        "error bars do not cover it",
    )


def unmeasured_notes(interval: Interval) -> tuple[str, ...]:
    """What no measured run reaches, for which the interval of the step time is wider."""
    if not interval.beyond:
        return ()
    return (f"outside what was measured: {', '.join(interval.beyond)}; the interval is wider",)


FRACTION_NOTE = (
    "a fraction of the activations: with several micro-batches in flight a stage has all of the "
    "next one's back before its backward starts, for Megatron-Core fetches ahead; a layer that the "
    "fraction divides counts as on the GPU, and as copied"
)


def _activation_notes(job: Job, size_bytes: float, fraction: float) -> tuple[str, ...]:
    """What offloaded activations take of the host, and how fast its link is taken to be."""
    if not job.activation_offload:
        return ()
    cluster = job.cluster
    size = size_bytes * cluster.gpus_per_node / GIB
    there = cluster.host_memory_bytes_per_node / GIB
    verdict = "MORE than the" if size > there else "of the"
    rate = link_inputs(cluster).host_bytes_per_s / 1e9
    return (
        f"offloaded activations: at most {size:,.0f} GiB {verdict} {there:,.0f} GiB of a node's "
        f"memory, pinned; copies at {rate:.0f} GB/s a GPU and direction, beside the compute of a "
        "layer; traffic of NICs on the same link is not counted; few measured runs offload, so the "
        "error bars do not cover it",
        *([FRACTION_NOTE] if fraction < 1.0 else []),
    )


def schedule_assumptions(job: Job) -> list[str]:
    """What the time of a pipeline schedule takes for granted."""
    own = schedule_named(job.schedule)
    notes = []
    if own.splits_backward:
        notes.append(
            "backward split in gradients of inputs and of weights; attention and norms count "
            "with the inputs"
        )
    if own.placement == "mirrored":
        notes.append("two copies of the model, each with gradients and optimizer state")
    return notes


def plan_assumptions(job: Job, probability: float) -> tuple[str, ...]:
    """What the prediction takes for granted."""
    notes = list(job.framework.assumptions)
    notes += schedule_assumptions(job)
    if job.model.moe is not None:
        notes.append(f"the busiest expert rank gets {job.expert_imbalance:g} times the mean load")
    if probability < SAFE_FIT:
        notes.append(
            f"fits with probability {probability:.0%} only; --hbm-reserve keeps more memory free"
        )
    return tuple(notes)
