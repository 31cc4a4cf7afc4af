"""What rows say of their products: which are in low precision, and how attention's softmax runs."""

from __future__ import annotations

import pytest

from planner.evidence.runs.mapping import map_row
from tests.evidence.runs.rows_for_tests import row
from tests.evidence.runs.test_variant_peaks import TORCHTITAN


@pytest.mark.parametrize(
    ("gpu", "recipe", "rate"),
    [("H100-80GB", "blockwise", 0.85), ("GB200", "blockwise", 1.0), ("H100-80GB", "delayed", 1.0)],
)
def test_scales_of_blocks_slow_hoppers_products(gpu: str, recipe: str, rate: float) -> None:
    cells = {"framework": "Megatron-Core", "precision": "fp8", "fp8_recipe": recipe}
    assert map_row(row(gpu=gpu, **cells)).job.framework.kernels.quantised_rate == rate


@pytest.mark.parametrize(
    ("precision", "linears", "experts"),
    [("mxfp8", True, True), ("mxfp8(linears)", True, False), ("mxfp8(grouped)", False, True)],
)
def test_a_precision_may_be_of_some_products(precision: str, linears: bool, experts: bool) -> None:
    found = row(
        **(TORCHTITAN | {"gpu": "B200-180GB", "framework": "torchtitan", "precision": precision})
    )
    kernels = map_row(found).job.framework.kernels
    assert (kernels.quantises_linears, kernels.quantises_experts) == (linears, experts)


@pytest.mark.parametrize(
    ("framework", "compiled", "fused"),
    [
        ("HF Trainer (transformers)", "n", False),
        ("HF Trainer (transformers)", "y", True),
        ("DeepSpeed + HF transformers", "", False),
        ("DeepSpeed + Megatron", "", True),
        ("Megatron-LM", "", True),
    ],
)
def test_softmax_of_plain_torch_is_fused_by_a_compiler(
    framework: str, compiled: str, fused: bool
) -> None:
    kernels = map_row(row(framework=framework, compile=compiled, flash="n")).job.framework.kernels
    assert (kernels.softmax_traffic <= 1.0) is fused
