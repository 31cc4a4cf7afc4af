"""Korthikanti et al. 2022 (arXiv 2205.05198), section 4: activation bytes of a GPT layer.

The paper counts big tensors only; per token and layer our rows add the fp32 statistics of two
LayerNorms (16 bytes), so the comparison allows exactly those.
"""

from __future__ import annotations

import pytest

from planner.job.frameworks.profile import load_framework
from planner.job.recompute import Module
from planner.job.specs import ModelSpec
from planner.predict.ops.context import OpContext
from planner.predict.ops.rows import Piece
from planner.predict.ops.table import pieces
from tests.predict.ops.saved_form import saved_bytes_per_token

SEQ = 2048
LAYER_NORM_STATISTICS_BYTES = 16.0


def gpt3(**changes: object) -> ModelSpec:
    shape: dict[str, object] = {
        "name": "gpt3", "layers": 96, "hidden": 12288, "heads": 96, "kv_heads": 96,
        "head_dim": 128, "ffn": 49152, "vocab": 51200, "max_positions": SEQ,
        "pretraining_seq": SEQ, "gated": False, "activation": "gelu", "norm": "layernorm",
        "norm_bias": True, "qkv_bias": True, "attention_out_bias": True, "mlp_bias": True,
        "position": "learned", "tied_embeddings": True,
    }  # fmt: skip
    return ModelSpec.model_validate(shape | changes)


def layer(model: ModelSpec, framework: str = "megatron-lm-2022") -> Piece:
    profile = load_framework(framework)
    return pieces(OpContext(model, profile, SEQ, attention="eager", dropout=True))[0]


@pytest.mark.parametrize("framework", ["megatron-lm-2022", "textbook"])
@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize(
    ("modules", "replicated", "split", "scores"),
    [
        (Module.NOTHING, 10, 24, 5),
        (Module.CORE_ATTENTION, 10, 24, 0),
        (Module.FULL, 2, 0, 0),
    ],
    ids=["none", "selective", "full"],
)
def test_layer_equals_the_paper(
    framework: str, tp: int, sequence_parallel: bool, modules: Module, replicated: int,
    split: int, scores: int,
) -> None:  # fmt: skip
    """sbh(10 + 24/t + 5as/(ht)); with sequence parallelism all of it over t; full: 2."""
    model = gpt3()
    whole = tp if sequence_parallel else 1
    expected = model.hidden * (
        replicated / whole + split / tp + scores * model.heads * SEQ / (model.hidden * tp)
    )
    measured = saved_bytes_per_token(
        layer(model, framework),
        tp=tp,
        sequence_parallel=sequence_parallel,
        kv_heads=model.kv_heads,
        modules=modules,
    )
    none = modules is Module.FULL or framework == "textbook"
    statistics = 0 if none else LAYER_NORM_STATISTICS_BYTES / whole
    assert measured == pytest.approx(expected + statistics, rel=1e-12)


def test_selective_recompute_saves_seventy_percent_of_gpt3() -> None:
    """Section 5: 5as/h = 80 of 114 for GPT-3, 70 % of the activations."""
    model = gpt3()
    kept = [
        saved_bytes_per_token(
            layer(model),
            tp=1,
            sequence_parallel=False,
            kv_heads=model.kv_heads,
            modules=modules,
        )
        for modules in (Module.NOTHING, Module.CORE_ATTENTION)
    ]
    assert 1 - kept[1] / kept[0] == pytest.approx(0.70, abs=0.005)
