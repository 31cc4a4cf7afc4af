"""A new term of memory and one of time: a row and a figure in one file, and every report has them.

The changes are made on a copy of the packages, in which commands run without a compiler.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path("planner/cost/terms.py")
# What is added to the file, each behind the line that it follows.
ADDED = {
    '    StageTerm("logits", "logits and loss", "logits and loss", "", "activations"),\n': (
        '    StageTerm("spare", "spare blocks", "weights", "spare", "weights"),\n'
    ),
    '    workspaces: Annotated[float, MemoryTerm("cuBLAS workspaces", "weights")]\n': (
        '    spare: Annotated[float, MemoryTerm("spare blocks", "spare", "weights", "weights")]\n'
    ),
    '    TimeTerm("host", "host: data loading, logging", "constant", "idle", "host"),\n': (
        '    TimeTerm("pause", "pausing", "constant", "idle", "pause"),\n'
    ),
}
CHANGED = {
    "return (framework.workspace_bytes,)": "return (framework.workspace_bytes, 3 * 2.0**30)",
    "return (framework.host_step_s,)": "return (framework.host_step_s, 0.125)",
}
SPARE_BYTES, PAUSE_S = 3 * 2.0**30, 0.125
JOB = "--model pythia-1.4b --gpus 2xH100 --gbs 8 --seq 2048"
GIVEN = f"{JOB} --tp 1 --pp 2 --mbs 1"
COMMANDS = {
    "search": f"search {GIVEN} --recompute none -o plans.json",
    "search as JSON": f"search {GIVEN} --recompute none --json",
    "search as CSV": f"search {GIVEN} --recompute none --csv",
    "evaluate": f"evaluate {GIVEN}",
    "evaluate as JSON": f"evaluate {GIVEN} --json",
    "explain as JSON": "explain plans.json --no-neighbours --json",
    "diagnosis": "explain plans.json --no-neighbours --measured-step-time 9",
    "memory": f"memory {GIVEN}",
    "memory as JSON": f"memory {GIVEN} --json",
    "check": "check run.sh --gpus 2xH100",
    "check as JSON": "check run.sh --gpus 2xH100 --json",
    "report": "report plans.json -o page.html",
}
SCRIPT = """#!/bin/bash
torchrun --nproc-per-node 2 pretrain_gpt.py --num-layers 24 --hidden-size 2048 \\
    --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \\
    --micro-batch-size 1 --global-batch-size 8 --vocab-size 50257 --bf16 --use-mcore-models \\
    --pipeline-model-parallel-size 2 --lr 1e-4 --train-iters 10 --mock-data \\
    --tokenizer-type NullTokenizer
"""
# Runs commands, and says what the solver reads of the first shape.
DRIVER = """
import json, sys
import numpy as np
from click.testing import CliRunner
from planner.cli.program import planner_command
from planner.cost import linear
from planner.cost._entry import Entry
from planner.job.request import Request
from planner.predict.cost_model import CostModel
from planner.predict.configuration import degree_columns
from planner.predict.plan import Degrees
Entry.__call__ = Entry.plain
found = {}
for name, words in json.load(sys.stdin).items():
    done = CliRunner().invoke(planner_command, words.split())
    found[name] = done.stdout if done.exit_code == 0 else f"{done.exit_code}: {done.output}"
