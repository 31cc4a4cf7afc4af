"""Which curves a GPU takes."""

from __future__ import annotations

import pytest

from hardware import parse_gpus
from hardware.curves import load_compute_curves


@pytest.mark.parametrize(
    ("gpu", "table"),
    [
        ("H100", "hopper"),
        # Not those of H20, whose name its own begins with.
        ("H200", "hopper"),
        ("GH200", "hopper"),
        ("H20", "hopper-h20"),
        ("H20-141GB", "hopper-h20"),
        ("A100", "ampere-sxm"),
        ("B200", "blackwell"),
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
