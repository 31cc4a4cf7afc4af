"""The GPUs of measured runs, what they shard over, and their attention kernels."""

from __future__ import annotations

import pytest

from planner.evidence.runs.mapping import map_row
from planner.job.recompute import Module
from tests.evidence.runs.rows_for_tests import row

FSDP = {"tp": "1", "pp": "1", "vpp": "1", "zero": "fsdp-zero3", "num_gpus": "64", "mbs": "1"}


@pytest.mark.parametrize(
    ("cells", "gpu"),
    [
        ({"gpu": "H100-SXM5-96GB-HBM2e"}, "H100-SXM5-96GB-HBM2e"),
        ({"gpu": "H100-80GB"}, "H100-SXM5-80GB"),
        ({"gpu": "B200-180GB", "power_w": "750"}, "B200-SXM-180GB-750W"),
        ({"gpu": "B200-180GB"}, "B200-SXM-180GB"),
        ({"gpu": "H100-80GB", "power_w": "700"}, "H100-SXM5-80GB"),
    ],
)
def test_gpus_at_the_power_that_is_stated(cells: dict[str, str], gpu: str) -> None:
    assert map_row(row(**({"precision": "bf16"} | cells))).job.cluster.gpu.name == gpu


@pytest.mark.parametrize(
    ("cells", "shard"),
    [
        ({"zero": "fsdp-zero3"}, 0),
        ({"zero": "hsdp(zero3 within node, DDP across)"}, 8),
        ({"zero": "hsdp", "zero_group": "16"}, 16),
        ({"zero": "zero3(FSDP)", "zero_group": "4"}, 4),
        ({"zero": "zero3(FSDP)", "zero_group": "64"}, 0),
        ({"zero": "zero3(FSDP)", "zero_group": "24"}, 0),
    ],
)
def test_hybrid_sharding_in_the_words_of_the_sources(cells: dict[str, str], shard: int) -> None:
    assert map_row(row(**(FSDP | cells))).degrees.shard == shard


@pytest.mark.parametrize(
    ("text", "stated", "share"),
    [
        ("selective-layer(every other)", "0.5", 0.5),
        ("selective(every n-th block)", "", 0.5),
        ("selective(every n-th block)", "0.25", 0.25),
        ("full", "0.5", 0.5),
        ("full", "", 1.0),
    ],
)
def test_a_share_of_the_blocks_is_checkpointed_whole(text: str, stated: str, share: float) -> None:
    cells = FSDP | {"recompute": text, "recompute_share": stated}
    mode = map_row(row(framework="torchtitan FSDP2", **cells)).mode
    assert (mode.mask, mode.share) == (Module.FULL, share)


def test_unstated_recompute_is_the_recipe_s() -> None:
    for framework, mask in (("MaxText (JAX)", Module.FULL), ("NeMo", Module.NOTHING)):
        assert map_row(row(framework=framework, recompute="", **FSDP)).mode.mask == mask


def test_paxml_s_attention_is_fused_by_transformer_engine() -> None:
    cells = {"framework": "Paxml (JAX/XLA)", "flash": "", **FSDP}
    for precision, attention in (("bf16", "eager"), ("bf16 (TE)", "flash")):
        assert map_row(row(precision=precision, **cells)).job.attention == attention


def test_pipelines_of_torch_shard_the_optimizer_alone() -> None:
    cells = FSDP | {"framework": "NeMo AutoModel (PyTorch FSDP2+DeepEP)"}
    for pp, zero in (("1", 3), ("4", 1)):
        assert map_row(row(**(cells | {"pp": pp}))).degrees.zero == zero


def test_flex_attention_runs_at_the_rate_of_flash_2() -> None:
    cells = FSDP | {"gpu": "H100-80GB", "framework": "NeMo AutoModel", "flash": "y"}
    for stated, kernel in (("flex_attention", "flash2"), ("", "flash3_or_cudnn")):
        assert map_row(row(**cells, kernel=stated)).job.attention_kernel == kernel


def test_a_named_version_of_flash_attention_decides_on_blackwell() -> None:
    cells = FSDP | {"gpu": "B200-180GB", "framework": "HF transformers"}
    for stated, kernel in (("y(FA4)", "flash3_or_cudnn"), ("y(FA2)", "flash2")):
        assert map_row(row(**(cells | {"flash": stated}))).job.attention_kernel == kernel


