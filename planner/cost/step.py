"""One training step of one shape and layout: time by term, memory by stage.

A layout is `counts[piece, stage]` (number of each piece on a stage) and `recomputed[piece, stage]`
(number of those that recompute in backward).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from planner.cost._jit import Row, Rows, jit
from planner.cost.class_sums import both_shares, class_share, no_share
from planner.cost.data_parallel import (
    hidden_seconds,
    optimizer_seconds,
)
from planner.cost.inputs import GpuInputs
from planner.cost.memory import (
    gradient_bytes,
    outside_bytes,
    set_aside_bytes,
)
from planner.cost.passes import (
    pipeline_traffic_seconds,
    table_reduction_seconds,
)
from planner.cost.peak import group_bytes, updating_bytes
from planner.cost.pipeline import (
    all_forward_first_s,
    pipeline_time_s,
)
from planner.cost.rank_order import stage_domains
from planner.cost.schedule import (
    SCHEDULE_ALL_FORWARD_FIRST,
    boundary_hideable,
    boundary_passes,
    bubble_share,
    microbatch_share,
)
from planner.cost.tables import Array, FrameworkInputs, JobInputs
from planner.cost.terms import constant_seconds


@jit
def slowdown(key: Row, grid: Row, network: Rows) -> float:
    """Step time relative to ranks that are all equally fast: 1 + j·log2(domains), at least 1.

    Ranks meet in every collective, so each step waits for the slowest kernel, link and host among
    them; the expected maximum of many grows with the logarithm of their number. These are the ranks
    of one pipeline stage: stages pass micro-batches on, and a delay of one of them is made up while
    the next has some in flight. j: `LinkInputs.straggler_share`.
    """
    return 1.0 + network[0].straggler_share * math.log2(stage_domains(key, grid, network))


@jit
def loading_seconds(key: Row, grid: Row, framework: FrameworkInputs) -> float:
    """Seconds to read the sequences of a data-parallel rank's batch. They are read during
    everything else, so a step takes at least this long. The layout solver ignores it, because it is
    the same for all layouts."""
    return framework.sample_load_s * key.mbs * grid.grad_acc


class ShapeFrame(NamedTuple):
    """Parts of a step that depend on its shape, but not on its layout.

    `exposed_s`: seconds that the busiest stage spends on transfers to its neighbours; `learnt`:
    factor on the step time, from similar runs on the cluster; `outside_bytes`: bytes outside
    tensors on the first machine.
    """

    exposed_s: float
    learnt: float
    outside_bytes: float


class StageTimes(NamedTuple):
    """Forward and backward seconds of a pipeline's stages for one micro-batch.

    `slowest`: number of the slowest group of stages, and `slowest_s` its forward plus backward.
    `longest_forward_s`, `longest_backward_s`: the longest forward and the longest backward, perhaps
    on different stages. Summed over all stages: `total_s` forward plus backward, `forward_s`
    forward only, `weight_s` weight gradients only.
    """

    slowest: int
    slowest_s: float
    longest_forward_s: float
    longest_backward_s: float
    total_s: float
    forward_s: float
    weight_s: float


class StepFrame(NamedTuple):
    """Parts of a step that depend on the parallel degrees, but neither on the micro-batch nor on
    recomputation; without groups of stages and traffic of pieces.

    `slowdown`: factor of stragglers, and `table_s`: seconds to reduce the gradients of a shared
    vocabulary table, both on the slowest machine. Summed over all stages, on the machine with the
    least: seconds of the optimizer, bytes of weights and optimizer state, bytes of gradients.
    `memories`: memory of all stages in units of the largest GPU's.
    """

    slowdown: float
    table_s: float
    update_s: float
    state_bytes: float
    gradient_bytes: float
    memories: float


@jit
def step_frame(
    totals: Array, costs: Rows, key: Row, grid: Row, job: JobInputs, frameworks: Rows, gpus: Rows,
    networks: Rows, place: Array,
) -> StepFrame:  # fmt: skip
    """The `StepFrame`. `totals[piece]`: number of each piece in the model."""
    memories = 0.0
    for stage in range(int(grid.pp)):
        memories += 1.0 / gpus[int(place[stage])].memory_scale
    found = machine_frame(
        totals, costs[0], key, grid, job, frameworks[0], gpus[0], networks[0], memories
    )
    for at in range(1, frameworks.shape[0]):
        other = machine_frame(
            totals, costs[at], key, grid, job, frameworks[at], gpus[at], networks[at], memories
        )
        found = StepFrame(
            max(found.slowdown, other.slowdown), max(found.table_s, other.table_s),
            min(found.update_s, other.update_s), min(found.state_bytes, other.state_bytes),
            min(found.gradient_bytes, other.gradient_bytes), memories,
        )  # fmt: skip
    return found


@jit
def machine_frame(
    totals: Array, costs: Rows, key: Row, grid: Row, job: JobInputs, framework: FrameworkInputs,
    gpu: GpuInputs, network: Rows, memories: float,
) -> StepFrame:  # fmt: skip
    """The `StepFrame` with all stages on one machine."""
    share = no_share()
    for number in range(len(framework.classes)):
        parameters = 0.0
        for piece in range(job.pieces):
            parameters += totals[piece] * costs[piece].parameters[number]
        share = both_shares(
            share, class_share(parameters, framework.classes[number], grid, framework)
        )
    per_state = framework.master_bytes + framework.optimizer_bytes
    return StepFrame(
        slowdown(key, grid, network),
        table_reduction_seconds(costs, key, grid, job, framework, network),
        optimizer_seconds(share.updated, share.states, framework, gpu),
        framework.weight_bytes * share.weights + per_state * share.states,
        gradient_bytes(share.trained, share.trained_share, grid, framework),
        memories,
    )


@jit
def stage_times(
    counts: Array, recomputed: Array, costs: Rows, traffic: Rows, groups: Rows,
    framework: FrameworkInputs, stages: Rows,
) -> StageTimes:  # fmt: skip
    """Fill the step's forward and backward seconds per stage and micro-batch, and return their
    sums."""
    slowest, slowest_s, total_s = 0, -1.0, 0.0
    longest_forward = longest_backward = forward_s = weight_s = 0.0
    share = microbatch_share(framework.schedule)
    for stage in range(groups.shape[0]):
        at = int(groups[stage].machine)
        cost, seconds = costs[at], traffic[at]
        forward = backward = weight = 0.0
        for piece in range(cost.shape[0]):
            count = share * counts[piece, stage]
            if count == 0.0:
                continue
            one_traffic, again = seconds[piece], share * recomputed[piece, stage]
            forward += count * one_traffic.forward_s
            backward += count * one_traffic.backward_s
            weight += count * cost[piece].weight
            if again > 0.0:
                backward += again * one_traffic.recompute_s
                backward += again * one_traffic.sharded_again_s
            if again < count:
                backward += (count - again) * one_traffic.sharded_s
        stages[stage].forward_s = forward
        stages[stage].backward_s = backward
        total_s += groups[stage].span * (forward + backward)
        forward_s += groups[stage].span * forward
        weight_s += groups[stage].span * weight
        longest_forward = max(longest_forward, forward)
        longest_backward = max(longest_backward, backward)
        if forward + backward > slowest_s:
            slowest, slowest_s = stage, forward + backward
    return StageTimes(
        slowest, slowest_s, longest_forward, longest_backward, total_s, forward_s, weight_s
    )


@jit
def model_bubble_share(
    forward_s: float, total_s: float, weight_s: float, grid: Row, framework: FrameworkInputs,
    lower: bool,
) -> float:  # fmt: skip
    """`bubble_share` from a micro-batch's seconds on all stages: forward, all, weight gradients."""
    return bubble_share(
        forward_s, total_s - forward_s - weight_s, weight_s, framework.schedule,
        grid.pp, grid.vpp, grid.grad_acc, framework.optimizer_post_validation, lower,
    )  # fmt: skip


