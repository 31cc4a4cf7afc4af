"""One training step of one shape and layout: time by term, memory by stage.

A layout is `counts[piece, stage]` (how many of each piece a stage holds) and
`recomputed[piece, stage]` (how many of those run again in backward).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.cost import fields as f
from planner.cost._jit import jit
from planner.cost.data_parallel import (
    Grid,
    gather_seconds,
    hidden_seconds,
    optimizer_seconds,
    reduce_seconds,
)
from planner.cost.inputs import GpuInputs, LinkInputs
from planner.cost.keys import Key
from planner.cost.memory import (
    communicator_bytes,
    gradient_bytes,
    optimizer_bytes,
    weight_bytes,
)
from planner.cost.moments import (
    fullest_pass,
)
from planner.cost.passes import (
    backward_seconds,
    exposed_pipeline_seconds,
    forward_seconds,
    fsdp_seconds,
    pipeline_traffic_seconds,
    recompute_seconds,
)
from planner.cost.pipeline import (
    all_forward_first_s,
    pipeline_bound_s,
    pipeline_time_s,
)
from planner.cost.schedule import (
    SCHEDULE_ALL_FORWARD_FIRST,
    bubble_share,
    held_microbatches,
    microbatch_share,
)
from planner.cost.stage import stage_memory, stage_parameters
from planner.cost.step_ends import (
    END_COLUMNS,
    END_SHARED,
    END_TAKEN_BACKWARD,
    END_TAKEN_FORWARD,
    end_traffic,
)
from planner.cost.tables import Array, FrameworkInputs, JobInputs
from planner.cost.update import stage_update_seconds


@jit
def slowdown(key: Key, grid: Grid, links: LinkInputs) -> float:
    """Step time over that of ranks which all run alike: 1 + j·log2(domains), at least 1.

    Ranks meet in every collective, so each step waits for the slowest kernel, link and host of
    all that meet; the expected maximum of many grows with the logarithm of their number. These are
    the ranks of one pipeline stage: stages hand micro-batches on, and what delays one of them is
    made up while the next has some in hand. j: `LinkInputs.straggler_share`.
    """
    ranks = key.tp * key.cp * grid.dp
    domains = max(1.0, ranks / max(1.0, links.scale_up_domain))
    return 1.0 + links.straggler_share * float(np.log2(domains))


@jit
def loading_seconds(key: Key, grid: Grid, framework: FrameworkInputs) -> float:
    """Seconds in which the sequences of a data-parallel rank's batch are read: beside all else, so
    a step takes at least as long. The layout solver leaves it out: it is alike for all layouts."""
    return framework.sample_load_s * key.mbs * grid.grad_acc


@jit
def sum_pieces(stage: int, column: int, weights: Array, costs: Array, pieces: int) -> float:
    """Sum of one cost column over the pieces of a stage."""
    total = 0.0
    for piece in range(pieces):
        total += weights[piece, stage] * costs[piece, column]
    return total


class StageTimes(NamedTuple):
    """Seconds of one micro-batch: of the slowest stage, of the longest forward and backward of
    any stage, of all stages, and of those the forward passes and the gradients of weights."""

    slowest: int
    slowest_s: float
    longest_forward_s: float
    longest_backward_s: float
    total_s: float
    forward_s: float
    weight_s: float


@jit
def stage_times(
    counts: Array,
    recomputed: Array,
    costs: Array,
    key: Key,
    grid: Grid,
    job: JobInputs,
    framework: FrameworkInputs,
    links: LinkInputs,
    stages: Array,
) -> StageTimes:
    """Fill forward and backward seconds per stage and micro-batch of the step, and sum them."""
    slowest, slowest_s, total_s = 0, -1.0, 0.0
    longest_forward = longest_backward = forward_s = weight_s = 0.0
    share = microbatch_share(framework.schedule)
    for stage in range(int(grid.pp)):
        forward = backward = 0.0
        for piece in range(job.pieces):
            count = share * counts[piece, stage]
            if count == 0.0:
                continue
            again = share * recomputed[piece, stage]
            forward += count * forward_seconds(costs[piece])
            backward += count * backward_seconds(costs[piece])
            backward += again * recompute_seconds(costs[piece])
            backward += (count - again) * fsdp_seconds(
                costs[piece], False, key, grid, job, framework, links
            )
            backward += again * fsdp_seconds(costs[piece], True, key, grid, job, framework, links)
            weight_s += count * costs[piece, f.PIECE_WEIGHT]
        stages[stage, f.STAGE_FORWARD_S] = forward
        stages[stage, f.STAGE_BACKWARD_S] = backward
        total_s += forward + backward
        forward_s += forward
        longest_forward = max(longest_forward, forward)
        longest_backward = max(longest_backward, backward)
        if forward + backward > slowest_s:
            slowest, slowest_s = stage, forward + backward
    return StageTimes(
        slowest, slowest_s, longest_forward, longest_backward, total_s, forward_s, weight_s
    )


@jit
def model_bubble_share(
    forward_s: float, total_s: float, weight_s: float, grid: Grid, framework: FrameworkInputs,
    lower: bool,
) -> float:  # fmt: skip
    """`bubble_share` of a micro-batch's seconds on all stages: forward, all, weight gradients."""
    return bubble_share(
        forward_s, total_s - forward_s - weight_s, weight_s, framework.schedule,
        grid.pp, grid.vpp, grid.grad_acc, framework.post_validation, lower,
    )  # fmt: skip


