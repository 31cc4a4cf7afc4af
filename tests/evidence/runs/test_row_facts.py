"""Facts that rows state in columns of their own, and what each changes."""

from __future__ import annotations

import pytest

from planner.evidence.runs.completion import complete
from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.report import time_interval
from planner.evidence.runs.stated import optimizer_name
from planner.predict.uncertainty.families import UNFAMILIAR
from planner.predict.uncertainty.intervals import family_of
from tests.evidence.runs.rows_for_tests import row

# Llama 3 8B on a node: frameworks of today run it.
LLAMA = {
    "model": "Llama3-8B", "layers": "32", "hidden": "4096", "ffn": "14336", "heads": "32",
    "kv_heads": "8", "vocab": "128256", "act": "swiglu", "seq": "8192", "gpu": "H100-80GB",
    "num_gpus": "8", "tp": "1", "pp": "1", "vpp": "1", "zero": "zero3", "gbs": "8",
    "precision": "bf16", "recompute": "full", "flash": "y", "framework": "deepspeed",
}  # fmt: skip


def seconds(**cells: str) -> float:
    (found,) = predict_rows([row(**cells)])
    assert found.step_time_s is not None, found.error
    return found.step_time_s


def test_rings_that_are_not_balanced_wait_for_the_last_rank() -> None:
    ring = LLAMA | {
        "framework": "Megatron-LM", "seq": "131072", "cp": "8", "recompute": "none",
        "zero": "none", "gbs": "1", "cp_comm": "ring",
    }  # fmt: skip
    assert seconds(**ring, cp_balance="y") == seconds(**ring)
    assert seconds(**ring, cp_balance="n") > 1.3 * seconds(**ring)
    heads = ring | {"cp_comm": "a2a"}
    assert seconds(**heads, cp_balance="n") == seconds(**heads)


def test_packed_samples_attend_within_themselves() -> None:
    """A pack of 16,384 tokens of samples of 190 costs no more attention than windows of 95, and
    as much of all else; how long samples are has to be stated."""
    pack = LLAMA | {
        "framework": "Megatron-LM", "seq": "16384", "recompute": "none", "zero": "zero1",
    }  # fmt: skip
    whole = seconds(**pack)
    assert seconds(**pack, sequences="packed, attention within samples") == whole
    short, long = (
        seconds(**pack, sequences=f"packed, attention within samples of {tokens} tokens")
        for tokens in (190, 4096)
    )
    assert short < long < whole
    # The whole causal triangle is 32 layers of 32 heads of 128: 70e12 FLOP forward, and 2.5 times
    # as many backward, at 0.6 to 0.7 of the 16-bit peak; 3 % of it and a tile are left.
    assert whole - short == pytest.approx(3.5 * 70e12 / (0.62 * 989e12), rel=0.1)


def test_a_share_of_the_layers_recomputes() -> None:
    """96 layers on 8 stages: a share of 0.75 runs nine of twelve again."""
    found = predict_rows(
        [row(recompute=mode, recompute_share=share)
         for mode, share in (("none", ""), ("full", "0.75"), ("full", ""))]
    )  # fmt: skip
    times = [item.step_time_s or 0.0 for item in found]
    held = [item.memory_bytes() or 0.0 for item in found]
    assert times[0] < times[1] < times[2]
    assert held[0] > held[1] > held[2]
    assert times[1] - times[0] == pytest.approx(0.75 * (times[2] - times[0]), rel=0.02)


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ("", "adamw"),
        ("fp32", "adamw"),
        ("main_grads fp32 main_params fp32 exp_avg fp32", "adamw"),
        ("main_grads bf16 exp_avg bf16", "adamw:grad=bf16,exp_avg=bf16,exp_avg_sq=bf16"),
        ("moments below fp32", "adamw:exp_avg=bf16,exp_avg_sq=bf16"),
    ],
)
def test_types_of_states_by_part(stated: str, name: str) -> None:
    assert optimizer_name(row(state_precision=stated)) == name


@pytest.mark.parametrize(
    ("cells", "stage"),
    [
        ({"params_b": "7", "num_gpus": "64"}, "1"),
        ({"params_b": "30", "num_gpus": "64"}, "3"),
        ({"params_b": "70", "num_gpus": "64", "pp": "8"}, "1"),
    ],
)
def test_zero_without_a_stage_is_the_lowest_that_leaves_room(
    cells: dict[str, str], stage: str
) -> None:
    completed = complete(row(**LLAMA | {"zero": "ZeRO", "gpu_mem_gb": "80"} | cells))
    assert completed.row.text("zero") == stage
    assert f"zero {stage}" in completed.assumed


