"""`planner completion`: the script by which a shell completes commands, options and values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from planner.cli.main import cli


def run(shell: str) -> None:
    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"no completion is known for {shell}")
    click.echo(made(cli, {}, "planner", "_PLANNER_COMPLETE").source())
