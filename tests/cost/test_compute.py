"""Compute terms: measured kernels, closed-form limits, monotone properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware.curves import architecture_curves, load_compute_curves
from hardware.errors import HardwareError
from hardware.load import gpu_names, load_gpu
from planner.cost import compute
from planner.cost.inputs import GpuInputs
from planner.predict.cost_tables import gpu_inputs
from tests.fit.compute_fit import FIGURE_KERNELS, loss, pattern_search, read_figures

A100 = gpu_inputs(load_gpu("A100-PCIe-80GB"), "bf16", "flash2")
H100 = gpu_inputs(load_gpu("H100-SXM5-80GB"), "bf16", "auto")
B200 = gpu_inputs(load_gpu("B200-SXM-180GB"), "bf16", "auto")
MEASURED_ON = {"A100": A100, "B200": B200}

# Every cost vanishes but the power and tiling limits, which become 2·m·n·k/(P·e).
IDEAL = H100._replace(
    hbm_bytes_per_s=math.inf,
    gemm_clock_gain=1.0,
    gemm_start_depth=0.0,
    gemm_epilogue_exposed=0.0,
    grouped_efficiency_share=1.0,
    group_start_s=0.0,
    kernel_floor_s=0.0,
    sm_count=128.0,
)


def gemm_s(m: float, n: float, k: float, gpu: GpuInputs, output_bytes: float = 2.0) -> float:
    """A bf16 GEMM at the GPU's own peak and efficiency."""
    peak, share = gpu.matmul16_flop_per_s, gpu.gemm16_max_efficiency
    return compute.gemm_time_s(m, n, k, 1.0, peak, share, output_bytes, gpu)


def test_a_deep_product_of_few_tiles_is_split_over_the_multiprocessors() -> None:
    """36 tiles of 128 x 128 on 128 SMs (a weight gradient of width 768): three parts of the depth,
    3/128 of it a tile; a shallow one stays whole."""
    gpu = IDEAL._replace(gemm_small_tile_share=1e-6, tile_m=128.0, tile_n=128.0)
    tile_s = 2.0 * 128.0 * 128.0 / (gpu.matmul16_flop_per_s * gpu.gemm16_max_efficiency)
    for depth, parts in ((16384.0, 3.0), (512.0, 1.0)):
        expected = 128.0 * tile_s * depth / parts
        assert gemm_s(768.0, 768.0, depth, gpu) == pytest.approx(expected)


sizes = st.integers(1, 1 << 14).map(float)


@given(sizes, sizes, sizes, st.integers(0, 2))
def test_a_larger_product_is_never_faster(m: float, n: float, k: float, grown: int) -> None:
    """Split or not."""
    larger = [m, n, k]
    larger[grown] += 256.0
    assert gemm_s(larger[0], larger[1], larger[2], H100) >= gemm_s(m, n, k, H100) - 1e-12


# MooreThreads/SimuMax configs/system: share of the peak (312 and 2250 TFLOP/s) that was measured.
@pytest.mark.parametrize(
    ("gpu", "m", "n", "k", "output_bytes", "measured", "tolerance"),
    [
        ("A100", 4096, 8192, 8192, 2.0, 0.73265, 0.03),
        ("A100", 4096, 4096, 4096, 2.0, 0.72142, 0.03),
        ("A100", 4096, 1024, 4096, 2.0, 0.45758, 0.06),
        ("A100", 4096, 576, 5120, 2.0, 0.49680, 0.08),
        ("A100", 8192, 28672, 4096, 8.0, 0.71163, 0.03),
        ("B200", 4096, 28672, 8192, 2.0, 0.49432, 0.04),
        ("B200", 4096, 128256, 8192, 2.0, 0.48738, 0.04),
        ("B200", 28672, 8192, 4096, 8.0, 0.45351, 0.04),
        ("B200", 57344, 8192, 4096, 4.0, 0.48247, 0.04),
    ],
)
def test_gemm_agrees_with_measurements(
    gpu: str, m: int, n: int, k: int, output_bytes: float, measured: float, tolerance: float
) -> None:
    inputs = MEASURED_ON[gpu]
    predicted = (
        2.0 * m * n * k / (inputs.matmul16_flop_per_s * gemm_s(m, n, k, inputs, output_bytes))
    )
    assert predicted == pytest.approx(measured, rel=tolerance)


