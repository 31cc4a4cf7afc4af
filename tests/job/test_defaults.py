"""Options that a request leaves to defaults are named."""

from __future__ import annotations

from typing import Any

import pytest

from planner.job.defaults import defaults_taken
from planner.job.request import Request
from planner.job.request_fields import Launched, Overrides


def taken(**fields: Any) -> tuple[str, ...]:
    """What a request for GPT-2 on one GPU takes by default."""
    request = Request(model="gpt2", gpus="1xH100", gbs=8, **fields)
    return defaults_taken(request, request.resolve())


def test_everything_that_is_left_out_is_named_with_its_value() -> None:
    assert taken() == (
        "--seq 1024", "--framework megatron-core", "--precision bf16", "--optimizer adamw",
        "--attention flash", "--schedule 1f1b",
    )  # fmt: skip


def test_a_framework_of_several_types_of_weights_names_its_usual_one() -> None:
    said = taken(framework="nanogpt")
    assert [text for text in said if text.startswith("--dtype")] == ["--dtype amp"]
    assert not any(text.startswith("--framework") for text in said)
    assert not any(text.startswith("--dtype") for text in taken(framework="nanogpt", dtype="amp"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("seq", 512), ("precision", "fp8"), ("optimizer", "lion"), ("attention", "eager"),
     ("schedule", "1f1b")],
)  # fmt: skip
def test_what_is_given_is_not_a_default(field: str, value: object) -> None:
    assert not any(text.startswith(f"--{field} ") for text in taken(**{field: value}))


def test_of_launch_files_nothing_is_left_to_options() -> None:
    assert taken(overrides=Overrides(launched=Launched())) == ()