@jit
def step_span_s(times: StageTimes, grid: Grid, framework: FrameworkInputs) -> float:
    """Seconds from the first forward to the last backward pass of a step."""
    if framework.schedule == SCHEDULE_ALL_FORWARD_FIRST and grid.pp > 1.0:
        return all_forward_first_s(
            times.longest_forward_s, times.longest_backward_s, times.total_s, grid.grad_acc
        )
    share = model_bubble_share(
        times.forward_s, times.total_s, times.weight_s, grid, framework, False
    )
    return pipeline_time_s(times.slowest_s, times.total_s, grid.grad_acc, share)


@jit
def data_parallel_terms(
    counts: Array,
    costs: Array,
    key: Key,
    grid: Grid,
    job: JobInputs,
    framework: FrameworkInputs,
    gpu: GpuInputs,
    links: LinkInputs,
    stages: Array,
) -> tuple[float, float]:
    """(exposed gradient and parameter traffic, optimizer) seconds that end the step.

    Gradients of a stage are reduced beside its last backward, updated weights gathered beside
    the first forward of the next step; later stages also have the drain of the pipeline. Where
    they share links with the layers' own traffic: `planner.cost.step_ends`.
    """
    exposed_s = optimizer_s = drain_s = 0.0
    ends = np.zeros((job.pieces, END_COLUMNS))
    for piece in range(job.pieces):
        end_traffic(costs[piece], key, grid, job, framework, links, ends[piece])
    mirrored = microbatch_share(framework.schedule)
    for stage in range(int(grid.pp)):
        dense, expert = stage_parameters(stage, counts, costs, job)
        update_s = optimizer_seconds(dense, expert, grid, framework, gpu)
        update_s += stage_update_seconds(stage, counts, costs, grid, job, framework, gpu)
        optimizer_s = max(optimizer_s, update_s)
        taken = mirrored * sum_pieces(stage, END_TAKEN_BACKWARD, counts, ends, job.pieces)
        seconds = sum_pieces(stage, END_SHARED, counts, ends, job.pieces)
        if grid.zero < 2:
            reduce = reduce_seconds(
                dense, expert, framework.gradient_communication_bytes, key, grid, job, links
            )
            seconds += reduce - hidden_seconds(
                reduce,
                framework.hide_gradient_reduction,
                stages[stage, f.STAGE_BACKWARD_S] - taken,
            )
        if grid.zero in (1, 2):
            taken = mirrored * sum_pieces(stage, END_TAKEN_FORWARD, counts, ends, job.pieces)
            gather = gather_seconds(
                dense, expert, framework.parameter_communication_bytes, key, grid, job, links
            )
            seconds += gather - hidden_seconds(
                gather, framework.hide_parameter_gather, stages[stage, f.STAGE_FORWARD_S] - taken
            )
        exposed_s = max(exposed_s, seconds - drain_s)
        drain_s += stages[stage, f.STAGE_BACKWARD_S] / grid.vpp
    return exposed_s, optimizer_s


