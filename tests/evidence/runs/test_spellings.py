"""Settings in the words of other people's tables."""

from __future__ import annotations

import pytest

from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.rows import (
    named,
    recompute_named,
    yes_or_no,
    zero_stage_named,
)
from planner.predict.uncertainty.families import UNFAMILIAR
from tests.evidence.runs.rows_for_tests import row


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("amp_bf16", "bf16"), ("bfloat16", "bf16"), ("bf16-mixed", "bf16"), ("bf16 (TE)", "bf16"),
        ("float16", "fp16"), ("O2", "fp16"), ("FP8 delayed", "fp8"), ("fp8cs", "fp8"),
        ("mxfp8(linears)", "mxfp8"), ("NVFP4", "nvfp4"), ("32", "fp32"), ("TF32", "tf32"),
        ("int8", None), ("mixed", None),
    ],
)  # fmt: skip
def test_precisions(text: str, precision: str | None) -> None:
    assert named("precision", text.lower()) == precision


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        ("3", 3), ("ZeRO-3", 3), ("stage 2", 2), ("zero1(dp=1)", 1), ("0", 0),
        ("FULL_SHARD", 3), ("SHARD_GRAD_OP", 2), ("HYBRID_SHARD", 3), ("HSDP", 3),
        ("_HYBRID_SHARD_ZERO2", 2), ("NO_SHARD", 0), ("ddp", 0), ("no", 0), ("n", 0),
        ("overlapped-distributed-optimizer", 1), ("whatever", None),
    ],
)  # fmt: skip
def test_sharding(text: str, stage: int | None) -> None:
    assert zero_stage_named(text) == stage


def test_yes_and_no() -> None:
    assert [yes_or_no(text) for text in ("Yes", "TRUE", "1", "on")] == [True] * 4
    assert [yes_or_no(text) for text in ("no", "False", "0", "-")] == [False] * 4
    assert [yes_or_no(text) for text in (None, "", "selective")] == [None] * 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("y", "full"), ("True", "full"), ("gradient checkpointing", "full"), ("uniform", "full"),
        ("0", "none"), ("off", "none"), ("selective(core_attn)", "selective(core_attn)"),
    ],
)  # fmt: skip
def test_recompute(text: str, words: str) -> None:
    assert recompute_named(text) == words


@pytest.mark.parametrize(
    ("framework", "zero", "profile"),
    [
        ("HF Trainer", "fsdp", "hf-fsdp2"),
        ("axolotl", "none", "hf-transformers"),
        ("PyTorch FSDP", "FULL_SHARD", "fsdp1"),
        ("levanter", "fsdp", "jax-xla"),
        ("my own code", "zero3", "torchtitan"),
        ("my own code", "zero1", "megatron-core"),
        ("MegaScale", "zero1", "megatron-core"),
    ],
)
def test_frameworks_without_a_profile_say_what_they_are_taken_for(
    framework: str, zero: str, profile: str
) -> None:
    mapped = map_row(row(framework=framework, zero=zero, flash="y"))
    assert mapped.job.framework.name == profile
    assert mapped.assumed == (f"framework {framework.lower()!r} treated as {profile}",)


def test_dualpipe_may_be_named_by_the_framework() -> None:
    mapped = map_row(row(framework="HAI-LLM (DualPipe)", gpu="H800", vpp="1", schedule=""))
    assert (mapped.job.framework.name, mapped.job.schedule) == ("hai-llm", "dualpipe")
    assert mapped.assumed == ()


def test_hsdp_shards_within_a_node_unless_told_otherwise() -> None:
    mapped = map_row(row(zero="HSDP", tp="1", pp="1", vpp="1", framework="torchtitan"))
    assert (mapped.degrees.zero, mapped.degrees.shard) == (3, 8)


@pytest.mark.parametrize(("stated", "etp"), [("8", 8), ("1", 1), ("", 1)])
def test_experts_may_be_split_as_the_layers_are(stated: str, etp: int) -> None:
    cells = {"moe": "8 experts top2", "ep": "2", "pp": "1", "vpp": "1", "zero": "zero1"}
    mapped = map_row(row(**cells, etp=stated, framework="Megatron-Core", gpu="H100-80GB"))
    assert mapped.degrees.etp == etp


