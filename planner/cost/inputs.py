"""Frozen NamedTuples with all inputs of the compiled core; no Python object enters it.

All values are SI float64 (see the suffixes). Rates are *achievable ceilings times documented
efficiencies*; the efficiencies come from `hardware/efficiency/*.toml`, which say what they were
fitted on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_type_hints

Inputs = TypeVar("Inputs", bound=tuple[Any, ...])


def as_declared(inputs: Inputs) -> Inputs:
    """The same NamedTuple, with every field converted to its declared type.

    The compiler makes another kernel for every combination of int and float that it meets, so a
    default of `0` in a profile would cost a user a second compilation.
    """
    types = _field_types(type(inputs))
    return type(inputs)(*(kind(value) for kind, value in zip(types, inputs, strict=True)))


def filled(kind: type[Inputs], values: Mapping[str, Any]) -> Inputs:
    """A NamedTuple whose fields are taken by name from `values`, which may contain more."""
    table = {name: values[name] for name in kind.__annotations__ if name in values}
    return as_declared(kind(**table))


@cache
def _field_types(kind: type[Any]) -> tuple[type[Any], ...]:
    return tuple(get_type_hints(kind).values())


class GpuInputs(NamedTuple):
    """One GPU for the compute terms, with one training precision and attention kernel.

    A field without a text is the figure of that name in `hardware/efficiency/compute.toml`
    (`hardware.curves` explains it; `attention_*`: of the kernel), filled by name;
    `planner.predict.cost_tables` derives the others.
    """

    matmul_flop_per_s: float
    """Dense datasheet peak of the precision in which the linear layers run."""
    matmul16_flop_per_s: float
    """Dense datasheet peak of bf16/fp16: for attention, and for an LM head that stays in 16
    bits."""
    element_bytes: float
    """Bytes per element of activations and weights, unless these have 8 or 4 bits: 2, or 4 if
    products are fp32 or TF32."""
    hbm_bytes_per_s: float
    """The datasheet's."""
    sm_count: float
    """Number of SMs that a kernel may use."""
    gemm_max_efficiency: float
    """Share of the peak that a large product sustains under the power limit."""
    gemm16_max_efficiency: float
    """The same for 16-bit products."""
    gemm_clock_gain: float
    tile_m: float
    tile_n: float
    gemm_small_tile_share: float
    gemm_start_depth: float
    gemm_epilogue_exposed: float
    gemm_hbm_efficiency: float
    grouped_efficiency_share: float
    grouped_hbm_efficiency: float
    group_start_s: float
    scan_efficiency: float
    attention_forward_efficiency: float
    attention_backward_efficiency: float
    attention_forward_tile: float
    attention_backward_tile: float
    attention_forward_start_columns: float
    attention_backward_start_columns: float
    attention_forward_tail_share: float
    attention_backward_tail_share: float
    attention_half_head_dim: float
    attention_padding: float
    hbm_efficiency: float
    kernel_floor_s: float
    odd_rows_flop_per_s_per_sm: float
    misaligned_share: float
    atomic_adds_per_s: float
    memory_scale: float = 1.0
    """Memory of the pool's largest GPU over this GPU's: the weight of a byte on this GPU."""


class LinkInputs(NamedTuple):
    """The two link levels of a cluster: inside a scale-up domain, and between domains.

    Rates are per GPU and direction at large sizes, in nccl-tests' bus-bandwidth convention (bytes
    that cross a link, per second). `half_bytes` is the number of bytes on the link at which half of
    that rate is reached; `latency_s` is the time of one hop of a ring or tree. A box without NVLink
    is one domain whose links are PCIe.
    """

    # Number of ranks that train together: groups are placed on that many GPUs.
    job_gpus: float
    scale_up_domain: float
    scale_up_bytes_per_s: float
    scale_up_latency_s: float
    scale_up_half_bytes: float
    # Each GPU's share of its node's NICs.
    scale_out_bytes_per_s: float
    scale_out_latency_s: float
    scale_out_half_bytes: float
    # Bus bandwidth of an in-switch all-reduce (NVLS) of 8 or more GPUs over the ring's; 1: no NVLS.
    scale_up_reduction_gain: float
    host_bytes_per_s: float
    # Fixed time of any collective: kernel start and rendezvous.
    collective_launch_s: float = 0.0
    # Latency of an in-switch all-reduce, for any size of the group.
    scale_up_reduction_latency_s: float = math.inf
    # Time that one pass around a ring or tree inside a domain takes before its first bytes, beyond
    # launch and hops: filling the buffers of NCCL's protocols.
    scale_up_start_s: float = 0.0
    # Rate of the link between two GPUs of a mesh (xGMI, V100); unlimited behind a switch.
    scale_up_mesh_bytes_per_s: float = math.inf
    # Rates of an all-to-all, and of one send/receive pair, inside a domain.
    scale_up_exchange_bytes_per_s: float = math.inf
    scale_up_pair_bytes_per_s: float = math.inf
    # Rate of an all-to-all by a GPU's share of the NICs, and its bytes at half of that; unset: as
    # other collectives.
    scale_out_exchange_bytes_per_s: float = math.inf
    scale_out_exchange_half_bytes: float = 0.0
    # Rates of kernels that send tokens to experts, inside a domain and by a GPU's share of the
    # NICs; unlimited: as an all-to-all inside, as other collectives between.
    scale_up_dispatch_bytes_per_s: float = math.inf
    scale_out_dispatch_bytes_per_s: float = math.inf
    # Seconds for each token that they send to another domain, in a message that the CPU posts for a
    # GPU.
    scale_out_message_s: float = 0.0
    # Seconds for each token that they copy to one rank of the domain, besides its bytes.
    scale_up_send_s: float = 0.0
    # PCIe boxes: number of GPUs below one CPU socket (0: no such boundary) and the rate between
    # sockets, per direction, shared by all traffic that crosses.
    root_gpus: float = 0.0
    root_bytes_per_s: float = math.inf
    # Rate of one send to a GPU of another domain.
    scale_out_pair_bytes_per_s: float = math.inf
    # Number of GPUs per NIC of a node, at least 1.
    nic_sharers: float = 1.0
    # Share of a step for which ranks wait for the slowest of them, per doubling of the domains.
    straggler_share: float = 0.0
    # Nominal rate below a leaf switch over that through the spine, and number of GPUs among which
    # no traffic crosses the spine (0: not known); see `planner.cost.leaf`.
    oversubscription: float = 1.0
    leaf_gpus: float = 0.0
    # Reductions in the switches between domains (`planner.cost.in_network`): rate of a GPU's NIC
    # share (0: none), latency below one leaf switch and of each further tier, number of nodes below
    # a leaf, number of communicators that may have a tree, and 1 if gathers and scatters may use it
    # too.
    in_network_bytes_per_s: float = 0.0
    in_network_latency_s: float = 0.0
    in_network_tier_s: float = 0.0
    in_network_leaf_ports: float = 2.0
    in_network_groups: float = 0.0
    in_network_gathers: float = 0.0
    # 1 if ranks are numbered tp-cp-ep-pp-dp: then the stages of a pipeline are neighbours.
    pipeline_before_data: float = 0.0
