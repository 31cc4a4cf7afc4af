"""The tool that a search was given as its framework is the one that its plans are written for."""

from __future__ import annotations

import json

import pytest

from planner.job.request import Request
from planner.launch.plans import target_of
from planner.launch.registry import targets
from planner.predict.command_line import search_command

JOB = {
    "model": "llama-3.2-1b",
    "gpus": "1xRTX4090",
    "gbs": 16,
    "seq": 2048,
    "train": "lora:rank=16",
}
TOOLS = tuple(name for name, target in targets().items() if target.runs("hf-transformers"))


@pytest.mark.parametrize("tool", TOOLS)
def test_plans_are_written_for_the_tool_that_was_named(tool: str) -> None:
    request = Request.model_validate(JOB | {"framework": tool})
    target = target_of(request.resolve())
    assert target is not None
    # One that cannot write adapters leaves them to one that can.
    assert target.name == tool or tool not in ("trl", "axolotl", "llamafactory")


@pytest.mark.parametrize("tool", TOOLS)
def test_the_word_outlives_a_plan_file_and_a_command(tool: str) -> None:
    request = Request.model_validate(JOB | {"framework": tool})
    again = Request.model_validate(json.loads(request.model_dump_json()))
    assert again == request
    assert f"--framework {tool}" in search_command(again)


def test_a_profile_of_its_own_name_leaves_no_word() -> None:
    request = Request.model_validate(JOB | {"framework": "hf-transformers"})
    assert "written_for" not in request.model_dump()
    assert request.framework_word == "hf-transformers"


def test_another_framework_takes_no_word_along() -> None:
    request = Request.model_validate(JOB | {"framework": "trl"})
    other = request.model_copy(update={"framework": "deepspeed"})
    assert other.framework_word == "deepspeed"
    target = target_of(other.resolve())
    assert target is not None and target.name != "llamafactory"
