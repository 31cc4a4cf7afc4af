"""One more axis of size 1 in a copy: all that lists degrees has it, and no figure changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from planner.job.request import Request
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees
from tests.test_changes import ROOT, _copy

_TOY = """
[[axes]]
name = "toy"
words = "parallelism of toys"
divides = "toys"
default = 1
of_layer = true
communicates = true
capability = "tensor"
needs = "toys"
[[axes.cuts]]
rule = "layers-by-toy"
number = "layers"
sentence = "toy divides the layers"
source = "a toy"
wording = "{} layers"
"""
_SCRIPT = """
import json, sys
from click.testing import CliRunner
sys.path.insert(0, "examples")
from page_tables import axes
from constraints import axes as table, registry
from constraints.condition import NAMES
from planner.cli import planner_command
from planner.cost import fields
from planner.job.request import Request
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees
from planner.predict.plan_text import degrees_text
from planner.predict.shapes import legal_candidates
from planner.search.frame import COLUMNS, plan_row

request = Request(**json.loads(sys.argv[1]))
plan = evaluate(request, Degrees(**json.loads(sys.argv[2])))
more = ["--require", "toy == 1", "--fix", "toy=1", "--toy", "1"]
print(json.dumps({
    "plan": plan.model_dump(mode="json"),
    "text": degrees_text(Degrees(toy=2)),
    "world": Degrees(toy=2, tp=2).gpus,
    "key": list(fields.KEY_ROW.names),
    "groups": list(table.GROUPS),
    "frame": [name for name in COLUMNS], "row": plan_row(plan)["toy"],
    "names": list(NAMES),
    "tried": sorted(set(legal_candidates(request.resolve()).columns["toy"].tolist())),
    "rules": [rule.name for rule in registry.RULES],
    "page": axes(),
    "help": {
        name: CliRunner().invoke(planner_command, [name, "--help-all"]).output
        for name in ("search", "evaluate", "memory", "fit")
    },
    "status": CliRunner().invoke(
        planner_command, [*sys.argv[3:], *more, "--json"]
    ).exit_code,
    "refused": CliRunner().invoke(
        planner_command, [*sys.argv[3:], "--toy", "3"]
    ).stderr,
}))
"""
_REQUEST = {"model": "mixtral-8x7b", "gpus": "16xH100", "gbs": 64, "seq": 4096}
_DEGREES = {"tp": 2, "pp": 2, "cp": 2, "ep": 2, "dp": 2, "zero": 1, "mbs": 1, "grad_acc": 32}
_COMMAND = "evaluate --model mixtral-8x7b --gpus 64xH100 --gbs 64 --seq 4096 --tp 2 --pp 4 --ep 8"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a copy says whose table has the toy axis, inside the stages of a pipeline."""
    folder = tmp_path_factory.mktemp("toy")
    _copy(folder)
    path = folder / "constraints" / "axes.toml"
    text = path.read_text(encoding="utf-8")
    assert '"cp", "dp"' in text
    path.unlink()
    path.write_text(text.replace('"cp", "dp"', '"cp", "toy", "dp"') + _TOY, encoding="utf-8")
    for name in ("examples", "tests"):
        (folder / name).symlink_to(ROOT / name)
    arguments = [json.dumps(_REQUEST), json.dumps(_DEGREES), *_COMMAND.split()]
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_every_figure_stays(told: dict[str, Any]) -> None:
    plan = evaluate(Request(**_REQUEST), Degrees(**_DEGREES)).model_dump(mode="json")
    assert told["plan"]["degrees"].pop("toy") == 1
    assert told["plan"] == plan


def test_texts_columns_and_groups_have_it(told: dict[str, Any]) -> None:
    assert told["text"] == "tp1 pp1 dp1 z0 toy2"
    assert told["world"] == 4
    assert "toy" in told["key"]
    assert told["groups"][-1] == "toy"
    assert "toy" in told["frame"]
    assert told["row"] == 1
    assert "| toy | parallelism of toys | toys |" in told["page"]


def test_options_conditions_and_rules_have_it(told: dict[str, Any]) -> None:
    assert "toy" in told["names"]
    assert {"user-toy", "layers-by-toy"} <= set(told["rules"])
    assert told["status"] == 0
    assert told["tried"] == [1]
    assert "toy must divide 32 layers" in told["refused"]
    for command, text in told["help"].items():
        assert "--toy" in text, command
        assert "Parallelism of toys." in text, command