@jit
def evaluate_step(
    counts: Array,
    recomputed: Array,
    costs: Array,
    key: Key,
    grid: Grid,
    job: JobInputs,
    framework: FrameworkInputs,
    gpu: GpuInputs,
    links: LinkInputs,
    out: Array,
    stages: Array,
) -> None:
    """Fill the STEP_* columns of a layout and the STAGE_* columns of its stages."""
    times = stage_times(counts, recomputed, costs, key, grid, job, framework, links, stages)
    slowest, slowest_s = times.slowest, times.slowest_s
    span = step_span_s(times, grid, framework)
    pp_s = pipeline_traffic_seconds(costs, key, grid, job, framework, links)
    dp_s, optimizer_s = data_parallel_terms(
        counts, costs, key, grid, job, framework, gpu, links, stages
    )
    m = grid.grad_acc * microbatch_share(framework.schedule)
    pieces = job.pieces
    out[f.STEP_COMPUTE] = m * (
        sum_pieces(slowest, f.PIECE_FORWARD, counts, costs, pieces)
        + sum_pieces(slowest, f.PIECE_BACKWARD, counts, costs, pieces)
    )
    out[f.STEP_RECOMPUTE] = m * sum_pieces(slowest, f.PIECE_RECOMPUTE, recomputed, costs, pieces)
    for group in range(3):
        out[f.STEP_TP + group] = m * (
            sum_pieces(slowest, f.PIECE_FORWARD_TP + group, counts, costs, pieces)
            + sum_pieces(slowest, f.PIECE_BACKWARD_TP + group, counts, costs, pieces)
            + sum_pieces(slowest, f.PIECE_RECOMPUTE_TP + group, recomputed, costs, pieces)
        )
    out[f.STEP_OFFLOAD] = m * (
        sum_pieces(slowest, f.PIECE_FORWARD_OFFLOAD, counts, costs, pieces)
        + sum_pieces(slowest, f.PIECE_BACKWARD_OFFLOAD, counts, costs, pieces)
    )
    if grid.zero >= 2:
        # What the stage takes beyond its own terms are the gathers and reductions of ZeRO-2/3.
        own_s = out[f.STEP_COMPUTE] + out[f.STEP_RECOMPUTE]
        own_s += out[f.STEP_TP] + out[f.STEP_CP] + out[f.STEP_EP] + out[f.STEP_OFFLOAD]
        out[f.STEP_FSDP] = max(0.0, grid.grad_acc * slowest_s - own_s)
    out[f.STEP_PP] = pp_s
    out[f.STEP_BUBBLE] = span - grid.grad_acc * slowest_s
    out[f.STEP_DP] = dp_s
    out[f.STEP_OPTIMIZER] = optimizer_s
    out[f.STEP_ISSUE] = m * (
        sum_pieces(slowest, f.PIECE_ISSUE, counts, costs, pieces)
        + sum_pieces(slowest, f.PIECE_ISSUE_AGAIN, recomputed, costs, pieces)
    )
    busy_s = span + pp_s + dp_s + optimizer_s + framework.host_step_s
    alike_s = max(busy_s, loading_seconds(key, grid, framework))
    out[f.STEP_HOST] = framework.host_step_s + alike_s - busy_s
    out[f.STEP_TIME] = alike_s * slowdown(key, grid, links)
    out[f.STEP_STRAGGLERS] = out[f.STEP_TIME] - alike_s
    heaviest = 0
    for stage in range(int(grid.pp)):
        stage_memory(stage, counts, recomputed, costs, key, grid, job, framework, stages[stage])
        if stages[stage, f.STAGE_PEAK] > stages[heaviest, f.STAGE_PEAK]:
            heaviest = stage
    out[f.STEP_PEAK_BYTES] = stages[heaviest, f.STAGE_PEAK]
    out[f.STEP_PEAK_STAGE] = float(heaviest)
    out[f.STEP_ALLOCATED_BYTES] = stages[heaviest, f.STAGE_ALLOCATED]


