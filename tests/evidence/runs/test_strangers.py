"""Stacks that no row of the large tables has: fine-tuning under DeepSpeed and accelerate, stated
exchanges, old kernels. Published figures are those of `finetuning_stacks.csv`."""

from __future__ import annotations

from dataclasses import replace

import pytest

import planner.cost.fields as f
from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.predict import Prediction, predict_rows
from planner.evidence.runs.recomputing import kept_products_share
from planner.evidence.runs.report import error_of
from planner.evidence.runs.rows import PUBLISHED, read_rows
from planner.job.frameworks.profile import load_framework
from planner.job.recompute import Module
from planner.predict.cost_model import CostModel
from planner.predict.ops.table import parameter_count
from tests.evidence.runs.rows_for_tests import published, row

DEEPSPEED = {
    "framework": "DeepSpeed + HF transformers", "model": "LLaMA-7B", "layers": "32",
    "hidden": "4096", "ffn": "11008", "heads": "32", "kv_heads": "32", "vocab": "32000",
    "act": "swiglu", "seq": "4096", "gpu": "A800-80GB", "num_gpus": "8", "tp": "1", "pp": "1",
    "vpp": "1", "zero": "zero3", "mbs": "2", "gbs": "64", "precision": "bf16", "flash": "y",
    "step_time_s": "",
}  # fmt: skip


def predict(**cells: str) -> Prediction:
    (found,) = predict_rows([row(**{**DEEPSPEED, **cells})])
    assert found.error is None
    return found


def allocated(prediction: Prediction) -> float:
    size = prediction.memory_bytes("allocated")
    assert size is not None
    return size


def seconds(prediction: Prediction) -> float:
    step_s = prediction.step_time_s
    assert step_s is not None
    return step_s


def test_weights_that_autograd_holds_and_attention_that_a_row_names() -> None:
    """All 16-bit weights without DeepSpeed's linear, which trainers bring, unless a row says
    otherwise; FlashAttention-2 is slower on Hopper."""
    trainer = {"framework": "LLaMA-Factory (DeepSpeed)", "recompute": "none"}
    ours, named = (predict(**trainer, variant=text) for text in ("", "plain linear"))
    for held in (named, predict(recompute="none")):
        assert allocated(held) - allocated(ours) > 1.05e10
    hopper = {"framework": "Megatron-Core", "gpu": "H100-80GB", "zero": "dist_opt"}
    second = seconds(predict(**hopper, kernel="flash_attention2"))
    assert seconds(predict(**hopper)) * 1.03 < second


def test_gradients_reduced_once_a_step_are_kept_whole() -> None:
    """KempnerForge's FSDP, alone and beside TP: each rank keeps 4 bytes of each of its parameters
    until the last micro-batch, and reduces them once."""
    rows = read_rows(PUBLISHED / "kempnerforge.csv")
    few = [one for one in rows if one.text("num_gpus") in ("8", "160")]
    for once in predict_rows(one for one in few if one.says("variant", "no_sync")):
        plain = once.row.fact("variant").removeprefix("no_sync")
        (each,) = predict_rows([replace(once.row, cells=once.row.cells | {"variant": plain})])
        assert once.mapped is not None
        degrees, model = once.mapped.degrees, once.mapped.job.model
        table = model.vocab * model.hidden
        whole = (parameter_count(model).total - table) / degrees.tp + table
        kept = allocated(once) - allocated(each)
        assert kept == pytest.approx(4.0 * whole * (1.0 - 1.0 / degrees.dp), rel=0.1)
        assert seconds(once) < seconds(each)
        assert abs(error_of(once, "memory") or 1.0) < 0.1


def test_four_logits_of_a_held_loss_and_no_root() -> None:
    """KempnerForge's compiled 7B and 13B under tensor parallelism: within 0.5 %, 5 to 10 % light
    before."""
    rows = read_rows(PUBLISHED / "kempnerforge.csv")
    found = predict_rows(
        one for one in rows if one.text("loss") == "16-bit logits, gathered over tp"
    )
    small = [one for one in found if one.row.text("model") in ("Llama3-arch-7B", "Llama3-arch-13B")]
    assert len(small) > 10
    assert max(abs(error_of(one, "memory") or 0.0) for one in small) < 0.005


