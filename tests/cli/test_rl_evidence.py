"""`planner validate` and `planner calibrate` of runs of reinforcement learning."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.evidence.rl.cases import COLOCATED, SEPARATE

BAD_INPUT = 2
LOG = Path(__file__).parents[1] / "evidence" / "rl" / "logs" / "verl.log"
SEARCH = (
    "search", "--model", "qwen3-0.6b", "--gpus", "4xH100", "--rl", "grpo", "--rl-framework", "verl",
    "--prompts", "32", "--samples-per-prompt", "8", "--placement", "colocated", "--lengths",
    "prompt=100,response=lognormal:mean=300,sigma=0.85,max=2048",
)  # fmt: skip


def table(path: Path, *rows: dict[str, str]) -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return table(tmp_path / "runs.csv", COLOCATED, SEPARATE)


def test_runs_are_predicted_and_judged(run: Run, runs: Path) -> None:
    result = run("validate", "--data", str(runs), "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert [row["error"] for row in content["rows"]] == [None, None]
    assert content["rows"][0]["predicted_step_s"] > 0.0
    assert {"step", "generation", "training"} <= set(content["summary"]["total"])
    assert len(content["summary"]["pairs"]) == 1


def test_they_go_to_a_command_of_their_own(run: Run, runs: Path, tmp_path: Path) -> None:
    other = table(tmp_path / "other.csv", {"layers": "2", "hidden": "64"})
    result = run("validate", "--data", str(runs), "--data", str(other))
    assert result.exit_code == BAD_INPUT
    assert "in separate commands" in result.stderr
    unnamed = run("validate", "--data", str(runs), "--unnamed")
    assert "framework's name" in unnamed.stderr


def test_own_runs_teach_a_cluster(run: Run, runs: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    result = run("calibrate", "--from", str(runs), "-o", str(own), "--quiet")
    assert result.exit_code == 0, result.output
    assert "by kind of phase" in result.stdout
    assert "[[calibration.phases]]" in own.read_text(encoding="utf-8")
    again = run("validate", "--data", str(runs), "--cluster", str(own), "--json")
    plain = run("validate", "--data", str(runs), "--json")
    errors = [
        json.loads(one.stdout)["summary"]["total"]["training"]["width"] for one in (again, plain)
    ]
    assert errors[0] < errors[1]


def test_a_log_beside_its_plan_teaches_a_cluster_and_tells_lengths(
    run: Run, tmp_path: Path
) -> None:
    log = tmp_path / "run.log"
    shutil.copy(LOG, log)
    alone = run("calibrate", "--from", str(log))
    assert alone.exit_code == BAD_INPUT
    assert "--plan-file" in alone.stderr
    plan, own = tmp_path / "plan.json", tmp_path / "own.toml"
    assert run(*SEARCH, "-o", str(plan)).exit_code == 0
    # Of a folder the logs beside the plan.
    result = run("calibrate", "--from", str(tmp_path), "-o", str(own), "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert {one["name"] for one in content["phases"]} >= {"generation", "training"}
    assert content["lengths"] == "prompt=104,response=lognormal:mean=410,sigma=0.85,max=2048"
    searched = run(*SEARCH[:3], "--cluster", str(own), *SEARCH[5:])
    assert searched.exit_code == 0, searched.output


def test_a_log_of_another_framework_is_refused(run: Run, tmp_path: Path) -> None:
    plan, log = tmp_path / "plan.json", tmp_path / "run.log"
    assert run(*SEARCH, "-o", str(plan)).exit_code == 0
    shutil.copy(LOG.with_name("slime.log"), log)
    result = run("calibrate", "--from", str(log), "--plan-file", str(plan))
    assert result.exit_code == BAD_INPUT
    assert "a log of slime" in result.stderr


def test_a_log_is_of_the_launch_files_that_are_given(run: Run, tmp_path: Path) -> None:
    plan, folder, log = tmp_path / "plan.json", tmp_path / "launch", tmp_path / "run.log"
    assert run(*SEARCH, "-o", str(plan)).exit_code == 0
    launched = run("launch", str(plan), "-o", str(folder))
    assert launched.exit_code == 0, launched.output
    shutil.copy(LOG, log)
    asked = ("calibrate", "--from", str(log), "--json")
    by_files = run(*asked, "--launch", str(folder), "--gpus", "4xH100")
    assert by_files.exit_code == 0, by_files.output
    by_plan = run(*asked, "--plan-file", str(plan))
    both = [
        {one["kind"]: one["predicted_s"] for one in json.loads(each.stdout)["times"]}
        for each in (by_files, by_plan)
    ]
    assert both[0]["training"] == pytest.approx(both[1]["training"], rel=0.2)
