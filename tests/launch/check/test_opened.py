"""What no file, default or preset decides: predicted over, and said."""

from __future__ import annotations

import json
from math import log
from pathlib import Path
from typing import Any

import pytest

from planner.job.request import Request
from planner.launch.check.assess import Assessment, assess
from planner.launch.check.document import as_json
from planner.launch.check.given import read_given
from planner.launch.plans import one_plan
from planner.launch.read.found import Hints
from planner.predict.evaluate import Proposal
from planner.predict.plan import Degrees
from planner.report.check import check_report

DEEPSPEED: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}
MEGATRON = """torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 \\
  --micro-batch-size 1 --global-batch-size 64 --bf16 --tensor-model-parallel-size 4 \\
  --use-distributed-optimizer {more}
"""
GPUS = "8xH100"


def checked(path: Path, **hints: Any) -> Assessment:
    """The assessment of one file on eight GPUs."""
    given = read_given([str(path)], Hints(**hints), 1, GPUS, None)
    return assess(given.found, GPUS)


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """DeepSpeed's file alone: the program that it belongs to is not there."""
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(DEEPSPEED), encoding="utf-8")
    return path


def test_what_the_program_decides_is_open_and_predicted_over(settings: Path) -> None:
    found = checked(settings, model="1b", seq=2048)
    assert found.found.left_open == ("recompute", "flash", "compile", "loss")
    assert {fact.name for fact in found.opened} == set(found.found.left_open)
    assert found.plan is not None
    assert found.proposal is not None
    alone = found.proposal.plan()
    assert found.plan.step_time_s == alone.step_time_s
    assert found.plan.step_time.high > alone.step_time.high
    assert found.plan.peak_interval.low <= found.plan.peak_bytes <= found.plan.peak_interval.high


def test_what_the_caller_says_is_not_open(settings: Path) -> None:
    said = checked(settings, model="1b", seq=2048, recompute="full")
    assert "recompute" not in said.found.left_open
    full = checked(settings, model="1b", seq=2048)
    assert full.plan is not None
    assert said.plan is not None
    (recompute,) = (fact for fact in full.opened if fact.name == "recompute")
    effect = next(one for one in recompute.values if one.cell == "full").effects["time"]
    ratio = said.plan.step_time_s / full.plan.step_time_s
    assert effect == pytest.approx(log(ratio))


def test_what_would_narrow_the_bar_most_is_said_and_in_the_json(settings: Path) -> None:
    found = checked(settings, model="1b", seq=2048)
    document = json.loads(as_json(found, (), None))
    assert document["open_facts"] == list(found.found.left_open)
    assert document["narrowing_time"].startswith("recompute not stated: ")
    values = document["open_values"][0]["values"]
    assert values[0]["step_time_s"] == pytest.approx(document["plan"]["step_time_s"])
    assert "recompute not stated" in str(check_report(found, None, (), None))


def test_a_script_whose_framework_has_defaults_leaves_its_vocabulary_open_alone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "train.sh"
    path.write_text(MEGATRON.format(more=""), encoding="utf-8")
    found = checked(path)
    assert found.found.left_open == ("vocab",)
    assert [fact.name for fact in found.opened] == ["vocab"]
    path.write_text(MEGATRON.format(more="--vocab-size 32000"), encoding="utf-8")
    stated = checked(path)
    assert stated.found.left_open == stated.opened == ()
    assert stated.proposal is not None
    assert stated.plan == stated.proposal.plan()
    document = json.loads(as_json(stated, (), None))
    assert (document["open_facts"], document["open_values"]) == ([], [])
    assert document["narrowing_time"] is None


def test_the_planners_own_folder_leaves_nothing_open(settings: Path) -> None:
    """Its plan file says that the program is the planner's."""
    request = Request(model="1b", gpus=GPUS, gbs=16, seq=2048, framework="deepspeed")
    job = request.resolve()
    plan = Proposal(request, Degrees(dp=8, zero=3, mbs=1, grad_acc=2)).plan()
    text = one_plan(plan, request, job).model_dump_json()
    (settings.parent / "plan.json").write_text(text, encoding="utf-8")
    given = read_given([str(settings.parent)], Hints(seq=2048), 1, None, None)
    found = assess(given.found, given.gpus)
    assert (found.found.left_open, found.opened) == ((), ())
    assert found.plan is not None
    assert found.plan.step_time == plan.step_time