@jit
def step_span_s(times: StageTimes, grid: Row, framework: FrameworkInputs) -> float:
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
def exposed_end_s(
    counts: Array, traffic: Rows, groups: Rows, grid: Row, framework: FrameworkInputs,
    stages: Rows,
) -> float:  # fmt: skip
    """Seconds of a step's gradient and parameter traffic, at its end and at the start of the next
    step, that no compute hides: the most of any stage.

    Gradients of a stage are reduced during its last backward, and updated weights are gathered
    during the first forward of the next step (`boundary_passes`); later stages also have the drain
    of the pipeline to hide them. For the links that they share with the layers' traffic see
    `planner.cost.boundary_traffic`.
    """
    exposed_s = drain_s = 0.0
    mirrored = microbatch_share(framework.schedule)
    passes = boundary_passes(framework.schedule, grid.pp, grid.vpp, grid.grad_acc)
    hideable = boundary_hideable(framework.schedule, grid.vpp)
    hide_reduce = hideable * framework.hide_gradient_reduction
    hide_gather = hideable * framework.hide_parameter_gather
    for stage in range(groups.shape[0]):
        reduce_s, gather_s = groups[stage].reduce_s, groups[stage].gather_s
        pieces = traffic[int(groups[stage].machine)]
        seconds = taken_forward = taken_backward = 0.0
        for piece in range(pieces.shape[0]):
            count, one_traffic = counts[piece, stage], pieces[piece]
            seconds += count * one_traffic.shared_s
            taken_forward += count * one_traffic.taken_forward_s
            taken_backward += count * one_traffic.taken_backward_s
        window_s = passes * stages[stage].backward_s - mirrored * taken_backward
        seconds += reduce_s - hidden_seconds(reduce_s, hide_reduce, window_s)
        window_s = passes * stages[stage].forward_s - mirrored * taken_forward
        seconds += gather_s - hidden_seconds(gather_s, hide_gather, window_s)
        exposed_s = max(exposed_s, seconds - drain_s)
        drain_s += groups[stage].span * stages[stage].backward_s / grid.vpp
    return exposed_s