def test_an_optimizer_on_the_host_leaves_the_gpu_and_takes_the_cpus_time() -> None:
    on_gpu, on_host = predict(recompute="full"), predict(recompute="full", offload="optimizer")
    half = predict(recompute="full", offload="optimizer 50%")
    sizes = [one.memory_bytes() or 0.0 for one in (on_gpu, half, on_host)]
    assert sizes[0] > sizes[1] > sizes[2]
    # fp32 master weights, two moments and the gradients of an eighth of the parameters, and the
    # blocks of their update.
    assert sizes[0] - sizes[2] == pytest.approx(20 * 6.74e9 / 8, rel=0.1)
    times = [one.step_time_s or 0.0 for one in (on_gpu, half, on_host)]
    assert times[2] - times[0] == pytest.approx(2.0 * (times[1] - times[0]), rel=0.05)


def test_deepspeeds_update_casts_gradients_of_the_ranks_share() -> None:
    """16 bytes of weights, gradients and states, 6 of a group of 1e9 parameters at a time, and a
    bucket of 1e9 bytes."""
    (small, *_) = published("qwen-finetuning", "finetuning_stacks")
    parameters, ends = 1.84e9, 2 * 2048 * 151936
    least = 16 * parameters + 6 * 1e9 + 1e9
    assert least < (small.memory_bytes() or 0.0) < least + 4 * ends


@pytest.mark.parametrize(
    ("cells", "share"),
    [
        ({"recompute": "full"}, 1.0),
        ({"recompute": "full(but qkv)"}, 1.0 - 12288 / (12288 + 4096 + 3 * 11008)),
        ({"recompute": "full(but qkv and out_proj)", "framework": "MaxText (JAX)"},
         1.0 - 16384 / (16384 + 2 * 11008)),
    ],
)  # fmt: skip
def test_products_that_recomputation_keeps(cells: dict[str, str], share: float) -> None:
    found = row(**{**DEEPSPEED, "framework": "nanotron", "zero": "zero1", **cells})
    mapped = map_row(found)
    assert kept_products_share(found, mapped.job) == pytest.approx(share)
    assert (mapped.memory_gap is None) == (share == 1.0)


@pytest.mark.parametrize(
    ("software", "kernel"),
    [
        ("2023-04", "flash1"),
        ("2022", "flash1"),
        ("2023-08", "flash2"),
        ("nanotron 2024-07", "flash2"),
    ],
)
def test_fused_attention_by_the_age_of_the_software(software: str, kernel: str) -> None:
    mapped = map_row(row(**{**DEEPSPEED, "software": software, "gpu": "A100-80GB"}))
    assert mapped.job.attention_kernel == kernel


@pytest.mark.parametrize(
    ("overlap", "reduction", "gather"),
    [("", 0.5, 0.0), ("grad_reduce", 1.0, 0.0), ("dp", 1.0, 1.0), ("no-dp", 0.0, 0.0),
     ("tp param_gather no-grad_reduce", 0.0, 1.0)],
)  # fmt: skip
def test_stated_exchanges_of_data_parallelism(
    overlap: str, reduction: float, gather: float
) -> None:
    cells = {**DEEPSPEED, "framework": "Colossal-AI", "zero": "zero1", "overlap": overlap}
    found = map_row(row(**cells)).job.framework.overlap
    assert (found.gradient_reduction, found.parameter_gather) == (reduction, gather)


@pytest.mark.parametrize(
    ("software", "like"),
    [("NeMo 24.12", "megatron-core"), ("NeMo 25.02", "megatron-core"),
     ("NeMo 25.04", "megatron-bridge"), ("", "megatron-bridge")],
)  # fmt: skip
def test_nemos_loss_by_its_release(software: str, like: str) -> None:
    cells = {**DEEPSPEED, "framework": "NeMo", "zero": "dist-optimizer", "software": software}
    kernels = map_row(row(**cells)).job.framework.kernels
    assert kernels.loss_traffic == load_framework(like).kernels.loss_traffic


EARLY = {"gpu": "A100-80GB", "act": "gelu", "flash": "n", "zero": "", "precision": "fp16"}


