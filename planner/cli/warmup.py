"""planner warmup: compile the cost core now."""

from __future__ import annotations

import click

from planner.cli.progress import compile_if_first_run


def run(quiet: bool) -> None:
    compile_if_first_run(quiet, pools=True)

    from planner.cost._machine_code import cache_folder, why_not_kept
    from planner.predict.warmup import missing

    why = why_not_kept() or (f"{cache_folder()} cannot be written" if missing(pools=True) else "")
    if why:
        raise click.ClickException(
            f"nothing was kept: {why}; set PLANNER_CACHE_DIR to a folder that you alone can write "
            "to"
        )
    click.echo(f"compiled: {cache_folder()}")
