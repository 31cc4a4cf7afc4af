"""Which curves a GPU takes."""

from __future__ import annotations

import pytest

from hardware.curves import load_compute_curves
from hardware.load import parse_gpus


@pytest.mark.parametrize(
    ("gpu", "table"),
    [
        ("H100", "hopper"),
        # Not those of H20, whose name its own begins with.
        ("H200", "hopper-h200"),
        ("GH200", "hopper-gh200"),
        ("GH200-480GB", "hopper"),
        ("H20", "hopper-h20"),
        ("H20-141GB", "hopper-h20"),
        ("A100", "ampere-sxm"),
        ("B200", "blackwell"),
        ("B200-750w", "blackwell-750w"),
        ("GB200", "blackwell-gb200"),
        ("GB300", "blackwell-gb300"),
        ("B300", "blackwell-b300"),
    ],
)
def test_table_of_a_gpu(gpu: str, table: str) -> None:
    assert load_compute_curves(parse_gpus(f"8x{gpu}").gpu).curves.name == table


def test_a_power_limit_lowers_the_rate_of_products_alone() -> None:
    whole, limited = (parse_gpus(f"8x{name}").gpu for name in ("B200", "B200-750w"))
    for dtype in ("bf16", "fp8"):
        ratio = limited.measured_matmul_flop_per_s[dtype] / whole.measured_matmul_flop_per_s[dtype]
        assert ratio == pytest.approx(0.75**0.6, rel=1e-3)
    assert limited.hbm_bytes_per_s == whole.hbm_bytes_per_s


@pytest.mark.parametrize(
    ("more", "less", "watts", "dtypes"),
    [
        ("GB300", "GB200", 1400 / 1200, ("bf16", "fp8")),
        ("B200", "B200-750w", 1000 / 750, ("bf16", "fp8")),
        ("B300", "B200", 1100 / 1000, ("bf16",)),
        ("H100", "GH200", 700 / 560, ("bf16", "fp8")),
    ],
)
def test_sustained_products_follow_the_power(
    more: str, less: str, watts: float, dtypes: tuple[str, ...]
) -> None:
    for dtype in dtypes:
        rates = []
        for name in (more, less):
            gpu = parse_gpus(f"8x{name}").gpu
            rates.append(load_compute_curves(gpu).sustained_share(dtype) * gpu.peak(dtype))
        assert rates[0] / rates[1] == pytest.approx(watts, rel=0.01)


@pytest.mark.parametrize("name", ["H100", "B200", "GB200", "GB300", "MI300X", "MI355X", "A100"])
def test_no_gpu_sustains_more_than_its_best_short_product(name: str) -> None:
    gpu = parse_gpus(f"8x{name}").gpu
    curves = load_compute_curves(gpu)
    for dtype in {"bf16", "fp8"} & set(gpu.peak_flop_per_s):
        assert curves.sustained_share(dtype) < curves.max_share(dtype)


@pytest.mark.parametrize("name", ["RTX3090", "RTX4090", "RTX5090"])
def test_softmax_costs_little_beside_slow_tensor_cores(name: str) -> None:
    """fp32 at half the rate of the tensor cores, at a sixteenth on A100."""
    for direction in ("forward_efficiency", "backward_efficiency"):
        shares = []
        for gpu in (name, "A100"):
            curves = load_compute_curves(parse_gpus(f"8x{gpu}").gpu).curves
            shares.append(getattr(curves.attention["flash2"], direction).value)
        assert shares[1] < shares[0] < 1.0


@pytest.mark.parametrize(
    ("gpu", "precision", "teraflop_per_s"),
    [
        # SemiAnalysis, December 2024.
        ("MI300X", "fp8", 990.0),
        # Whole steps of A100-SXM's share: 0.87 of 0.869.
        ("RTX-A6000", "bf16", 117.0),
    ],
)
def test_sustained_rates(gpu: str, precision: str, teraflop_per_s: float) -> None:
    found = parse_gpus(f"8x{gpu}").gpu
    rate = load_compute_curves(found).sustained_share(precision) * found.peak(precision)
    assert rate == pytest.approx(teraflop_per_s * 1e12, rel=0.01)
