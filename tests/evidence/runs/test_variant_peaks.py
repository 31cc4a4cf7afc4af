"""Allocated or reserved peaks that what rows say of their software explains.

The profiles were fitted on them: they guard a fit, and say nothing of how well other runs are
predicted.
"""

from __future__ import annotations

import pytest

from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.report import error_of
from tests.evidence.runs.rows_for_tests import row

# nanotron logs of 2024-07: Llama 1B on H100, allocated on rank 0.
NANOTRON = {
    "model": "Llama-1B", "layers": "24", "hidden": "2048", "ffn": "4096", "heads": "32",
    "kv_heads": "32", "vocab": "50257", "act": "swiglu", "seq": "4096", "gpu": "H100-80GB",
    "vpp": "1", "zero": "zero1", "seq_parallel": "y", "gbs": "1024", "precision": "bf16",
    "recompute": "none", "flash": "y", "framework": "nanotron (2024-07)", "step_time_s": "",
    "mem_kind": "allocated", "mem_scope": "max_over_ranks",
}  # fmt: skip
NANOTRON_PEAKS = [
    ({"num_gpus": "8", "tp": "8", "pp": "1", "mbs": "32"}, "58.69"),
    ({"num_gpus": "8", "tp": "2", "pp": "1", "mbs": "8"}, "42.63"),
    ({"num_gpus": "8", "tp": "1", "pp": "4", "mbs": "4", "layers_per_stage": "7x2/6/4"}, "38.14"),
    ({"num_gpus": "16", "tp": "4", "pp": "4", "mbs": "4", "layers_per_stage": "7x2/6/4"}, "12.80"),
    ({"num_gpus": "64", "tp": "4", "pp": "1", "mbs": "8"}, "23.84"),
]

# Megatron-Core's own tests: GPT with 12 layers, allocated on the last rank.
MEGATRON = {
    "model": "gpt/gpt3_mcore", "layers": "12", "hidden": "512", "ffn": "2048", "heads": "8",
    "kv_heads": "8", "vocab": "50257", "seq": "1024", "gpu": "A100-80GB", "num_gpus": "8",
    "vpp": "1", "zero": "none", "seq_parallel": "n", "mbs": "4", "gbs": "32", "precision": "bf16",
    "recompute": "none", "framework": "Megatron-Core CI (dev)", "step_time_s": "",
    "mem_kind": "allocated", "mem_scope": "last_stage",
}  # fmt: skip
DROPOUT = {"deterministic": "y", "dropout": "attention 0.1 hidden 0.1", "tied": "y"}
MEGATRON_PEAKS = [
    ({"tp": "1", "pp": "4", "flash": "n", **DROPOUT}, "2.50"),
    ({"tp": "1", "pp": "2", "flash": "y", **DROPOUT}, "2.42"),
    ({"tp": "2", "pp": "2", "flash": "y", **DROPOUT}, "1.33"),
    ({"tp": "2", "pp": "2", "flash": "y", "loss": "fused", **DROPOUT}, "1.71"),
]  # fmt: skip

# torchtitan, Llama 3.1 8B on 128 H100 (96 GB): reserved.
TORCHTITAN = {
    "model": "Llama3.1-8B", "layers": "32", "hidden": "4096", "ffn": "14336", "heads": "32",
    "kv_heads": "8", "vocab": "128256", "act": "swiglu", "seq": "8192",
    "gpu": "H100-96GB-HBM2e-500W", "num_gpus": "128", "tp": "1", "pp": "1", "vpp": "1",
    "zero": "fsdp-zero3", "seq_parallel": "n", "mbs": "2", "gbs": "256", "precision": "bf16",
    "recompute": "selective", "flash": "y", "framework": "torchtitan FSDP2", "step_time_s": "",
    "mem_kind": "reserved", "mem_scope": "max_over_ranks", "software": "torchtitan 2024-12",
}  # fmt: skip
TORCHTITAN_PEAKS = [({"variant": "eager"}, "67"), ({"variant": "compile"}, "62")]

