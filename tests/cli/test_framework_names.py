"""Every command takes the same names of frameworks, or says why this one cannot do it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli.declared import command
from planner.cli.program import COMMANDS
from planner.job.frameworks.names import (
    framework_names,
    known_names,
    names_of,
    profile_named,
)
from planner.job.frameworks.profile import load_framework
from planner.job.request import Request
from planner.launch.read.opened import file_kind
from planner.launch.registry import dialect_named, targets
from tests.cli.conftest import Run, refused, run_cli
from tests.launch.check.conftest import SMALL, script

JOB = ("--model", "gpt2", "--gpus", "2xH100")
# Command -> arguments before `--framework NAME`.
ASKING = {
    "search": ("search", *JOB, "--gbs", "8", "--time-limit", "2", "-q"),
    "evaluate": ("evaluate", *JOB, "--gbs", "8"),
    "memory": ("memory", *JOB, "--mbs", "1"),
    "compare": ("compare", *JOB, "--gpus", "4xH100", "--gbs", "8", "--tokens", "1B", "-q"),
    "scale": ("scale", "--model", "gpt2", "--gpus", "H100", "--counts", "2", "--gbs", "8", "-q"),
}
# These make the same request of the name, and search for longer.
BY_REQUEST = {"budget", "buy", "fit"}
SAMPLE = ("megatron", "accelerate", "megatron-deepspeed", "hf", "Torchtitan_0.3")


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plans") / "plans.json"
    assert run_cli("evaluate", *JOB, "--gbs", "8", "-o", str(path)).exit_code == 0
    return str(path)


def test_every_word_means_one_profile() -> None:
    words = [word for name in framework_names() for word in load_framework(name).names]
    assert sorted((*framework_names(), *words)) == sorted({*known_names()})
    assert {*targets()} <= {*known_names()}
    for name in known_names():
        assert load_framework(name).name == profile_named(name)
        assert Request(model="gpt2", framework=name).framework == profile_named(name)
    assert profile_named(" Megatron_LM ") == "megatron-core"
    assert "accelerate" in names_of("hf-fsdp2")


def test_commands_that_take_a_framework_are_all_tested_here() -> None:
    taking = {
        name
        for name in COMMANDS
        for parameter in command(name).params
        if "--framework" in parameter.opts
    }
    assert taking == {*ASKING, *BY_REQUEST, "launch"}


@pytest.mark.parametrize("name", SAMPLE)
@pytest.mark.parametrize("command", ASKING)
def test_commands_that_cost(run: Run, command: str, name: str) -> None:
    result = run(*ASKING[command], "--framework", name)
    assert result.exit_code in (0, 1), result.output
    assert "unknown framework" not in result.output


@pytest.mark.parametrize("command", ASKING)
def test_unknown_names_meet_the_nearest(run: Run, command: str) -> None:
    refused(run(*ASKING[command], "--framework", "megatrom"), "Did you mean 'megatron'")


def test_the_list_shows_every_name(run: Run) -> None:
    for name in known_names():
        result = run("frameworks", name)
        assert result.exit_code == 0, result.output
        assert result.stdout.split()[1] == profile_named(name)
    listed = " ".join(run("frameworks", "--all").stdout.split())
    assert all(name in listed for name in known_names())


@pytest.mark.parametrize("name", known_names())
def test_launch_takes_every_name_or_says_why_not(
    run: Run, tmp_path: Path, plan_file: str, name: str
) -> None:
    result = run("launch", plan_file, "--framework", name, "-o", str(tmp_path / "run"))
    assert "unknown framework" not in result.output
    reasons = ("give --framework, one of", "nearest", "cannot run this plan")
    assert result.exit_code == 0 or any(text in result.stderr for text in reasons), result.output


def test_a_name_of_a_family_reads_its_files() -> None:
    assert file_kind("x.sh", script(SMALL)) == "shell"
    assert {dialect_named(name) for name in ("megatron-local", "mcore", "megatron-fsdp")} == {
        "megatron"
    }
    assert dialect_named("fsdp2") == "hf"


def test_samples_of_unlike_lengths_are_tuned_with_transformers_on_a_node(run: Run) -> None:
    job = ("--model", "llama-3.2-1b", "--gbs", "8", "--lengths", "256:1,900:1", "--json", "-q")
    for gpus, more, expected in (
        ("8xH100", (), "deepspeed"),
        ("16xH100", (), "megatron-core"),
        ("8xH100", ("--packing", "pack-varlen", "--balance", "hybrid-cp"), "megatron-core"),
        ("8xH100", ("--cp", "1"), "megatron-core"),
    ):
        found = json.loads(run("search", *job, "--gpus", gpus, *more).stdout)
        assert found["request"]["framework"] == expected
    without = run("search", *job[:4], "--gpus", "8xH100", "--json", "-q")
    assert json.loads(without.stdout)["request"]["framework"] == "megatron-core"
