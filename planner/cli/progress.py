"""What a waiting user sees on stderr: a bar on a terminal, the compile notice everywhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from planner.search.limit_results import Until

Progress = Callable[[str, int, int], None]
# Seconds between two lines where stderr is no terminal.
LINE_EVERY_S = 4.0


def compile_if_first_run(
    quiet: bool, time_limit_s: float | None = None, pools: bool = False
) -> None:
    """Compile the cost core if it is not yet, saying so; with what only `pools` of GPUs need.
    CannotTellError once the time is over."""
    from planner.predict.warmup import missing, warm_up

    if not missing(pools):
        return
    deadline = None if time_limit_s is None else time.perf_counter() + time_limit_s
    if not quiet and not sys.stderr.isatty():
        click.echo(
            "First run after an install: compiling the cost core, once (about half a minute).",
            err=True,
        )
    with watched(quiet) as progress:
        warm_up(progress, deadline, pools)


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


@contextmanager
def watched(quiet: bool, kept: str = "") -> Iterator[Progress]:
    """A progress callback: a bar on a terminal's stderr, elsewhere a line every few seconds; says
    on Ctrl-C how far it came, and what is `kept` of it."""
    state = "starting"
    drawn = not quiet and sys.stderr.isatty()
    lines = nullcontext() if quiet or drawn else _lines(lambda: state)
    with lines, _bars() if drawn else nullcontext() as bars:
        task = None if bars is None else bars.add_task(state, total=None)

        def watch(what: str, done: int, total: int) -> None:
            nonlocal state
            state = f"{what}, {done} of {total}"
            if bars is not None and task is not None:
                bars.update(task, description=what, completed=done, total=total)

        try:
            yield watch
        except KeyboardInterrupt:
            nothing = (
                "nothing was written. --time-limit SECONDS stops a search and keeps what it has "
                "found"
            )
            raise KeyboardInterrupt(f"interrupted ({state}); {kept or nothing}") from None


@contextmanager
def _lines(state: Callable[[], str]) -> Iterator[None]:
    """Print on stderr every few seconds how far something is, whatever it waits for."""
    started, done = time.perf_counter(), threading.Event()

    def say() -> None:
        while not done.wait(LINE_EVERY_S):
            click.echo(f"{time.perf_counter() - started:.0f} s: {state()}", err=True)

    teller = threading.Thread(target=say, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


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
