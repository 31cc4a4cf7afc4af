"""What rows say of how their software computes and exchanges."""

from __future__ import annotations

import pytest

from planner.evidence.runs.mapping import map_row
from tests.evidence.runs.rows_for_tests import Case, cases, check_settings, row
from tests.evidence.runs.test_variant_peaks import MEGATRON, TORCHTITAN

TITAN = TORCHTITAN | {"framework": "torchtitan FSDP2", "source": "torchtitan"}
AUTOMODEL, BRIDGE = {"framework": "NeMo AutoModel"}, {"framework": "Megatron-Bridge"}
BRIDGED_MIXTURE = BRIDGE | {"moe": "8 experts top2", "pp": "1", "vpp": ""}
PERMUTED = {"moe": "8 experts top2", "tp": "1", "pp": "1", "vpp": "", "gpu": "H100-80GB"}
LOCAL = MEGATRON | {"tp": "2", "pp": "1", "flash": "n"}
LLAMA_OF_2023 = {
    "framework": "Composer/llm-foundry FSDP", "act": "swiglu", "software": "2023-10",
}  # fmt: skip
PAX = {"framework": "Paxml (JAX/XLA)", "zero": "zero3(FSDP)", "pp": "1", "vpp": "1"}
EAGER_TRAFFIC = {"kernels.memory_traffic": "as fsdp1", "kernels.norm_traffic": "as fsdp1"}
MPT_TRAFFIC = dict.fromkeys(EAGER_TRAFFIC, "as llm-foundry")

