"""Kernels that a compiler or a person fused: what they keep, and what they move."""

from __future__ import annotations

import pytest

from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.predict import predict_rows
from planner.job.frameworks.profile import load_framework
from tests.evidence.runs.rows_for_tests import row
from tests.evidence.runs.test_variant_peaks import TORCHTITAN


def test_kernels_fused_by_hand_run_as_compiled_ones() -> None:
    plain = {"tp": "1", "pp": "1", "vpp": "1", "num_gpus": "8", "gpu": "H100-80GB", "zero": "zero2"}
    for framework in ("Fast-LLM", "flash-attn", "DeepSpeed"):
        found = row(**plain, framework=framework, kernel="fused blocks", loss="fused")
        kernels = map_row(found).job.framework.kernels
        assert (kernels.memory_traffic, kernels.norm_traffic) == (1.5, 1.0)
        assert kernels.loss_traffic < 0.5 * load_framework("hf-transformers").kernels.loss_traffic


@pytest.mark.parametrize("kernel", ["liger", "fused norm, fused swiglu, fused rope"])
def test_activation_and_rotary_embedding_in_kernels_fused_by_hand(kernel: str) -> None:
    stated = {"framework": "HF transformers", "act": "swiglu", "zero": "none"}
    plain, fused = (
        map_row(row(**stated, kernel=words)).job.framework for words in ("fused norm", kernel)
    )
    assert fused.saved.gated_activation_tensors == 2.0 < plain.saved.gated_activation_tensors
    for name in ("norm_traffic", "activation_traffic", "rotary_traffic"):
        assert getattr(fused.kernels, name) * fused.kernels.memory_traffic == pytest.approx(1.0)
    assert (plain.kernels.activation_traffic, plain.kernels.rotary_traffic) == (1.0, 1.0)


def test_fused_activation_saves_memory_and_time() -> None:
    stated = {
        **TORCHTITAN, "framework": "HF transformers", "num_gpus": "1", "zero": "none", "mbs": "4",
        "gbs": "4", "recompute": "none",
    }  # fmt: skip
    rows = [row(**stated, kernel=words) for words in ("fused norm", "fused norm, fused swiglu")]
    plain, fused = predict_rows(rows)
    assert plain.step_time_s is not None and fused.step_time_s is not None
    assert fused.step_time_s < plain.step_time_s
    before, after = plain.memory_bytes(), fused.memory_bytes()
    assert before is not None and after is not None and after < before


def test_nanogpt_compiles_blocks_and_loss() -> None:
    eager, compiled = (
        map_row(row(framework="nanoGPT", zero="none", compile=said)).job.framework.kernels
        for said in ("n", "y")
    )
    assert compiled.loss_traffic * 22 == pytest.approx(9.9)
    assert eager.loss_traffic * 22 == 44.0


def test_a_user_asks_for_what_rows_state_of_liger() -> None:
    cells = {"framework": "HF transformers", "zero": "none", "act": "swiglu"}
    stated = map_row(row(**cells, kernel="liger", loss="liger")).job.framework
    technique = load_framework("hf-transformers").technique("liger-kernels")
    assert technique is not None
    for table, values in technique.changes(used=True).items():
        for name, value in values.items():
            assert getattr(getattr(stated, table), name) == pytest.approx(value, rel=0.02)
