"""Runs of nanotron (2024-07) that keep GPT-2's odd vocabulary on one node of H100.

No constant was fitted on them. Source: huggingface.co nanotron/old_bench, log_metrics.csv.
"""

from __future__ import annotations

import pytest

from planner.evidence.runs.predict import Prediction, predict_rows
from planner.evidence.runs.ranking import rank_groups
from planner.evidence.runs.report import error_of
from planner.evidence.runs.rows import MeasuredRow

LLAMA_1B = {
    "source": "nanotron-old-bench", "model": "Llama-arch-1B", "layers": "24", "hidden": "2048",
    "ffn": "4096", "heads": "32", "kv_heads": "32", "vocab": "50257", "act": "swiglu",
    "seq": "4096", "gpu": "H100-80GB", "num_gpus": "8", "gpus_per_node": "8", "zero": "zero1",
    "gbs": "1024", "precision": "bf16", "recompute": "none", "flash": "y",
    "framework": "nanotron (2024-07)", "oom": "0",
}  # fmt: skip

# tp, pp, micro-batch, seconds of a step, layers of each stage.
RUNS = (
    (2, 1, 8, 15.8, ""),
    (4, 1, 8, 18.9, ""),
    (1, 4, 4, 22.0, "7x2/6/4"),
    (2, 4, 4, 23.6, "7x2/6/4"),
    (8, 1, 8, 26.2, ""),
    (1, 8, 4, 29.2, "4/3x2/4/3x2/4/0"),
)


@pytest.fixture(scope="module")
def predictions() -> list[Prediction]:
    rows = [
        MeasuredRow(
            "made_up.csv",
            line,
            LLAMA_1B
            | {
                "tp": str(tp),
                "pp": str(pp),
                "mbs": str(mbs),
                "step_time_s": str(seconds),
                "layers_per_stage": layers,
                "head_stage": str(pp - 1),
            },
        )
        for line, (tp, pp, mbs, seconds, layers) in enumerate(RUNS)
    ]
    return predict_rows(rows)


def test_the_head_over_odd_rows_is_predicted(predictions: list[Prediction]) -> None:
    errors = [error_of(prediction, "time") for prediction in predictions]
    assert errors == pytest.approx([0.0] * len(RUNS), abs=0.07)


# nanoGPT's 124M under DistributedDataParallel.
GPT = {
    "source": "made-up", "layers": "12", "hidden": "768", "ffn": "3072", "heads": "12",
    "kv_heads": "12", "act": "gelu", "tied": "y", "position": "learned", "seq": "1024",
    "gpu": "A100-80GB", "num_gpus": "8", "gpus_per_node": "8", "zero": "none", "mbs": "12",
    "tp": "1", "pp": "1", "gbs": "480", "precision": "bf16 autocast", "recompute": "none",
    "flash": "y", "framework": "nanoGPT", "compile": "y",
}  # fmt: skip


def seconds(**cells: str) -> float:
    (found,) = predict_rows([MeasuredRow("made_up.csv", 1, GPT | cells)])
    assert found.step_time_s is not None
    return found.step_time_s


def test_compiled_products_of_an_odd_vocabulary_are_padded_since_torch_2_1() -> None:
    """Padding by hand gained 25 % under torch 2.0 (nanoGPT, commit 77e7e04c); Inductor pads since
    (pytorch/pytorch pull request 101915)."""
    old, new = "torch 2.0, 2023-02", "torch 2.4.1, 2024-10"
    gained = seconds(vocab="50257", software=old) / seconds(vocab="50304", software=old)
    assert 1.2 < gained < 1.6
    assert seconds(vocab="50257", software=new) == pytest.approx(
        seconds(vocab="50304", software=new), rel=0.002
    )
    eager = {"software": new, "compile": "n"}
    assert seconds(vocab="50257", **eager) > 1.15 * seconds(vocab="50304", **eager)


def test_the_best_layout_is_picked_and_all_are_in_order(predictions: list[Prediction]) -> None:
    (rank_group,) = rank_groups(predictions)
    assert (rank_group.pick, rank_group.rank_correlation) == (1.0, pytest.approx(1.0))
