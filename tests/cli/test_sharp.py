"""`--sharp` from the command line: shown, launched, and refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run, lines_are_short, refused

JOB = ("--model", "llama-3-8b", "--gbs", "64", "--tp", "8", "--zero", "0")


def test_it_is_shown_launched_and_read_back(run: Run, tmp_path: Path) -> None:
    plans, folder = str(tmp_path / "plans.json"), tmp_path / "run"
    shown = run("evaluate", *JOB, "--gpus", "32xH100", "--sharp", "-o", plans)
    assert shown.exit_code == 0, shown.output
    assert "SHARPv3" in shown.stdout
    assert lines_are_short(shown.stdout)
    assert json.loads(Path(plans).read_text())["request"]["sharp"] is True
    written = run("launch", plans, "1", "-o", str(folder))
    assert written.exit_code == 0, written.output
    texts = "".join(path.read_text() for path in folder.iterdir() if path.suffix != ".json")
    assert "--use-sharp" in texts
    assert "nccl-rdma-sharp-plugins" in texts
    checked = run("check", str(folder))
    assert checked.exit_code == 0, checked.output
    assert "gradients reduced in the switches (SHARP)" in checked.stdout


def test_other_writers_say_that_they_cannot(run: Run, tmp_path: Path) -> None:
    plans = str(tmp_path / "plans.json")
    assert run("evaluate", *JOB, "--gpus", "32xH100", "--sharp", "-o", plans).exit_code == 0
    refused = run("launch", plans, "1", "--framework", "torchtitan", "-o", str(tmp_path / "run"))
    assert refused.exit_code == 2
    assert "cannot name the communicator" in " ".join(refused.output.split())


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ("32xaws-p5", "only InfiniBand switches reduce"),
        ("32xMI300X", "primus cannot name the communicator"),
        ("16xdgx-1v", "HDR (200 Gb/s)"),
    ],
)
def test_networks_without_it_are_refused_with_the_reason(run: Run, gpus: str, words: str) -> None:
    refused(run("evaluate", *JOB, "--gpus", gpus, "--sharp"), words)


@pytest.mark.parametrize(
    ("name", "words"), [("dgx-h100", "SHARPv3 with --sharp"), ("aws-p5", "no: the nodes")]
)
def test_node_shapes_say_whether_their_switches_can(run: Run, name: str, words: str) -> None:
    result = run("hardware", name)
    assert result.exit_code == 0
    assert words in result.stdout
