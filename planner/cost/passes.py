"""Seconds of a forward or backward pass of one piece, with the ZeRO-2/3 traffic that runs at the
same time, and the transfer of activations to the next pipeline stage."""

from __future__ import annotations

from planner.cost import fields as f
from planner.cost._jit import Row, Rows, jit
from planner.cost.class_sums import trained_table
from planner.cost.codes import CollectiveKind
from planner.cost.communication import all_gather_time_s, point_to_point_time_s
from planner.cost.keys import local_tokens
from planner.cost.layout import mtp_stage
from planner.cost.piece_traffic import collective_stream, group_of
from planner.cost.pipeline import exchange_wait_s, exposed_transfer_s
from planner.cost.rank_order import stage_stride, stages_share_domain
from planner.cost.schedule import copies_of_model, head_stage
from planner.cost.sharing import (
    Stream,
    Window,
    after,
    beside_seconds,
    met_share,
    no_stream,
    piece_gather,
    piece_near_gather,
    piece_reduction,
    times,
)
from planner.cost.tables import FrameworkInputs, JobInputs

# Bytes of three int64 numbers: the shape of a tensor that is sent.
SHAPE_BYTES = 24.0


@jit
def forward_seconds(cost: Row) -> float:
    """Forward seconds of one piece, including exposed communication."""
    return float(
        cost.forward + cost.forward_tp + cost.forward_cp + cost.forward_ep + cost.forward_offload
    )


@jit
def backward_seconds(cost: Row) -> float:
    """Backward seconds of one piece without recomputation."""
    return float(
        cost.backward
        + cost.backward_tp
        + cost.backward_cp
        + cost.backward_ep
        + cost.backward_offload
    )


@jit
def recompute_seconds(cost: Row) -> float:
    """Seconds that recomputing one piece adds to its backward pass."""
    return float(cost.recompute + cost.recompute_tp + cost.recompute_cp + cost.recompute_ep)


@jit
def pass_window(cost: Row, index: int) -> Window:
    """The forward (0), backward (1) or recompute (2) pass of one piece."""
    links, first = cost.links, index * f.LINK_PASS
    seconds, compute = forward_seconds(cost), cost.forward
    if index == 1:
        seconds, compute = backward_seconds(cost), cost.backward
    elif index == 2:
        seconds, compute = recompute_seconds(cost), cost.recompute
    return Window(
        seconds, compute, links[first + f.LINK_EXPOSED_INSIDE],
        links[first + f.LINK_EXPOSED_BETWEEN], links[first + f.LINK_HIDDEN_INSIDE],
        links[first + f.LINK_HIDDEN_BETWEEN],
    )  # fmt: skip


@jit
def both_passes(first: Window, second: Window) -> Window:
    """Two passes combined into one window."""
    return Window(
        first.seconds + second.seconds, first.compute + second.compute,
        first.exposed_inside + second.exposed_inside,
        first.exposed_between + second.exposed_between, first.hidden_inside + second.hidden_inside,
        first.hidden_between + second.hidden_between,
    )  # fmt: skip


@jit
def reduced_share(grid: Row, framework: FrameworkInputs) -> float:
    """Gradient reductions per micro-batch: 1, or 1/grad_acc if a step has a single reduction."""
    return 1.0 / grid.grad_acc if framework.unreduced_gradients > 0.0 else 1.0


@jit
def sharded_streams(traffic: Row, grid: Row, framework: FrameworkInputs) -> tuple[Stream, Stream]:
    """ZeRO-2/3 traffic of one piece and micro-batch during (forward, backward).

    ZeRO-3 gathers the piece's weights before forward and again before backward (prefetched during
    the neighbours' compute) and reduce-scatters its gradients; ZeRO-2 only reduce-scatters. With a
    second copy (`secondary_shards`), all gathers of a step except the first forward's use that
    copy. A step that does not train has no backward.
    """
    alone = grid.shards <= 1.0 and grid.expert_shards <= 1.0 and grid.replicas <= 1.0
    if grid.zero < 2 or (alone and framework.host_weight_bytes == 0.0):
        return no_stream(), no_stream()
    gather = again = no_stream()
    if grid.zero == 3:
        gather = again = piece_gather(traffic)
        if framework.secondary_shards > 0.0:
            again, first = piece_near_gather(traffic), 1.0 / grid.grad_acc
            gather = after(times(gather, first), times(again, 1.0 - first))
    if framework.forward_reads < 0.0:
        return gather, no_stream()
    scatter = times(piece_reduction(traffic), reduced_share(grid, framework))
    return gather, after(again, scatter)


