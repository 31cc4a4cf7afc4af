"""What fp8 products keep: their quantised inputs, beside what other operations keep in 16 bits."""

from __future__ import annotations

import pytest

from planner.job.frameworks.profile import load_framework
from planner.job.models.catalog import load_model
from planner.job.recompute import Module
from planner.predict.ops.context import OpContext
from planner.predict.ops.table import pieces


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


def _dispatched(precision: str, *, pads: bool) -> tuple[float, float]:
    """HBM bytes per token of dispatch and combine together, forward and backward."""
    profile = load_framework("megatron-core").in_precision(precision)
    kernels = profile.kernels.model_copy(update={"pads_experts": pads})
    profile = profile.model_copy(update={"kernels": kernels})
    ops = pieces(OpContext(load_model("qwen3-30b-a3b").spec, profile, 4096))[0].ops
    moved = [op for op in ops if op.name in ("moe/dispatch", "moe/combine")]
    traffic = kernels.memory_traffic
    return (
        traffic * sum(op.forward_bytes for op in moved),
        traffic * sum(op.backward_bytes for op in moved),
    )


def test_routed_copies_are_padded_for_quantised_products() -> None:
    plain, padded = _dispatched("mxfp8", pads=False), _dispatched("mxfp8", pads=True)
    # Eight copies of 2048 elements of 2 bytes, read and written before the products and after.
    copies = 8 * 2048 * 2 * 2 * 2
    assert padded[0] - plain[0] == pytest.approx(copies)
    assert padded[1] - plain[1] == pytest.approx(copies)
    assert _dispatched("bf16", pads=True) == _dispatched("bf16", pads=False)
