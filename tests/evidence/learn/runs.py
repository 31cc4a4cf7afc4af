"""Runs of one made-up cluster: a row's variants, measured as the model says under known factors."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from planner.evidence.learn.linear import LearningModel
from planner.evidence.runs.predict import Prediction, cost_predictions, predict_rows
from planner.evidence.runs.report import predicted
from planner.job.quantities import GIB
from tests.evidence.runs.rows_for_tests import KORTHIKANTI_175B, row

# Llama-2-7B and 13B on H100: products, links inside and between nodes all matter somewhere.
_BASE = {
    "source": "ours", "model": "made-up", "layers": "32", "hidden": "4096", "ffn": "11008",
    "heads": "32", "kv_heads": "32", "vocab": "32000", "act": "swiglu", "seq": "4096",
    "gpu": "H100-SXM5-80GB", "num_gpus": "8", "tp": "1", "pp": "1", "vpp": "1", "zero": "1",
    "seq_parallel": "y", "mbs": "1", "gbs": "32", "precision": "bf16", "recompute": "none",
    "flash": "y", "framework": "Megatron-Core", "step_time_s": "", "peak_mem_gib": "",
}  # fmt: skip
VARIANTS: tuple[Mapping[str, str], ...] = (
    {}, {"tp": "2"}, {"tp": "4"}, {"tp": "8"}, {"mbs": "2", "tp": "2"}, {"mbs": "4", "tp": "4"},
    {"pp": "2"}, {"pp": "4", "tp": "2"}, {"num_gpus": "64", "gbs": "128"},
    {"num_gpus": "64", "gbs": "256", "tp": "8", "mbs": "2"}, {"seq": "16384", "tp": "4"},
    {"recompute": "full", "mbs": "4"}, {"num_gpus": "16", "tp": "8", "gbs": "64"},
    {"num_gpus": "32", "tp": "2", "pp": "2", "gbs": "64"},
    {"num_gpus": "16", "tp": "16", "mbs": "4", "seq": "16384"},
)  # fmt: skip


def predictions(
    factors: Mapping[str, float], changes: Sequence[Mapping[str, str]] = VARIANTS
) -> list[Prediction]:
    """Runs whose measurements are what the model says under the factors."""
    plain = predict_rows(
        row(**(dict.fromkeys(KORTHIKANTI_175B, "") | _BASE | dict(one))) for one in changes
    )
    true = cost_predictions(plain, lambda job: LearningModel(job, factors))
    return [
        replace(one, row=replace(one.row, cells=one.row.cells | _measured(other)))
        for one, other in zip(plain, true, strict=True)
    ]


def _measured(prediction: Prediction) -> dict[str, str]:
    size = predicted(prediction, "memory")
    return {
        "step_time_s": repr(prediction.step_time_s),
        "peak_mem_gib": repr(size / GIB) if size else "",
    }


def write(path: Path, runs: Sequence[Prediction]) -> Path:
    """The runs as a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(runs[0].row.cells))
        writer.writeheader()
        writer.writerows(run.row.cells for run in runs)
    return path
