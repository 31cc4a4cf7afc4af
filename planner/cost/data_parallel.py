"""Gradient reduction, parameter gathering and the optimizer step of one pipeline stage.

Groups: dense parameters are reduced over dp·cp ranks that lie tp apart, experts over edp ranks
that lie etp·ep apart (rank order tp-cp-ep-dp-pp).

Where switches reduce (`planner.cost.in_network`), one kind of communicator has them, as in Megatron
(--use-sharp): that of dense parameters, or under hybrid sharding that between replicas, which
dense parameters and experts share. NCCL gives SHARP to the first communicator alone.
"""

from __future__ import annotations

from typing import NamedTuple

from planner.cost import fields as f
from planner.cost._jit import jit
from planner.cost.in_network import parameter_stream
from planner.cost.inputs import GpuInputs, LinkInputs
from planner.cost.keys import Key
from planner.cost.piece_traffic import collective_stream
from planner.cost.sharing import Stream, after
from planner.cost.tables import FrameworkInputs, JobInputs


class Grid(NamedTuple):
    """Degrees that a key leaves open, and the groups that shard parameters.

    `shards` divides dense parameters, `expert_shards` experts: all of dp·cp and of edp =
    dp·cp·tp/(ep·etp), or under hybrid sharding (HSDP) the `replicas`-th part of them, neighbours
    in rank order. `mtp_apart` 1: multi-token prediction is in the block before the loss's.
    """

    dp: float
    pp: float
    vpp: float
    zero: int
    grad_acc: float
    shards: float
    expert_shards: float
    replicas: float
    mtp_apart: float = 0.0


@jit
def make_grid(
    key: Key, dp: float, pp: float, vpp: float, zero: int, grad_acc: float, shard: float,
    mtp_apart: float = 0.0,
) -> Grid:  # fmt: skip
    """Grid of a shape; `shard`: ranks that share a dense parameter, 0 for all. See `Grid`."""
    ranks = dp * key.cp
    expert_ranks = max(1.0, dp * key.cp * key.tp / (key.ep * key.etp))
    replicas = ranks / shard if shard > 0.0 and zero > 0 else 1.0
    expert_shards = max(1.0, expert_ranks / replicas)
    shards = ranks / replicas
    return Grid(dp, pp, vpp, zero, grad_acc, shards, expert_shards, replicas, mtp_apart)


@jit
def sharded_stream(
    kind: int, size_bytes: float, key: Key, grid: Grid, job: JobInputs, links: LinkInputs
) -> Stream:
    """A collective of dense parameters over the ranks that share them."""
    if grid.replicas > 1.0:
        return collective_stream(kind, grid.shards, key.tp, size_bytes, job, links)
    return parameter_stream(kind, grid.shards, key.tp, size_bytes, job, links)


@jit
def gather_stream(
    dense: float, expert: float, per_parameter_bytes: float, key: Key, grid: Grid,
    job: JobInputs, links: LinkInputs,
) -> Stream:  # fmt: skip
    """All-gather of sharded parameters: dense over dp·cp, experts over edp."""
    kind = f.COMM_ALL_GATHER
    return after(
        sharded_stream(kind, dense * per_parameter_bytes, key, grid, job, links),
        collective_stream(
            kind, grid.expert_shards, key.etp * key.ep, expert * per_parameter_bytes, job, links
        ),
    )


@jit
def gather_seconds(
    dense: float, expert: float, per_parameter_bytes: float, key: Key, grid: Grid,
    job: JobInputs, links: LinkInputs,
) -> float:  # fmt: skip
    """Seconds of `gather_stream` alone."""
    return gather_stream(dense, expert, per_parameter_bytes, key, grid, job, links).seconds


@jit
def reduce_stream(
    dense: float, expert: float, per_parameter_bytes: float, key: Key, grid: Grid,
    job: JobInputs, links: LinkInputs,
) -> Stream:  # fmt: skip
    """Reduction of gradients: all-reduce without ZeRO, reduce-scatter with it.

    Hybrid sharding: what a rank then holds is all-reduced with its replicas (Zhao et al. 2023,
    arXiv 2304.11277, section 3.2.2).
    """
    kind = f.COMM_ALL_REDUCE if grid.zero == 0 else f.COMM_REDUCE_SCATTER
    own, own_expert = dense * per_parameter_bytes, expert * per_parameter_bytes
    expert_stride = key.etp * key.ep
    first = after(
        sharded_stream(kind, own, key, grid, job, links),
        collective_stream(kind, grid.expert_shards, expert_stride, own_expert, job, links),
    )
    if grid.zero == 0 or grid.replicas <= 1.0:
        return first
    own, own_expert = own / grid.shards, own_expert / grid.expert_shards
    stride, expert_stride = key.tp * grid.shards, expert_stride * grid.expert_shards
    kind = f.COMM_ALL_REDUCE
    second = after(
        parameter_stream(kind, grid.replicas, stride, own, job, links),
        parameter_stream(kind, grid.replicas, expert_stride, own_expert, job, links),
    )
    return after(first, second)


@jit
def reduce_seconds(
    dense: float, expert: float, per_parameter_bytes: float, key: Key, grid: Grid,
    job: JobInputs, links: LinkInputs,
) -> float:  # fmt: skip
    """Seconds of `reduce_stream` alone."""
    return reduce_stream(dense, expert, per_parameter_bytes, key, grid, job, links).seconds


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
