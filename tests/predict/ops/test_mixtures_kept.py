"""What Megatron's mixtures keep for backward: rows of the op table, and peaks of whole runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.evidence.runs.predict import Prediction, predict_rows
from planner.evidence.runs.rows import PUBLISHED, MeasuredRow, read_rows
from planner.job.frameworks.profile import load_framework
from planner.job.models.catalog import load_model
from planner.job.recompute import Module
from planner.predict.configuration import degree_columns
from planner.predict.cost_model import CostModel
from planner.predict.memory.account import stage_timeline
from planner.predict.ops.context import OpContext
from planner.predict.ops.rows import Op, Saved
from planner.predict.ops.table import pieces
from planner.predict.stage import Stage

# Rank 0 of Nemotron 3 Nano on 16 H100 (Megatron-Bridge, skills/nemo-mbridge-perf-activation-
# recompute): recomputed modules, whether of the first iteration, which has no optimizer state
# before its end, and the peak, GiB. Nothing is fitted on them.
NANO = [
    ("none", True, 61.74),
    ("selective(moe_act)", True, 57.84),
    ("selective(moe)", False, 60.21),
    ("selective(moe,layernorm)", False, 59.27),
]


def _ops(model: str, framework: str = "megatron-core") -> dict[str, Op]:
    context = OpContext(load_model(model).spec, load_framework(framework), 4096)
    return {op.name: op for piece in pieces(context) for op in piece.ops}


def _freed(op: Op, tensor: str) -> Module:
    (saved,) = [row for row in op.saved if row.name == tensor]
    return saved.freed_by


def _nano(recompute: str) -> Prediction:
    rows = read_rows(Path(PUBLISHED) / "megatron_bridge_cards.csv")
    found = [row for row in rows if row.text("recompute") == recompute and row.number("gbs") == 16]
    (row,) = [row for row in found if (row.text("model") or "").startswith("Nemotron-3-Nano")]
    (prediction,) = predict_rows([row])
    return prediction


def _first_peak(prediction: Prediction) -> float:
    """Bytes at the peak of the first iteration, on the first stage."""
    assert prediction.mapped is not None
    model = CostModel(prediction.mapped.job, compiled=False)
    costed = model.price_shapes(degree_columns([prediction.mapped.degrees]))
    layout = prediction.mapped.kernel_layout(model)
    stage = Stage(model.layout_inputs(costed, 0, layout), 0)
    return max(phase.total_bytes for phase in stage_timeline(stage).first_step)


@pytest.mark.parametrize(("recompute", "first", "measured"), NANO)
def test_peaks_of_nemotron_3_nano(recompute: str, first: bool, measured: float) -> None:
    prediction = _nano(recompute)
    peak = _first_peak(prediction) if first else prediction.memory_bytes("allocated", "first_stage")
    assert peak is not None
    assert peak / 2**30 == pytest.approx(measured, rel=0.01)


def test_recomputing_norms_frees_what_the_card_says() -> None:
    """1.014 GB: the normalised inputs of 23 blocks of experts, 8,192 tokens of 2,688; the norms
    before Mamba's and attention's projections are part of these."""
    with_norms, without = _nano("selective(moe,layernorm)"), _nano("selective(moe)")
    peaks = [item.memory_bytes("allocated", "first_stage") for item in (without, with_norms)]
    assert peaks[0] is not None
    assert peaks[1] is not None
    assert peaks[0] - peaks[1] == pytest.approx(1.014e9, rel=0.01)


def test_norms_inside_linears_are_not_recomputed() -> None:
    """megatron/core/models/gpt/gpt_layer_specs.py: a module of their own are the norm before
    experts and that before latent attention."""
    dense, mixture, latent = _ops("llama-3-8b"), _ops("mixtral-8x7b"), _ops("deepseek-v3")
    for op, tensor in (
        (dense["attention/qkv"], "attention/qkv/input"),
        (dense["mlp/up"], "mlp/up/input"),
        (mixture["attention/qkv"], "attention/qkv/input"),
        (latent["attention/q_up"], "attention/q_up/input"),
    ):
        assert not _freed(op, tensor) & Module.LAYERNORM, tensor
    for norm in (dense["attention/norm"], dense["ffn/norm"], latent["attention/q_norm"]):
        assert not norm.rerun_with & Module.LAYERNORM, norm.name
    assert _freed(mixture["moe/router"], "moe/router/input") & Module.LAYERNORM
    assert _freed(latent["attention/q_down"], "attention/q_down/input") & Module.LAYERNORM
    assert mixture["ffn/norm"].rerun_with & Module.LAYERNORM
    assert latent["attention/norm"].rerun_with & Module.LAYERNORM
    local = _ops("llama-3-8b", "megatron-local")
    assert _freed(local["mlp/up"], "mlp/up/input") & Module.LAYERNORM
    assert local["ffn/norm"].rerun_with & Module.LAYERNORM


def test_a_recomputed_dense_block_keeps_its_norms_input_alone() -> None:
    def kept(framework: str) -> list[Saved]:
        ops = _ops("llama-3-8b", framework)
        rows = [*ops["ffn/norm"].saved, *ops["mlp/up"].saved]
        return [row for row in rows if row.kept_under(Module.MLP) and row.bytes_per_token > 4.0]

    assert [row.name for row in kept("megatron-core")] == ["ffn/norm/input"]
    assert [row.name for row in kept("megatron-local")] == ["ffn/norm/input", "mlp/checkpoint"]


def test_experts_keep_no_output_and_share_their_input() -> None:
    """Weights multiply the activation (transformer/moe/experts.py, since core 0.13), router and
    shared experts read one tensor, which is the checkpoint of experts that run again."""
    ops = _ops("deepseek-v3")
    kept = [row.name for op in ops.values() for row in op.saved]
    assert "moe/expert_output" not in kept
    assert "moe/activation_output" not in kept
    assert "shared_experts/up/input" not in kept
    rows = [*ops["moe/router"].saved, *ops["moe/dispatch"].saved]
    inputs = [row for row in rows if row.name in ("moe/router/input", "moe/checkpoint")]
    assert [row.name for row in inputs if row.kept_under(Module.NOTHING)] == ["moe/router/input"]
    assert [row.name for row in inputs if row.kept_under(Module.MOE)] == ["moe/checkpoint"]


@pytest.mark.parametrize(
    ("act", "software", "tensors"),
    [
        # Fused activations keep their input alone, a plain GELU its output beside the product.
        ("swiglu", "Megatron-Core 0.19", {"activation_input"}),
        ("squared_relu", "Megatron-Core 0.19", {"activation_input"}),
        ("gelu", "Megatron-Core 0.19", {"activation_input", "activation_output"}),
        ("gelu", "megatron-core 0.6.0", {"activation_input", "expert_output"}),
        ("swiglu", "megatron-core 0.12.1", {"activation_input", "expert_output"}),
    ],
)
def test_what_routed_experts_keep_by_activation_and_age(
    act: str, software: str, tensors: set[str]
) -> None:
    cells = {
        "layers": "4", "hidden": "1024", "ffn": "2048", "heads": "8", "kv_heads": "8",
        "vocab": "32000", "act": act, "moe": "8 experts top2, expert ffn 2048", "seq": "1024",
        "gpu": "H100-80GB", "num_gpus": "8", "gpus_per_node": "8", "tp": "1", "pp": "1", "cp": "1",
        "ep": "8", "dp": "8", "zero": "zero1", "mbs": "1", "gbs": "8", "precision": "bf16",
        "recompute": "none", "framework": "Megatron-Core", "software": software,
    }  # fmt: skip
    (prediction,) = predict_rows([MeasuredRow("made_up.csv", 2, cells)])
    assert prediction.mapped is not None
    rows = CostModel(prediction.mapped.job, compiled=False).pieces[0].ops
    kept = {row.name for op in rows for row in op.saved}
    names = {"activation_input", "activation_output", "expert_output"}
    assert {name for name in names if f"moe/{name}" in kept} == tensors


@pytest.mark.parametrize(
    ("cells", "saved"),
    [
        ({"framework": "Megatron-Bridge"}, 2.0),
        ({"framework": "NeMo/Megatron-Core", "software": "NeMo 25.04"}, 2.0),
        ({"framework": "NeMo/Megatron-Core", "software": "NeMo 24.07"}, 4.0),
        ({"framework": "Megatron-Bridge", "zero": "megatron-fsdp(zero3)"}, 2.0),
        ({"framework": "Megatron-Core FSDP", "zero": "megatron-fsdp(zero3)"}, 4.0),
        ({"framework": "Megatron-Core", "loss": "te-fused"}, 2.0),
    ],
)
def test_transformer_engines_loss_works_in_place(cells: dict[str, str], saved: float) -> None:
    """Its gradient takes the 16-bit logits' place (transformer_engine/pytorch/cross_entropy.py,
    2.16); Megatron's own keeps an fp32 softmax."""
    base = {
        "layers": "4", "hidden": "1024", "ffn": "2048", "heads": "8", "kv_heads": "8",
        "vocab": "32000", "act": "swiglu", "seq": "1024", "gpu": "H100-80GB", "num_gpus": "8",
        "gpus_per_node": "8", "tp": "1", "pp": "1", "cp": "1", "dp": "8", "zero": "zero1",
        "mbs": "1", "gbs": "8", "precision": "bf16", "recompute": "none",
    }  # fmt: skip
    (prediction,) = predict_rows([MeasuredRow("made_up.csv", 2, base | cells)])
    assert prediction.mapped is not None
    tensors = prediction.mapped.job.framework.saved
    assert tensors.logits_saved_bytes == saved
    assert (tensors.logits_peak_bytes == saved) == (saved == 2.0)
