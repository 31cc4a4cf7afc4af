"""Short runs of plans of reinforcement learning: a command that stands for verl, and what is learnt
of what it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import planner.cli.tune
from planner.cli.program import planner_command
from planner.launch.rl import rl_files
from planner.search.rl.plan_file import read_rl_plan, to_json
from planner.search.rl.result import RlResult
from planner.tune.journal import Chosen, Ended, TrialRecord
from planner.tune.rl.follow import FollowedSteps
from planner.tune.rl.work import RL_SHORT, RlStudyWork
from tests.launch.rl_plans import drawn

JOB = (
    "--model", "qwen3-0.6b", "--gpus", "4xH100", "--framework", "megatron-core", "--rl", "grpo",
    "--prompts", "64", "--samples-per-prompt", "8", "--lengths",
    "prompt=64..128,response=lognormal:median=200,p95=900,max=2048", "--token-limit", "4096",
)  # fmt: skip
MUCH = ("--tokens", "1000000T")

# Stands for verl: a step as its console prints it, by what the folder's plan predicts.
VERL = """#!{python} -S
import json, os, sys, time
folder = sys.argv[1]
plan = json.load(open(os.path.join(folder, "plan.json")))["plans"][0]
seconds = {{}}
for phase in plan["phases"]:
    seconds[phase["name"]] = seconds.get(phase["name"], 0.0) + phase["seconds"]
tp, zero = plan["engine"]["tp"], plan["trainer"]["degrees"]["zero"]
print("(TaskRunner pid=1) Training Progress: 0%", flush=True)
if tp == 2:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
gen = seconds["generation"] * (3.0 if tp == 1 else 1.0)
rest = plan["step_s"] - seconds["generation"]
update = seconds["update"]
for step in range(1, 13):
    odd = 1 + 0.002 * (step % 3) + (step < 3)
    time.sleep({pause})
    print(f"(TaskRunner pid=1) step:{{step}} - actor/pg_loss:0.01 - timing_s/generate_sequences:"
          f"{{gen * odd:.4f}} - timing_s/update_actor:{{update * odd:.4f}} - "
          f"timing_s/step:{{(gen + rest) * odd:.4f}} - response_length/mean:310.5", flush=True)
"""


def verl(folder: Path, pause: float = 0.01) -> str:
    """The command that starts a trial."""
    path = folder / "verl"
    path.write_text(VERL.format(python=sys.executable, pause=pause))
    path.chmod(0o755)
    return f"{path} {{folder}}"


def tune(*words: object) -> Result:
    return CliRunner().invoke(planner_command, ["tune", *map(str, words)], catch_exceptions=False)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three plans that differ in how engines are split: of tp 1, 2 and 4."""
    folder = tmp_path_factory.mktemp("plans")
    found = []
    for tp in (1, 2, 4):
        path = folder / f"{tp}.json"
        words = ["evaluate", *JOB, "--placement", "colocated", "--rollout-tp", str(tp), "-o", path]
        done = CliRunner().invoke(planner_command, list(map(str, words)))
        assert done.exit_code == 0, done.output
        found.append(read_rl_plan(path)[0])
    together = found[0].model_copy(update={"plans": tuple(one.plans[0] for one in found)})
    path = folder / "plans.json"
    path.write_text(to_json(together))
    return path


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner.cli.tune, "_POLL_S", dict.fromkeys(planner.cli.tune._POLL_S, 0.05))


def study_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "study.json").read_text())
    return found


def test_the_truly_best_is_found_in_few_trials(plans: Path, tmp_path: Path) -> None:
    """Engines of tp 1 are slower than predicted, those of tp 2 run out of memory; those of tp 4,
    predicted as the slowest, are right."""
    study = tmp_path / "study"
    done = tune(plans, "--run", verl(tmp_path), "-o", study, "--trials", "6", *MUCH, "-q")
    assert done.exit_code == 0, done.output
    found = study_of(study)
    assert " of tp 4," in found["best"], found["trials"]
    assert {one["outcome"] for one in found["trials"]} == {"measured", "out-of-memory"}
    assert (study / "trials" / "000" / "run.sh").is_file()
    assert "total_training_steps=12" in (study / "trials" / "000" / "run.sh").read_text()
    assert any("generation" in one for one in found["notes"])
    page = tmp_path / "study.html"
    drawn = CliRunner().invoke(planner_command, ["report", str(study), "-o", str(page)])
    assert drawn.exit_code == 0, drawn.output


