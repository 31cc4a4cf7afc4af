"""Rows of runs that trained a part of the weights, or samples of unlike lengths."""

from __future__ import annotations

import pytest

from planner.evidence.runs.doubts import narrowing_sentence, with_open_facts
from planner.evidence.runs.lengths import longest_row, samples_of
from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.open_facts import open_facts
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.stated import optimizer_name
from planner.job.sample_rows import longest_of
from planner.job.samples import Samples
from planner.predict.uncertainty.intervals import family_of
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


@pytest.mark.parametrize(
    ("named", "targets"),
    [
        ("linear_qkv and linear_proj", "q,k,v,o"),
        ("wqkv,wo,w1,w2,w3", "q,k,v,o,gate,down,up"),
        ("qkv_proj,o_proj,gate_up_proj,down_proj", "q,k,v,o,gate,up,down"),
        # peft goes by the end of a name, and passes over names without a layer.
        ("attention.wqkv, q_a_proj", "q,k,v"),
        ("default (q,v)", "q,v"),
    ],
)
def test_layers_of_any_family_by_their_own_names(named: str, targets: str) -> None:
    assert f"targets={targets}," in tuning(lora_targets=named)


def test_blocks_of_experts_are_adapted_where_they_are_modules() -> None:
    experts = {"moe": "8 experts top2", "lora_targets": "q_proj,gate_proj,up_proj,down_proj"}
    assert "targets=q,experts," in tuning(**experts)
    assert "targets=q," in tuning(**experts, software="transformers 5.1")


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ({"tuning": "rslora"}, "lora:rank=16,"),
        ({"tuning": "peft:pissa"}, "lora:rank=16,"),
        ({"tuning": "qdora", "base_format": "bnb.nf4-dq"}, "base=nf4-double,"),
        ({"tuning": "qlora", "base_format": "bnb.int8"}, "base=int8,"),
        ({"tuning": "qlora", "base_format": "gptq-int8"}, "base=int8,"),
        ({"tuning": "qlora", "base_format": "awq"}, "base=gptq4,"),
        ({"tuning": "qlora", "base_format": "nf4", "framework": "unsloth"}, "base=nf4-double,"),
    ],
)
def test_adapters_and_formats_in_the_words_of_others(cells: dict[str, str], text: str) -> None:
    assert text in tuning(**cells)


@pytest.mark.parametrize(
    ("named", "name"),
    [
        ("distributed adam", "adam"), ("bitsandbytes adamw_8bit", "adamw_8bit"), ("lion", "lion"),
        ("paged adamw-8bit", "paged-adamw-8bit"), ("", "adamw"),
    ],
)  # fmt: skip
def test_an_optimizer_by_its_name_after_its_maker(named: str, name: str) -> None:
    assert optimizer_name(row(**MISTRAL | {"optimizer": named})) == name


def test_a_hybrid_whose_layers_are_not_stated_attends_in_one_of_ten() -> None:
    cells = {"mixer": "mamba hybrid", "layers": "40", "tuning": "full_sft", "base_format": ""}
    (found,) = predict_rows([row(**MISTRAL | cells)])
    assert found.error is None
    assert found.completed == ("attention every 10",)
    kinds = [kind.attention for kind in found.job.model.kind_sequence]
    assert (kinds.count("full"), kinds.count("state")) == (4, 36)


def test_blocks_of_unlike_lengths_are_those_of_logits_and_of_the_working_set() -> None:
    """What layers keep without recomputation comes in blocks that fit each other."""
    padded = {"sequences": "padded to longest", "length_mean": "1000", "gpu": "H200-141GB"}
    kept, needs = {}, {}
    for name, cells in {
        "recomputed": {},
        "none": {"recompute": "none"},
        "liger": {"loss": "liger"},
        "alike": {"sequences": "full", "length_mean": "4096"},
    }.items():
        (found,) = predict_rows([row(**MISTRAL | padded | cells)])
        needed, held = (found.memory_bytes(kind) or 0.0 for kind in ("allocated", "reserved"))
        kept[name], needs[name] = held - needed, needed
    assert 0.0 < kept["none"] - kept["recomputed"] < 0.4 * (needs["none"] - needs["recomputed"])
    assert kept["liger"] < 0.5 * kept["recomputed"]
    assert kept["alike"] < 0.2 * kept["recomputed"]


