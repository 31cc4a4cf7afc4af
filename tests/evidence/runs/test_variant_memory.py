"""What rows say of what their software keeps."""

from __future__ import annotations

import pytest

from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.report import error_of
from planner.predict.cost_model import CostModel
from tests.evidence.runs.rows_for_tests import Case, cases, check_settings, row
from tests.evidence.runs.test_variant_peaks import GPT2_XL, TORCHTITAN

AUTOCAST = GPT2_XL | {"precision": "bf16 autocast"}
BRIDGE = {"framework": "Megatron-Bridge", "gpu": "H100-80GB", "precision": "fp8"}
CORE = BRIDGE | {"framework": "Megatron-Core"}
NVFP4 = {"precision": "nvfp4", "gpu": "B200-180GB"}
CHUNKED = TORCHTITAN | {"framework": "torchtitan", "compile": "y", "loss": "chunked"}
TORCHTUNE = {"framework": "torchtune"}
LITGPT = {"framework": "litgpt"}
TITAN = {"pp": "1", "vpp": "1", "zero": "fsdp-zero3", "precision": "bf16", "flash": "y",
         "framework": "torchtitan"}  # fmt: skip
KEMPNER = {"framework": "KempnerForge (PyTorch FSDP2)"}
HALF = {"framework": "Megatron-DeepSpeed", "precision": "bf16"}
PLAIN_NORM = {"saved.norm_input_bytes": 2.0, "saved.norm_extra_bytes": 0.0}

