"""The GPUs and recipes of measured runs where a source names them elsewhere than in its rows."""

from __future__ import annotations

import pytest

from planner.measured.mapping import map_row
from planner.modules import Module
from tests.measured.rows_for_tests import row

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
