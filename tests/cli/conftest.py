"""Running the command line in this process, without a terminal and 80 columns wide."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from planner.cli import planner_command

Run = Callable[..., Result]

# The main job, and a small one that is searched in well under a second.
MAIN = ("--model", "70b", "--gpus", "64xH100", "--gbs-tokens", "4M")
SMALL = ("--model", "llama-3.2-1b", "--gpus", "8xH100", "--gbs", "64")


def run_cli(*arguments: str) -> Result:
    """Invoke `planner` with these arguments."""
    runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "", "PLANNER_DEBUG": ""})
    return runner.invoke(planner_command, list(arguments), prog_name="planner")


@pytest.fixture
def run() -> Run:
    """Invoke `planner` with these arguments."""
    return run_cli


@pytest.fixture(scope="session")
def main_job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """The main job, run once, and the plan file that it wrote."""
    path = tmp_path_factory.mktemp("main") / "plans.json"
    return run_cli("search", *MAIN, "-o", str(path)), path


def lines_are_short(text: str) -> bool:
    """Whether every line fits 80 columns."""
    return all(len(line) <= 80 for line in text.splitlines())


def refused(result: Result, *words: str) -> None:
    """Check that a command said, in these words among others, that its input is wrong."""
    assert result.exit_code == 2, result.output
    said = " ".join(result.stderr.split())
    assert all(" ".join(one.split()) in said for one in words), said