@pytest.mark.parametrize(
    ("gpu", "groups", "rows", "n", "k", "weight", "measured", "tolerance"),
    [
        ("A100", 20, 1232, 3072, 5120, False, 0.70737, 0.06),
        ("A100", 20, 1232, 5120, 1536, False, 0.67545, 0.06),
        ("A100", 40, 616, 3072, 5120, True, 0.51969, 0.08),
        ("B200", 40, 2460, 3072, 5120, False, 0.48677, 0.10),
        ("B200", 256, 128, 4096, 7168, False, 0.20811, 0.15),
        ("B200", 256, 128, 4096, 7168, True, 0.07749, 0.15),
    ],
)
def test_grouped_gemm_agrees_with_measurements(
    gpu: str, groups: int, rows: int, n: int, k: int, weight: bool, measured: float,
    tolerance: float,
) -> None:  # fmt: skip
    inputs = MEASURED_ON[gpu]
    shape = (n, k, rows) if weight else (rows, n, k)
    seconds = compute.grouped_gemm_time_s(
        *shape, groups, inputs.matmul16_flop_per_s, inputs.gemm16_max_efficiency,
        8.0 if weight else 2.0, inputs,
    )  # fmt: skip
    predicted = 2.0 * groups * rows * n * k / (inputs.matmul16_flop_per_s * seconds)
    assert predicted == pytest.approx(measured, rel=tolerance)


# The file counts the full square, (qk + v)·2·s² forward and 2.5 times that backward.
@pytest.mark.parametrize(
    ("gpu", "heads", "qk", "seq", "backward", "measured", "tolerance"),
    [
        ("A100", 32, 128, 4096, False, 1.13197, 0.05),
        ("A100", 4, 128, 4096, False, 0.51420, 0.08),
        ("A100", 64, 192, 4096, True, 0.79426, 0.05),
        ("A100", 16, 128, 4096, True, 0.88192, 0.05),
        ("B200", 64, 128, 4096, False, 0.87152, 0.10),
        ("B200", 32, 128, 4096, True, 0.79635, 0.08),
        # A kernel of 189 ms: the clock falls further than in the other rows.
        ("B200", 16, 128, 131072, True, 0.82666, 0.14),
    ],
)
def test_attention_agrees_with_measurements(
    gpu: str, heads: int, qk: int, seq: int, backward: bool, measured: float, tolerance: float
) -> None:
    inputs = MEASURED_ON[gpu]
    function = compute.attention_backward_time_s if backward else compute.attention_forward_time_s
    seconds = function(1.0, seq, seq, heads, qk, 128.0, 1.0, 0.0, inputs)
    flop = (5.0 if backward else 2.0) * seq**2 * heads * (qk + 128)
    assert flop / (inputs.matmul16_flop_per_s * seconds) == pytest.approx(measured, rel=tolerance)


@pytest.mark.parametrize(("kernel", "level"), [("flash2", 0.02), ("flash3_or_cudnn", 0.055)])
def test_attention_on_h100_follows_the_published_figures(kernel: str, level: float) -> None:
    figures = read_figures(kernel)
    gpu = gpu_inputs(load_gpu(figures[0].gpu), "bf16", kernel)
    assert len(figures) >= 24
    assert loss(figures, gpu) < level


# GPU, backward, tokens: TFLOP/s of FlashAttention-2, heads of 128, no mask. Forward on B200:
# meta-pytorch/tritonbench pull request 171; on MI300X: ROCm/flash-attention issue 142.
@pytest.mark.parametrize(
    ("name", "backward", "seq", "tflops"),
    [
        ("B200-SXM-180GB", False, 2048, 352.1),
        ("B200-SXM-180GB", False, 8192, 361.6),
        ("B200-SXM-180GB", True, 16384, 334.0),
        ("MI300X-192GB", False, 16384, 353.2),
        ("MI300X-192GB", True, 16384, 202.1),
    ],
)
def test_flash_2_on_later_gpus(name: str, backward: bool, seq: int, tflops: float) -> None:
    gpu = gpu_inputs(load_gpu(name), "bf16", "flash2")
    function = compute.attention_backward_time_s if backward else compute.attention_forward_time_s
    seconds = function(8.0, seq, seq, 16.0, 128.0, 128.0, 0.0, 0.0, gpu)
    flop = (10.0 if backward else 4.0) * 8 * 16 * float(seq) ** 2 * 128
    assert flop / seconds == pytest.approx(tflops * 1e12, rel=0.05)


def test_every_published_kernel_has_a_curve() -> None:
    assert set(FIGURE_KERNELS.values()) <= set(architecture_curves()["hopper"].attention)


