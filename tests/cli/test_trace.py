"""`planner trace` on the command line: tables, JSON, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from planner.cli.program import planner_command
from tests.cli.conftest import refused
from tests.evidence.traces import made_up
from tests.evidence.traces.test_snapshot import Attack, snapshot, written


def invoke(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(
        planner_command, ["trace", *map(str, arguments)]
    )


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    words = "evaluate --model llama-3-8b --gpus 8xH100 --gbs 64 --tp 2 --mbs 1 -o"
    CliRunner().invoke(planner_command, [*words.split(), str(path)])
    return path


def test_predicted_against_traced_by_term(tmp_path: Path, plan: Path) -> None:
    paths = [
        made_up.write(tmp_path / f"{rank}.json.gz", made_up.trace(rank=rank)) for rank in range(2)
    ]
    result = invoke(*paths, "--plan-file", plan)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    [header] = [line for line in lines if line.startswith("term, a step")]
    assert "predicted" in header
    [step] = [line for line in lines if line.startswith("step ") and "100.0 %" in line]
    assert step.split()[-4:-2] == ["10.0", "ms"]
    [exposed] = [line for line in lines if line.startswith("exposed communication, dp")]
    assert "2.0 ms" in exposed
    assert "gradient reduction or weight gathers are not overlapped" in result.stdout


def test_json(tmp_path: Path) -> None:
    result = invoke(made_up.write(tmp_path / "a.json", made_up.trace()), "--json")
    content = json.loads(result.stdout)
    assert content["ranks"][0]["exposed"] == pytest.approx({"dp": 2e-3})
    assert content["findings"]


def test_snapshot_against_the_plan(tmp_path: Path, plan: Path) -> None:
    path = written(tmp_path / "a.pickle", snapshot())
    result = invoke(path, "--plan-file", plan)
    assert result.exit_code == 0, result.output
    assert "0.21 GiB" in result.stdout
    assert "the peak was made by" in result.stdout
    assert "49.2 % of it free" in result.stdout
    assert json.loads(invoke(path, "--json").stdout)[0]["retries"] == 1


def test_a_snapshot_with_code_is_wrong_input(tmp_path: Path) -> None:
    path = written(tmp_path / "a.pickle", {"segments": [Attack(tmp_path / "owned")]})
    refused(invoke(path), "no code of it was run")
    assert not (tmp_path / "owned").exists()


def test_both_kinds_at_once(tmp_path: Path) -> None:
    trace = made_up.write(tmp_path / "a.json", made_up.trace())
    refused(invoke(trace, written(tmp_path / "a.pickle", snapshot())), "not both at once")


def test_a_plan_that_is_not_there(tmp_path: Path, plan: Path) -> None:
    trace = made_up.write(tmp_path / "a.json", made_up.trace())
    refused(invoke(trace, "--plan-file", plan, "--plan", 9), "no plan 9")


def test_terms_and_peaks_are_drawn_beside_the_plan(tmp_path: Path, plan: Path) -> None:
    trace = made_up.write(tmp_path / "a.json", made_up.trace())
    memory = written(tmp_path / "a.pickle", snapshot())
    for path, said in ((trace, "exposed communication, dp"), (memory, "optimizer")):
        drawing = tmp_path / f"{path.name}.svg"
        words = (path, "--plan-file", plan, "--plot", drawing)
        assert invoke(*words).exit_code == 0
        text = drawing.read_text(encoding="utf-8")
        assert said in text and "predicted" in text and "measured" in text
        assert invoke(*words).exit_code == 2  # the picture is there
    page = tmp_path / "a.html"
    assert invoke(trace, "--plot", page).exit_code == 0
    assert "Patterns" in page.read_text(encoding="utf-8")
