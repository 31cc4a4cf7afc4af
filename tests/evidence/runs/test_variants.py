"""What rows say of their model, optimizer and framework."""

from __future__ import annotations

import pytest

from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.model import UnpredictableRowError
from tests.evidence.runs.rows_for_tests import row


def test_the_optimizer_is_the_one_that_is_stated() -> None:
    stated = {"adamw-8bit, in backward": "adamw-8bit", "adamw": "adamw", "": "adamw"}
    for text, name in stated.items():
        assert map_row(row(framework="torchtune", optimizer=text)).job.optimizer.name == name
    paged = map_row(row(framework="torchtune", optimizer="paged adamw-8bit, in backward"))
    assert paged.job.optimizer.name == "paged-adamw-8bit"
    assert paged.job.optimizer.paged


def test_dropout_as_the_row_states_it() -> None:
    for none in ("none", "n", "attention 0.0 hidden 0.0"):
        assert not map_row(row(dropout=none)).job.dropout
    assert map_row(row()).job.dropout
    assert map_row(row(dropout="attention 0.1 hidden 0.1")).job.dropout


def test_shapes_beyond_the_first_columns() -> None:
    cells = {
        "mla": "q_lora1536, kv_lora512, nope128, rope64, v128", "mtp_layers": "1", "tied": "n",
        "qk_norm": "y", "bias": "n", "block": "parallel", "position": "alibi",
    }  # fmt: skip
    model = map_row(row(**cells)).job.model
    assert model.mla is not None
    assert (model.mla.q_lora_rank, model.mtp_layers, model.qk_norm) == (1536, 1, "head")
    assert (model.mlp_bias, model.position, model.tied_embeddings) == (False, "alibi", False)


def test_ranks_of_latent_attention_are_no_lora() -> None:
    text = "MLA(no q_lora, kv_lora512, rope64); 64 experts top6, expert ffn 1408"
    mla = map_row(row(moe=text, act="swiglu", flash="y")).job.model.mla
    assert mla is not None
    assert (mla.q_lora_rank, mla.kv_lora_rank) == (None, 512)
    with pytest.raises(UnpredictableRowError, match="LoRA"):
        map_row(row(tuning="peft:adalora"))


def test_experts_of_some_groups() -> None:
    for text, groups in (("", (1, 1)), (" (4 of 8 groups)", (8, 4))):
        moe = map_row(row(moe=f"256 experts top8{text}; expert ffn 2048")).job.model.moe
        assert moe is not None
        assert (moe.groups, moe.top_groups, moe.top_k) == (*groups, 8)


def test_layers_beside_multi_token_prediction_are_as_even_as_they_get() -> None:
    cells = {"pp": "4", "vpp": "1", "mtp_layers": "1"}
    assert map_row(row(layers="61", **cells)).layout.block_layers == (16, 16, 15, 14)
    assert map_row(row(layers="64", **cells)).layout.block_layers == (16, 16, 16, 16)


def test_the_word_variant_stands_for_columns_that_are_not_there() -> None:
    found = row(variant="compile cuda_graph moe_a2a_overlap hybridep")
    facts = [found.fact(name) for name in ("compile", "cuda_graphs", "overlap", "ep_dispatch")]
    assert facts == ["y", "y", "ep", "hybridep"]
    assert row(variant="compile", compile="n").fact("compile") == "n"


@pytest.mark.parametrize(
    ("framework", "profile"),
    [
        ("Megatron-DeepSpeed", "megatron-deepspeed"),
        ("Megatron-Bridge (NeMo 26.02 container)", "megatron-bridge"),
        ("Composer/llm-foundry FSDP", "llm-foundry"),
        ("torchtitan FSDP2", "torchtitan"),
        ("torchtitan+torchao, torch.compile", "torchtitan"),
    ],
)
def test_profile_of_a_framework_name(framework: str, profile: str) -> None:
    assert map_row(row(framework=framework)).job.framework.name == profile