@jit
def fsdp_seconds(
    cost: Row, traffic: Row, recomputed: bool, grid: Row, framework: FrameworkInputs
) -> float:
    """Seconds that ZeRO-2/3 traffic adds to forward and backward of one piece and micro-batch; 0
    below ZeRO-2. `recomputed`: whether the piece recomputes in backward. Includes copies for the
    traffic, and the GPU's waits for the CPU at gathers before forward and before backward."""
    if grid.zero < 2:
        return 0.0
    gather, backward = sharded_streams(traffic, grid, framework)
    if gather.seconds + backward.seconds == 0.0:
        return 0.0
    window = pass_window(cost, 1)
    if recomputed:
        window = both_passes(window, pass_window(cost, 2))
    copies = framework.reduce_copy_s * cost.trained * reduced_share(grid, framework)
    if grid.zero == 3:
        uses = 2.0 + framework.forward_reads
        copies += uses * (framework.gather_copy_s * cost.gathered + framework.gather_wait_s)
    share, contention = framework.hide_fsdp_prefetch, framework.contention
    return float(
        beside_seconds(pass_window(cost, 0), gather, share, contention)
        + beside_seconds(window, backward, share, contention)
        + copies
    )


@jit
def transfers_met(
    costs: Rows, traffic: Rows, key: Row, grid: Row, job: JobInputs, framework: FrameworkInputs,
    network: Rows,
) -> float:  # fmt: skip
    """Share (0 to 1) of the transfers between stages that run at the same time as layers' ZeRO-2/3
    traffic on the same class of links. 0 below ZeRO-2 or without a pipeline.

    It is the least over the kinds of layers, because no layout has less.
    """
    if grid.zero < 2 or grid.pp <= 1.0:
        return 0.0
    same_domain = stages_share_domain(key, grid, network)
    least = 1.0
    for kind in range(job.kinds):
        gather, backward = sharded_streams(traffic[kind], grid, framework)
        stream = times(after(gather, backward), framework.hide_fsdp_prefetch)
        window = both_passes(pass_window(costs[kind], 0), pass_window(costs[kind], 1))
        again = both_passes(window, pass_window(costs[kind], 2))
        long = max(again.seconds, stream.seconds)
        if same_domain:
            met = met_share(stream.inside, long - window.hidden_inside)
        else:
            met = met_share(stream.between, long - window.hidden_between)
        least = min(least, met)
    return least


@jit
def transfer_seconds(
    costs: Rows, traffic: Rows, key: Row, grid: Row, job: JobInputs, framework: FrameworkInputs,
    network: Rows,
) -> float:  # fmt: skip
    """Seconds to pass one micro-batch's activations to the next stage during other traffic: the
    average over forward and backward. Forward transfers of models that are not trained are added.
    """
    met = transfers_met(costs, traffic, key, grid, job, framework, network)
    alone = transfer_alone_seconds(key, grid, job, framework, network, 1.0)
    return (1.0 + met) * alone * (1.0 + 0.5 * framework.forward_reads)


@jit
def exposed_pipeline_seconds(
    costs: Rows, traffic: Rows, key: Row, grid: Row, job: JobInputs, framework: FrameworkInputs,
    network: Rows,
) -> float:  # fmt: skip
    """Seconds of a step that the busiest stage spends on transfers; they do not depend on its
    layers."""
    transfer = transfer_seconds(costs, traffic, key, grid, job, framework, network)
    seconds = exposed_transfer_s(
        transfer, grid.pp, grid.vpp, grid.grad_acc, framework.hide_pipeline
    )
    if key.tp > 2.0 * network[0].scale_up_domain:
        seconds += exchange_wait_s(framework.wide_stage_wait_s, grid.pp, grid.grad_acc)
    return seconds