def test_unstated_heads_are_128_wide() -> None:
    completed = complete(row(**LLAMA | {"heads": ""}))
    assert completed.row.text("heads") == "32"


def test_an_unstated_precision_widens_the_interval() -> None:
    said, unsaid = predict_rows([row(**LLAMA), row(**LLAMA | {"precision": ""})])
    assert said.step_time_s is not None
    assert said.step_time_s == unsaid.step_time_s
    plain, wide = (time_interval(item, said.step_time_s) for item in (said, unsaid))
    assert wide.low < plain.low
    assert wide.high > plain.high
    assert "precision not stated" in wide.beyond


@pytest.mark.parametrize(
    ("loss", "saved"),
    [("plain", 4.0), ("fused", 2.0), ("chunked", 6.0), ("liger", 0.0), ("fused linear", 0.0)],
)
def test_losses_of_torch_stacks_keep_other_logits(loss: str, saved: float) -> None:
    mapped = map_row(row(**LLAMA, loss=loss))
    assert mapped.job.framework.saved.logits_saved_bytes == saved


@pytest.mark.parametrize("framework", ["InternEvo", "PaddleNLP", "Colossal-AI", "in-house"])
def test_degrees_of_an_unfamiliar_framework_are_its_kind_s(framework: str) -> None:
    cells = LLAMA | {"framework": framework, "tp": "4", "zero": "zero1"}
    job = map_row(row(**cells)).job
    assert job.framework.name == "generic-3d"
    assert family_of(job).framework == UNFAMILIAR


def test_a_row_may_name_a_profile() -> None:
    cells = LLAMA | {"framework": "nanotron-efa-2025", "tp": "4", "zero": "zero1"}
    job = map_row(row(**cells)).job
    assert job.framework.name == "nanotron-efa-2025"
    assert family_of(job).framework == "nanotron"


def test_autocast_over_fp32_weights_where_a_row_says_so() -> None:
    cells = LLAMA | {"framework": "Hugging Face Trainer", "zero": "none"}
    for changes, mode in (
        ({}, "bf16"),
        ({"precision": "bf16-mixed"}, "amp"),
        ({"state_precision": "fp32"}, "amp"),
    ):
        assert map_row(row(**cells | changes)).job.framework.mode == mode


@pytest.mark.parametrize(
    ("framework", "recompute", "module"),
    [
        ("PyTorch FSDP1", "selective", "SELECTIVE_OP"),
        ("Megatron-LM", "selective", "CORE_ATTENTION"),
        ("PyTorch FSDP1", "selective(core attention)", "CORE_ATTENTION"),
    ],
)
def test_selective_means_what_the_framework_can_choose(
    framework: str, recompute: str, module: str
) -> None:
    cells = LLAMA | {"framework": framework, "recompute": recompute}
    assert map_row(row(**cells)).mode.modules == (module,)


# Qwen3-30B-A3B, whose column `ffn` holds the width of one of its 128 experts.
FINE = {
    "layers": "48", "hidden": "2048", "ffn": "768", "heads": "32", "kv_heads": "4",
    "head_dim": "128", "vocab": "151936", "act": "swiglu", "seq": "4096", "moe": "128e top8",
    "gpu": "H100-80GB", "framework": "Megatron-LM", "tp": "1", "pp": "1", "vpp": "1", "ep": "8",
}  # fmt: skip


def test_many_experts_are_as_wide_as_the_column_ffn_if_the_parameters_bear_it_out() -> None:
    moe = map_row(row(**FINE, params_b="30.5")).job.model.moe
    assert moe is not None
    assert (moe.experts, moe.top_k, moe.ffn) == (128, 8, 768)
    # The width of a dense layer, as Qwen's configurations have it beside the experts'.
    for cells in ({"params_b": "30.5", "ffn": "6144"}, {"params_b": ""}):
        with pytest.raises(UnpredictableRowError, match="the width of an expert is not stated"):
            map_row(row(**FINE | cells))


def test_a_shared_expert_has_the_width_behind_its_name() -> None:
    moe = map_row(row(**FINE | {"moe": "12e top6, shared 1024", "ep": "4"})).job.model.moe
    assert moe is not None
    assert (moe.experts, moe.top_k, moe.shared_ffn) == (12, 6, 1024)
