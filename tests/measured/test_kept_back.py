"""Published runs that nothing was fitted on, of GPUs and frameworks whose constants are carried."""

from __future__ import annotations

import pytest

from planner.measured.predict import predict_rows
from tests.measured.rows_for_tests import row

# mosaicml/llm-foundry, scripts/train/benchmarking/README.md, tables H100 80GB BF16 and FP8: MPT
# models of (layers, hidden, heads), 8 GPUs; tokens/s of a GPU.
_SHAPES = {"1b": (24, 2048, 16), "3b": (32, 2560, 20), "7b": (32, 4096, 32)}
_MPT = (
    ("7b", 65536, 1, 16, "amp_bf16", "full", 1956),
    ("7b", 8192, 8, 128, "amp_bf16", "full", 6935),
    ("1b", 2048, 14, 112, "amp_bf16", "none", 45455),
    ("3b", 2048, 10, 480, "amp_fp8", "none", 30586),
)


@pytest.mark.parametrize("run", _MPT)
def test_mpt_on_h100(run: tuple[str, int, int, int, str, str, int]) -> None:
    name, seq, mbs, gbs, precision, recompute, tokens = run
    layers, hidden, heads = _SHAPES[name]
    cells = {
        "model": f"MPT-{name}", "layers": layers, "hidden": hidden, "ffn": 4 * hidden,
        "heads": heads, "kv_heads": heads, "vocab": 50368, "seq": seq, "gpu": "H100-80GB",
        "num_gpus": 8, "tp": 1, "pp": 1, "vpp": "", "zero": "fsdp-zero3", "mbs": mbs, "gbs": gbs,
        "precision": precision, "recompute": recompute, "flash": "y", "software": "2024-01",
        "framework": "Composer/llm-foundry FSDP",
        "notes": "learned pos-emb grows with seq; tied emb; biases",
    }  # fmt: skip
    [prediction] = predict_rows([row(**{key: str(value) for key, value in cells.items()})])
    assert prediction.step_time_s == pytest.approx(gbs * seq / (8 * tokens), rel=0.12)


def test_deepseek_v3_under_dualpipe() -> None:
    """arXiv 2412.19437, Table 1: 180,000 H800 hours for 10^12 tokens, on 2,048 GPUs."""
    cells = {
        "model": "DeepSeek-V3", "layers": 61, "hidden": 7168, "ffn": 18432, "heads": 128,
        "kv_heads": 128, "vocab": 129280, "act": "swiglu", "seq": 4096, "gpu": "H800-80GB",
        "moe": "MLA; 256 experts top8 + 1 shared; expert ffn 2048; 3 dense", "num_gpus": 2048,
        "tp": 1, "pp": 16, "vpp": "", "ep": 64, "zero": "zero1", "mbs": "", "gbs": 15360,
        "precision": "fp8", "recompute": "", "flash": "", "framework": "HAI-LLM (DualPipe)",
    }  # fmt: skip
    [prediction] = predict_rows([row(**{key: str(value) for key, value in cells.items()})])
    measured = 15360 * 4096 * 180e3 * 3600 / 1e12 / 2048
    assert prediction.step_time_s == pytest.approx(measured, rel=0.12)
