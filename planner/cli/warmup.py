"""planner warmup: compile the cost core now."""

from __future__ import annotations

import click

from planner.cli.progress import compile_if_first_run


@click.command(
    name="warmup",
    epilog="Example: planner warmup (in an image: RUN pip install trainplan && planner warmup)",
)
@click.option("--quiet", "-q", is_flag=True, help="No progress on stderr.")
def command(quiet: bool) -> None:
    """Compile the cost core into the cache, so that no later command waits for it.

    The cache is a folder of the user; the variable PLANNER_CACHE_DIR names another. Does nothing
    if all is compiled.
    """
    compile_if_first_run(quiet)

    from planner.cost._machine_code import cache_folder
    from planner.predict.warmup import missing

    if missing():
        raise click.ClickException(
            f"nothing was kept: {cache_folder()} cannot be written; set PLANNER_CACHE_DIR to a "
            "folder that can"
        )
    click.echo(f"compiled: {cache_folder()}")