@pytest.mark.parametrize(
    ("cells", "mode"),
    [
        ({"framework": "unsloth"}, "full"),
        ({"framework": "TRL SFTTrainer"}, "full"),
        ({"framework": "TRL SFTTrainer", "software": "trl 0.12.0"}, "none"),
        ({"tuning": "qlora", "base_format": "nf4"}, "full"),
        ({}, "none"),
        ({"framework": "torchtune", "tuning": "sft"}, "none"),
    ],
)
def test_tools_of_adapters_recompute_unless_told_otherwise(
    cells: dict[str, str], mode: str
) -> None:
    assert map_row(row(**MISTRAL | {"recompute": ""} | cells)).mode.name == mode


def test_unsloth_trains_tables_that_are_among_its_targets() -> None:
    found = tuning(framework="unsloth", lora_targets="q_proj,embed_tokens,lm_head")
    assert "targets=q," in found
    assert "whole=embeddings,head" in found
    assert "targets=q," in tuning(lora_targets="q_proj,embed_tokens")


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
        ({"lora_targets": "q_proj,vision_proj"}, "unknown module .* 'vision_proj'"),
        ({"lora_rank": "5000"}, "is 1,024 wide"),
        ({"vision": "ViT 0.67B, patch 14"}, "the tower of .* is not known"),
        ({"frozen": "vision_tower, projector"}, "the tower of .* is not known"),
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
    """The mean length of a padded row counts its padding: samples are shorter than that."""
    padded = row(**MISTRAL | {"sequences": "padded to longest", "length_mean": "280"})
    samples = samples_of(padded)
    assert samples.packing == "longest"
    assert samples.lengths is not None
    assert longest_of(samples.lengths, "none", 4)[0] == pytest.approx(280, rel=0.02)
    assert samples.lengths.mean < 180
    assert map_row(padded).time_gap is None


def test_samples_of_which_only_the_limit_is_known_are_predicted_over_how_much_of_it_they_fill() -> (
    None
):
    """The fact is open, its bar is wide, and the sentence says what each value gives."""
    unknown = row(**MISTRAL | {"sequences": "padded to longest", "step_time_s": "1"})
    default = samples_of(unknown).lengths
    assert default is not None
    assert default.mean == pytest.approx(0.3 * 4096, rel=0.1)
    assert map_row(unknown).time_gap is None
    (found,) = with_open_facts(predict_rows([unknown]))
    assert "length_mean" in (open_facts(found) or ())
    doubt = found.doubt_of("time")
    assert doubt.points[-1] - doubt.points[0] > 1.0
    assert found.conditions is not None
    assert found.conditions.fewest < 0.5
    sentence = narrowing_sentence(found, "time") or ""
    assert "length of samples not stated" in sentence
    assert "all at the limit" in sentence


@pytest.mark.parametrize(
    ("cell", "mean", "longest"),
    [("0.06 to 0.3 of the limit", 0.06, 0.3), ("0.6 to 1 of the limit", 0.5, 1.0)],
)
def test_how_much_of_the_limit_samples_fill(cell: str, mean: float, longest: float) -> None:
    found = row(**MISTRAL | {"sequences": "padded to longest", "length_mean": cell})
    samples = samples_of(found).lengths
    assert samples is not None
    assert samples.mean == pytest.approx(4096 * mean, rel=0.15)
    assert longest_row(found) == pytest.approx(4096 * longest, rel=0.01)
    whole = row(
        **MISTRAL | {"sequences": "padded to longest", "length_mean": "1 to 1 of the limit"}
    )
    assert samples_of(whole).lengths is None
    assert longest_row(whole) == 4096


def test_a_stated_mean_leaves_the_spread_open() -> None:
    cells = MISTRAL | {"sequences": "padded to longest", "length_mean": "400"}
    narrow, wide = (longest_row(row(**cells | {"lengths": f"sigma {s}"})) for s in (0.3, 0.85))
    assert narrow is not None and wide is not None
    assert narrow < wide
    (found,) = with_open_facts(predict_rows([row(**cells)]))
    assert "lengths" in (open_facts(found) or ())
    assert "lengths" not in (
        open_facts(predict_rows([row(**cells | {"lengths": "news"})])[0]) or ()
    )


