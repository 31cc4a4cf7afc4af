"""`planner completion`: the script by which a shell completes commands, options and values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from planner.cli.program import planner_command


def run(shell: str) -> None:
    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"no completion is known for {shell}")
    click.echo(made(planner_command, {}, "planner", "_PLANNER_COMPLETE").source())
