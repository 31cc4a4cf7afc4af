"""Predicted times of many kernels at once: compiled loops over rows of shapes.

Columns of a row, by family:
gemm       m, n, k, batch, output bytes per element
grouped    tokens, groups, n, k, output bytes per element, 1 for a weight gradient
attention  batch, queries, keys, heads, qk width, v width, causal, window, 1 for backward
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost._jit import jit
from planner.cost.compute import (
    attention_backward_time_s,
    attention_forward_time_s,
    gemm_time_s,
    grouped_gemm_time_s,
    grouped_weight_gradient_time_s,
)
from planner.cost.inputs import GpuInputs

Array = NDArray[np.float64]


@jit
def gemm_times_s(rows: Array, gpu: GpuInputs) -> Array:
    """Seconds of each GEMM row in 16 bit."""
    peak, share = gpu.matmul16_flop_per_s, gpu.gemm16_max_efficiency
    out = np.empty(rows.shape[0])
    for i in range(rows.shape[0]):
        m, n, k, batch, output_bytes = rows[i]
        out[i] = gemm_time_s(m, n, k, batch, peak, share, output_bytes, gpu)
    return out


@jit
def grouped_times_s(rows: Array, gpu: GpuInputs) -> Array:
    """Seconds of each grouped GEMM row in 16 bit."""
    peak, share = gpu.matmul16_flop_per_s, gpu.gemm16_max_efficiency
    out = np.empty(rows.shape[0])
    for i in range(rows.shape[0]):
        tokens, groups, n, k, output_bytes, weight = rows[i]
        if weight > 0:
            out[i] = grouped_weight_gradient_time_s(
                tokens, groups, n, k, peak, share, output_bytes, gpu
            )
        else:
            out[i] = grouped_gemm_time_s(tokens, groups, n, k, peak, share, output_bytes, gpu)
    return out


@jit
def attention_times_s(rows: Array, gpu: GpuInputs) -> Array:
    """Seconds of each attention row."""
    out = np.empty(rows.shape[0])
    for i in range(rows.shape[0]):
        batch, queries, keys, heads, qk, v, causal, window, backward = rows[i]
        if backward > 0:
            out[i] = attention_backward_time_s(
                batch, queries, keys, heads, qk, v, causal, window, gpu
            )
        else:
            out[i] = attention_forward_time_s(
                batch, queries, keys, heads, qk, v, causal, window, gpu
            )
    return out


def times_s(family: str, rows: Array, gpu: GpuInputs) -> Array:
    """Seconds of rows of one family: gemm, grouped or attention."""
    loops = {"gemm": gemm_times_s, "grouped": grouped_times_s, "attention": attention_times_s}
    return loops[family](rows, gpu)
