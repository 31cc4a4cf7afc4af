"""Published peaks of runs that keep activations on the host.

None of them was used to fit anything: they say how well the account of offload predicts.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.evidence.runs.predict import Prediction, cost_predictions, predict_rows
from planner.evidence.runs.report import predicted
from tests.evidence.runs.rows_for_tests import row

# NVIDIA/Megatron-LM @d98e8a64dd, tests/functional_tests/test_cases/moe/gpt3_moe_mcore_te_tp2_pp2_
# ep4_etp1_[no_mtp_no_a2a_ovlp_]fine_grained_offloading, golden values: allocated on the last rank.
MEGATRON = {
    "model": "moe/gpt3_moe_mcore_te_tp2_pp2_ep4_etp1_fine_grained_offloading", "layers": "15",
    "hidden": "1024", "ffn": "4096", "heads": "32", "kv_heads": "32", "vocab": "50257",
    "params_b": "", "act": "swiglu",
    "moe": "experts=32;topk=4;moe_ffn=1024;shared=1024;layer_freq=([0]*3+[1]*12);"
    "dispatcher=alltoall;etp=1;grouped_gemm=y",
    "seq": "4096", "gpu": "H100-80GB", "num_gpus": "8", "gpus_per_node": "8", "tp": "2", "pp": "2",
    "vpp": "4", "cp": "1", "ep": "4", "dp": "2", "zero": "zero1", "seq_parallel": "y",
    "mbs": "1", "gbs": "8", "precision": "bf16", "flash": "n",
    "recompute": "selective([layernorm mla_up_proj mlp moe_act])",
    "framework": "Megatron-Core CI (dev)", "step_time_s": "", "mem_kind": "allocated",
    "mem_scope": "last_stage", "layers_per_stage": "3/2x6/0", "qk_norm": "y", "head_dim": "128",
    "mla": "q_lora1536, kv_lora512, nope128, rope64, v128", "tied": "n", "bias": "n",
    "dropout": "attention 0.0 hidden 0.0", "etp": "1",
    "offload": "activations: expert_fc1 moe_act attn_norm mlp_norm qkv_linear core_attn attn_proj",
}  # fmt: skip
# Layers of multi-token prediction, peak in GiB.
MEGATRON_ROWS = [("1", 7.75), ("", 6.67)]
# pytorch/torchtune, README, Llama 3.2 3B on an A100: 1.3 GiB less than without the offload.
TORCHTUNE = {
    "model": "Llama3.2-3B", "layers": "28", "hidden": "3072", "ffn": "8192", "heads": "24",
    "kv_heads": "8", "vocab": "128256", "act": "swiglu", "seq": "4096", "gpu": "A100-80GB",
    "num_gpus": "1", "tp": "1", "pp": "1", "vpp": "1", "dp": "1", "zero": "none",
    "seq_parallel": "n", "mbs": "2", "gbs": "2", "precision": "bf16(pure)", "recompute": "full",
    "flash": "y", "framework": "torchtune", "step_time_s": "", "mem_kind": "allocated",
    "mem_scope": "max_over_ranks",
    "offload": "checkpoints", "optimizer": "adamw, in backward", "compile": "y", "tied": "y",
    "loss": "chunked", "state_precision": "bf16", "sequences": "packed",
}  # fmt: skip


def both(fields: dict[str, str]) -> tuple[Prediction, float, float]:
    """The prediction, its peak, and the peak if nothing were offloaded, GiB."""
    (predict_row,) = predict_rows([row(**fields)])
    assert predict_row.error is None, predict_row.error
    assert predict_row.mapped is not None
    job = replace(predict_row.mapped.job, activation_offload=())
    (plain,) = cost_predictions([replace(predict_row, mapped=replace(predict_row.mapped, job=job))])
    sizes = [predicted(prediction, "memory") for prediction in (predict_row, plain)]
    assert sizes[0] is not None
    assert sizes[1] is not None
    return predict_row, sizes[0] / 2**30, sizes[1] / 2**30


@pytest.mark.parametrize(("mtp_layers", "measured"), MEGATRON_ROWS)
def test_megatrons_own_runs(mtp_layers: str, measured: float) -> None:
    """Of about 4.8 GiB that the offload takes away all but the error is found."""
    fields = {**MEGATRON, "mtp_layers": mtp_layers, "peak_mem_gib": str(measured)}
    found, predicted, without = both(fields)
    assert found.mapped is not None
    assert len(found.mapped.job.activation_offload) == 7
    assert predicted == pytest.approx(measured, rel=0.15)
    assert without > 1.5 * measured


def test_torchtunes_checkpoints() -> None:
    found, predicted, without = both({**TORCHTUNE, "peak_mem_gib": "21.8"})
    assert found.mapped is not None
    assert found.mapped.job.activation_offload == ("checkpoints",)
    assert predicted == pytest.approx(21.8, rel=0.03)
    assert without - predicted == pytest.approx(1.3, abs=0.3)
    assert found.step is not None
