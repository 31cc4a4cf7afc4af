"""From a GPU of the catalogue and its fitted curves to the numbers that the cost core takes."""

from __future__ import annotations

from functools import cache

from hardware.curves import AttentionCurve, ComputeCurves, load_compute_curves
from hardware.schema import Gpu
from planner.cost.inputs import GpuInputs, as_declared


def half_precision(gpu: Gpu) -> str:
    """The 16-bit type that a GPU trains in: bf16, or fp16 where it has no bf16 (V100)."""
    return "bf16" if "bf16" in gpu.peak_flop_per_s else "fp16"


def _attention_curve(curves: ComputeCurves, attention: str) -> AttentionCurve:
    """Curve of the kernel; unfused attention reads none, and gets the usual one."""
    return curves.attention("auto" if attention in ("eager", "torch") else attention)


@cache
def gpu_inputs(gpu: Gpu, precision: str, attention: str) -> GpuInputs:
    """Numbers of `gpu` for linear layers in `precision` and one attention kernel.

    `attention`: eager (torch: without a fused softmax), flash1, flash2, flash3_or_cudnn, or auto
    for the GPU's usual fused one.
    HardwareError if the GPU lacks the precision or the kernel.
    """
    half = half_precision(gpu)
    loaded = load_compute_curves(gpu)
    curves, fused = loaded.curves, _attention_curve(loaded, attention)
    return as_declared(
        GpuInputs(
            matmul_flop_per_s=gpu.peak(precision),
            matmul16_flop_per_s=gpu.peak(half),
            hbm_bytes_per_s=gpu.hbm_bytes_per_s,
            sm_count=float(gpu.sm_count),
            gemm_max_efficiency=loaded.sustained_share(precision),
            gemm16_max_efficiency=loaded.sustained_share(half),
            gemm_clock_gain=curves.clock_gain.value,
            tile_m=curves.tile_m.value,
            tile_n=curves.tile_n.value,
            gemm_small_tile_share=curves.small_tile_share.value,
            gemm_start_depth=curves.start_depth.value,
            gemm_epilogue_exposed=curves.epilogue_exposed.value,
            gemm_hbm_efficiency=curves.gemm_hbm_efficiency.value,
            grouped_efficiency_share=curves.grouped_efficiency_share.value,
            grouped_hbm_efficiency=curves.grouped_hbm_efficiency.value,
            group_start_s=curves.group_start_s.value,
            attention_forward_efficiency=fused.forward_efficiency.value,
            attention_backward_efficiency=fused.backward_efficiency.value,
            attention_forward_tile=fused.forward_tile.value,
            attention_backward_tile=fused.backward_tile.value,
            attention_forward_start_columns=fused.forward_start_columns.value,
            attention_backward_start_columns=fused.backward_start_columns.value,
            attention_forward_tail_share=fused.forward_tail_share.value,
            attention_backward_tail_share=fused.backward_tail_share.value,
            attention_half_head_dim=fused.half_head_dim.value,
            hbm_efficiency=curves.hbm_efficiency.value,
            kernel_floor_s=curves.kernel_floor_s.value,
        )
    )
