"""Rows of runs that trained a part of the weights, or samples of unlike lengths."""

from __future__ import annotations

import pytest

from planner.evidence.runs.lengths import longest_row, samples_of
from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.predict import predict_rows
from tests.evidence.runs.rows_for_tests import row

# Mistral-7B on one A100 with adapters of rank 16 beside attention's linear layers.
MISTRAL = {
    "model": "Mistral-7B", "layers": "32", "hidden": "4096", "ffn": "14336", "heads": "32",
    "kv_heads": "8", "vocab": "32000", "act": "swiglu", "seq": "4096", "gpu": "A100-80GB",
    "num_gpus": "1", "tp": "1", "pp": "1", "vpp": "1", "zero": "0", "mbs": "4", "gbs": "4",
    "precision": "bf16 pure (no autocast)", "recompute": "full", "flash": "y", "loss": "plain",
    "framework": "HF Trainer + peft", "tuning": "lora", "lora_rank": "16", "base_format": "bf16",
    "lora_targets": "q_proj,k_proj,v_proj,o_proj", "adapter_precision": "fp32",
    "sequences": "packed",
}  # fmt: skip


def tuning(**cells: str) -> str:
    return str(map_row(row(**MISTRAL | cells)).job.tuning)


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ({}, "lora:rank=16,targets=q,k,v,o,adapter=fp32"),
        ({"tuning": "sft"}, "full"),
        ({"tuning": "qlora", "base_format": "nf4-double-quant", "dropout": "lora 0.1"},
         "qlora:rank=16,targets=q,k,v,o,base=nf4-double,adapter=fp32,dropout=0.1"),
        # LoRA beside weights in four bits is QLoRA, whatever it is called.
        ({"base_format": "gptq-int4"}, "qlora:rank=16,targets=q,k,v,o,base=gptq4,adapter=fp32"),
        ({"tuning": "dora", "lora_targets": "all-linear", "lora_rank": ""},
         "dora:rank=8,targets=all-linear,adapter=fp32"),
        ({"lora_targets": "W_pack,o_proj"}, "lora:rank=16,targets=q,k,v,o,adapter=fp32"),
        ({"lora_targets": "", "frozen": "base except embeddings and lm_head (trained in full)"},
         "lora:rank=16,targets=attention,adapter=fp32,whole=embeddings,head"),
    ],
)  # fmt: skip
def test_how_a_row_trained_its_weights(cells: dict[str, str], text: str) -> None:
    assert tuning(**cells) == text


def test_the_last_layers_alone_are_trained() -> None:
    frozen = {"tuning": "freeze (last layers)", "frozen": "all but layers 28-31"}
    found = map_row(row(**MISTRAL | frozen)).job
    assert found.tuning.frozen == ("embeddings", "head", "layers:28")
    assert [kind.frozen for kind in found.model.kind_sequence].count(False) == 4


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"tuning": "peft:adalora"}, "adapters of another kind"),
        ({"tuning": "grpo+lora"}, "reinforcement learning"),
        ({"tuning": "distill"}, "generation"),
        ({"lora_targets": "q_proj,vision_proj"}, "unknown module 'vision_proj'"),
        ({"lora_rank": "5000"}, "is 1,024 wide"),
    ],
)
def test_what_is_not_modelled_is_refused(cells: dict[str, str], why: str) -> None:
    with pytest.raises(UnpredictableRowError, match=why):
        map_row(row(**MISTRAL | cells))


@pytest.mark.parametrize(
    ("cells", "objective", "reads"),
    [
        ({"tuning": "dpo+lora", "reference": "adapters-off"}, "dpo:reference=adapters-off", 1),
        ({"tuning": "dpo", "reference": "copied"}, "dpo:reference=copied", 1),
        ({"tuning": "kto", "reference": "precomputed"}, "kto:reference=precomputed", 1),
        ({"tuning": "simpo+lora", "reference": "none"}, "simpo", 0),
        ({"tuning": "reward+lora"}, "reward", 0),
        ({}, "lm", 0),
    ],
)
def test_what_a_row_minimised(cells: dict[str, str], objective: str, reads: int) -> None:
    job = map_row(row(**MISTRAL | cells)).job
    assert str(job.objective) == objective
    assert len(job.reads) == reads
    assert job.model.scores == (objective == "reward")


def test_rows_with_a_reference_take_longer_and_hold_more() -> None:
    alone, copied = (
        predict_rows([row(**MISTRAL | {"tuning": "dpo", "reference": place})])[0]
        for place in ("precomputed", "copied")
    )
    assert copied.step_time_s is not None
    assert alone.step_time_s is not None
    assert copied.step_time_s > 1.2 * alone.step_time_s
    assert (copied.memory_bytes() or 0.0) > (alone.memory_bytes() or 0.0)


def test_frozen_weights_are_in_the_type_that_the_row_says() -> None:
    """Trained weights under autocast are in fp32; frozen ones as they were loaded."""
    weights = {}
    for base in ("bf16", "fp32"):
        (found,) = predict_rows([row(**MISTRAL | {"precision": "bf16 amp", "base_format": base})])
        assert found.stages is not None, found.error
        weights[base] = float(found.stages[0].sum())
    assert weights["fp32"] > 1.5 * weights["bf16"]


def test_samples_padded_to_the_longest_of_a_micro_batch() -> None:
    padded = row(**MISTRAL | {"sequences": "padded to longest", "length_mean": "280"})
    samples = samples_of(padded)
    assert samples.packing == "longest"
    assert samples.lengths is not None
    assert samples.lengths.mean == pytest.approx(280, rel=0.02)
    assert map_row(padded).time_gap is None
    # Without their mean only the longest is known: memory, but no time.
    unknown = row(**MISTRAL | {"sequences": "padded to longest"})
    assert samples_of(unknown).lengths is None
    assert map_row(unknown).time_gap


def test_samples_without_padding_are_as_long_as_their_mean() -> None:
    cells = {"sequences": "padding-free", "length_mean": "193.5"}
    assert longest_row(row(**MISTRAL | cells)) == 194
    assert map_row(row(**MISTRAL | cells)).job.seq == 194
    assert longest_row(row(**MISTRAL | {"seq": "", "length_max": "1024"})) == 1024
