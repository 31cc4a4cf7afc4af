"""Published runs of strangers' stacks are predicted within what the table says, and tell of what
they were kept for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.evidence.runs.predict import Prediction, predict_rows
from planner.evidence.runs.report import error_of
from tests.evidence.runs.rows_for_tests import published

MEMORY_DRAW = "strangers_2026_11h"


def undoubted(source: str, file: str) -> list[Prediction]:
    return [one for one in published(source, file) if not one.row.doubted]


@pytest.mark.parametrize(
    ("file", "source", "time", "memory"),
    [
        ("finetuning_stacks", "qwen-finetuning", 0.125, 0.25),
        ("finetuning_stacks", "internlm-scaling", 0.13, None),
        ("finetuning_stacks", "hf-accelerate-granite", 0.10, None),
        # Its optimizer on the host takes twice as long as predicted, the rest 1.4 times.
        ("finetuning_stacks", "deepspeed-zero-a800", 0.57, 0.46),
        ("strangers_2026_11", "gcp-gpu-recipes", 0.08, None),
        ("strangers_2026_11", "transformers-b200", 0.01, None),
        ("strangers_2026_11", "colossal-benchmark", 0.06, 0.17),
        ("strangers_2026_11", "atorch-llama2", 0.13, 0.61),
        ("strangers_2026_11", "lightning-thunder", 0.14, 0.36),
        ("strangers_2026_11b", "llm-c", 0.14, None),
        ("strangers_2026_11b", "llm-tii", 0.24, 0.16),
        ("strangers_2026_11b", "oumi-2b", 0.33, None),
        ("strangers_2026_11b", "gpt-simple", 0.07, None),
        ("strangers_2026_11b", "prime-rl", 0.42, 0.07),
        ("strangers_2026_11b", "nanogpt-issues", 0.17, None),
        ("strangers_2026_11c", "gipfelsturm-gh200", 0.17, None),
        ("strangers_2026_11c", "geodesic-nano", 0.33, 0.23),
        # Attention there has the rates of its published kernels.
        ("strangers_2026_11c", "nvcre-gb300", 0.24, None),
        ("strangers_2026_11c", "posttrain-a800", 0.07, 0.04),
        ("strangers_2026_11c", "tk-llama-gb200", 0.09, 0.06),
        ("strangers_2026_11c", "mlperf-5.1-nemo", 0.20, None),
        ("strangers_2026_11c", "mlperf-5.1-amd", 0.14, None),
        ("strangers_2026_11c", "dhelix-h800", 0.16, None),
        ("strangers_2026_11c", "pai-qwen3-h800", 0.09, None),
        ("strangers_2026_11c", "llmfs-gpt2", 0.46, None),
        ("strangers_2026_11d", "a4x-gb200-llama", 0.09, None),
        ("strangers_2026_11d", "a4x-gb200-qwen3", 0.14, 0.23),
        ("strangers_2026_11d", "alps-8b-fp8", 0.14, None),
        ("strangers_2026_11d", "b200-k8s-llama8b", 0.20, None),
        ("strangers_2026_11d", "backdoor-h200", 0.07, None),
        ("strangers_2026_11d", "cs336-4090", 0.30, 0.22),
        ("strangers_2026_11d", "distrain", 0.28, None),
        # The exchange of experts beside compute under Megatron-Core 0.15: memory 37 and 40 % light
        # before. One run with graphs of routers (0.33), and DeepEP (0.23), are slower.
        ("strangers_2026_11d", "hyperpod-qwen3", 0.34, 0.08),
        ("strangers_2026_11d", "kys-nanotron", 0.05, 0.12),
        ("strangers_2026_11d", "mi350x-torchtune", 0.05, None),
        ("strangers_2026_11d", "poc-titan-h200", 0.10, 0.15),
        ("strangers_2026_11d", "together-b200", 0.26, None),
        # Experts over nodes by EFA, with all-to-all and DeepEP; two NVSHMEM runs err by half.
        ("strangers_2026_11e", "aws-h100-qwen3-30b", 0.5, None),
        # Experts' weights travel beside nothing: 1 to 16 sequences a GPU.
        ("strangers_2026_11e", "maxtext-b200", 0.25, None),
        ("strangers_2026_11e", "maxtext-mi355x", 0.25, None),
        ("strangers_2026_11e", "micro-model-4080s", 0.28, 0.21),
        # A million tokens and more, a layer's checkpoints on the host.
        ("strangers_2026_11e", "trl-1m", 0.18, None),
        # GPT of 2.7B to 28B under FSDP on up to 1,024 H100 of 64 GB.
        ("strangers_2026_11g", "modalities-mn5", 0.18, None),
        # Qwen3 235B over 32 B300: torchtitan beside prime-rl.
        ("strangers_2026_11g", "prime-rl-235b-b300", 0.17, 0.04),
        # Pipelines of four H200: 1F1B, GPipe, interleaved, ZB-V.
        ("strangers_2026_11g", "pp4-titan-h200", 0.1, 0.17),
        ("strangers_2026_11g", "dgx-station-gb300", 0.21, 0.06),
        ("strangers_2026_11g", "tilearn-a800", 0.2, 0.2),
        # The ninth draw: GPT-2 on two RTX 4090, one MI300X, MI250X on LUMI, mixtures on eight H100.
        ("strangers_2026_11i", "speedrun-2x4090", 0.2, None),
        ("strangers_2026_11i", "mi300x-llama31", 0.12, None),
        ("strangers_2026_11i", "modded-llama2", 0.15, None),
        ("strangers_2026_11i", "lumi-scaling", 0.5, None),
        ("strangers_2026_11i", "megatron-tutorials", 0.5, 0.15),
    ],
)
def test_published_runs_are_predicted_within(
    file: str, source: str, time: float, memory: float | None
) -> None:
    for prediction in published(source, file):
        assert prediction.error is None
        assert abs(error_of(prediction, "time") or 0.0) < time
        assert memory is None or abs(error_of(prediction, "memory") or 0.0) < memory


def test_two_chunks_are_kept_where_an_exchange_overlapped_before_megatron_core_0_16() -> None:
    """Without a pipeline a chunk is every layer; nothing overlaps in a step of one micro-batch."""
    rows = published("hyperpod-qwen3", "strangers_2026_11d")
    beside = next(
        one.row
        for one in rows
        if one.row.fact("overlap").endswith("ep") and one.row.says("mbs", "2")
    )

    def peak(**cells: str) -> float:
        (found,) = predict_rows([replace(beside, cells=beside.cells | {"pp": "1"} | cells)])
        return found.memory_bytes("allocated") or 0.0

    alone, later = peak(overlap="grad_reduce"), peak(software="NeMo 26.02")
    two, four = (peak(mbs=mbs) - peak(mbs=mbs, overlap="grad_reduce") for mbs in ("2", "4"))
    assert alone == later
    assert four == pytest.approx(2.0 * two, rel=0.01)
    assert two == pytest.approx(43.4e9, rel=0.02)
    once = {"gbs": str(2 * int(beside.text("dp") or "1"))}
    assert peak(**once) == peak(**once, overlap="grad_reduce")


def test_deepep_waits_for_each_token_inside_a_node() -> None:
    """Qwen3-30B under torchtitan on 8 to 128 B200 (recomputation not stated): -26 to -29 % where
    only bytes counted."""
    runs = published("nous-titan-b200", "strangers_2026_11e")
    sent = [
        one for one in runs if one.row.says("ep_dispatch", "deepep") and one.row.text("step_time_s")
    ]
    assert len(sent) == 6
    for one in sent:
        assert one.step_time_s == pytest.approx(float(one.row.text("step_time_s") or "0"), rel=0.08)


@pytest.mark.parametrize(
    ("source", "time", "memory"),
    [
        # Llama 3.1 405B in fp8 on 512 to 8192 H100, H200 and GB200.
        ("mlperf-405b-h100", 0.08, None),
        ("mlperf-405b-h200", 0.05, None),
        ("mlperf-405b-gb200", 0.05, None),
        ("mlperf-405b-coreweave", 0.05, None),
        # GPT-3 on 256 to 11,616 H100.
        ("mlperf-gpt3-h100", 0.13, None),
        # 8B in bf16, mxfp8 and nvfp4 on four GB200. In nvfp4 20 % more is reserved than predicted;
        # the others within 1 %.
        ("titan-nvfp4-qwen3", 0.1, 0.21),
    ],
)
def test_published_runs_of_the_sixth_draw(source: str, time: float, memory: float | None) -> None:
    predictions = undoubted(source, "strangers_2026_11f")
    assert predictions
    for prediction in predictions:
        assert prediction.error is None
        assert abs(error_of(prediction, "time") or 0.0) < time
        if memory is not None:
            assert abs(error_of(prediction, "memory") or 0.0) < memory


def test_lucie_under_deepspeed_fits_where_it_ran() -> None:
    found = published("lucie-a100", "strangers_2026_11g")
    assert len(found) == 18
    assert all(prediction.fits for prediction in found)


@pytest.mark.parametrize(
    ("source", "memory"),
    [
        # DeepSeek-V3's layers under Megatron-Core on 64 H100, eight ways of recomputing.
        ("mcore-dsv3-h100", 0.17),
        # Megatron-Bridge on eight H100 against Megatron-LM.
        ("bridge-notes-h100", 0.1),
        # transformers' blocks under FSDP2.
        ("automodel-h100", 0.21),
        # Megatron-SWIFT: mixtures and a dense 72B.
        ("ms-swift-examples", 0.2),
        # Llama 3 8B on eight H100, bf16 and float8.
        ("torchao-guide", 0.15),
    ],
)
def test_published_peaks_of_the_draw_for_memory(source: str, memory: float) -> None:
    errors = [
        error_of(one, "memory") for one in undoubted(source, MEMORY_DRAW) if one.error is None
    ]
    assert sum(error is not None for error in errors) > 2
    assert all(abs(error) < memory for error in errors if error is not None)


def test_checkpoints_may_be_on_the_host_beside_the_optimizer() -> None:
    """ArcticTraining trained 8B on 2.4M tokens with eight H100 so."""
    offloads = {
        one.row.fact("offload"): one
        for one in undoubted("arctic-long-8b", MEMORY_DRAW)
        if one.row.fact("num_gpus") == "8"
    }
    assert set(offloads) == {"optimizer", "optimizer checkpoints"}
    for offload, one in offloads.items():
        assert one.mapped is not None
        kept = ("checkpoints",) if offload.endswith("checkpoints") else ()
        assert one.mapped.job.activation_offload == kept
