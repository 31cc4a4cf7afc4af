"""Verdicts say how far beyond every measured run they lie."""

from __future__ import annotations

import pytest

from planner.job.request import Request
from planner.predict.uncertainty.families import Family
from planner.predict.uncertainty.measured_scale import beyond_measured, most_measured_gpus
from planner.predict.uncertainty.shipped import shipped_tables


def _said(model: str, gpus: str, framework: str = "megatron-core") -> str:
    job = Request(model=model, gpus=gpus, framework=framework, gbs=8192).resolve()
    return beyond_measured(job, job.cluster.num_gpus)


@pytest.mark.parametrize(
    ("model", "gpu", "framework"),
    [("8b", "H100", "megatron-core"), ("8b", "MI300X", "megatron-core"),
     ("qwen3-30b-a3b", "H100", "megatron-core"), ("8b", "A100-80GB", "deepspeed")],
)  # fmt: skip
def test_the_limit_is_the_largest_measured_run_of_the_kind(
    model: str, gpu: str, framework: str
) -> None:
    """Nothing is said up to it, and its size beyond."""
    architecture = {"H100": "hopper", "MI300X": "cdna3", "A100-80GB": "ampere"}[gpu]
    kind = "moe" if "a3b" in model else "dense"
    most = most_measured_gpus(Family(framework, architecture, "", kind))
    assert most >= 8
    assert _said(model, f"{most}x{gpu}", framework) == ""
    more = 2 ** most.bit_length()
    assert f"never measured beyond {most:,} GPUs of this kind" in _said(
        model, f"{more}x{gpu}", framework
    )


def test_a_kind_without_a_run_is_named_with_its_nearest() -> None:
    said = _said("qwen3-235b-a22b", "6144xMI300X")
    assert "measured" in said
    assert "CDNA3" in said


def test_the_largest_is_that_of_the_evidence() -> None:
    every = [
        entry.measured["gpus"][1]
        for entry in shipped_tables()["time"].entries
        if "gpus" in entry.measured
    ]
    assert most_measured_gpus(Family()) <= max(every)
    assert most_measured_gpus(Family(architecture="no such")) == 0