KERNELS: dict[str, list[Case]] = {
    "Megatron of early 2021 adds gradients by kernels of their own": [
        ({}, {"kernels.accumulation_traffic_bytes": 0.0}),
        ({"software": "Megatron-LM 2021-01"}, {"kernels.accumulation_traffic_bytes": 6.0}),
    ],
    "IBM's later blocks compile; so does a stack like FSDP2 without a name, unless it says not": [
        (
            {"framework": framework, "zero": zero, "compile": stated},
            {"kernels.memory_traffic": traffic},
        )
        for framework, zero, compiled in (
            ("PyTorch FSDP1 (fms-fsdp)", "fsdp-zero3", 1.5),
            ("", "fsdp2-zero3", 2.0),
        )
        for stated, traffic in (("n", 4.0), ("y", compiled))
    ],
    "Hugging Face's blocks are eager under any trainer": [
        ({"framework": name}, EAGER_TRAFFIC)
        for name in ("XTuner+DeepSpeed", "DeepSpeed", "LLaMA-Factory")
    ],
    "a llama in llm-foundry of 2023 runs in plain torch": [
        (LLAMA_OF_2023, EAGER_TRAFFIC),
        (LLAMA_OF_2023 | {"act": "gelu"}, MPT_TRAFFIC),
        (LLAMA_OF_2023 | {"software": "2024-03"}, MPT_TRAFFIC),
    ],
    "a benchmark's balanced gate takes neighbours": [
        (
            AUTOMODEL | {"routing": "forced, neighbouring experts"},
            {"kernels.neighbouring_experts": True},
        ),
        (AUTOMODEL | {"routing": "natural"}, {"kernels.neighbouring_experts": False}),
    ],
    "facts of Bridge's recipes": [
        (BRIDGE | {"routing": "dropless"}, {"kernels.pads_experts": True}),
        (BRIDGE | {"routing": "dropless"}, {"kernels.counts_on_host": True}),
        (BRIDGE | {"routing": "drops tokens"}, {"kernels.counts_on_host": False}),
        (BRIDGE | {"routing": "drops tokens"}, {"kernels.pads_experts": False}),
        (BRIDGE | {"routing": "forced, padded"}, {"kernels.pads_experts": False}),
        (BRIDGE | {"cuda_graphs": "full_iteration"}, {"kernels.pads_experts": False}),
        (BRIDGE | {"moe_gemm": "sequential"}, {"kernels.sequential_experts": True}),
        (BRIDGE | {"kernel": "torch permutation"}, {"kernels.fused_permutation": False}),
        (BRIDGE | {"overlap": "ep no-tp"}, {"overlap.tensor": 0.0}),
        (BRIDGE | {"allocator": "expandable segments"}, {"outside.fragmentation": 0.0}),
    ],
    "Megatron permutes by torch unless told": [
        (PERMUTED | facts, {"kernels.fused_permutation": fused})
        for facts, fused in (
            ({"framework": "Megatron-LM core_v0.17.0"}, False),
            ({"framework": "Megatron-LM", "kernel": "fused permutation"}, True),
            ({"framework": "Megatron-LM", "ep_dispatch": "hybridep"}, True),
            (BRIDGE, True),
            ({"framework": "HF transformers"}, False),
        )
    ],
    "eager blocks under torchtune": [
        ({"framework": "torchtune", "compile": answer}, facts)
        for answer, facts in (
            ("n", {"kernels.memory_traffic": 4.0, "kernels.issue_s": 4e-5}),
            ("y", {"kernels.memory_traffic": 1.5, "kernels.issue_s": 2.5e-5}),
        )
    ],
    "attention in blocks of JAX operations": [
        (
            {"framework": "Levanter (JAX)", "flash": "n", "kernel": kernel},
            {"kernels.score_block": block},
        )
        for kernel, block in (("jax_flash", 1024.0), ("", 0.0))
    ],
    "overlapped layers are released and replay graphs since Megatron-Core 0.16": [
        (
            BRIDGE | {"overlap": "ep", "software": software, "cuda_graphs": "full"},
            {"kernels.overlap_keeps_chunk": keeps, "kernels.captured": not keeps},
        )
        for software, keeps in (
            ("NeMo 25.11.01, NCCL 2.29.3", True),
            ("NeMo 26.02 container", False),
            ("Megatron-Core 0.15.3", True),
            ("Megatron-Core 0.17.1", False),
            ("Megatron-LM core_v0.16.0", False),
            ("", False),
        )
    ],
    "whose kernels send tokens is what a row says": [
        (BRIDGE | {"ep_dispatch": name}, {"kernels.dispatcher": kernels})
        for name, kernels in (("deepep", "deepep"), ("hybridep", "hybridep"), ("alltoall", ""))
    ],
    "performance recipes of Bridge fuse their router": [
        (BRIDGED_MIXTURE | facts, {"kernels.fused_router": fused})
        for facts, fused in (
            ({"software": "NeMo 25.09 container"}, True),
            ({"software": "NeMo 26.04", "kernel": "unfused router"}, False),
            ({"software": "NeMo 25.02"}, False),
            ({"software": "dgxc-benchmarking v25.05.04"}, False),
            ({"routing": "natural"}, False),
            (
                {"mixer": "mamba hybrid: pattern MEM*, heads 8, head_dim 64, groups 8, state 128"},
                False,
            ),
            ({"framework": "Megatron-Core"}, False),
        )
    ],
    "local layers of Megatron issue faster": [
        (LOCAL | {"transformer_impl": "local"}, {"kernels.issue_s": "as megatron-local"}),
        (
            LOCAL | {"transformer_impl": "transformer_engine"},
            {"kernels.issue_s": "as megatron-core"},
        ),
    ],
    "BLOOM waited for every kernel": [
        (
            {"framework": "Megatron-DeepSpeed", "precision": "fp16", "host": host},
            {"kernels.blocking_launches": blocking},
        )
        for host, blocking in (("blocking launches; PCIe and NUMA tuned", True), ("", False))
    ],
    "cross entropy of Transformer Engine where a row states it": [
        ({"framework": "Megatron-Core"}, {"kernels.loss_traffic": "as megatron-core"}),
        (
            {"framework": "Megatron-Core", "loss": "te-fused"},
            {"kernels.loss_traffic": "as megatron-bridge"},
        ),
    ],
    "Megatron's cross entropies under its Bridge, jit-fused and plain": [
        (
            {"framework": framework, "loss": text},
            {"kernels.loss_traffic": "as megatron-core", "saved.logits_peak_bytes": peak},
        )
        for framework in ("Megatron-Core", "Megatron-Bridge")
        for text, peak in (("plain", "as megatron-core"), ("fused", 10.0))
    ],
    # Traffic in fp32, where torchtitan does not compile.
    "torchtitan compiles if told to": [
        (TITAN | cells, {"kernels.memory_traffic": 4.0} if eager else {"kernels.norm_traffic": 1.0})
        for cells, eager in (
            ({"variant": ""}, True),
            ({"variant": "eager"}, True),
            ({"variant": "compile"}, False),
            ({"variant": "async_tp float8"}, False),
            ({"framework": "NeMo AutoModel (PyTorch FSDP2)"}, False),
            ({"compile": "y"}, False),
            ({"overlap": "no-async_tp"}, True),
            ({"precision": "fp8"}, False),
        )
    ],
    "float8 recipes": [
        (
            TITAN
            | {"compile": "y", "precision": "fp8", "fp8_recipe": recipe, "fp8_gather": gather},
            {
                "kernels.quantised_gathers": gathers,
                "kernels.cast_traffic_bytes": casts,
                "kernels.parameter_communication_bytes": parameters,
            },
        )
        for recipe, gather, gathers, casts, parameters in (
            ("tensorwise", "", True, 4.0, 2.0),
            ("rowwise", "", False, 20.0, 2.0),
            ("rowwise_with_gw_hp", "n", True, 4.0, 2.0),
            ("tensorwise", "y", True, 4.0, 1.0),
        )
    ],
}
EXCHANGES: dict[str, list[Case]] = {
    "Megatron of early 2021 waits, and sends whole activations": [
        ({}, {"overlap.tensor_backward": 1.0, "kernels.pipeline_scatters": True}),
        (
            {"software": "Megatron-LM 2021-01"},
            {"overlap.tensor_backward": 0.0, "kernels.pipeline_scatters": False},
        ),
    ],
    "Megatron reduces gradients of bf16 runs in fp32": [
        ({"precision": "fp16"}, {"kernels.gradient_communication_bytes": 2.0}),
        ({"precision": "bf16"}, {"kernels.gradient_communication_bytes": 4.0}),
    ],
    "gradients are reduced as often as a run says": [
        ({"framework": name, "variant": variant}, {"state.unreduced_gradients": once})
        for name, variant, once in (
            ("NeMo AutoModel", "", True),
            ("NeMo AutoModel", "sync_each_batch", False),
            ("torchtitan", "", False),
            ("torchtitan", "no_sync", True),
        )
    ],
    "an exchange hides better in one graph": [
        (BRIDGE | {"overlap": "ep", "cuda_graphs": graphs}, {"overlap.expert": share})
        for graphs, share in (("full_iteration", 0.9), ("transformer_engine: attn", 0.5), ("", 0.5))
    ],
    "Pax of 2023 gathered within an iteration": [
        (PAX | {"software": "JAX-Toolbox 2023-10"}, {"overlap.fsdp_prefetch": 0.75}),
        (PAX | {"software": "JAX-Toolbox 2024 (latest)"}, {"overlap.fsdp_prefetch": 1.0}),
    ],
}


