"""Bytes that Megatron's modules move over fp32 parameters under autocast."""

from __future__ import annotations

import pytest

from planner.cost.codes import OpKind
from planner.job.frameworks.profile import load_framework
from planner.job.specs import ModelSpec
from planner.predict.ops.context import OpContext
from planner.predict.ops.rows import Op
from planner.predict.ops.table import pieces

HIDDEN = 1024


def gpt(*, bias: bool) -> ModelSpec:
    return ModelSpec(
        name="gpt", layers=2, hidden=HIDDEN, heads=16, kv_heads=16, head_dim=64, ffn=4 * HIDDEN,
        vocab=50304, max_positions=2048, pretraining_seq=2048, activation="gelu", gated=False,
        norm="layernorm", position="learned", qkv_bias=bias, attention_out_bias=bias, mlp_bias=bias,
    )  # fmt: skip


def layer(framework: str, mode: str, *, bias: bool = True) -> dict[str, Op]:
    profile = load_framework(framework).in_mode(mode)
    context = OpContext(gpt(bias=bias), profile, 2048, dropout=True, mode=profile.mode)
    return {op.name: op for op in pieces(context)[0].ops}


def traffic(rows: dict[str, Op]) -> float:
    """Bytes a token over the width, forward and backward, of what is no product or attention."""
    moved = [op for op in rows.values() if op.kind is OpKind.MEMORY]
    return sum(op.forward_bytes + op.backward_bytes for op in moved) / HIDDEN


def test_fp32_biases_and_stream_move_the_bytes_of_the_table() -> None:
    assert traffic(layer("megatron-local", "bf16")) == pytest.approx(82.0)
    assert traffic(layer("megatron-local", "amp")) == pytest.approx(540.0)


def test_without_biases_only_the_stream_and_inputs_of_products_are_cast() -> None:
    rows = layer("megatron-local", "amp", bias=False)
    assert not [name for name in rows if name.endswith("/bias")]
    assert rows["mlp/down/input_casts"].forward_bytes == 6.0 * 4 * HIDDEN
    assert "attention/out_proj/input_casts" not in rows


def test_transformer_engine_casts_and_adds_biases_within_its_modules() -> None:
    rows = layer("megatron-core", "amp")
    assert "attention/qkv/bias" not in rows
    assert "mlp/up/input_casts" not in rows
    assert "mlp/down/input_casts" in rows
    assert traffic(rows) < traffic(layer("megatron-local", "amp"))


def test_a_split_product_casts_its_part() -> None:
    rows = layer("megatron-local", "amp")
    assert rows["mlp/up/bias"].tokens is rows["mlp/up"].out_shard
    assert rows["mlp/up/input_casts"].tokens is rows["mlp/up"].tokens
