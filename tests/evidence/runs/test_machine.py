"""The GPUs and recipes of measured runs where a source names them elsewhere than in its rows."""

from __future__ import annotations

import pytest

from planner.evidence.runs.mapping import map_row
from planner.job.modules import Module
from tests.evidence.runs.rows_for_tests import row

FSDP = {"tp": "1", "pp": "1", "vpp": "1", "zero": "fsdp-zero3", "num_gpus": "64", "mbs": "1"}


@pytest.mark.parametrize(
    ("cells", "gpu"),
    [
        ({"source": "torchao", "gpu": "H100-80GB"}, "H100-SXM5-96GB-HBM2e"),
        ({"source": "dgxc", "gpu": "H100-80GB"}, "H100-SXM5-80GB"),
        (
            {"source": "torchao", "gpu": "B200-180GB", "notes": "POWER-LIMITED B200"},
            "B200-SXM-180GB-750W",
        ),
        ({"source": "torchao", "gpu": "B200-180GB"}, "B200-SXM-180GB"),
    ],
)
def test_gpus_that_a_source_names_elsewhere(cells: dict[str, str], gpu: str) -> None:
    assert map_row(row(**({"precision": "bf16"} | cells))).job.cluster.gpu.name == gpu


@pytest.mark.parametrize(
    ("cells", "shard"),
    [
        ({"zero": "fsdp-zero3"}, 0),
        ({"zero": "hsdp(zero3 within node, DDP across)"}, 8),
        ({"zero": "fsdp (FSDP=#GPUs up to 256; FSDP=128 x DP beyond)"}, 0),
        ({"zero": "fsdp (FSDP=#GPUs up to 32; FSDP=16 x DP beyond)"}, 16),
        ({"zero": "zero3(FSDP)", "notes": "DP=16 FSDP=4; BS/GPU=8"}, 4),
        ({"zero": "zero3(FSDP)", "notes": "DP=1 FSDP=64; BS/GPU=8"}, 0),
    ],
)
def test_hybrid_sharding_in_the_words_of_the_sources(cells: dict[str, str], shard: int) -> None:
    assert map_row(row(**(FSDP | cells))).degrees.shard == shard


@pytest.mark.parametrize("text", ["selective-layer(every other)", "selective(every n-th block)"])
def test_every_other_block_is_checkpointed_whole(text: str) -> None:
    mode = map_row(row(framework="torchtitan FSDP2", recompute=text, **FSDP)).mode
    assert (mode.mask, mode.share) == (Module.FULL, 0.5)


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
    for notes, kernel in (("TE+DeepEP+FlexAttn", "flash2"), ("TE+DeepEP", "flash3_or_cudnn")):
        assert map_row(row(**cells, notes=notes)).job.attention_kernel == kernel


@pytest.mark.parametrize(
    ("gpu", "framework", "kernel"),
    [
        ("H100-80GB", "torchtitan", "flash2"),
        ("B200-180GB", "torchtitan", "flash3_or_cudnn"),
        ("B200-180GB", "Megatron-Bridge", "flash3_or_cudnn"),
        ("MI300X-192GB", "torchtitan", "aotriton"),
        ("MI300X-192GB", "nanotron", "flash2"),
        ("A100-40GB", "GPT-NeoX (Megatron-DeepSpeed)", "flash1"),
        ("A100-40GB", "torchtitan", "flash2"),
    ],
)
def test_attention_kernel_of_gpu_and_framework(gpu: str, framework: str, kernel: str) -> None:
    cells = FSDP | {"gpu": gpu, "framework": framework, "flash": "y"}
    assert map_row(row(**cells)).job.attention_kernel == kernel


def test_deepseek_v3_on_nvl72_uses_hybridep_since_25_11() -> None:
    cells = FSDP | {
        "gpu": "GB200-186GB", "framework": "Megatron-Bridge", "flash": "y", "model": "DeepSeek-V3",
        "moe": "MLA; 256 experts top8 + 1 shared; expert ffn 2048", "act": "swiglu",
    }  # fmt: skip
    for release, fused in (("25.09", False), ("25.11", True)):
        own = map_row(row(software=f"NeMo {release} container", **cells)).job.framework
        assert own.kernels.dispatch_deduplicates is fused
