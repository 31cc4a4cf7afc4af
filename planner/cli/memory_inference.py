"""`planner memory --inference`: its options, and the place where serving is accounted for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from planner.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])

SOLVE_CHOICES = ("batch", "context")


def inference_options(function: Command) -> Command:
    """Options that only serving has; absent ones are None or False."""
    text = "Memory of serving instead of training."
    return click.option("--inference", is_flag=True, help=text)(function)


def run(options: dict[str, Any]) -> int:
    """The exit status of serving."""
    raise UsageError(f"--inference: this version has no serving model for {options['model']}")
