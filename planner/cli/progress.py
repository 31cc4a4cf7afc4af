"""What a waiting user sees on stderr: a bar on a terminal, the compile notice everywhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from planner.search.limit_results import Until

Progress = Callable[[str, int, int], None]


def compile_if_first_run(quiet: bool, time_limit_s: float | None = None) -> None:
    """Compile the cost core if it is not yet, saying so. CannotTellError once the time is over."""
    from planner.predict.warmup import missing, warm_up

    if not missing():
        return
    deadline = None if time_limit_s is None else time.perf_counter() + time_limit_s
    if quiet or not sys.stderr.isatty():
        if not quiet:
            click.echo(
                "First run after an install: compiling the cost core, once (about half a minute).",
                err=True,
            )
        warm_up(deadline=deadline)
        return
    with watched(quiet) as progress:
        warm_up(progress, deadline)


@contextmanager
def limited(time_limit_s: float | None) -> Iterator[Until]:
    """A chain of trials that ends with the time; what was left out is said on stderr."""
    from planner.search.limit_results import Until

    until = Until(None if time_limit_s is None else time.perf_counter() + time_limit_s)
    yield until
    if until.untried:
        first, count = until.untried[0], len(until.untried)
        rest = f" and {count - 1} more" if count > 1 else ""
        click.echo(f"--time-limit {time_limit_s:g} ended before: {first}{rest}", err=True)


class _Watch:
    """Remembers how far a search is, and draws it if there is a bar."""

    def __init__(self) -> None:
        self.state = "starting"
        self.bars: Bars | None = None
        self.task: TaskID | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        self.state = f"{what}, {done} of {total}"
        if self.bars is not None and self.task is not None:
            self.bars.update(self.task, description=what, completed=done, total=total)


@contextmanager
def watched(quiet: bool, kept: str = "") -> Iterator[Progress]:
    """A progress callback: a bar on a terminal's stderr; says on Ctrl-C how far it came, and what
    is `kept` of it."""
    watch = _Watch()
    try:
        if quiet or not sys.stderr.isatty():
            yield watch
        else:
            with _bars() as watch.bars:
                watch.task = watch.bars.add_task(watch.state, total=None)
                yield watch
    except KeyboardInterrupt:
        nothing = (
            "nothing was written. --time-limit SECONDS stops a search and keeps what it has found"
        )
        raise KeyboardInterrupt(f"interrupted ({watch.state}); {kept or nothing}") from None


def _bars() -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=False,
    )
