"""Gradient reduction, parameter gathering and the optimizer step of one pipeline stage.

Groups: dense parameters are reduced over dp·cp ranks that lie tp apart, experts over edp ranks
that lie etp·ep apart (rank order tp-cp-ep-dp-pp).
"""

from __future__ import annotations

from typing import NamedTuple

from planner.cost._jit import jit
from planner.cost.communication import (
    all_gather_time_s,
    all_reduce_time_s,
    reduce_scatter_time_s,
)
from planner.cost.inputs import GpuInputs, LinkInputs
from planner.cost.keys import Key
from planner.cost.piece_traffic import group_of
from planner.cost.tables import FrameworkInputs, JobInputs


class Grid(NamedTuple):
    """Degrees that a key leaves open, and the groups that shard parameters.

    `shards` divides dense parameters, `expert_shards` experts: all of dp·cp and of edp =
    dp·cp·tp/(ep·etp), or under hybrid sharding (HSDP) the `replicas`-th part of them, neighbours
    in rank order.
    """

    dp: float
    pp: float
    vpp: float
    zero: int
    grad_acc: float
    shards: float
    expert_shards: float
    replicas: float


@jit
def make_grid(
    key: Key, dp: float, pp: float, vpp: float, zero: int, grad_acc: float, shard: float
) -> Grid:
    """Grid of a shape; `shard`: ranks that share a dense parameter, 0 for all. See `Grid`."""
    ranks = dp * key.cp
    expert_ranks = max(1.0, dp * key.cp * key.tp / (key.ep * key.etp))
    replicas = ranks / shard if shard > 0.0 and zero > 0 else 1.0
    expert_shards = max(1.0, expert_ranks / replicas)
    return Grid(dp, pp, vpp, zero, grad_acc, ranks / replicas, expert_shards, replicas)


@jit
def gather_seconds(
    dense: float, expert: float, per_parameter_bytes: float, key: Key, grid: Grid,
    job: JobInputs, links: LinkInputs,
) -> float:  # fmt: skip
    """All-gather of sharded parameters: dense over dp·cp, experts over edp."""
    group = group_of(grid.shards, key.tp, job, links)
    experts = group_of(grid.expert_shards, key.etp * key.ep, job, links)
    return all_gather_time_s(
        dense * per_parameter_bytes, grid.shards,
        float(group.members_per_domain), links, float(group.root_groups),
    ) + all_gather_time_s(
        expert * per_parameter_bytes, grid.expert_shards,
        float(experts.members_per_domain), links, float(experts.root_groups),
    )  # fmt: skip


@jit
def reduce_seconds(
    dense: float, expert: float, per_parameter_bytes: float, key: Key, grid: Grid,
    job: JobInputs, links: LinkInputs,
) -> float:  # fmt: skip
    """Reduction of gradients: all-reduce without ZeRO, reduce-scatter with it.

    Hybrid sharding: what a rank then holds is all-reduced with its replicas (Zhao et al. 2023,
    arXiv 2304.11277, section 3.2.2).
    """
    group = group_of(grid.shards, key.tp, job, links)
    experts = group_of(grid.expert_shards, key.etp * key.ep, job, links)
    inside, roots = float(group.members_per_domain), float(group.root_groups)
    expert_inside, expert_roots = float(experts.members_per_domain), float(experts.root_groups)
    dense_bytes, expert_bytes = dense * per_parameter_bytes, expert * per_parameter_bytes
    if grid.zero == 0:
        return all_reduce_time_s(
            dense_bytes, grid.shards, inside, links, roots
        ) + all_reduce_time_s(expert_bytes, grid.expert_shards, expert_inside, links, expert_roots)
    scattered = reduce_scatter_time_s(
        dense_bytes, grid.shards, inside, links, roots
    ) + reduce_scatter_time_s(expert_bytes, grid.expert_shards, expert_inside, links, expert_roots)
    if grid.replicas <= 1.0:
        return scattered
    own, own_expert = dense_bytes / grid.shards, expert_bytes / grid.expert_shards
    return (
        scattered
        + replica_seconds(own, key.tp * grid.shards, grid.replicas, job, links)
        + replica_seconds(
            own_expert, key.etp * key.ep * grid.expert_shards, grid.replicas, job, links
        )
    )


@jit
def replica_seconds(
    size_bytes: float, stride: float, replicas: float, job: JobInputs, links: LinkInputs
) -> float:
    """All-reduce of one rank's shard over its replicas, which lie `stride` ranks apart."""
    group = group_of(replicas, stride, job, links)
    return all_reduce_time_s(
        size_bytes, replicas, float(group.members_per_domain), links, float(group.root_groups)
    )


@jit
def hidden_seconds(seconds: float, share: float, room_s: float) -> float:
    """Part of a collective that finds compute to run beside."""
    return min(seconds * share, room_s)


@jit
def optimizer_seconds(
    dense: float, expert: float, grid: Grid, framework: FrameworkInputs, gpu: GpuInputs
) -> float:
    """Memory-bound update of the parameters that this rank owns.

    Bytes per parameter = gradient and states read, states and weight written; plus one read of
    the gradients for their norm. The offloaded part takes its own time per parameter. Passes that
    a framework makes over all gradients or weights of the rank, ZeRO or not, come on top.
    """
    everything = (dense + expert) * framework.step_traffic_bytes
    owned = dense + expert
    if grid.zero >= 1:
        owned = dense / grid.shards + expert / grid.expert_shards
    traffic = owned * framework.optimizer_traffic_bytes + everything
    return traffic / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency) + owned * framework.offload_s