def test_llm_foundry_runs_flash_attention_1_on_hopper_too() -> None:
    mapped = map_row(
        row(framework="Composer/llm-foundry FSDP", gpu="H100-80GB", flash="y", zero="fsdp-zero3",
            tp="1", pp="1", vpp="1", precision="amp_bf16")
    )  # fmt: skip
    assert mapped.job.attention_kernel == "flash1"


@pytest.mark.parametrize("cell", ["no", "n", "dense", "0", "-"])
def test_a_model_may_say_that_it_has_no_experts(cell: str) -> None:
    assert map_row(row(moe=cell)).job.model.moe is None


def test_experts_in_the_words_of_a_configuration() -> None:
    text = "num_experts=60, num_experts_per_tok=4, moe_intermediate_size=1408, shared=5632"
    moe = map_row(row(moe=text, framework="Megatron-Core")).job.model.moe
    assert moe is not None
    assert (moe.experts, moe.top_k, moe.ffn, moe.shared_ffn) == (60, 4, 1408, 5632)


@pytest.mark.parametrize(
    ("cell", "ran_out"),
    [("1", True), ("yes", True), ("1.0", True), ("0", False), ("False", False), ("", None),
     ("crash_or_oom", None), ("-", None)],
)  # fmt: skip
def test_running_out_of_memory(cell: str, ran_out: bool | None) -> None:
    assert row(oom=cell).ran_out is ran_out


@pytest.mark.parametrize(
    ("cells", "profile"),
    [
        ({"zero": "fsdp2-zero3"}, "torchtitan"),
        ({"zero": "fsdp", "tp": "8"}, "torchtitan"),
        ({"zero": "fsdp", "precision": "fp8"}, "torchtitan"),
        ({"zero": "fsdp"}, "fsdp1"),
        ({"zero": "zero3"}, "deepspeed"),
        ({"tp": "8", "precision": "fp8"}, "megatron-bridge"),
        ({"precision": "fp8"}, "megatron-bridge"),
        ({"precision": "fp8", "state_precision": "fp32"}, "hf-transformers"),
        ({"tp": "8", "transformer_impl": "transformer_engine"}, "megatron-core"),
        ({"tp": "8", "overlap": "tp grad_reduce"}, "megatron-core"),
        ({"zero": "distributed optimizer"}, "megatron-core"),
        ({"tp": "8", "ep": "8"}, "megatron-core"),
        ({"pp": "8", "schedule": "ZB-1p"}, "zero-bubble"),
        ({"tp": "8", "gpu": "A100-80GB", "flash": "n", "act": "gelu"}, "megatron-lm-2022"),
        ({"tp": "8", "gpu": "A100-80GB", "flash": "n", "act": "gelu", "zero": "zero1"},
         "megatron-deepspeed"),
        ({"tp": "8", "gpu": "A100-80GB", "flash": "n", "act": "swiglu"}, "generic-3d"),
        ({"tp": "8"}, "generic-3d"),
        ({"tuning": "sft"}, "torchtune"),
        ({"zero": "zero2"}, "deepspeed"),
        ({}, "hf-transformers"),
    ],
)  # fmt: skip
def test_an_unfamiliar_framework_is_what_it_does(cells: dict[str, str], profile: str) -> None:
    common = {
        "framework": "", "tp": "1", "pp": "1", "vpp": "1", "gpu": "H100-80GB", "zero": "none",
        "flash": "y", "precision": "bf16", "act": "swiglu",
    }  # fmt: skip
    mapped = map_row(row(**(common | cells)))
    assert mapped.job.framework.name == profile
    # Its error bars are those of other frameworks.
    assert mapped.job.framework.family == UNFAMILIAR
    assert mapped.assumed


def test_the_vocabulary_is_split_where_layers_are() -> None:
    sharded = [
        map_row(row(framework=name, flash="y", act="swiglu")).job.framework.saved.logits_sharded
        for name in ("my own code", "AA-Scaling (Megatron-like)")
    ]
    assert sharded == [True, False]
