"""What fp8 products keep: their quantised inputs, beside what other operations keep in 16 bits."""

from __future__ import annotations

import pytest

from planner.job.frameworks import load_framework
from planner.job.models.catalog import load_model
from planner.job.modules import Module
from planner.predict.ops import pieces
from planner.predict.ops.context import OpContext


def _kept(precision: str, framework: str = "megatron-core") -> dict[str, float]:
    profile = load_framework(framework).in_precision(precision)
    layer, *_, head = pieces(OpContext(load_model("llama-3.1-8b").spec, profile, 4096))
    return {
        saved.name: saved.bytes_per_token
        for op in (*layer.ops, *head.ops)
        for saved in op.saved
        if saved.kept_under(Module.NOTHING)
    }


@pytest.mark.parametrize(("precision", "element"), [("fp8", 1.0), ("mxfp8", 1.03125)])
def test_inputs_of_products_are_kept_quantised(precision: str, element: float) -> None:
    kept = _kept(precision)
    assert kept["attention/qkv/input"] == element * 4096
    assert kept["mlp/down/input"] == element * 14336
    # Flash attention keeps its 16-bit output; the product after it a quantised copy.
    assert kept["attention/output"] == 2 * 4096
    assert kept["attention/output_quantised"] == element * 4096


def test_the_head_stays_in_16_bits() -> None:
    assert _kept("fp8")["head/logits/input"] == _kept("bf16")["head/logits/input"] == 2 * 4096


def test_a_framework_that_keeps_16_bit_inputs_is_unchanged() -> None:
    assert _kept("fp8", "torchtitan") == _kept("bf16", "torchtitan")