def test_a_killed_driver_goes_on(plans: Path, tmp_path: Path) -> None:
    study = tmp_path / "study"
    words = [plans, "--run", verl(tmp_path, 0.4), "-o", study, "--trials", "2", *MUCH, "-q"]
    driver = subprocess.Popen([sys.executable, "-m", "planner", "tune", *map(str, words)])
    log = study / "trials" / "000" / "train.log"
    until = time.monotonic() + 120.0
    while not log.is_file() and time.monotonic() < until:
        time.sleep(0.1)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    assert log.is_file()
    done = tune("--resume", study, "-q")
    assert done.exit_code == 0, done.output
    assert log.read_text().count("Training Progress") == 1
    found = study_of(study)
    assert [one["number"] for one in found["trials"]] == [0, 1]
    assert found["framework"] == "verl"


@pytest.fixture(scope="module")
def work(plans: Path) -> RlStudyWork:
    result: RlResult = read_rl_plan(plans)[0]
    return RlStudyWork(result, RL_SHORT, 1e12, "run")


def ended(work: RlStudyWork, key: str, step_s: float, **parts: float) -> TrialRecord:
    one = work.candidates[key]
    chosen = Chosen(key, "x-000", one.gpus, 1, one.step_s, 1.0, 0.0, 0.0, "", 0.0)
    return TrialRecord(
        0, chosen, ended=Ended("measured", "", 0.0, 1.0, step_s, 0.01, 8, parts=parts)
    )


def test_candidates_are_plans_and_neighbours(work: RlStudyWork) -> None:
    names = list(work.names.values())
    assert names[:3] == ["plan 1", "plan 2", "plan 3"]
    assert any(name.startswith("plan 1 with engines take") for name in names)
    assert len(set(names)) == len(names) <= 60


def test_a_phase_moves_all_candidates(work: RlStudyWork) -> None:
    """Generation twice as long as predicted in one plan: others are expected slower, by their
    share of generation; a plan of the same engine by more than one of another."""
    key = work.keys[0]
    one = work.candidates[key]
    generation = one.costed.seconds(("generation",))
    record = ended(work, key, one.step_s + generation, generation=2.0 * generation)
    before, _ = work.prior.moments
    after, left = work.belief([record]).moments
    moved = after - before
    assert (moved > 0.02).all()
    assert moved[0] == pytest.approx(float(moved.max()), rel=0.3)
    engines = [other.engine == one.engine for other in work.candidates.values()]
    assert moved[engines].mean() > moved[[not same for same in engines]].mean()
    _, wide = work.prior.moments
    assert (left.diagonal() < wide.diagonal()).mean() > 0.5


def test_a_log_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    log = FollowedSteps(path)
    assert not log.look() and log.format == "" and log.parts() == {}
    line = "step:{} - timing_s/gen:30.0 - timing_s/update_actor:10.0 - timing_s/step:42.0\n"
    path.write_text("".join(line.format(step) for step in range(1, 7)))
    assert log.look() and log.format == "verl" and log.said.values == [42.0] * 6
    assert log.parts()["transfer+wake+generation+sleep"] == 30.0
    with path.open("a") as stream:
        stream.write("torch.OutOfMemoryError: CUDA out of memory\n")
    assert log.look() and "out-of-memory" in log.signs


def test_what_cannot_start_is_refused(plans: Path, tmp_path: Path) -> None:
    where = ("-o", tmp_path / "study")
    cluster = tune(plans, "--on", "kubernetes", *where)
    assert cluster.exit_code == 2 and "give --run COMMAND" in " ".join(cluster.output.split())
    unset = tune(plans, "--on", "local", *where)
    assert unset.exit_code == 2 and "set MODEL_PATH" in " ".join(unset.output.split())
    assert not (tmp_path / "study").exists()


def test_a_dry_run_tells_trials(plans: Path) -> None:
    told = tune(plans, "--dry-run", "--run", "x {folder}", *MUCH, "--json", "-q")
    assert told.exit_code == 0, told.output
    assert json.loads(told.output)[0]["plan"].startswith("plan ")


@pytest.mark.parametrize(
    ("framework", "file", "said"),
    [
        ("verl", "run.sh", "trainer.total_training_steps=7"),
        ("nemo-rl", "nemo_rl.yaml", "max_num_steps: 7"),
        ("trl", "trl.yaml", "max_steps: 7"),
    ],
)
def test_every_writer_has_a_short_run(framework: str, file: str, said: str) -> None:
    launch = drawn(framework, 1)
    assert said in rl_files(replace(launch, steps=7))[file]
    assert said not in rl_files(launch)[file]
