"""Additional seconds of products with frozen weights, compared with trained ones."""

from __future__ import annotations

from planner.cost._jit import Row, jit
from planner.cost.inputs import GpuInputs
from planner.cost.keys import returned, weight_elements


@jit
def unpacking_seconds(op: Row, key: Row, gpu: GpuInputs) -> float:
    """Seconds to unpack a product's packed weights into a 16-bit copy before each use: in forward,
    in its recomputation, and for the input gradient. They do not depend on the number of tokens.

    Source: bitsandbytes, autograd/_functions.py, MatMul4Bit.
    """
    traffic = op.unpacked * weight_elements(op, key)
    return float(traffic / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency))


@jit
def frozen_seconds(
    forward: float, data: float, op: Row, key: Row, gpu: GpuInputs
) -> tuple[float, float]:
    """(forward, input gradient) seconds of a product with frozen weights: the seconds to unpack the
    weights (`unpacking_seconds`) are added to each. The second is 0 if nothing needs the input
    gradient.

    `forward`, `data`: seconds of both without unpacking.
    """
    unpacking = unpacking_seconds(op, key, gpu)
    return forward + unpacking, returned(op, key) * (data + unpacking)
