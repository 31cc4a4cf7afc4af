"""Gradient reduction, parameter gathering and the optimizer step of one pipeline stage.

Groups: dense parameters are reduced over dp·cp ranks that are tp ranks apart, experts over edp
ranks that are etp·ep apart (rank order tp-cp-ep-dp-pp), or further (`planner.cost.rank_order`).

If switches reduce (`planner.cost.in_network`), they serve one kind of communicator, as in Megatron
(--use-sharp): the one of dense parameters, or under hybrid sharding the one between replicas, which
dense parameters and experts share. NCCL gives SHARP only to the first communicator.
"""

from __future__ import annotations

from planner.cost._jit import Row, Rows, jit
from planner.cost.class_sums import fetched_bytes, secondary_ranks
from planner.cost.codes import GROUP_TP, CollectiveKind
from planner.cost.in_network import parameter_stream
from planner.cost.inputs import GpuInputs
from planner.cost.piece_traffic import collective_stream
from planner.cost.rank_order import dense_stride, expert_stride
from planner.cost.sharing import Stream, after, no_stream
from planner.cost.tables import FrameworkInputs


@jit
def sharded_stream(kind: int, size_bytes: float, key: Row, grid: Row, network: Rows) -> Stream:
    """The time and link time of one collective of `size_bytes` over the ranks that share dense
    parameters. Switches may reduce it, except under hybrid sharding."""
    stride = dense_stride(key, grid, network)
    if grid.replicas > 1.0:
        return collective_stream(kind, grid.shards, stride, size_bytes, network)
    return parameter_stream(kind, grid.shards, stride, size_bytes, network)


@jit
def shared_stream(
    kind: int, value: float, expert_value: float, key: Row, grid: Row, network: Rows
) -> Stream:
    """A collective of `value` bytes over dp·cp, followed by one of `expert_value` bytes over
    edp."""
    stride = expert_stride(key, grid, network)
    return after(
        sharded_stream(kind, value, key, grid, network),
        collective_stream(kind, grid.expert_shards, stride, expert_value, network),
    )


@jit
def gather_of(
    data: float, experts: float, key: Row, grid: Row, framework: FrameworkInputs, network: Rows
) -> Stream:
    """All-gather of sharded weights. `data`, `experts`: from `gathered_parameters`."""
    per_parameter = framework.parameter_communication_bytes if grid.zero >= 1 else 0.0
    return shared_stream(
        CollectiveKind.ALL_GATHER, data * per_parameter, experts * per_parameter, key, grid, network
    )


@jit
def near_gather_of(
    data: float, experts: float, key: Row, grid: Row, framework: FrameworkInputs, network: Rows
) -> Stream:
    """All-gather of weights from their second copy, over the neighbouring ranks that share that
    copy."""
    size = framework.parameter_communication_bytes
    shards = secondary_ranks(grid.shards, framework)
    expert_shards = secondary_ranks(grid.expert_shards, framework)
    kind, stride = CollectiveKind.ALL_GATHER, dense_stride(key, grid, network)
    far = expert_stride(key, grid, network)
    return after(
        collective_stream(kind, shards, stride, data * size, network),
        collective_stream(kind, expert_shards, far, experts * size, network),
    )


@jit
def fetch_of(holds: Row, grid: Row, framework: FrameworkInputs) -> Stream:
    """Copies of a rank's shards from the host before one gather (`fetched_bytes`). Copy engines do
    this, on a separate link: b/(shards·B).

    Sources: DeepSpeed, runtime/zero/partition_parameters.py, `_all_gather_coalesced`; torch,
    distributed/fsdp/_fully_shard/_fsdp_param.py, `all_gather_inputs`. Ignores traffic of NICs on
    the same PCIe switch, which slows the link.
    """
    fetched = fetched_bytes(holds, grid, framework)
    if fetched == 0.0:
        return no_stream()
    return Stream(fetched / framework.weight_fetch_bytes_per_s, 0.0, 0.0, 0.0)


@jit
def reduction_of(
    data: float, experts: float, key: Row, grid: Row, framework: FrameworkInputs, network: Rows
) -> Stream:
    """Reduction of gradients: an all-reduce without ZeRO, a reduce-scatter with it. `data`,
    `experts`: from `reduced_parameters`.

    Under hybrid sharding each rank then all-reduces its share with its replicas (Zhao et al. 2023,
    arXiv 2304.11277, section 3.2.2).
    """
    kind = CollectiveKind.ALL_REDUCE if grid.zero == 0 else CollectiveKind.REDUCE_SCATTER
    value = data * framework.gradient_communication_bytes
    expert_value = experts * framework.gradient_communication_bytes
    first = shared_stream(kind, value, expert_value, key, grid, network)
    if grid.zero == 0 or grid.replicas <= 1.0:
        return first
    value, expert_value = value / grid.shards, expert_value / grid.expert_shards
    stride = dense_stride(key, grid, network) * grid.shards
    distance = expert_stride(key, grid, network) * grid.expert_shards
    kind = CollectiveKind.ALL_REDUCE
    second = after(
        parameter_stream(kind, grid.replicas, stride, value, network),
        parameter_stream(kind, grid.replicas, distance, expert_value, network),
    )
    return after(first, second)


@jit
def average_seconds(cost: Row, key: Row, framework: FrameworkInputs, network: Rows) -> float:
    """Seconds to average the gradients of parameters that every tensor-parallel rank has a copy of.
    This happens once per step, and nothing hides it.

    Source: Megatron-Core 0.19.2, distributed/finalize_model_grads.py,
    _allreduce_non_tensor_model_parallel_grads; for parameters that Megatron-Bridge marks with
    `average_gradients_across_tp_domain`.
    """
    if cost.averaged == 0.0 or key.tp <= 1.0:
        return 0.0
    size, stride = framework.gradient_bytes * cost.averaged, key.stride[GROUP_TP]
    return collective_stream(CollectiveKind.ALL_REDUCE, key.tp, stride, size, network).seconds


@jit
def hidden_seconds(seconds: float, share: float, window_s: float) -> float:
    """Seconds of a collective that run at the same time as compute: the `share` of it that the
    framework allows to overlap, but at most the `window_s` seconds of that compute."""
    return min(seconds * share, window_s)


@jit
def optimizer_seconds(
    updated: float, owned: float, framework: FrameworkInputs, gpu: GpuInputs
) -> float:
    """Seconds of the optimizer's update on this rank, limited by memory traffic. `updated`: number
    of trained parameters before ZeRO divides them; `owned`: the rank's share of them.

    Bytes per parameter = gradient and states read, states and weight written; plus one read of the
    gradients for their norm. The offloaded part takes a separate time per parameter. Passes that a
    framework makes over all gradients or weights of the rank, with or without ZeRO, are added.
    """
    everything = updated * framework.step_traffic_bytes
    traffic = owned * framework.optimizer_traffic_bytes + everything
    return traffic / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency) + owned * framework.offload_s