@jit
def step_bounds(
    totals: Array,
    costs: Array,
    key: Key,
    grid: Grid,
    job: JobInputs,
    framework: FrameworkInputs,
    gpu: GpuInputs,
    links: LinkInputs,
    out: Array,
) -> None:
    """Fill STEP_TIME_BOUND and STEP_PEAK_BOUND: no layout of the shape is faster or lighter.

    `totals[piece]`: how many of each piece the model has. Time: no layer recomputes, stages are
    perfectly even, nothing of dp is exposed. Memory: all layers recompute and each has only the
    fewest micro-batches of any stage in flight; the heaviest stage holds at least the mean.
    """
    total_s = largest_s = dense = expert = saved = forward_s = weight_s = 0.0
    mirrored = microbatch_share(framework.schedule)
    for piece in range(job.pieces):
        count = totals[piece]
        seconds = (
            forward_seconds(costs[piece])
            + backward_seconds(costs[piece])
            + fsdp_seconds(costs[piece], False, key, grid, job, framework, links)
        )
        total_s += count * seconds
        if count > 0.0:
            largest_s = max(largest_s, mirrored * seconds)
        forward_s += count * forward_seconds(costs[piece])
        weight_s += count * costs[piece, f.PIECE_WEIGHT]
        dense += count * costs[piece, f.PIECE_DENSE_PARAMETERS]
        expert += count * costs[piece, f.PIECE_EXPERT_PARAMETERS]
        if piece < job.kinds:
            saved += count * min(
                costs[piece, f.PIECE_SAVED], costs[piece, f.PIECE_SAVED_RECOMPUTED]
            )
    share = model_bubble_share(forward_s, total_s, weight_s, grid, framework, True)
    out[f.STEP_TIME_BOUND] = slowdown(key, grid, links) * (
        pipeline_bound_s(total_s, largest_s, grid.pp, grid.grad_acc, share)
        + exposed_pipeline_seconds(costs, key, grid, job, framework, links)
        + optimizer_seconds(dense, expert, grid, framework, gpu) / grid.pp
        + framework.host_step_s
    )
    out[f.STEP_PEAK_BOUND] = (
        peak_bound_bytes(dense, expert, saved, grid, framework) * (1.0 + framework.fragmentation)
        + framework.context_bytes
        + communicator_bytes(key.tp, key.cp, grid.dp, grid.pp, key.ep, framework)
    )


@jit
def peak_bound_bytes(
    dense: float, expert: float, saved: float, grid: Grid, framework: FrameworkInputs
) -> float:
    """Live bytes that the heaviest stage holds at least: the mean over stages, with the model's
    parameters and `saved` bytes of its layers, in the update and at a layer's backward."""
    zero, shards, expert_shards = grid.zero, grid.shards, grid.expert_shards
    saved_bytes, accumulates = np.inf, 0.0
    for stage in range(int(grid.pp)):
        held = held_microbatches(float(stage), grid.pp, grid.vpp, grid.grad_acc, framework.schedule)
        own = fullest_pass(held, grid.grad_acc, framework)
        saved_bytes, accumulates = min(saved_bytes, saved * own.in_flight), own.accumulates
    gradients = gradient_bytes(dense, expert, zero, shards, expert_shards, framework)
    state = weight_bytes(dense, expert, zero, shards, expert_shards, framework) + optimizer_bytes(
        dense, expert, zero, shards, expert_shards, framework
    )
    backward = state + accumulates * gradients + saved_bytes
    return max(backward, state + gradients) / grid.pp + framework.workspace_bytes
