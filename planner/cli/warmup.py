"""planner warmup: compile the cost core now."""

from __future__ import annotations

import click

from planner.cli.progress import compile_if_first_run


def run(quiet: bool) -> None:
    compile_if_first_run(quiet)

    from planner.cost._machine_code import cache_folder
    from planner.predict.warmup import missing

    if missing():
        raise click.ClickException(
            f"nothing was kept: {cache_folder()} cannot be written; set PLANNER_CACHE_DIR to a "
            "folder that can"
        )
    click.echo(f"compiled: {cache_folder()}")
