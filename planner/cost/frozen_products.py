"""Seconds of products with frozen weights beyond those of trained ones."""

from __future__ import annotations

from planner.cost._jit import Row, jit
from planner.cost.inputs import GpuInputs
from planner.cost.keys import returned, weight_elements


@jit
def unpacking_seconds(op: Row, key: Row, gpu: GpuInputs) -> float:
    """Seconds of making a copy of a product's weights, as 16 bits of packed ones, before each use
    of them: forward, its repetition, and the gradient of the input. As long for any tokens.

    Source: bitsandbytes, autograd/_functions.py, MatMul4Bit.
    """
    traffic = op.unpacked * weight_elements(op, key)
    return float(traffic / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency))


@jit
def frozen_seconds(
    forward: float, data: float, op: Row, key: Row, gpu: GpuInputs
) -> tuple[float, float]:
    """Forward of a product and the gradient of its input, with frozen weights that are made copies
    of before each use, and without that gradient where nothing needs it."""
    unpacking = unpacking_seconds(op, key, gpu)
    return forward + unpacking, returned(op, key) * (data + unpacking)
