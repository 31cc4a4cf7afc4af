"""`--measured-…` in the three commands that take it: one diagnosis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import lines_are_short, refused, run_cli
from tests.launch.check.conftest import OVERLAPPED, SMALL

_JOB = ("--model", "8b", "--gpus", "16xH100", "--gbs", "64", "--tp", "2", "--mbs", "1")
# A step, and the same as the other figures that may be given; predicted: about 2.5 s.
_GIVEN = [
    ("--measured-step-time", "4.0"),
    ("--measured-tokens-per-s", "131072"),
    ("--measured-mfu", "20%"),
    ("--measured-memory", "75"),
]


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plans.json"
    assert run_cli("evaluate", *_JOB, "-o", str(path)).exit_code == 0
    return path


@pytest.fixture(scope="module")
def launch_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("launch") / "a.sh"
    run = f"torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py {SMALL} {OVERLAPPED}"
    path.write_text(f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{run}\n")
    return path


@pytest.fixture
def commands(plan_file: Path, launch_file: Path) -> dict[str, tuple[str, ...]]:
    return {
        "evaluate": ("evaluate", *_JOB),
        "explain": ("explain", str(plan_file), "--no-neighbours"),
        "check": ("check", str(launch_file), "--gpus", "16xH100"),
    }


@pytest.mark.parametrize(
    ("command", "given"),
    [*(("evaluate", given) for given in _GIVEN), ("explain", _GIVEN[1]), ("check", _GIVEN[2])],
)
def test_every_command_compares_every_figure(
    commands: dict[str, tuple[str, ...]], command: str, given: tuple[str, str]
) -> None:
    result = run_cli(*commands[command], *given, "-q")
    assert result.exit_code == 0, result.output
    assert "Measured against predicted" in result.stdout
    assert "Possible causes" in result.stdout
    assert lines_are_short(result.stdout)


def test_two_commands_say_the_same_of_one_run(commands: dict[str, tuple[str, ...]]) -> None:
    one, other = (_measured(commands[name]) for name in ("evaluate", "explain"))
    assert one == other
    assert one["explanations"]
    assert all(row["test"] for row in one["explanations"])


def _measured(command: tuple[str, ...]) -> dict[str, Any]:
    result = run_cli(*command, "--measured-step-time", "4.0", "--json", "-q")
    assert result.exit_code == 0, result.output
    measured: dict[str, Any] = json.loads(result.stdout)["measured"]
    return measured


@pytest.mark.parametrize("command", ["evaluate", "explain", "check"])
@pytest.mark.parametrize("wrong", ["0", "-1", "nan", "4s"])
def test_figures_that_no_run_has_are_refused(
    commands: dict[str, tuple[str, ...]], command: str, wrong: str
) -> None:
    refused(run_cli(*commands[command], "--measured-step-time", wrong), "--measured-step-time")


def test_a_time_and_a_rate_are_not_given_together() -> None:
    result = run_cli("evaluate", *_JOB, *_GIVEN[0], *_GIVEN[1])
    refused(result, "give --measured-step-time or --measured-tokens-per-s, not both")
