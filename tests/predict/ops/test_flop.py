"""Model FLOP against the closed forms that published MFU figures use."""

from __future__ import annotations

import pytest

from planner.job.specs import LayerKind, ModelSpec, MoeSpec
from planner.predict.ops.table import flop_per_token
from tests.predict.ops.test_korthikanti import SEQ, gpt3


def test_gpt3_equals_narayanan_equation() -> None:
    """Narayanan et al. 2021, equation 3 without recompute: 72·L·h²(1 + s/(6h) + V/(12hL))."""
    model = gpt3()
    h, layers, vocab = model.hidden, model.layers, model.vocab
    expected = 72 * layers * h**2 * (1 + SEQ / (6 * h) + vocab / (12 * h * layers))
    assert flop_per_token(model, SEQ) == pytest.approx(expected, rel=1e-12)


def test_causal_halves_only_attention() -> None:
    model = gpt3()
    attention = 12 * model.layers * model.hidden * SEQ
    difference = flop_per_token(model, SEQ) - flop_per_token(model, SEQ, causal=True)
    assert difference == pytest.approx(attention / 2, rel=1e-12)


def test_llama_3_70b_counts_grouped_queries_and_three_matrices() -> None:
    """6 FLOP per weight of every matrix that a token meets, plus 12·L·a·d·s of attention."""
    model = ModelSpec(
        name="llama-3-70b", layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128,
        ffn=28672, vocab=128256, max_positions=8192, pretraining_seq=8192,
    )  # fmt: skip
    per_layer = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672
    expected = 6 * (80 * per_layer + 128256 * 8192) + 12 * 80 * 8192 * 8192
    assert flop_per_token(model, 8192) == pytest.approx(expected, rel=1e-12)


def test_experts_count_the_top_k_and_windows_their_span() -> None:
    base = {
        "name": "moe", "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "head_dim": 16,
        "ffn": 128, "vocab": 100, "max_positions": 512, "pretraining_seq": 512,
    }  # fmt: skip
    moe = ModelSpec.model_validate(base | {"moe": MoeSpec(experts=8, top_k=2, ffn=32)})
    per_layer = 4 * 64 * 64 + 8 * 64 + 2 * 3 * 64 * 32
    expected = 6 * (2 * per_layer + 6400) + 12 * 2 * 64 * 512
    assert flop_per_token(moe, 512) == pytest.approx(expected)
    kinds = (LayerKind(attention="sliding"), LayerKind())
    windowed = ModelSpec.model_validate(base | {"layer_kinds": kinds, "sliding_window": 128})
    full = ModelSpec.model_validate(base)
    saved = flop_per_token(full, 512) - flop_per_token(windowed, 512)
    assert saved == pytest.approx(12 * 64 * (512 - 128))