@pytest.mark.parametrize(
    ("cells", "profile"),
    [
        ({"zero": "hsdp(zero3 within node, DDP across)"}, "fsdp1"),
        ({"zero": "fsdp-zero3", "recompute": "selective-op"}, "torchtitan"),
        ({"zero": "zero1", "overlap": "grad_reduce param_gather"}, "deepspeed"),
        (EARLY, "megatron-lm-2022"),
        (EARLY | {"zero": "zero1"}, "megatron-deepspeed"),
        (EARLY | {"precision": "bf16"}, "hf-transformers"),
        ({"zero": "none", "compile": "y"}, "nanogpt"),
    ],
)
def test_mechanisms_without_a_name(cells: dict[str, str], profile: str) -> None:
    job = map_row(row(**{**DEEPSPEED, **cells}).unnamed).job
    assert job.framework.name == profile


def test_a_gated_delta_net_of_a_row_has_the_parameters_that_its_page_prints() -> None:
    """Qwen3.5-9B (huggingface/transformers, pull request 48692) trains 8,953,803,264."""
    (qwen,) = (
        one
        for one in read_rows(PUBLISHED / "strangers_2026_11.csv")
        if one.says("mixer", "gated delta")
    )
    assert parameter_count(map_row(qwen).job.model).total == 8_953_803_264
    unstated = replace(qwen, cells=qwen.cells | {"mixer": "gated delta net"})
    (refused,) = predict_rows([unstated])
    assert refused.error == "which layers are gated delta nets is not stated"


def test_fsdp_that_keeps_weights_gathered_gathers_beside_the_pass() -> None:
    """Stage 2 of FSDP is SHARD_GRAD_OP: each block's weights are gathered before it runs."""
    for name in ("nanogpt", "fsdp1", "hf-fsdp2", "torchtune", "torchtitan"):
        assert load_framework(name).overlap.parameter_gather == 1.0


PLAIN = DEEPSPEED | {
    "framework": "plain PyTorch DDP", "zero": "none", "num_gpus": "2", "hidden": "2048",
    "ffn": "5632", "layers": "16", "heads": "16", "kv_heads": "16", "gbs": "8",
    "mem_kind": "allocated",
}  # fmt: skip


def peak_bytes(**cells: str) -> float:
    (found,) = predict_rows([row(**PLAIN | cells)])
    assert found.step is not None
    return float(found.step[f.STEP_ALLOCATED_BYTES])


def test_a_script_of_its_own_under_ddp_has_its_loss_in_the_compiled_graph() -> None:
    profiles = [
        map_row(row(**PLAIN | cells)).job.framework.name
        for cells in ({"compile": "y"}, {"compile": "n"}, {}, {"zero": "zero1", "compile": "n"})
    ]
    assert profiles == ["nanogpt", "hf-transformers", "hf-transformers", "hf-transformers"]


@pytest.mark.parametrize("compiled", ["y", "n"])
def test_ddp_keeps_its_buckets_beside_a_divided_optimizer(compiled: str) -> None:
    """ZeroRedundancyOptimizer divides Adam's moments alone. llm_TII's runs hold 6.0 bytes a
    parameter between steps on two ranks: 2 of weights, 2 of buckets, half of 4 of moments."""
    parameters = parameter_count(map_row(row(**PLAIN)).job.model).total
    whole = peak_bytes(compile=compiled)
    divided = peak_bytes(compile=compiled, zero="zero1")
    assert whole - divided == pytest.approx(2 * parameters, rel=0.01)


def test_a_loop_that_keeps_its_logits_has_them_beside_their_gradients() -> None:
    tokens, vocab = 2 * 4096, 32000
    more = peak_bytes(loss="plain, logits kept") - peak_bytes(loss="plain")
    assert more == pytest.approx(4 * tokens * vocab, rel=0.01)


def test_peaks_of_megatron_bridge_with_what_its_release_sets() -> None:
    """19 runs of Qwen3, dense and of experts, tp 1 to 8, with and without recomputation."""
    found = published("nebius-qwen3-h100", "strangers_2026_11d")
    errors = [error for one in found if (error := error_of(one, "memory")) is not None]
    assert len(errors) == 19
    assert max(map(abs, errors)) < 0.05
    ran_out = [one for one in found if one.row.text("oom") == "1"]
    assert not any(one.fits for one in ran_out)


