"""`planner check` on what was launched from a search's own plan finds nothing faster, and the
plan's command gives its time and memory again.

The search and the check read one cost model and one set of techniques: a change that the check
proposes is one that the search did not try.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from planner.cli.declared import command
from planner.cli.evaluate import given_configuration
from planner.job.request import Request
from planner.job.written_folder import write_folder
from planner.launch.check.assess import assess
from planner.launch.check.changes import best_changes
from planner.launch.check.given import read_given
from planner.launch.folder import launch_folder
from planner.launch.plans import find_plans, launch_of
from planner.launch.read.found import Hints
from planner.launch.registry import target_of_profile
from planner.predict.command_line import evaluate_command
from planner.predict.configuration import decided_request
from planner.predict.evaluate import evaluated
from planner.predict.memory.account import footprint_of
from planner.predict.plan import Plan

JOBS: dict[str, dict[str, Any]] = {
    "70b": {"model": "llama-3-70b", "gpus": "64xH100", "gbs_tokens": 4_000_000},
    "8b": {"model": "llama-3-8b", "gpus": "8xH100", "gbs_tokens": 1_000_000},
    "405b": {"model": "llama-3.1-405b", "gpus": "512xH100", "gbs_tokens": 4_000_000},
    "fsdp": {
        "model": "llama-3-8b", "gpus": "8xH100", "gbs_tokens": 1_000_000, "precision": "fp8",
        "use": ("megatron-fsdp",),
    },
    "mixtral": {"model": "mixtral-8x7b", "gpus": "64xH100", "gbs": 256, "seq": 4096},
    "gpt-oss": {"model": "gpt-oss-20b", "gpus": "32xH100", "gbs": 256, "seq": 4096},
    "deepseek-v3": {
        "model": "deepseek-v3", "gpus": "256xH100", "gbs": 2048, "seq": 4096,
        "limits": {"pp": (16,), "tp": (1, 2), "cp": (1,), "mbs": (1,)}, "fit_probability": 0.75,
        "use": ("bf16-gradients",),
    },
}  # fmt: skip
CASES = [
    *(("megatron-core", name) for name in JOBS),
    ("megatron-bridge", "70b"),
    ("megatron-bridge", "mixtral"),
    ("megatron-bridge", "fsdp"),
    ("torchtitan", "70b"),
    ("torchtitan", "8b"),
]


@pytest.mark.parametrize(("framework", "name"), CASES)
def test_nothing_faster_than_the_searchs_own_plan(
    framework: str, name: str, tmp_path: Path
) -> None:
    request = Request(**JOBS[name], framework=framework)
    found = find_plans(request, fastest_only=True)
    plan = found.plans[0]
    target = target_of_profile(framework)
    decided = decided_request(request, plan)
    assert _evaluated(decided, plan) == pytest.approx((plan.step_time_s, plan.peak_bytes))
    launch = launch_of(plan, decided, target, "torchrun", found.job.used_gpus)
    write_folder(tmp_path / "run", launch_folder(launch).files, force=False)
    # A person names the model of a Python configuration, which holds its size alone.
    hints = Hints(model=request.model) if framework == "torchtitan" else None
    read = read_given([str(tmp_path / "run")], hints or Hints(), 1, str(request.gpus), None).found
    assessment = assess(read, gpus=str(request.gpus))
    assert assessment.problems == ()
    assert assessment.plan is not None
    assert assessment.plan.step_time_s == pytest.approx(plan.step_time_s, rel=1e-3)
    assert assessment.plan.peak_bytes == pytest.approx(plan.peak_bytes, rel=1e-3)
    said = {read.framework, *read.variations, *assessment.plan.techniques}
    assert set(plan.techniques) <= said
    changes = best_changes(assessment, lambda _what, _done, _total: None)
    assert [(change.change, change.faster) for change in changes] == []


def _evaluated(request: Request, plan: Plan) -> tuple[float, float]:
    """(step time, s; peak of `planner memory`, bytes) of the command that a plan is copied as."""
    text = evaluate_command(request, plan.degrees, plan.recompute, plan.layout)
    options = command("evaluate").make_context("evaluate", shlex.split(text)[2:]).params
    configuration = given_configuration(options).resolve()
    again, used = evaluated(configuration), footprint_of(configuration)
    assert used.total_bytes == pytest.approx(again.peak_bytes)
    return again.step_time_s, again.peak_bytes
