"""The frame of a step: parameters, their traffic and their update.

A frame depends only on the parallel degrees and the layout, and on whether a step has one
micro-batch or more (`reduces_at_once`). So candidates that differ only in micro-batch size or
recompute mode share a frame (`planner.cost.kernel`).
"""

from __future__ import annotations

from planner.cost._jit import Row, Rows, jit
from planner.cost.boundary_traffic import end_traffic
from planner.cost.class_sums import gathered_parameters, reduced_parameters
from planner.cost.data_parallel import (
    average_seconds,
    fetch_of,
    gather_of,
    near_gather_of,
    optimizer_seconds,
    reduction_of,
)
from planner.cost.fields import record_of
from planner.cost.inputs import GpuInputs
from planner.cost.passes import (
    backward_seconds,
    forward_seconds,
    fsdp_seconds,
    recompute_seconds,
)
from planner.cost.peak import fill_known
from planner.cost.schedule import SCHEDULE_ALL_FORWARD_FIRST
from planner.cost.sharing import after
from planner.cost.tables import Array, FrameworkInputs, JobInputs
from planner.cost.update import stage_update_seconds

# Traffic of one piece. First the number of its parameters whose gradients are reduced and whose
# weights are gathered, over dp·cp and over the expert-data group, and the `Stream` of each
# (`planner.cost.sharing`); `near`: of a gather from a second copy of the weights. Then columns that
# depend on micro-batch and recompute mode: seconds of the piece's passes; seconds that ZeRO-2/3
# adds to them without and with recomputation; seconds of links that hidden traffic of a pass takes
# from the traffic at the end of the step (`taken_*`); the delay that the latter causes to the
# piece's compute and exposed traffic (`shared_s`, `planner.cost.boundary_traffic`), which includes
# the seconds to average the gradients of copies (`average_s`).
TRAFFIC_ROW = record_of(
    "reduced", "reduced_experts", "gathered", "gathered_experts",
    "reduce_s", "reduce_inside", "reduce_between", "reduce_engaged",
    "gather_s", "gather_inside", "gather_between", "gather_engaged",
    "near_s", "near_inside", "near_between", "near_engaged",
    "forward_s", "backward_s", "recompute_s", "sharded_s", "sharded_again_s",
    "taken_forward_s", "taken_backward_s", "shared_s", "average_s",
)  # fmt: skip


@jit
def fill_traffic(
    costs: Rows, key: Row, grid: Row, framework: FrameworkInputs, network: Rows, traffic: Rows
) -> None:
    """Fill the streams that reduce each piece's gradients and gather its sharded weights."""
    for piece in range(costs.shape[0]):
        cost, one_traffic = costs[piece], traffic[piece]
        data, experts = reduced_parameters(cost, framework)
        one_traffic.reduced, one_traffic.reduced_experts = data, experts
        stream = reduction_of(data, experts, key, grid, framework, network)
        one_traffic.reduce_s, one_traffic.reduce_engaged = stream.seconds, stream.engaged
        one_traffic.reduce_inside, one_traffic.reduce_between = stream.inside, stream.between
        data, experts = gathered_parameters(cost, grid, framework)
        one_traffic.gathered, one_traffic.gathered_experts = data, experts
        stream = gather_of(data, experts, key, grid, framework, network)
        if framework.host_weight_bytes > 0.0:
            stream = after(fetch_of(cost, grid, framework), stream)
        if framework.secondary_shards > 0.0:
            near = near_gather_of(data, experts, key, grid, framework, network)
            one_traffic.near_s, one_traffic.near_engaged = near.seconds, near.engaged
            one_traffic.near_inside, one_traffic.near_between = near.inside, near.between
        one_traffic.average_s = average_seconds(cost, key, framework, network)
        one_traffic.gather_s, one_traffic.gather_engaged = stream.seconds, stream.engaged
        one_traffic.gather_inside, one_traffic.gather_between = stream.inside, stream.between


@jit
def fill_passes(costs: Rows, grid: Row, framework: FrameworkInputs, traffic: Rows) -> None:
    """Fill forward, backward and recomputation seconds of each piece, and the seconds that its
    ZeRO-2/3 traffic and its traffic at the ends of a step add. `traffic` has to contain the streams
    (`fill_traffic`)."""
    for piece in range(costs.shape[0]):
        cost, one_traffic = costs[piece], traffic[piece]
        one_traffic.forward_s, one_traffic.backward_s = (
            forward_seconds(cost),
            backward_seconds(cost),
        )
        one_traffic.recompute_s = recompute_seconds(cost)
        one_traffic.sharded_s = fsdp_seconds(cost, one_traffic, False, grid, framework)
        one_traffic.sharded_again_s = fsdp_seconds(cost, one_traffic, True, grid, framework)
        end_traffic(cost, one_traffic, grid, framework)


@jit
def fill_group(
    group: int, counts: Array, costs: Rows, key: Row, grid: Row, job: JobInputs,
    framework: FrameworkInputs, gpu: GpuInputs, network: Rows, out: Row,
) -> None:  # fmt: skip
    """Fill the columns of a group of stages that depend only on parameters."""
    fill_known(group, counts, costs, key, grid, job, framework, out)
    out.update_s = optimizer_seconds(out.updated, out.states, framework, gpu)
    out.update_s += stage_update_seconds(group, counts, costs, grid, job, framework, gpu)
    out.reduce_s = out.gather_s = 0.0
    if grid.zero < 2:
        data, experts = reduced_parameters(out, framework)
        out.reduce_s = reduction_of(data, experts, key, grid, framework, network).seconds
    if 1 <= grid.zero <= 2:
        data, experts = gathered_parameters(out, grid, framework)
        out.gather_s = gather_of(data, experts, key, grid, framework, network).seconds
        out.gather_s += fetch_of(out, grid, framework).seconds


@jit
def same_stages(one: int, other: int, counts: Array) -> bool:
    """Whether two stages contain the same pieces."""
    differ = 0
    for piece in range(counts.shape[0]):
        differ += counts[piece, one] != counts[piece, other]
    return differ == 0


@jit
def group_stages(pp: int, schedule: int, place: Array, counts: Array, groups: Rows) -> int:
    """The number of groups of stages. Fills each group's first stage, span and machine;
    counts[piece, stage] becomes counts[piece, group]. `place`: machine of each stage.

    Under 1F1B and GPipe, consecutive stages with the same contents form a group, and its first
    stage stands for it: that one has the most micro-batches in flight and the least time to hide
    the traffic at the end of the step. Under other schedules each stage is a group.
    """
    alike = schedule <= SCHEDULE_ALL_FORWARD_FIRST
    found = 0
    for stage in range(pp):
        machine = place[stage]
        if (
            alike
            and found > 0
            and groups[found - 1].machine == machine
            and same_stages(found - 1, stage, counts)
        ):
            groups[found - 1].span += 1.0
            continue
        groups[found].first, groups[found].span, groups[found].machine = float(stage), 1.0, machine
        for piece in range(counts.shape[0]):
            counts[piece, found] = counts[piece, stage]
        found += 1
    return found
