"""Megatron-Core's own tests: what their recipes set, and step times that it explains.

Facts of NVIDIA/Megatron-LM, tests/functional_tests/test_cases, golden values at d98e8a64dd: the
median step of GPT with 12 layers of width 512. Those on A100 were seen by the fit.
"""

from __future__ import annotations

import pytest

from planner.evidence.runs.functional_tests import fills_memory, layers_of, reads_slowly
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.report import time_error
from planner.evidence.runs.rows import MeasuredRow
from tests.evidence.runs.rows_for_tests import row

DETERMINISTIC = "deterministic-mode=True; dropout attn=0.1 hidden=0.1; untied_emb=n"
TEST = {
    "source": "megatron-ci-golden", "model": "gpt/gpt3_mcore_te_tp2_pp2", "layers": "12",
    "hidden": "512", "ffn": "2048", "heads": "8", "kv_heads": "8", "vocab": "50257",
    "seq": "1024", "num_gpus": "8", "gpus_per_node": "8", "gpu": "A100-80GB", "tp": "2", "pp": "2",
    "vpp": "1", "zero": "none", "seq_parallel": "n", "mbs": "4", "gbs": "32", "precision": "bf16",
    "recompute": "none", "flash": "y", "framework": "Megatron-Core CI (dev)", "notes": "",
    "step_time_s": "1",
}  # fmt: skip


def test_row(**changes: str) -> MeasuredRow:
    return row(**(TEST | changes))


test_row.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        ("gpt/gpt3_mcore_te_tp2_pp2", "transformer_engine"),
        ("moe/gpt3_moe_mcore_te_ep8_resume_torch_dist_muon", "transformer_engine"),
        ("gpt/gpt3_7b_tp1_pp4_memory_speed", "transformer_engine"),
        ("gpt/gpt3_mcore_tp1_pp4", "local"),
        ("moe/gpt3_mcore_tp2_pp2_ep2_te_4experts2parallel", "local"),
        ("bert/bert_mcore_tp4_pp1", "local"),
    ],
)
def test_the_name_tells_which_layers_run(model: str, layers: str) -> None:
    assert layers_of(test_row(model=model)) == layers
    assert layers_of(test_row(model=model, framework="Megatron-LM")) == ""


def test_memory_was_filled_in_deterministic_mode_on_transformer_engine() -> None:
    assert fills_memory(test_row(notes=DETERMINISTIC))
    assert not fills_memory(test_row())
    assert not fills_memory(test_row(notes=DETERMINISTIC, model="gpt/gpt3_mcore_tp1_pp4"))
    assert not fills_memory(test_row(notes=DETERMINISTIC, framework="Megatron-Core CI (lts)"))
    assert not fills_memory(test_row(notes=f"{DETERMINISTIC}; (no recipe entry at HEAD)"))
    assert not fills_memory(test_row(notes=DETERMINISTIC, gpu="GB200"))


def test_one_node_of_gb200_waits_for_storage() -> None:
    assert reads_slowly(test_row(model="gpt/gpt3_mcore_te_tp2_pp2_mla_1node"))
    assert not reads_slowly(test_row(model="gpt/gpt3_mcore_te_tp2_pp2_mla"))


LTS = {"framework": "Megatron-Core CI (lts)"}
H100 = {"gpu": "H100-80GB"}
GB200 = {"gpu": "GB200", "gpus_per_node": "72"}
CP2 = {"cp": "2", "notes": "dropout attn=0.0 hidden=0.0; untied_emb=n"}
TIMES = [
    # Seen by the fit.
    ({"step_time_s": "0.174"}, 0.1),
    (LTS | {"step_time_s": "0.193", "notes": DETERMINISTIC}, 0.2),
    ({"step_time_s": "0.253", "notes": DETERMINISTIC}, 0.2),
    # Not seen: other hosts, deterministic mode on one of them, context parallelism.
    (H100 | {"step_time_s": "0.118"}, 0.1),
    (H100 | {"step_time_s": "0.194", "notes": DETERMINISTIC}, 0.2),
    (H100 | CP2 | {"step_time_s": "0.294"}, 0.1),
    (GB200 | {"step_time_s": "0.150"}, 0.15),
    (GB200 | CP2 | {"step_time_s": "0.410"}, 0.1),
    # Storage: one data-parallel rank of a node of four.
    (GB200 | {"num_gpus": "4", "model": "gpt/gpt3_mcore_te_tp2_pp2_1node", "step_time_s": "1.746"},
     0.1),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "within"), TIMES)
def test_step_times(changes: dict[str, str], within: float) -> None:
    (prediction,) = predict_rows([test_row(**changes)])
    assert prediction.error is None
    error = time_error(prediction)
    assert error is not None
    assert abs(error) < within
