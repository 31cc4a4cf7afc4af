"""Seconds of single kernels and collectives according to the cost model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner.cost import communication
from planner.cost.compute import (
    attention_backward_time_s,
    attention_forward_time_s,
    gemm_time_s,
    grouped_gemm_time_s,
)
from planner.cost.inputs import GpuInputs, LinkInputs


def kernel_s(family: str, shape: Sequence[float], gpu: GpuInputs) -> float:
    """Seconds of a kernel, products in 16 bits. Its shape, by family:

    gemm       m, n, k, batch, output bytes per element
    grouped    tokens, groups, n, k, output bytes per element, 1 for a weight gradient
    attention  batch, queries, keys, heads, qk width, v width, causal, window, 1 for backward
    """
    peak, share = gpu.matmul16_flop_per_s, gpu.gemm16_max_efficiency
    match family:
        case "gemm":
            m, n, k, batch, output = shape
            return gemm_time_s(m, n, k, batch, peak, share, output, gpu)
        case "grouped":
            tokens, groups, n, k, output, weight_gradient = shape
            each = tokens / groups
            sizes = (n, k, each) if weight_gradient else (each, n, k)
            return grouped_gemm_time_s(*sizes, groups, peak, share, output, gpu)
        case _:
            batch, queries, keys, heads, qk, v, causal, window, backward = shape
            time_s = attention_backward_time_s if backward else attention_forward_time_s
            return time_s(batch, queries, keys, heads, qk, v, causal, window, gpu)


def collective_s(
    kind: str, payload_bytes: float, gpus: int, nodes: int, links: LinkInputs
) -> float:
    """Seconds of a collective of a payload among GPUs on a number of nodes."""
    # A reduce-scatter takes as long as an all-gather.
    name = kind.replace("reduce_scatter", "all_gather")
    time_s: Callable[..., float] = getattr(communication, f"{name}_time_s")
    return time_s(payload_bytes, float(gpus), float(gpus // nodes), links)
