"""Plan files of reinforcement learning: JSON documents of one `RlResult`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.job.errors import UsageError
from planner.search.plan_file import RL_KIND, read_json
from planner.search.rl.result import RL_PLAN_FILE_VERSION, RlPlan, RlResult

_MADE_BY = "make one with: planner search --rl grpo ... -o plans.json"


def to_json(result: RlResult) -> str:
    """The content of a plan file as JSON."""
    return result.model_dump_json(indent=1) + "\n"


def read_rl_plan(path: Path, number: int | None = None) -> tuple[RlResult, int]:
    """The result in a plan file and a plan's number, by default that of the recommended plan.
    UsageError says what is wrong."""
    document: Any = read_json(path)
    if not isinstance(document, dict) or document.get("kind") != RL_KIND:
        raise UsageError(f"{path} contains no plans of reinforcement learning; {_MADE_BY}")
    if document.get("version") != RL_PLAN_FILE_VERSION:
        raise UsageError(
            f"{path} has version {document.get('version')!r} of plan files of reinforcement "
            f"learning; this planner reads version {RL_PLAN_FILE_VERSION}; search again with it"
        )
    try:
        result = RlResult.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path}: field {field!r}: {first['msg']}; {_MADE_BY}") from None
    number = number or result.recommended
    pick_rl_plan(result, number)
    return result, number


def pick_rl_plan(result: RlResult, number: int) -> RlPlan:
    """A plan by its number from 1. UsageError if there is none."""
    count = len(result.plans)
    if not 1 <= number <= count:
        raise UsageError(f"there is no plan {number}; the file contains plans 1 to {count}")
    return result.plans[number - 1]
