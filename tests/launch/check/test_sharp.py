"""`planner check` on launches that ask switches to reduce."""

from __future__ import annotations

import pytest

from planner.launch.check.assess import assess
from tests.launch.check.conftest import OVERLAPPED, SMALL, Read, rules, script

REPLICAS = "--num-distributed-optimizer-instances 2"


@pytest.mark.parametrize(
    ("options", "on", "severity", "words"),
    [
        ("--use-sharp", True, None, ""),
        ("--use-sharp --sharp-enabled-group dp", True, None, ""),
        (f"--use-sharp --sharp-enabled-group dp_replica {REPLICAS}", True, None, ""),
        ("--sharp-enabled-group dp", False, "error", "needs --use-sharp"),
        ("--use-sharp --sharp-enabled-group dp_replica", False, "error", "above 1"),
        (f"--use-sharp {REPLICAS}", False, "warning", "the switches reduce nothing"),
        ("", False, None, ""),
    ],
)
def test_what_megatron_makes_of_it(
    read: Read, options: str, on: bool, severity: str | None, words: str
) -> None:
    found = read(script(f"{SMALL} {OVERLAPPED} {options}"), gpus=16)
    assert found.sharp is on
    chosen_problems = [problem for problem in found.problems if problem.rule == "sharp-group"]
    assert [problem.severity for problem in chosen_problems] == ([severity] if severity else [])
    assert all(words in problem.text for problem in chosen_problems)
    assert not found.unmodelled


def test_the_variable_alone_does_nothing(read: Read) -> None:
    text = script(f"{SMALL} {OVERLAPPED}").replace("export", "export NCCL_COLLNET_ENABLE=1\nexport")
    found = read(text)
    assert not found.sharp
    assert "sharp-collnet" in rules(found, "warning")
    assert "sharp-collnet" not in rules(read(text.replace(SMALL, f"{SMALL} --use-sharp")), None)


def test_it_is_costed_where_the_switches_can(read: Read) -> None:
    dense = script(f"{SMALL} --tensor-model-parallel-size 8").replace(
        "--nproc_per_node 8", "--nnodes 4 --nproc_per_node 8"
    )
    plain = assess(read(dense), gpus="32xH100")
    switched = assess(read(dense.replace(SMALL, f"{SMALL} --use-sharp")), gpus="32xH100")
    assert plain.plan is not None
    assert switched.plan is not None
    assert switched.job is not None
    assert switched.job.cluster.sharp == "v3"
    assert switched.plan.step_time_s < plain.plan.step_time_s
    assert not any(problem.rule == "sharp-idle" for problem in switched.problems)


@pytest.mark.parametrize(
    ("gpus", "words"),
    [("8xH100", "inside a scale-up domain"), ("8xaws-p5", "only InfiniBand switches reduce")],
)
def test_where_they_cannot_it_runs_and_is_said(read: Read, gpus: str, words: str) -> None:
    found = assess(read(script(f"{SMALL} {OVERLAPPED} --use-sharp")), gpus=gpus)
    idle = [problem for problem in found.problems if problem.rule == "sharp-idle"]
    assert [item.severity for item in idle] == ["warning"]
    assert words in idle[0].text
    assert found.plan is not None
