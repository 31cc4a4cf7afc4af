"""Batch ramps in launch files: written for Megatron-LM, refused by name elsewhere, read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.launch.dialects.megatron.writer import command
from planner.launch.plans import writer_of
from planner.launch.registry import targets
from tests.cli.conftest import run_cli
from tests.launch.plans import default_argv, megatron
from tests.launch.round_trip import read_back


def test_written_and_read_again(tmp_path: Path) -> None:
    launch = megatron("ramp")
    argv = default_argv(command(launch))
    place = argv.index("--step-batch-size-schedule")
    assert argv[place + 1] == "0:4,1000000000:8,2500000000:16"
    # Megatron takes one of the two.
    assert "--global-batch-size" not in argv
    found = read_back(launch, tmp_path / "run").assessment
    assert found.errors == () and found.plan is not None
    assert found.plan.ramp == launch.plan.ramp and len(found.plan.ramp) == 2


@pytest.mark.parametrize("target", sorted(set(targets()) - {"megatron-core"}))
def test_refused_by_name(target: str) -> None:
    said = [item.reason for item in writer_of(targets()[target]).job_refusals(megatron("ramp").job)]
    assert any("ramp" in reason for reason in said)


def test_launch_with_another_ramp(tmp_path: Path) -> None:
    plans = str(tmp_path / "plans.json")
    job = ("--model", "smollm2-1.7b", "--gpus", "8xH100", "--gbs", "64", "--tp", "2")
    assert run_cli("evaluate", *job, "-o", plans).exit_code == 0
    run = ("launch", plans, "-o", str(tmp_path / "run"), "-q", "--batch-ramp")
    wrong = run_cli(*run, "10..64+6/1B")
    assert wrong.exit_code == 2 and "must divide 2" in wrong.stderr
    assert run_cli(*run, "16..64/1B").exit_code == 0
    assert "0:16,333333333:32" in (tmp_path / "run" / "launch.sh").read_text()
