"""Batch ramps in Megatron-LM's scripts: what they say, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import run_cli
from tests.launch.check.conftest import Read, script

SMALL = (
    "--num-layers 16 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 1 --vocab-size 50000 --bf16"
)


def test_what_scripts_say(read: Read) -> None:
    found = read(script(f"{SMALL} --step-batch-size-schedule '0:64 1B:128 2.5B:256'"))
    assert (found.batch_ramp, found.gbs) == ("64:1000000000,128:2500000000,256", 256)
    old = read(script(f"{SMALL} --global-batch-size 256 --rampup-batch-size 64 64 90000"))
    assert (old.batch_ramp, old.gbs) == ("64 64 90000", 256)
    assert "batch-ramp-ignored" in {problem.rule for problem in old.problems}
    shrinks = "--decrease-batch-size-if-needed"
    eased = read(
        script(f"{SMALL} --global-batch-size 256 --rampup-batch-size 64 64 90000 {shrinks}")
    )
    assert eased.batch_ramp is None and "--rampup-batch-size" in {
        setting.key for setting, _ in eased.unmodelled
    }


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ("--step-batch-size-schedule '0:64 1B:128' --global-batch-size 128", "batch-twice"),
        ("--step-batch-size-schedule '1B:64 2B:128'", "option-value"),
        ("--step-batch-size-schedule '0:64 1B'", "option-value"),
        ("--global-batch-size 256 --rampup-batch-size 60 64 90000", "option-value"),
    ],
)
def test_what_is_wrong_with_them(read: Read, options: str, rule: str) -> None:
    problems = read(script(f"{SMALL} {options}")).problems
    assert rule in {problem.rule for problem in problems if problem.severity == "error"}


def test_check_finds_the_batch_that_does_not_divide(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(script(f"{SMALL} --step-batch-size-schedule '0:12 1B:128'"))
    result = run_cli("check", str(path), "--gpus", "8xH100", "-q", "--time-limit", "1")
    assert result.exit_code == 1 and "[batch-ramp]" in result.stdout.replace("\n", " ")