def test_whole_models_in_fp16_without_autocast() -> None:
    """A plain loop on MI350X: weights, gradients and moments of 2 bytes, list kernels, a loss of
    16-bit logits, and torch's LayerNorm, which keeps its input alone."""
    rows = read_rows(PUBLISHED / "strangers_2026_11d.csv")
    alone = [
        one for one in predict_rows(rows)
        if one.row.source == "mi350x-transformer" and one.row.integer("num_gpus") == 1
    ]  # fmt: skip
    assert len(alone) == 7
    for one in alone:
        assert one.mapped is not None
        profile = one.mapped.job.framework
        assert (profile.state.master_bytes, profile.state.gradient_bytes) == (0.0, 2.0)
        assert profile.saved.logits_peak_bytes == 8.0
        assert abs(error_of(one, "memory") or 1.0) < 0.05


def test_mixtures_under_xla_wait_for_their_weights() -> None:
    """Dense layers prefetch the next; and gradients are of their weights' 16 bits."""
    plain, *_ = published("maxtext-b200", "strangers_2026_11e")
    assert plain.mapped is not None
    inputs = CostModel(plain.mapped.job).framework_inputs
    assert inputs.hide_fsdp_prefetch == 0.0
    assert plain.mapped.job.framework.kernels.gradient_communication_bytes == 2.0
    dense = replace(plain.row, cells=plain.row.cells | {"moe": "", "mla": "", "ep": "1"})
    assert CostModel(map_row(dense).job).framework_inputs.hide_fsdp_prefetch == 1.0


def test_a_trainer_under_fsdp2_trains_transformers_own_models() -> None:
    job = map_row(row(framework="HF Trainer (TRL SFTTrainer, FSDP2)", zero="fsdp2")).job
    assert job.framework.name == "hf-fsdp2"


def test_four_bit_products_of_torchao_are_run_again() -> None:
    """torchtitan's per-op policy does not list them; their operands are rotated to be cast."""
    stated = {"framework": "torchtitan", "gpu": "GB200-186GB", "recompute": "selective-op"}
    four, eight = (
        map_row(row(**stated, precision=precision)) for precision in ("nvfp4", "mxfp8(linears)")
    )
    assert four.mode.mask == Module.FULL
    assert eight.mode.mask == Module.SELECTIVE_OP
    assert four.job.framework.kernels.cast_traffic_bytes == 20.0
    assert eight.job.framework.kernels.cast_traffic_bytes == 6.06


@pytest.mark.parametrize("software", ["torchtitan 0.2.2", "2025-10"])
def test_torchtitans_norms_are_fused_since_its_second_version(software: str) -> None:
    fused = map_row(row(framework="torchtitan", compile="n", software=software)).job
    older = map_row(row(framework="torchtitan", compile="n", software="torchtitan 0.1.0")).job
    assert fused.framework.saved.norm_extra_bytes == 0.0
    assert older.framework.saved.norm_extra_bytes == 2.0


def test_torchtitan_without_fsdp_runs_under_autocast() -> None:
    """Of fp32 weights; FSDP gathers 16-bit ones, whatever its states are held in."""
    stated = {"framework": "torchtitan", "gpu": "H200-141GB", "pp": "4", "software": "2025-11"}
    split, sharded = (
        map_row(row(**stated, precision="amp_bfloat16", zero=zero)).job.framework
        for zero in ("none", "fsdp2")
    )
    assert (split.state.weight_bytes, split.state.master_bytes) == (4, 0)
    assert split.kernels.accumulation_traffic_bytes == 18
    assert (sharded.state.weight_bytes, sharded.state.master_bytes) == (2, 4)


def test_rows_packed_to_short_samples_keep_their_experts() -> None:
    packed = map_row(
        row(moe="8 experts top2", sequences="attention within samples of 430 tokens", seq="4096")
    ).job.model
    assert {kind.ffn for kind in packed.layer_kinds} == {"moe"}