@pytest.mark.parametrize("output_bytes", [2.0, 8.0])
def test_ideal_gpu_runs_a_perfectly_tiled_gemm_at_its_rate(output_bytes: float) -> None:
    m, n, k = 16 * 256.0, 8 * 128.0, 4096.0
    expected = 2.0 * m * n * k / (IDEAL.matmul16_flop_per_s * IDEAL.gemm16_max_efficiency)
    assert gemm_s(m, n, k, IDEAL, output_bytes) == pytest.approx(expected, rel=1e-12)


def test_one_tile_more_costs_a_whole_wave() -> None:
    """129 tiles on 128 SMs: two waves, hence half of the rate; smaller tiles win some back."""
    coarse = IDEAL._replace(gemm_small_tile_share=1e-9)
    full, spilled = gemm_s(128 * 256, 128, 4096, coarse), gemm_s(129 * 256, 128, 4096, coarse)
    assert spilled == pytest.approx(2.0 * full, rel=1e-12)
    assert full < gemm_s(129 * 256, 128, 4096, IDEAL) < spilled


def test_shallow_gemm_is_bound_by_its_output_traffic() -> None:
    gpu = H100._replace(gemm_epilogue_exposed=0.0, kernel_floor_s=0.0, gemm_start_depth=0.0)
    m = n = 32768.0
    traffic = 2.0 * (m * 16 + n * 16 + m * n)
    expected = traffic / (gpu.hbm_bytes_per_s * gpu.gemm_hbm_efficiency)
    assert gemm_s(m, n, 16.0, gpu) == pytest.approx(expected, rel=1e-12)


def test_narrow_operands_weigh_less() -> None:
    gpu = gpu_inputs(load_gpu("H100-SXM5-80GB"), "fp8", "auto")
    assert compute.operand_bytes(gpu.matmul16_flop_per_s, gpu) == 2.0
    assert compute.operand_bytes(gpu.matmul_flop_per_s, gpu) == pytest.approx(1.0, rel=1e-3)


def test_rows_of_an_odd_width_are_loaded_element_by_element() -> None:
    assert compute.odd_rows_time_s(1024.0, 50304.0, 2048.0, A100) == 0.0
    slow_s = compute.odd_rows_time_s(1024.0, 50257.0, 2048.0, A100)
    # vTrain, one A100, forward and backward of the head: 7.2 ms.
    assert 3 * slow_s == pytest.approx(7.2e-3, rel=0.05)
    assert slow_s > 2 * gemm_s(1024.0, 50257.0, 2048.0, A100)
    # A padded width is a product of floats.
    padded = 50257.0 * (50260.0 / 50257.0) / 4.0
    assert compute.odd_rows_time_s(1.0, padded, 8.0, A100) > 0.0
    assert compute.odd_rows_time_s(1.0, 8.0, 3.0, A100) > 0.0


def test_one_group_equals_one_gemm_on_the_ideal_gpu() -> None:
    peak, share = IDEAL.matmul16_flop_per_s, IDEAL.gemm16_max_efficiency
    grouped = compute.grouped_gemm_time_s(4096.0, 1024.0, 2048.0, 1.0, peak, share, 2.0, IDEAL)
    assert grouped == pytest.approx(gemm_s(4096.0, 1024.0, 2048.0, IDEAL), rel=1e-12)


def test_attention_reaches_the_flop_count_of_the_literature() -> None:
    """Long causal sequence: 4·b·a·s²·d/2 FLOP forward, 2.5 times that backward."""
    seq = 2.0**22
    gpu = H100._replace(attention_forward_start_columns=0.0, attention_backward_start_columns=0.0)
    flop = 2.0 * 8 * seq**2 * 128
    forward = compute.attention_forward_time_s(1.0, seq, seq, 8.0, 128.0, 128.0, 1.0, 0.0, gpu)
    backward = compute.attention_backward_time_s(1.0, seq, seq, 8.0, 128.0, 128.0, 1.0, 0.0, gpu)
    peak = gpu.matmul16_flop_per_s
    assert flop / (forward * peak) == pytest.approx(gpu.attention_forward_efficiency, rel=5e-3)
    assert 2.5 * flop / (backward * peak) == pytest.approx(
        gpu.attention_backward_efficiency, rel=5e-3
    )


@pytest.mark.parametrize("window", [256.0, 1024.0, 4096.0])
@pytest.mark.parametrize("tile", [1.0, 128.0])
def test_visited_columns_equals_a_count(window: float, tile: float) -> None:
    """Against the keys between the first row's first and the last row's last, tile by tile."""
    seq = 4096
    visited = [
        min(int(start + tile), seq) - max(0, start + 1 - int(window))
        for start in range(0, seq, int(tile))
    ]
    expected = sum(visited) / len(visited)
    assert compute.visited_columns(seq, 1.0, window, tile) == pytest.approx(expected, rel=2e-2)