@pytest.mark.parametrize(
    ("gpu", "framework", "kernel"),
    [
        ("H100-80GB", "torchtitan", "flash3_or_cudnn"),
        ("H100-80GB", "KempnerForge (PyTorch FSDP2)", "flash2"),
        ("H100-80GB", "HF transformers", "flash2"),
        ("H100-80GB", "DeepSpeed", "flash2"),
        ("B200-180GB", "torchtitan", "flash3_or_cudnn"),
        ("B200-180GB", "Megatron-Bridge", "flash3_or_cudnn"),
        ("B200-180GB", "HF transformers", "flash3_or_cudnn"),
        ("MI300X-192GB", "torchtitan", "aotriton"),
        ("MI300X-192GB", "nanotron", "flash2"),
        ("A100-40GB", "GPT-NeoX (Megatron-DeepSpeed)", "flash1"),
        ("A100-40GB", "torchtitan", "flash2"),
    ],
)
def test_attention_kernel_of_gpu_and_framework(gpu: str, framework: str, kernel: str) -> None:
    cells = FSDP | {"gpu": gpu, "framework": framework, "flash": "y"}
    assert map_row(row(**cells)).job.attention_kernel == kernel


@pytest.mark.parametrize(
    ("framework", "software", "kernel"),
    [
        ("torchtitan", "torchtitan 2025-06", "flash2"),
        ("torchtitan", "torchtitan 2026-03", "flash3_or_cudnn"),
        ("HF transformers", "torch 2.9, 2026-02", "flash2"),
        ("HF transformers", "torch 2.14, 2026-10", "flash3_or_cudnn"),
        ("HF transformers", "torch 2.11", "flash3_or_cudnn"),
        ("HF transformers", "", "flash2"),
        ("PyTorch FSDP2", "2026-03", "flash2"),
        ("PyTorch FSDP2", "2026-06", "flash3_or_cudnn"),
        ("torchtune", "2024-11", "flash2"),
    ],
)
def test_torch_took_cudnn_on_hopper_in_2026(framework: str, software: str, kernel: str) -> None:
    cells = FSDP | {"gpu": "H100-80GB", "framework": framework, "flash": "y", "software": software}
    assert map_row(row(**cells)).job.attention_kernel == kernel


def test_special_attention_is_flex_under_torchtitan_alone() -> None:
    latent = {
        "mla": "kv_lora512, no q_lora, nope128, rope64, v128",
        "moe": "64 experts top6, expert ffn 1408",
    }
    cells = FSDP | {"gpu": "B200-180GB", "flash": "y", "heads": "16", "kv_heads": "16"} | latent
    frameworks = ("torchtitan", "NeMo AutoModel (PyTorch FSDP2)")
    kernels = [map_row(row(**cells, framework=one)).job.attention_kernel for one in frameworks]
    assert kernels == ["flash2", "flash3_or_cudnn"]


@pytest.mark.parametrize(
    ("framework", "software", "kernel"),
    [
        ("torchtune", "PyTorch 2.10", "auto"),
        ("HF transformers", "torch 2.9, ROCm 7.0", "auto"),
        ("torchtitan", "torchtitan 2025-08, torch 2.9", "aotriton"),
        ("torchtitan", "2026-03", "auto"),
        ("HF transformers", "torch 2.8", "aotriton"),
        ("HF transformers", "", "aotriton"),
    ],
)
def test_torch_calls_the_vendor_s_attention_on_amd_since_2_9(
    framework: str, software: str, kernel: str
) -> None:
    cells = FSDP | {"gpu": "MI300X-192GB", "framework": framework, "flash": "y"}
    assert map_row(row(**cells, software=software)).job.attention_kernel == kernel


def test_a_model_in_16_bits_under_ddp_keeps_its_own_scores_and_a_copy_of_gradients() -> None:
    """One of 10.1B on 8 MI350X peaks 0.1 % from what torchtune's tensors and DDP's buckets take."""
    cells = FSDP | {"zero": "none", "framework": "plain PyTorch DDP", "state_precision": "fp16"}
    for precision, name in (("fp16", "torchtune"), ("fp16 autocast", "hf-transformers")):
        profile = map_row(row(**(cells | {"precision": precision}))).job.framework
        assert (profile.name, profile.state.ddp_bucket_copies) == (name, 1.0)