@jit
def longest_update_s(groups: Rows) -> float:
    """Seconds of the optimizer on the stage with the longest update."""
    seconds = 0.0
    for stage in range(groups.shape[0]):
        seconds = max(seconds, groups[stage].update_s)
    return seconds


@jit
def stage_terms(
    stage: int, microbatches: float, counts: Array, recomputed: Array, costs: Rows,
    out: Row,
) -> None:  # fmt: skip
    """Fill the seconds of a stage's passes over all `microbatches`, by term."""
    compute = recompute = tp = cp = ep = offload = issue = 0.0
    for piece in range(costs.shape[0]):
        count, again, cost = counts[piece, stage], recomputed[piece, stage], costs[piece]
        compute += count * (cost.forward + cost.backward)
        recompute += again * cost.recompute
        tp += count * (cost.forward_tp + cost.backward_tp) + again * cost.recompute_tp
        cp += count * (cost.forward_cp + cost.backward_cp) + again * cost.recompute_cp
        ep += count * (cost.forward_ep + cost.backward_ep) + again * cost.recompute_ep
        offload += count * (cost.forward_offload + cost.backward_offload)
        issue += count * cost.issue + again * cost.issue_again
    out.compute, out.recompute = microbatches * compute, microbatches * recompute
    out.tp, out.cp, out.ep = microbatches * tp, microbatches * cp, microbatches * ep
    out.offload, out.issue = microbatches * offload, microbatches * issue


@jit
def evaluate_step(
    counts: Array, recomputed: Array, costs: Rows, traffic: Rows, groups: Rows, frame: StepFrame,
    shape: ShapeFrame, key: Row, grid: Row, job: JobInputs, frameworks: Rows, gpus: Rows,
    networks: Rows, out: Row, stages: Rows,
) -> None:  # fmt: skip
    """Fill the STEP_* columns of a layout and the STAGE_* columns of its groups of stages.

    Settings of the framework are the same on all machines and are read from the first.

    `counts`, `recomputed`: [piece, group]; `traffic`, `groups`: filled before
    (`planner.cost.frame`). The peak is that of the stage that takes the largest share of its
    machine's memory.
    """
    framework = frameworks[0]
    times = stage_times(counts, recomputed, costs, traffic, groups, framework, stages)
    slowest, slowest_s = times.slowest, times.slowest_s
    span = step_span_s(times, grid, framework)
    pp_s, constant = 0.0, constant_seconds(framework)
    for at in range(frameworks.shape[0]):
        if at > 0 and sum(constant_seconds(frameworks[at])) > sum(constant):
            constant = constant_seconds(frameworks[at])
        waited_s = pipeline_traffic_seconds(
            shape.exposed_s, frame.table_s, costs[at], traffic[at], key, grid, job, frameworks[at],
            networks[at],
        )  # fmt: skip
        pp_s = max(pp_s, waited_s)
    dp_s = exposed_end_s(counts, traffic, groups, grid, framework, stages)
    optimizer_s = longest_update_s(groups)
    m = grid.grad_acc * microbatch_share(framework.schedule)
    stage_terms(slowest, m, counts, recomputed, costs[int(groups[slowest].machine)], out)
    if grid.zero >= 2:
        # The rest of the stage's seconds are gathers and reductions of ZeRO-2/3.
        passes_s = out.compute + out.recompute
        passes_s += out.tp + out.cp + out.ep + out.offload
        out.fsdp = max(0.0, grid.grad_acc * slowest_s - passes_s)
    out.pp = pp_s
    out.bubble = span - grid.grad_acc * slowest_s
    out.dp = dp_s
    out.optimizer = optimizer_s
    out.unequal = grid.unequal_s
    busy_s = span + pp_s + dp_s + optimizer_s + grid.unequal_s + sum(constant)
    alike_s = max(busy_s, loading_seconds(key, grid, framework))
    for place in range(len(constant)):
        out.constant[place] = constant[place]
    out.constant[0] += alike_s
    out.constant[0] -= busy_s
    out.time = alike_s * frame.slowdown * shape.learnt
    out.straggler = out.time - alike_s
    most, first_outside = -np.inf, shape.outside_bytes
    for stage in range(groups.shape[0]):
        at = int(groups[stage].machine)
        framework, scale = frameworks[at], gpus[at].memory_scale
        allocated = group_bytes(
            stage, groups[stage], counts, recomputed, costs[at], key, grid, job, framework
        )
        gaps = framework.fragmentation * (allocated - groups[stage].packed_bytes)
        outside = outside_bytes(key, grid, job, framework) if at > 0 else first_outside
        weighed = scale * (allocated + gaps) + (scale * outside - first_outside)
        if weighed > most:
            most, out.peak_stage = weighed, groups[stage].first
            out.peak_bytes = allocated + gaps + outside
            updating = updating_bytes(groups[stage], key, job, framework)
            out.allocated_bytes = max(allocated, updating + set_aside_bytes(key, grid, framework))