def test_eager_attention_moves_eleven_bytes_per_score_where_flash_moves_none() -> None:
    """Softmax and dropout alone: (4 + 5)·b·a·s² bytes forward, (6 + 5) backward; flash is faster on
    every GPU."""
    shape = (1.0, 2048.0, 2048.0, 32.0, 128.0, 128.0)
    streamed = 32.0 * 2048.0**2 / (A100.hbm_bytes_per_s * A100.hbm_efficiency)
    for eager, flash, moved in (
        (compute.eager_attention_forward_time_s, compute.attention_forward_time_s, 9.0),
        (compute.eager_attention_backward_time_s, compute.attention_backward_time_s, 11.0),
    ):
        once, twice = (eager(*shape, passes, A100) for passes in (1.0, 2.0))
        assert once > flash(*shape, 1.0, 0.0, A100)
        assert twice - once == pytest.approx(moved * streamed)


def test_memory_bound_time_has_a_floor_and_a_rate() -> None:
    assert compute.memory_bound_time_s(0.0, 3.0, A100) == pytest.approx(3 * A100.kernel_floor_s)
    rate = 1e12 / compute.memory_bound_time_s(1e12, 1.0, A100)
    assert rate == pytest.approx(A100.hbm_bytes_per_s * A100.hbm_efficiency, rel=1e-4)


widths = st.integers(1, 256).map(lambda count: 256.0 * count)
GPUS = st.sampled_from([A100, H100, B200])


@given(GPUS, widths, widths, widths, st.sampled_from([2.0, 4.0, 8.0]))
@settings(deadline=None)
def test_gemm_is_never_faster_than_the_roofline(
    gpu: GpuInputs, m: float, n: float, k: float, output_bytes: float
) -> None:
    seconds = gemm_s(m, n, k, gpu, output_bytes)
    assert seconds >= 2.0 * m * n * k / gpu.matmul16_flop_per_s
    assert seconds >= (2.0 * k * (m + n) + output_bytes * m * n) / gpu.hbm_bytes_per_s


@given(GPUS, widths, widths, widths, st.integers(0, 2))
@settings(deadline=None)
def test_gemm_time_does_not_fall_as_a_dimension_grows_by_tiles(
    gpu: GpuInputs, m: float, n: float, k: float, axis: int
) -> None:
    larger = [m, n, k]
    larger[axis] += 256.0
    assert gemm_s(larger[0], larger[1], larger[2], gpu) >= gemm_s(m, n, k, gpu) * (1.0 - 1e-12)


@given(GPUS, widths, widths, widths, st.floats(1.0, 4.0))
@settings(deadline=None)
def test_more_bandwidth_is_never_slower(
    gpu: GpuInputs, m: float, n: float, k: float, factor: float
) -> None:
    faster = gpu._replace(hbm_bytes_per_s=gpu.hbm_bytes_per_s * factor)
    assert gemm_s(m, n, k, faster) <= gemm_s(m, n, k, gpu)
    eager = compute.eager_attention_forward_time_s
    shape = (1.0, m, m, 4.0, 128.0, 128.0, 1.0)
    assert eager(*shape, faster) <= eager(*shape, gpu)
    assert compute.memory_bound_time_s(m * n, 1.0, faster) <= compute.memory_bound_time_s(
        m * n, 1.0, gpu
    )


@given(GPUS, widths, st.integers(1, 64), st.sampled_from([64.0, 128.0, 192.0]))
@settings(deadline=None)
def test_attention_is_never_faster_than_its_products(
    gpu: GpuInputs, seq: float, heads: int, head_dim: float
) -> None:
    shape = (1.0, seq, seq, float(heads), head_dim, head_dim)
    causal = compute.attention_forward_time_s(*shape, 1.0, 0.0, gpu)
    full = compute.attention_forward_time_s(*shape, 0.0, 0.0, gpu)
    window = compute.attention_forward_time_s(*shape, 1.0, seq / 2.0, gpu)
    assert causal >= 2.0 * heads * seq**2 * head_dim / gpu.matmul16_flop_per_s
    assert window <= causal <= full


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_of_the_catalogue_has_curves(name: str) -> None:
    gpu = load_gpu(name)
    for precision in set(gpu.peak_flop_per_s) & {"bf16", "fp16", "fp8", "mxfp8", "nvfp4"}:
        inputs = gpu_inputs(gpu, precision, "auto")
        # GeForce boards clock beyond the boost that their peak is printed for.
        most = 1.15 if name.startswith("RTX") else 1.0
        assert 0.3 < inputs.gemm_max_efficiency <= most
        assert inputs.gemm_max_efficiency * inputs.gemm_clock_gain < most
    assert load_compute_curves(gpu).provenance


