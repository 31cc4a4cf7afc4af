"""What a row recomputes, and where it does not say what its framework does."""

from __future__ import annotations

import pytest

from planner.evidence.runs.mapping import map_row
from planner.job.recompute import Module
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
_SOFTWARE = "dgxc-benchmarking v"


@pytest.mark.parametrize(
    ("cells", "mask"),
    [
        (DEEPSEEK | {"recompute": "selective(mla_up_proj)"}, Module.MLA_UP_PROJ),
        (DEEPSEEK, Module.NOTHING),
        (NODE | {"framework": "NeMo AutoModel", "model": "Qwen3-30B-A3B"}, Module.FULL),
        (
            NODE | {"framework": "NeMo AutoModel", "model": "Qwen3", "recompute": "none"},
            Module.NOTHING,
        ),
        (NODE | {"framework": "torchtitan"}, Module.NOTHING),
        (NODE | {"framework": "LLaMA-Factory (DeepSpeed)", "zero": "zero3"}, Module.FULL),
    ],
)  # fmt: skip
def test_rows_that_do_not_say_recompute_as_their_framework(
    cells: dict[str, str], mask: Module
) -> None:
    assert map_row(row(**cells)).mode.mask == mask


@pytest.mark.parametrize(
    ("gpu", "software", "attention"),
    [
        # Heads of 192 had no kernel that trains on Blackwell until cuDNN 9.11 of June 2025.
        ("GB200", f"{_SOFTWARE}25.05.04", "eager"),
        ("B200-180GB", f"{_SOFTWARE}25.05.04", "eager"),
        ("GB200", f"{_SOFTWARE}25.11", "flash"),
        ("H100-80GB", f"{_SOFTWARE}25.05.04", "flash"),
    ],
)
def test_wide_heads_on_blackwell_had_no_fused_kernel(
    gpu: str, software: str, attention: str
) -> None:
    assert map_row(row(**DEEPSEEK, gpu=gpu, software=software)).job.attention == attention


def test_heads_of_128_were_fused_on_blackwell_all_along() -> None:
    cells = NODE | {"framework": "NeMo/Megatron-Core", "precision": "bf16", "flash": "y"}
    mapped = map_row(row(**cells, gpu="GB200", software=f"{_SOFTWARE}25.05.04"))
    assert mapped.job.attention == "flash"
