"""AutoModel's own typed configuration on every file that the writer makes, and on wrong ones.

PLANNER_AUTOMODEL names a Python that has nemo-automodel 0.7 with the libraries that it imports (see
CONTRIBUTING.md).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner.launch.contract import Launch
from planner.launch.dialects.automodel import writer
from tests.launch.automodel_cases import MATRIX
from tests.launch.torch_plans import Case, launch_of

pytestmark = pytest.mark.frameworks
_SCRIPT = Path(__file__).with_name("automodel_parser.py")
_SET = {
    "PRETRAINED": "model", "DATASET": "data.jsonl", "TRAIN_STEPS": "70", "LEARNING_RATE": "3e-5",
    "WARMUP_STEPS": "7", "CHECKPOINTS": "checkpoints",
}  # fmt: skip


def verdicts(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    python = os.environ.get("PLANNER_AUTOMODEL")
    if not python:
        pytest.fail("PLANNER_AUTOMODEL must name a Python that has nemo-automodel")
    done = subprocess.run(
        [python, str(_SCRIPT)],
        input=json.dumps(cases), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def launch(item: Case) -> Launch:
    return launch_of(item, "automodel", "automodel")


def as_case(written: Launch) -> dict[str, Any]:
    """The file with what a user sets on the command line."""
    command = writer.command(written)
    words = [*command.argv[3:], *(word for one in command.branches for word in one.given)]
    for name, value in _SET.items():
        words = [word.replace(f"${{{name}}}", value) for word in words]
    return {"text": writer.files(written)["automodel.yaml"], "argv": words}


@cache
def _judged() -> dict[str, dict[str, Any]]:
    found = verdicts([as_case(launch(item)) for item in MATRIX])
    return {item.name: one for item, one in zip(MATRIX, found, strict=True)}


@pytest.mark.parametrize("item", MATRIX, ids=lambda one: one.name)
def test_automodel_reads_the_plan(item: Case) -> None:
    verdict, written = _judged()[item.name], launch(item)
    assert verdict["ok"], verdict["error"]
    seen, degrees = verdict["seen"], written.plan.degrees
    assert [seen[name] for name in ("tp", "pp", "cp")] == [degrees.tp, degrees.pp, degrees.cp]
    runs = degrees.grad_acc if degrees.pp > 1 else 1
    assert (seen["local"], seen["gbs"]) == (degrees.mbs * runs, written.plan.gbs)
    assert seen["recomputes"] == (written.plan.recompute == "full")
    assert seen["seq"] == written.job.seq
    packs = written.job.samples.packing == "pack-varlen"
    assert seen["pack"] == (written.plan.seq if packs else None)
    tuning = written.job.tuning
    assert (seen["rank"] or 0, bool(seen["dora"])) == (tuning.rank, tuning.method == "dora")
    assert bool(seen["four_bits"]) == (tuning.base in ("nf4", "nf4-double"))
    assert (seen["steps"], seen["rate"], seen["warmup"], seen["saves"]) == (70, 3e-5, 7, True)
    assert seen["strategy"] == (
        "DDPConfig" if degrees.zero == 0 and degrees.dp > 1 else "FSDP2Config"
    )


_WRONG = (
    ("strategy: fsdp2", "strategy: fsdp3", "Unknown strategy"),
    ("sequence_parallel:", "sequence_paralel:", "Unknown options"),
    ("  dim: 16", "  rank: 16", "rank"),
    ("lr_decay_style:", "decay_style:", "decay_style"),
    ("max_steps:", "steps:", "steps"),
)


def test_automodel_refuses_what_is_wrong() -> None:
    good = as_case(launch(next(one for one in MATRIX if one.name == "lora")))
    bad = [good | {"argv": [], "text": good["text"].replace(old, new)} for old, new, _ in _WRONG]
    found = verdicts(bad)
    assert [one["ok"] for one in found] == [False] * len(_WRONG)
    for verdict, (_, _, words) in zip(found, _WRONG, strict=True):
        assert words in verdict["error"]