def test_samples_without_padding_are_as_long_as_their_mean() -> None:
    """Their mean is what each adds; the longest of them that the run meets, what it holds."""
    cells = {"sequences": "padding-free", "length_mean": "193.5"}
    samples = samples_of(row(**MISTRAL | cells))
    assert samples.packing == "padding-free"
    assert samples.lengths is not None
    assert samples.lengths.mean == pytest.approx(193.5, rel=0.02)
    assert longest_row(row(**MISTRAL | cells)) == map_row(row(**MISTRAL | cells)).job.seq > 1000
    assert longest_row(row(**MISTRAL | {"seq": "", "length_max": "1024"})) == 1024


def lengths(text: str, **cells: str) -> Samples:
    return samples_of(row(**MISTRAL | {"sequences": "padded to longest", "lengths": text} | cells))


def test_the_spread_of_lengths_that_a_row_states() -> None:
    samples = lengths("news (mean 3234 std 2548 min 91 max 19548)", seq="8192", mbs="1")
    assert samples.lengths is not None
    assert samples.lengths.longest == 8192
    assert samples.lengths.mean == pytest.approx(3100, rel=0.05)
    dropped = lengths("news (mean 3234 std 2548), samples over max length dropped", seq="2048")
    assert dropped.lengths is not None
    assert dropped.lengths.mean < 1500
    assert dropped.lengths.above(2047.5) < 0.01


def test_lengths_that_padding_made_known() -> None:
    samples = lengths("alpaca (padded mean about 410 at micro-batch 8)", seq="")
    assert samples.lengths is not None
    assert longest_of(samples.lengths, "none", 8)[0] == pytest.approx(410, rel=0.02)


def test_a_short_run_meets_no_sample_as_long_as_the_rarest() -> None:
    cells = MISTRAL | {"sequences": "padded to longest", "length_mean": "400"}
    short, long = (
        longest_row(row(**cells | {"time_kind": f"rate over {steps} optimizer steps"}))
        for steps in (10, 1000)
    )
    assert short is not None and long is not None
    assert 400 < short < long <= 4096


def test_padded_samples_of_no_stated_length_are_refused() -> None:
    (found,) = predict_rows([row(**MISTRAL | {"sequences": "padded to longest", "seq": ""})])
    assert found.error is not None
    assert "seq is not stated" in found.error


def predicted_gib(**cells: str) -> float:
    (found,) = predict_rows([row(**MISTRAL | cells)])
    held = found.memory_bytes(cells.get("mem_kind", "allocated"))
    assert held is not None, found.error
    return held / 2**30


def test_rows_that_differ_in_their_adapters_alone_are_costed_apart() -> None:
    few, many = predict_rows(
        [row(**MISTRAL | {"lora_rank": rank, "adapter_precision": ""}) for rank in ("8", "512")]
    )
    assert many.step_time_s is not None and few.step_time_s is not None
    assert many.step_time_s > 1.04 * few.step_time_s


FUSED = {
    "kernels": "flash-attn2, fused kernels (foak: fused lora qkv/mlp, cross-entropy, rms, rope)",
    "loss": "plain, fused kernel",
    "software": "torch 2.4.1 transformers 4.45.2",
    "precision": "bf16 amp",
}


# fms-acceleration, scripts/benchmarks/refs/a100_80gb.csv: allocated at the peak, GiB.
@pytest.mark.parametrize(
    ("gib", "cells"),
    [
        (24.871, {"software": "torch 2.4.1 transformers 4.48.1", "dropout": "lora 0.1"}),
        (21.914, FUSED),
        # FSDP1 holds inputs of frozen layers, and their gradients, until backward ends.
        (19.762, FUSED | {"num_gpus": "2", "gbs": "8", "zero": "fsdp-zero3",
                          "framework": "HF Trainer, accelerate FSDP1"}),
        (34.461, {"tuning": "qlora", "base_format": "nf4-double-quant", "precision": "bf16 amp",
                  "mbs": "8", "gbs": "8", "software": "torch 2.4.1 transformers 4.48.1",
                  "dropout": "lora 0.1"}),
    ],
)  # fmt: skip
def test_peaks_of_adapters_by_what_kernels_and_shards_hold(
    gib: float, cells: dict[str, str]
) -> None:
    assert predicted_gib(**cells) == pytest.approx(gib, rel=0.07)