SAVED: dict[str, list[Case]] = {
    "autocast is a mode of its own unless weights are in 16 bits; a graph keeps 16 bits": [
        (
            AUTOCAST | cells,
            {"mode": mode, "saved.residual_bytes": residual, "saved.weight_cast_bytes": cast},
        )
        for cells, mode, residual, cast in (
            ({"state_precision": ""}, "amp", 4.0, 2.0),
            ({"state_precision": "bf16"}, "bf16", 2.0, 0.0),
            ({"state_precision": "", "compile": "y"}, "amp", 2.0, 0.0),
        )
    ],
    "autocast's norms are casts beside a 16-bit stream": [
        (
            AUTOCAST | {"framework": "plain PyTorch DDP", **cells},
            {"saved.norm_extra_bytes": extra},
        )
        for cells, extra in (
            ({"state_precision": "bf16", "compile": "y"}, 4.0),
            ({"state_precision": "bf16", "compile": "n"}, 8.0),
            ({"state_precision": "fp32", "compile": "y"}, 0.0),
        )
    ],
    "eager RMS norms of LitGPT keep 32 bits": [
        (
            LITGPT | {"act": "swiglu", "compile": "n"},
            {"saved.norm_input_bytes": 4.0, "saved.norm_extra_bytes": 4.0},
        ),
        (LITGPT | {"act": "swiglu", "compile": "y"}, PLAIN_NORM),
        (LITGPT | {"act": "gelu", "compile": "n"}, PLAIN_NORM),
    ],
    "chunks of head and loss hold few logits": [
        (
            CHUNKED | {"software": "2026-03"},
            {"saved.linear_loss": False, "saved.logits_saved_bytes": 2.0},
        ),
        (
            CHUNKED | {"software": "2026-07"},
            {"saved.linear_loss": True, "saved.logits_saved_bytes": 0.0},
        ),
    ],
    "a loop without a graph has an eager loss": [
        (
            {"framework": framework, "loss": "plain", "compile": compiled},
            {"saved.logits_peak_bytes": peak},
        )
        for framework, compiled, peak in (
            ("nanoGPT", "n", 12.0),
            ("nanochat (plain PyTorch)", "n", 16.0),
            ("nanochat (plain PyTorch)", "y", "as nanogpt"),
        )
    ],
    "a script's softmax keeps exponents and quotient": [
        (
            GPT2_XL
            | {"framework": framework, "flash": flash, "precision": "fp32", "state_precision": ""},
            {"saved.softmax_in_operators": kept},
        )
        for framework, flash, kept in (
            ("plain PyTorch", "n", True),
            ("plain PyTorch", "y", False),
            ("HF Trainer (transformers)", "n", False),
        )
    ],
    "a script without zero.Init holds what ZeRO-3 gathered": [
        (
            {"framework": framework, "zero": "zero3", "recompute": recompute},
            {"state.live_parameters": live},
        )
        for framework, recompute, live in (
            ("DeepSpeed", "none", 1e15),
            ("DeepSpeed", "full", 1e9),
            ("LLaMA-Factory (DeepSpeed)", "none", 1e9),
        )
    ],
    "torch's own AdamW works in lists": [
        (
            AUTOCAST
            | {"framework": "plain PyTorch", "optimizer": optimizer, "state_precision": ""},
            {"optimizer.kernels": kernels},
        )
        for optimizer, kernels in (
            ("", ("foreach", "fused", "forloop")),
            ("adamw fused", ("fused", "foreach", "forloop")),
        )
    ],
    "tokens that are gathered need no connection of every pair": [
        (
            CORE | {"ep_dispatch": dispatch},
            {"outside.peer_channel_bytes": size},
        )
        for dispatch, size in (("allgather", 0.0), ("alltoall", 1.46e7))
    ],
    "Primus runs Transformer Engine's loss unless told otherwise": [
        (
            {"framework": "Primus (Megatron backend)", "loss": loss},
            {"saved.logits_peak_bytes": f"as {profile}"},
        )
        for loss, profile in (("", "megatron-bridge"), ("plain", "megatron-core"))
    ],
    "torchtune compiles and chunks unless told otherwise": [
        (
            TORCHTUNE | cells,
            {"saved.gated_activation_tensors": tensors, "saved.logits_peak_bytes": peak},
        )
        for cells, tensors, peak in (
            ({"compile": "n", "loss": "plain"}, 3.0, 12.0),
            ({"compile": "y", "loss": "plain"}, 2.0, 12.0),
            ({"loss": "chunked"}, 2.0, "as torchtune"),
        )
    ],
    "an embedding may be whole on every rank of tensor parallelism": [
        (KEMPNER | {"variant": "no_sync"}, {"saved.embedding_sharded": True}),
        (KEMPNER | {"variant": "no_sync, whole embedding"}, {"saved.embedding_sharded": False}),
    ],
    "llm-foundry's checkpoints stop early from torch 2.1 on": [
        (
            {"framework": "Composer/llm-foundry FSDP", "software": software},
            {"recomputing.stops_early": early},
        )
        for software, early in (("2023-02", False), ("2023-04 tables", False), ("2024-01", True))
    ],
    "the loss is compiled where torchtitan compiles it": [
        (TITAN | cells, {"saved.logits_peak_bytes": peak})
        for cells, peak in (
            ({"tp": "8", "variant": "eager"}, 14.0),
            ({"tp": "8", "variant": "compile"}, 4.0),
            ({"tp": "1", "variant": "eager"}, 14.0),
            ({"tp": "1", "variant": "compile"}, 4.0),
            (
                {
                    "framework": "torchtitan FSDP2",
                    "tp": "8",
                    "variant": "compile",
                    "software": "torchtitan 2024-12",
                },
                14.0,
            ),
            ({"software": "torchtitan 2025-03", "compile": "y"}, 14.0),
            ({"software": "torchtitan 2025-04", "compile": "y"}, 4.0),
        )
    ],
}
STATES: dict[str, list[Case]] = {
    "recipes of Megatron-Bridge keep weights in 8 bits": [
        (BRIDGE, {"state.quantised_weights": True}),
        (BRIDGE | {"fp8_recipe": "blockwise"}, {"state.quantised_weights": False}),
        (BRIDGE | NVFP4, {"state.quantised_weights": True}),
        (BRIDGE | NVFP4 | {"software": "NeMo 26.06.01"}, {"state.quantised_weights": True}),
        (BRIDGE | NVFP4 | {"software": "NeMo 26.04.01"}, {"state.quantised_weights": False}),
        (BRIDGE | NVFP4 | {"software": "Megatron-Core 0.17"}, {"state.quantised_weights": False}),
        (CORE, {"state.quantised_weights": False}),
        (CORE | {"fp8_gather": "y"}, {"state.quantised_weights": True}),
    ],
    "gradients vanish where the optimizer steps in backward": [
        (TORCHTUNE, {"state.updates_in_backward": False}),
        (TORCHTUNE | {"optimizer": "adamw, in backward"}, {"state.updates_in_backward": True}),
    ],
    "weights of 16 bits have no other copy": [
        (
            {"framework": "NeMo AutoModel", "state_precision": stated},
            {"state.master_bytes": master, "state.gradient_bytes": 2.0 + master / 2.0},
        )
        for stated, master in (("bf16", 0.0), ("fp32", 4.0))
    ],
    "Apex's distributed Adam has 16 of a master weight's 32 bits in the bf16 weight": [
        (
            {"framework": "NeMo/Megatron-Core", "software": software},
            {"state.master_bytes": kept},
        )
        for software, kept in (
            ("NeMo 24.07", 2.0),
            ("dgxc-benchmarking v24.11.1", 2.0),
            ("NeMo 25.04", 4.0),
            ("", 4.0),
        )
    ],
    "DeepSpeed's bucket is that of who configures it": [
        (
            {"framework": framework, "zero": zero, "tp": "1", "pp": "1", "vpp": "1"},
            {"state.whole_bucket_bytes": size},
        )
        for framework, zero, size in (
            ("DeepSpeed + HF transformers", "zero3", 1e9),
            ("HF transformers, PyTorch Lightning (DeepSpeed)", "zero3", 4e8),
            ("LLaMA-Factory (DeepSpeed, HF transformers)", "zero3", 0.0),
            ("LLaMA-Factory (DeepSpeed, HF transformers)", "zero2", 1e9),
        )
    ],
}


@cases(SAVED | STATES)
def test_settings_that_rows_state(case: Case) -> None:
    check_settings(case)


@pytest.mark.parametrize(
    "offload", ["activations of 40 layers", "parameters, gradients and optimizer"]
)
def test_memory_beyond_the_model_is_not_predicted(offload: str) -> None:
    (prediction,) = predict_rows([row(offload=offload, peak_mem_gib="10")])
    assert prediction.step_time_s is not None
    assert prediction.memory_bytes() is None
    assert error_of(prediction, "memory") is None


@pytest.mark.parametrize("framework", ["Megatron-Core", "Megatron-Bridge"])
def test_gradients_of_16_bits_are_cast_for_the_update(framework: str) -> None:
    for gradients, copy in (("fp32", 0.0), ("bf16", 4.0)):
        job = map_row(row(framework=framework, grad_precision=gradients)).job
        assert CostModel(job).framework_inputs.optimizer_temporary_bytes == copy


@pytest.mark.parametrize(("stated", "sums"), [("bf16", 0.0), ("fp32", 4.0), ("", 4.0)])
def test_bf16_gradients_of_deepspeed_have_no_fp32_sums(stated: str, sums: float) -> None:
    found = map_row(row(**HALF, grad_precision=stated))
    state = found.job.framework.in_precision("bf16").state
    assert state.extra_gradient_bytes == sums
    assert (state.flat_update_bytes > 0.0) == (sums == 0.0)
