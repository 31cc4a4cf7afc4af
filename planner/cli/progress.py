"""What a waiting user sees on stderr: a bar on a terminal, the compile notice everywhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Progress = Callable[[str, int, int], None]


def notice_if_first_run(quiet: bool) -> None:
    """Say that the cost core is about to be compiled, if it is."""
    from planner.cost._jit import is_compiled

    if not quiet and not is_compiled():
        click.echo(
            "First run after an install: compiling the cost core, once (about a minute).", err=True
        )


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Progress | None]:
    """A callback that draws a bar on stderr; None without a terminal or with --quiet."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("searching", total=None)

        def advance(what: str, done: int, total: int) -> None:
            bars.update(task, description=what, completed=done, total=total)

        yield advance