def test_unsloth_keeps_inputs_of_layers_on_the_host() -> None:
    """2 bytes of each of 32 layers, 4,096 wide, for 16,384 tokens: 4 GiB."""
    cells = {"framework": "unsloth + trl", "tuning": "qlora", "base_format": "nf4"}
    kept, offloaded = (
        predicted_gib(**cells | {"grad_ckpt": where}) for where in ("y", "unsloth-offloaded")
    )
    assert kept - offloaded == pytest.approx(4.0, abs=0.3)


def test_experts_of_transformers_4_are_quantised_one_by_one() -> None:
    cells = {
        "model": "Mixtral-8x7B", "moe": "8e top2", "tuning": "qlora", "mbs": "1", "gbs": "1",
        "base_format": "nf4-double-quant",
    }  # fmt: skip
    four, five = (
        predicted_gib(**cells | {"software": f"transformers {version}"})
        for version in ("4.45.2", "5.1.0")
    )
    assert five > 2.5 * four


def test_gptq_without_triton_unpacks_its_weights_by_operators() -> None:
    cells = MISTRAL | {"base_format": "gptq-int4", "seq": "256", "mbs": "1", "gbs": "8"}
    plain, triton = predict_rows([row(**cells), row(**cells | {"kernels": "autogptq triton v2"})])
    assert plain.step_time_s is not None and triton.step_time_s is not None
    # 20 bytes each of 6.9 billion weights, three times in each of eight micro-batches, at 2 TB/s:
    # 1.7 s, a part of it while the GPU would wait for the CPU.
    assert 1.0 < plain.step_time_s - triton.step_time_s < 1.8


def test_blocks_of_other_lengths_stay_reserved() -> None:
    cells = {
        "sequences": "padded to longest", "length_mean": "400", "lengths": "a data set",
        "mem_kind": "reserved",
    }  # fmt: skip
    uneven = predicted_gib(**cells)
    assert uneven > 1.15 * predicted_gib(**cells | {"allocator": "expandable segments"})


def test_a_node_without_nvlink_needs_no_network() -> None:
    cells = {"num_gpus": "2", "gbs": "8", "zero": "ddp", "fabric": "PCIe switch, no NVLink"}
    cluster = map_row(row(**MISTRAL | cells)).job.cluster
    assert cluster.scale_up_domain_gpus == 1


def test_fine_tuning_has_families_of_its_own() -> None:
    adapters = map_row(row(**MISTRAL)).job
    full = map_row(row(**MISTRAL | {"tuning": "sft"})).job
    assert family_of(adapters).model == "tuned dense"
    assert family_of(full).model == "dense"


def test_layers_on_several_gpus_without_a_schedule_take_as_long_as_on_one() -> None:
    """A device map: each GPU holds a part, and one of them works at a time."""
    cells = MISTRAL | {"mbs": "1", "gbs": "8"}
    (one,) = predict_rows([row(**cells)])
    (two,) = predict_rows([row(**cells | {"num_gpus": "2", "schedule": "device_map sequential"})])
    assert one.step_time_s is not None and two.step_time_s is not None, two.error
    assert two.configured.degrees.pp == 2
    assert two.step_time_s == pytest.approx(one.step_time_s, rel=0.1)
    assert (two.memory_bytes("allocated") or 0) < 0.7 * (one.memory_bytes("allocated") or 0)


def test_kernels_for_all_experts_at_once_are_faster_than_a_loop() -> None:
    cells = MISTRAL | {
        "model": "granite", "tuning": "full_sft", "layers": "32", "hidden": "1536", "ffn": "512",
        "heads": "24", "moe": "40 experts top8, expert ffn 512", "seq": "512", "mbs": "1",
        "gbs": "1", "software": "torch 2.6.0 transformers 4.52.4",
    }  # fmt: skip
    loop, kernels = predict_rows([row(**cells), row(**cells | {"kernels": "scattermoe"})])
    assert loop.step_time_s is not None and kernels.step_time_s is not None, loop.error
    assert loop.step_time_s > 2.0 * kernels.step_time_s