# IBM's fms-acceleration, Mistral 7B on A100: AdamW's list kernels copy what they update, FSDP
# reduces the gradients of a step's only micro-batch, weights under bf16=True are fp32.
TRAINER = {
    "model": "Mistral-7B", "layers": "32", "hidden": "4096", "ffn": "14336", "heads": "32",
    "kv_heads": "8", "vocab": "32000", "act": "swiglu", "seq": "4096", "tp": "1", "pp": "1",
    "vpp": "1", "gbs": "", "precision": "bf16", "recompute": "full", "flash": "y", "tied": "n",
    "framework": "HF Trainer (transformers, accelerate FSDP1)", "state_precision": "bf16",
    "software": "torch 2.4, transformers 4.48", "mem_kind": "allocated", "loss": "fused",
    "mem_scope": "max_over_ranks", "step_time_s": "",
}  # fmt: skip
ALONE = {"framework": "HF Trainer (transformers)", "num_gpus": "1", "gpus_per_node": "1"}
SHARDED = {"num_gpus": "4", "zero": "fsdp full_shard", "state_precision": "fp32"}
TRAINER_PEAKS = [
    ({**ALONE, "mbs": "4"}, "67.46"),
    ({**SHARDED, "num_gpus": "2", "state_precision": "bf16", "mbs": "2"}, "33.74"),
    ({**SHARDED, "mbs": "8"}, "37.05"),
    ({**SHARDED, "mbs": "16", "loss": "liger"}, "52.51"),
    ({**SHARDED, "mbs": "8", "vocab": "128256"}, "64.22"),
]

# Under autocast alone weights and the stream between layers are fp32: ATorch's Llama 2 7B in FSDP1
# on A100, GPT-2 XL under Lightning's DDP, whose gradients of 2022 were zeroed in place, and with
# DeepSpeed's 16-bit weights a loss of 16-bit logits.
ATORCH = TRAINER | {
    "model": "Llama-2-7B", "ffn": "11008", "kv_heads": "32", "gpu": "A100-80GB", "mbs": "4",
    "framework": "ATorch (torch FSDP1, HF transformers)", "software": "2023-11", "loss": "",
    "precision": "bf16 autocast", "state_precision": "", "zero": "fsdp full_shard",
}  # fmt: skip
GPT2_XL = TRAINER | {
    "model": "GPT2-XL", "layers": "48", "hidden": "1600", "ffn": "6400", "heads": "25",
    "kv_heads": "25", "vocab": "50257", "act": "gelu", "tied": "y", "bias": "y",
    "position": "learned", "seq": "1024", "gpu": "A100-40GB", "num_gpus": "4",
    "gpus_per_node": "4", "precision": "fp16", "flash": "n", "loss": "plain",
    "dropout": "attention 0.1 hidden 0.1", "software": "2022-08",
    "framework": "HF transformers, PyTorch Lightning DDP",
}  # fmt: skip
ZERO_3 = {"framework": "HF transformers, PyTorch Lightning (DeepSpeed)", "zero": "zero3"}
AUTOCAST_PEAKS = [
    (ATORCH, {"num_gpus": "8"}, "38.67"),
    (ATORCH, {"num_gpus": "16"}, "33.96"),
    (GPT2_XL, {"zero": "none", "mbs": "6", "state_precision": "fp32"}, "37.02"),
    (GPT2_XL, {**ZERO_3, "mbs": "40", "state_precision": ""}, "24.77"),
]

PEAKS = [
    *AUTOCAST_PEAKS,
    *((TRAINER, cells, peak) for cells, peak in TRAINER_PEAKS),
    *((NANOTRON, cells, peak) for cells, peak in NANOTRON_PEAKS),
    *((MEGATRON, cells, peak) for cells, peak in MEGATRON_PEAKS),
    *((TORCHTITAN, cells, peak) for cells, peak in TORCHTITAN_PEAKS),
]


@pytest.mark.parametrize(("family", "cells", "peak"), PEAKS)
def test_peak_of_a_measured_row(family: dict[str, str], cells: dict[str, str], peak: str) -> None:
    (prediction,) = predict_rows([row(**(family | cells), peak_mem_gib=peak)])
    assert prediction.error is None
    assert error_of(prediction, "memory") == pytest.approx(0.0, abs=0.05)
