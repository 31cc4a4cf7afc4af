"""What a row recomputes where it does not say: its recipe's setting, or its framework's."""

from __future__ import annotations

import pytest

from planner.evidence.runs.mapping import map_row
from planner.job.modules import Module
from tests.evidence.runs.rows_for_tests import row

NODE = {"tp": "1", "pp": "1", "vpp": "1", "num_gpus": "64", "mbs": "1", "recompute": ""}
DEEPSEEK = {
    "source": "dgxc-benchmarking", "model": "DeepSeek-V3", "layers": "61", "hidden": "7168",
    "ffn": "18432", "heads": "128", "kv_heads": "128", "vocab": "129280", "act": "swiglu",
    "moe": "MLA; 3 dense+58 MoE; 256 experts top8 + 1 shared; expert ffn 2048", "seq": "4096",
    "num_gpus": "256", "tp": "2", "pp": "4", "vpp": "1", "ep": "64", "zero": "dist-optimizer",
    "gbs": "2048", "precision": "bf16", "recompute": "", "flash": "y",
    "framework": "NeMo/Megatron-Core", "mbs": "1",
}  # fmt: skip
_README = "github NVIDIA/dgxc-benchmarking deepseek_v3/pretraining/README.md@v"


@pytest.mark.parametrize(
    ("cells", "mask"),
    [
        (DEEPSEEK | {"gpu": "H100-80GB", "source_ref": f"{_README}25.05.04"}, Module.MLA_UP_PROJ),
        (DEEPSEEK | {"gpu": "GB200", "source_ref": f"{_README}25.05.04"}, Module.CORE_ATTENTION),
        (DEEPSEEK | {"gpu": "GB200", "source_ref": f"{_README}25.11"}, Module.NOTHING),
        (NODE | {"framework": "NeMo AutoModel", "model": "Qwen3-30B-A3B"}, Module.FULL),
        (NODE | {"framework": "NeMo AutoModel", "model": "GPT-OSS-20B"}, Module.NOTHING),
        (
            NODE | {"framework": "NeMo AutoModel", "model": "Qwen3", "recompute": "none"},
            Module.NOTHING,
        ),
        (
            NODE
            | {"source": "amd-primus", "framework": "Primus (Megatron-LM)", "gpu": "MI325X-256GB",
               "model": "Llama3.1-70B", "precision": "bf16"},
            Module.FULL,
        ),
        (NODE | {"framework": "torchtitan"}, Module.NOTHING),
    ],
)  # fmt: skip
def test_recipes_behind_rows_that_do_not_say(cells: dict[str, str], mask: Module) -> None:
    assert map_row(row(**cells)).mode.mask == mask


@pytest.mark.parametrize(
    ("gpu", "reference", "attention"),
    [
        # Heads of 192 had no kernel that trains on Blackwell until cuDNN 9.11 of June 2025.
        ("GB200", f"{_README}25.05.04", "eager"),
        ("B200-180GB", f"{_README}25.05.04", "eager"),
        ("GB200", f"{_README}25.11", "flash"),
        ("H100-80GB", f"{_README}25.05.04", "flash"),
    ],
)
def test_wide_heads_on_blackwell_had_no_fused_kernel(
    gpu: str, reference: str, attention: str
) -> None:
    assert map_row(row(**DEEPSEEK, gpu=gpu, source_ref=reference)).job.attention == attention


def test_heads_of_128_were_fused_on_blackwell_all_along() -> None:
    cells = NODE | {"framework": "NeMo/Megatron-Core", "precision": "bf16", "flash": "y"}
    mapped = map_row(row(**cells, gpu="GB200", source_ref=f"{_README}25.05.04"))
    assert mapped.job.attention == "flash"