@jit
def table_reduction_seconds(
    costs: Rows, key: Row, grid: Row, job: JobInputs, framework: FrameworkInputs, network: Rows,
) -> float:  # fmt: skip
    """Seconds to add up the gradients of a vocabulary table that several stages have a copy of. 0
    if only one stage has it, if it is frozen, or if the schedule has two copies of the model.

    An all-reduce of the whole gradient between the first stage, the stage of multi-token prediction
    and the stage of a tied head. It runs after their gradients are reduced over data-parallel
    ranks, and nothing hides it (Megatron-Core 0.19.2, distributed/finalize_model_grads.py). Ignores
    the time that a first stage waits for a last one. Three members are taken as equally far apart,
    although the last two are neighbours.
    """
    pp = int(grid.pp)
    head = head_stage(framework.schedule, pp)
    predicts = mtp_stage(pp, framework.schedule, grid.mtp_standalone)
    members, furthest = 1, 0
    if job.mtp_layers > 0 and job.mtp_copies_embedding > 0.0 and predicts > 0:
        members, furthest = 2, predicts
    if job.tied_embeddings > 0.0 and head > furthest:
        members, furthest = members + 1, head
    size = framework.gradient_bytes * trained_table(costs, job, framework)
    if members == 1 or size == 0.0 or copies_of_model(framework.schedule, grid.pp) > 1.0:
        return 0.0
    stride = stage_stride(key, grid, network) * float(furthest // (members - 1))
    return collective_stream(
        CollectiveKind.ALL_REDUCE, float(members), stride, size, network
    ).seconds


@jit
def pipeline_traffic_seconds(
    exposed_s: float, table_s: float, costs: Rows, traffic: Rows, key: Row, grid: Row,
    job: JobInputs, framework: FrameworkInputs, network: Rows,
) -> float:  # fmt: skip
    """Seconds of a step that stages wait for each other's activations and table gradients
    (`exposed_pipeline_seconds`, `table_reduction_seconds`).

        exposed(t) + 2(m(1 - hidden) + 1)·(t' - t) + 2(m·v + p - 1)·e   the last two if MTP is apart

    t: seconds of a transfer; t': seconds of the transfer between multi-token prediction and the
    loss, which includes the hidden states of all its modules (multi_token_prediction.py: they are
    concatenated); e: seconds in which stages then tell each other the shape before every transfer,
    24 bytes that the CPU waits for before it issues more (p2p_communication.py,
    `_communicate_shapes`; megatron/core 0.19.2). Symbols: m = grad_acc, v = vpp, p = pp, as in
    `exposed_transfer_s`.
    """
    seconds = exposed_s + table_s
    if grid.mtp_standalone == 0.0:
        return seconds
    transfer = transfer_seconds(costs, traffic, key, grid, job, framework, network)
    alone = transfer_alone_seconds(key, grid, job, framework, network, 1.0)
    wide = transfer_alone_seconds(key, grid, job, framework, network, 1.0 + job.mtp_layers)
    shown = 1.0 - (framework.hide_pipeline if grid.vpp > 1.0 else 0.0)
    seconds += 2.0 * (grid.grad_acc * shown + 1.0) * (wide - alone) * transfer / alone
    same_domain = stages_share_domain(key, grid, network)
    shape = point_to_point_time_s(SHAPE_BYTES, same_domain, network[0]) + framework.issue_s
    return float(seconds + 2.0 * (grid.grad_acc * grid.vpp + grid.pp - 1.0) * shape)


@jit
def transfer_alone_seconds(
    key: Row, grid: Row, job: JobInputs, framework: FrameworkInputs, network: Rows,
    states: float,
) -> float:  # fmt: skip
    """Seconds to pass one micro-batch's activations to the next stage without other traffic: 2·h
    bytes a token, times the `states` (hidden states that travel together).

    Unless all stages share a domain (`planner.cost.rank_order`), the boundary that leaves it sets
    the pace. Without sequence parallelism all tp ranks have the same activation: each sends all of
    it, or 1/tp of it, which the receivers then gather (Narayanan et al. 2021, arXiv 2104.04473,
    section 4.1, scatter/gather).
    """
    size = 2.0 * states * job.hidden * local_tokens(key, job) * key.computed
    same_domain = stages_share_domain(key, grid, network)
    inside = network[0].scale_up_domain / stage_stride(key, grid, network)
    if key.sequence_parallel > 0 or framework.pipeline_scatters > 0.0:
        seconds = point_to_point_time_s(size / key.tp, same_domain, network[0], inside)
    else:
        seconds = point_to_point_time_s(size, same_domain, network[0], inside)
    if key.sequence_parallel > 0 or framework.pipeline_scatters == 0.0:
        return seconds
    group = group_of(key.tp, 1.0, network[0])
    return seconds + all_gather_time_s(
        size, key.tp, float(group.members_per_domain), network[0], float(group.root_groups)
    )