def test_measured_maximum_anchors_gpus_of_one_architecture() -> None:
    """H100 and GH200 differ as their measured maxima do: 794.5 and 828.6 TFLOP/s of 989."""
    h100, gh200 = (gpu_inputs(load_gpu(name), "bf16", "flash2") for name in ("H100", "gh200-480gb"))
    ratio = gh200.gemm16_max_efficiency / h100.gemm16_max_efficiency
    assert ratio == pytest.approx(828.6 / 794.5, rel=1e-6)


def test_whole_steps_sustain_less_than_isolated_products_on_a100_sxm() -> None:
    """Its sustained share is fitted on published steps; the PCIe card's on isolated products."""
    sxm = load_compute_curves(load_gpu("A100-SXM4-80GB"))
    pcie = load_compute_curves(load_gpu("A100-PCIe-80GB"))
    assert sxm.curves.name == "ampere-sxm"
    assert sxm.sustained_share("bf16") < pcie.sustained_share("bf16") * 271.2 / 252.9


def test_attention_of_torch_on_amd_takes_the_share_of_a_traced_step() -> None:
    """Primus deep dive, Tables 1 and 2: Llama 3.1 70B at 8,192 tokens under torchtitan with full
    recompute spends 67.43 % of its time in products and 26.95 % in attention. Their ratio does
    not hang on the batch, which the page does not give."""
    gpu = gpu_inputs(load_gpu("MI300X"), "bf16", "aotriton")
    layers, seq, heads, head_dim = 80, 8192.0, 64.0, 128.0
    forward, backward = (
        pass_s(1.0, seq, seq, heads, head_dim, head_dim, 1.0, 0.0, gpu)
        for pass_s in (compute.attention_forward_time_s, compute.attention_backward_time_s)
    )
    attention = layers * (2.0 * forward + backward)
    matrices = ((10240.0, 8192.0), (8192.0, 8192.0), (57344.0, 8192.0), (8192.0, 28672.0))
    layer = sum(gemm_s(seq, n, k, gpu) for n, k in matrices)
    head = gemm_s(seq, 128256.0, 8192.0, gpu)
    products = layers * 4.0 * layer + 3.0 * head
    assert attention / products == pytest.approx(26.95 / 67.43, rel=0.03)


def test_a_gpu_with_rates_of_its_own_that_nobody_measured_is_guessed() -> None:
    guessed = {name for name in gpu_names() if load_compute_curves(load_gpu(name)).guessed}
    assert guessed == {
        "H20-96GB", "H20-141GB", "A10", "A10G", "A40", "RTX-A6000", "RTX3060", "RTX3080",
        "RTX3080-TI", "RTX3090", "RTX5070-TI", "RTX5080", "RTX5090",
    }  # fmt: skip


def test_unknown_attention_kernel_names_those_that_exist() -> None:
    with pytest.raises(HardwareError, match=r"flash2.*V100.*it has: flash1, eager"):
        gpu_inputs(load_gpu("V100-SXM2-32GB"), "fp16", "flash2")


def test_pattern_search_finds_a_minimum_inside_and_on_the_border() -> None:
    found = pattern_search(
        lambda at: abs(at["x"] - 0.3) + at["y"],
        {"x": 0.9, "y": 0.5},
        {"x": (0.0, 1.0), "y": (0.2, 1.0)},
    )
    assert found["x"] == pytest.approx(0.3, abs=1e-6)
    assert found["y"] == pytest.approx(0.2, abs=1e-6)


@pytest.mark.parametrize(("precision", "element"), [("fp32", 4.0), ("tf32", 4.0), ("bf16", 2.0)])
def test_products_move_bytes_of_their_type(precision: str, element: float) -> None:
    """Probabilities times values of 48 heads, a product that waits for HBM in every type."""
    gpu = gpu_inputs(load_gpu("RTX4090"), precision, "torch")
    seq, heads, width = 1024.0, 48.0, 64.0
    peak, share = gpu.matmul16_flop_per_s, gpu.gemm16_max_efficiency
    seconds = compute.gemm_time_s(seq, width, seq, heads, peak, share, gpu.element_bytes, gpu)
    moved = element * heads * (seq**2 + 2.0 * seq * width)
    streamed = moved / (gpu.hbm_bytes_per_s * gpu.gemm_hbm_efficiency)
    assert seconds == pytest.approx(gpu.kernel_floor_s + streamed)
