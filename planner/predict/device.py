"""From a GPU of the catalogue and its fitted curves to the numbers that the cost core takes."""

from __future__ import annotations

from functools import cache

from hardware.curves import AttentionCurve, ComputeCurves, load_compute_curves
from hardware.schema import Gpu
from planner.cost.inputs import GpuInputs, filled
from planner.job.frameworks.profile import FP32_PRECISIONS


def half_precision(gpu: Gpu) -> str:
    """The 16-bit type that a GPU trains in: bf16, or fp16 where it has no bf16 (V100)."""
    return "bf16" if "bf16" in gpu.peak_flop_per_s else "fp16"


def _attention_curve(curves: ComputeCurves, attention: str) -> AttentionCurve:
    """Curve of the kernel; unfused attention reads none, and gets the usual one."""
    return curves.attention("auto" if attention in ("eager", "torch") else attention)


def head_precision(gpu: Gpu, precision: str) -> str:
    """Type of the products that stay out of low precision (head, router, attention): fp32 where
    all are, else the GPU's 16-bit type."""
    return precision if precision in FP32_PRECISIONS else half_precision(gpu)


@cache
def gpu_inputs(gpu: Gpu, precision: str, attention: str) -> GpuInputs:
    """Numbers of `gpu` for linear layers in `precision` and one attention kernel.

    `attention`: eager (torch: without a fused softmax), flash1, flash2, flash3_or_cudnn, or auto
    for the GPU's usual fused one.
    HardwareError if the GPU lacks the precision or the kernel.
    """
    half = head_precision(gpu, precision)
    loaded = load_compute_curves(gpu)
    fused = _attention_curve(loaded, attention)
    derived = {
        "matmul_flop_per_s": gpu.peak(precision),
        "matmul16_flop_per_s": gpu.peak(half),
        "hbm_bytes_per_s": gpu.hbm_bytes_per_s,
        "sm_count": gpu.sm_count,
        "gemm_max_efficiency": loaded.sustained_share(precision),
        "gemm16_max_efficiency": loaded.sustained_share(half),
    }
    kernel = {f"attention_{name}": value for name, value in fused.values().items()}
    return filled(GpuInputs, loaded.curves.values() | kernel | derived)
