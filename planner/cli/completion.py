"""`planner completion`: the script by which a shell completes commands, options and values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(
    "completion",
    epilog="""\b
Example: planner completion bash >> ~/.bashrc
         planner completion zsh >> ~/.zshrc
         planner completion fish > ~/.config/fish/completions/planner.fish""",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a script for SHELL that completes commands, options, models, GPUs and frameworks."""
    from planner.cli.main import cli

    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"no completion is known for {shell}")
    click.echo(made(cli, {}, "planner", "_PLANNER_COMPLETE").source())