job = Request(model="pythia-1.4b", gpus="2xH100", gbs=8, seq=2048, recompute=["none"]).resolve()
model = CostModel(job, compiled=False)
costed = model.price_shapes(degree_columns([Degrees(pp=2, grad_acc=8)], 0))
of_shape = costed.shapes[0], costed.keys[0], costed.piece_costs(0), model.job_inputs
held = model.memory_phases(*of_shape).stage
found["solver"] = {
    "fixed_s": float(model.layout_terms(*of_shape)[1][linear.SCALAR_FIXED_S]),
    "bytes": float(held[held > 0.0].min() * (1.0 + model.framework_inputs.fragmentation)),
}
json.dump(found, sys.stdout)
"""


def copied(folder: Path) -> Path:
    """The packages in a folder, whose table of terms alone is a file of its own."""
    for package in ("planner", "constraints", "hardware"):
        (folder / package).mkdir()
        _link(ROOT / package, folder / package)
    (folder / "planner/cost").unlink()
    (folder / "planner/cost").mkdir()
    _link(ROOT / "planner/cost", folder / "planner/cost")
    (folder / TABLE).unlink()
    text = (ROOT / TABLE).read_text(encoding="utf-8")
    for line, added in ADDED.items():
        assert text.count(line) == 1, line
        text = text.replace(line, line + added)
    for old, new in CHANGED.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / TABLE).write_text(text, encoding="utf-8")
    (folder / "run.sh").write_text(SCRIPT, encoding="utf-8")
    return folder


def _link(source: Path, target: Path) -> None:
    for path in source.iterdir():
        if path.name != "__pycache__":
            (target / path.name).symlink_to(path)


def run(folder: Path, commands: dict[str, str]) -> dict[str, Any]:
    """What commands print in a folder, and what the solver reads there."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps(commands), capture_output=True, text=True, check=True, cwd=folder,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of the copy."""
    folder = copied(tmp_path_factory.mktemp("copy"))
    found = run(folder, COMMANDS)
    return {**found, "page": (folder / "page.html").read_text(encoding="utf-8")}


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """Of the packages as they are."""
    names = ("evaluate as JSON", "memory as JSON")
    return run(ROOT, {name: COMMANDS[name] for name in names})


def test_texts_name_both(shown: dict[str, Any]) -> None:
    for name in ("evaluate", "diagnosis", "page"):
        assert "spare blocks" in shown[name], (name, shown[name])
        assert "pausing" in shown[name], (name, shown[name])
    assert "spare blocks" in shown["memory"]
    # A column of its own in tables of stages.
    assert all(" spare " in shown[name] for name in ("evaluate", "diagnosis", "check"))
    assert "pausing" in shown["check"]


def test_documents_have_both(shown: dict[str, Any]) -> None:
    found = {name: json.loads(text) for name, text in shown.items() if name.endswith("JSON")}
    plans = found["search as JSON"]["plans"] + found["evaluate as JSON"]["plans"]
    plans += [found["explain as JSON"]["plan"], found["check as JSON"]["plan"]]
    for plan in plans:
        assert plan["time"]["pause_s"] == PAUSE_S
        assert sum(plan["time"].values()) == pytest.approx(plan["step_time_s"])
        assert {stage["spare"] for stage in plan["stages"]} == {SPARE_BYTES}
    for name, value in (("memory", SPARE_BYTES), ("time", PAUSE_S)):
        terms = {term["label"]: term["amount"] for term in found["explain as JSON"][name]}
        assert terms["spare blocks" if name == "memory" else "pausing"] == value
    for stage in found["memory as JSON"]["stages"]:
        assert {phase["terms"]["spare"] for phase in stage["phases"]} == {SPARE_BYTES}
        assert {"name": "spare", "bytes": SPARE_BYTES, "where": "tensors"} in stage["peak_parts"]


def test_frames_have_a_column(shown: dict[str, Any]) -> None:
    header, first, *_ = shown["search as CSV"].splitlines()
    assert dict(zip(header.split(","), first.split(","), strict=True))["pause_s"] == str(PAUSE_S)


def test_sums_and_the_solver_count_both(shown: dict[str, Any], plain: dict[str, Any]) -> None:
    """Blocks that stay leave no gaps; in the solver's terms of a stage, too."""
    (after,), (before,) = (
        json.loads(found["evaluate as JSON"])["plans"] for found in (shown, plain)
    )
    assert after["step_time_s"] - before["step_time_s"] == pytest.approx(PAUSE_S)
    assert after["peak_bytes"] - before["peak_bytes"] == pytest.approx(SPARE_BYTES)
    totals = [json.loads(found["memory as JSON"])["total_bytes"] for found in (shown, plain)]
    assert totals[0] - totals[1] == pytest.approx(SPARE_BYTES)
    solver = [found["solver"] for found in (shown, plain)]
    assert solver[0]["fixed_s"] - solver[1]["fixed_s"] == pytest.approx(PAUSE_S)
    assert solver[0]["bytes"] - solver[1]["bytes"] == pytest.approx(SPARE_BYTES)


def test_figures_draw_both(shown: dict[str, Any]) -> None:
    stage = json.loads(shown["explain as JSON"])["plan"]["stages"][0]
    drawn = stage["weights"] + stage["gather_buffers"] + SPARE_BYTES
    assert f"stage 0, weights: {drawn / 2**30:.2f} GiB" in shown["page"]
    assert "pausing: 0.125 s" in shown["page"]