@cases(KERNELS | EXCHANGES)
def test_settings_that_rows_state(case: Case) -> None:
    check_settings(case)


@pytest.mark.parametrize(
    ("software", "compiled", "passes"),
    [
        ("torchtitan 2025-06", "n", 9.0),
        ("torchtitan 2026-01", "n", 1.0),
        ("torchtitan 2026-01", "", 1.0),
        ("torchtitan 2026-01", "y", 2.0),
    ],
)
def test_torch_has_a_kernel_for_rms_norms_since_2_9(
    software: str, compiled: str, passes: float
) -> None:
    """Traffic of a norm over that of one kernel: 36 bytes an element of 4 before, uncompiled."""
    cells = TITAN | {"framework": "torchtitan", "software": software, "compile": compiled}
    profile = map_row(row(**cells)).job.framework
    assert profile.kernels.norm_traffic * profile.kernels.memory_traffic == passes
    assert (profile.saved.norm_input_bytes == 4.0) == (passes == 9.0)


GB200_MIXTURE = {
    "framework": "Megatron-Bridge", "gpu": "GB200", "num_gpus": "64", "tp": "1", "pp": "1",
    "vpp": "1", "ep": "64", "moe": "128 experts top8, expert ffn 1536", "act": "swiglu",
    "flash": "y", "precision": "bf16", "recompute": "none", "gbs": "1024",
}  # fmt: skip


@pytest.mark.parametrize(
    ("cells", "graphs", "overlap"),
    [
        ({"software": "NeMo 25.09 container"}, False, False),
        ({"software": "NeMo 25.09 container", "cuda_graphs": "y"}, True, False),
        ({"software": "NeMo 26.06 container"}, True, True),
        ({}, True, True),
        ({"cuda_graphs": "none"}, False, True),
        ({"cuda_graphs": "transformer_engine: attn moe_router"}, True, True),
        ({"cuda_graphs": "transformer_engine"}, False, True),
        ({"software": "NeMo 26.06 container", "gpu": "H100-80GB"}, False, False),
        ({"software": "NeMo 26.06 container", "moe": ""}, False, False),
    ],
)
def test_recipes_of_mixtures_on_nvl72_use_graphs_and_hybridep(
    cells: dict[str, str], graphs: bool, overlap: bool
) -> None:
    profile = map_row(row(**(GB200_MIXTURE | cells))).job.framework
    assert (profile.kernels.issue_s == 0.0 or profile.kernels.captured) is graphs
    assert profile.kernels.dispatch_deduplicates is overlap
    assert (profile.overlap.expert > 0.0) is overlap
