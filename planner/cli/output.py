"""Printing, writing and drawing results, and progress on stderr."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from planner.job.errors import UsageError
from planner.job.written import refuse_to_overwrite, write_bytes, write_text
from planner.report.charts.drawing import demand_plot, png, svg
from planner.report.draw import console, draw
from planner.report.tables import Report

if TYPE_CHECKING:
    import pandas as pd
    from rich.progress import Progress as Bars

    from planner.cli.options import OutputFormat
    from planner.report.pages.page import Page
    from planner.search.limit_results import Until
    from planner.search.result import SearchResult


def check_output(output: str | None, force: bool, option: str = "-o") -> Path | None:
    """The path to write to; None if `output` is None. Raises an error before any work is done if it
    cannot be written."""
    if output is None:
        return None
    path = Path(output)
    refuse_to_overwrite(path, force, option)
    return path


def write_result(result: SearchResult, path: Path | None) -> None:
    """Write the plan file if `path` is given."""
    from planner.search.plan_file import to_json

    if path is not None:
        write_text(path, to_json(result), force=_may_overwrite())


def numbered_csv(frame: pd.DataFrame) -> str:
    """CSV of plans with their numbers in the first column."""
    from planner.search.frame import csv_text

    frame.insert(0, "plan", range(1, len(frame) + 1))
    return csv_text(frame)


def print_as(
    style: str, report: Callable[[], Report], json: Callable[[], str], csv: Callable[[], str]
) -> None:
    """Print the report, or the JSON or CSV text. Only what is printed is computed."""
    if style == "text":
        print_report(report())
        return
    text = json() if style == "json" else csv()
    click.echo(text, nl=not text.endswith("\n"))


def show_result(result: SearchResult, style: OutputFormat, report: Callable[[], Report]) -> None:
    """Print the report, the plan file's content, or one CSV row for each plan (SI units)."""
    from planner.search.plan_file import to_json

    print_as(style, report, lambda: to_json(result), lambda: numbered_csv(result.to_frame()))


def json_text(content: Any) -> str:
    """A document as JSON."""
    return json.dumps(content, indent=1, allow_nan=False)


def show(as_json: bool, content: Callable[[], Any], report: Callable[[], Report]) -> None:
    """Print an answer as JSON or as a report. Only what is printed is computed."""
    if as_json:
        click.echo(json_text(content()))
    else:
        print_report(report())


def print_report(report: Report, stream: TextIO | None = None) -> None:
    """Print a report on stdout or `stream`, in colour on a terminal."""
    context = click.get_current_context()
    options = context.obj or {}
    onto = console(stream or sys.stdout, no_color=options.get("no_color", False))
    draw(report, onto, wide=context.params.get("wide", False))


def check_files(options: dict[str, Any], option: str = "-o") -> Path | None:
    """The path of `-o`; None without it. Raises an error if it, or the picture of --plot, cannot be
    written."""
    output = check_output(options["output"], options["force"], option)
    check_plot(options.get("plot"), options["force"], output)
    return output


def check_plot(path: Path | None, force: bool, output: Path | None = None) -> None:
    """Raise UsageError if the picture cannot be drawn or written, before any work is done."""
    if path is None:
        return
    if path == output:
        raise UsageError(f"{path}: give --plot a file of its own, not that of another option")
    refuse_to_overwrite(path, force, "--plot")
    demand_plot()


def write_plot(path: Path, chart: Callable[[], Any], page: Callable[[], Page]) -> None:
    """Write the page to an HTML file, or the chart to an SVG or PNG file."""
    from planner.report.pages.page import render

    match path.suffix.lower():
        case ".html":
            content = render(page()).encode()
        case ".svg":
            content = svg(chart()).encode()
        case _:
            content = png(chart())
    write_bytes(path, content, force=_may_overwrite())


def _may_overwrite() -> bool:
    return bool(click.get_current_context().params["force"])


def write_result_plot(
    path: Path | None, result: SearchResult, written: Path | None, number: int = 0
) -> None:
    """Draw a search result to `path`, unless that is None. As SVG or PNG: plan `number`, or the
    front of all plans if it is 0. As HTML: the page, which opens with that plan. `written`: the
    plan file, if there is one."""
    if path is None:
        return
    from planner.report.pages.plans import result_page
    from planner.report.plots import plot_plan, plot_result

    def chart() -> Any:
        return plot_plan(result.plans[number - 1]) if number else plot_result(result)

    write_plot(path, chart, lambda: result_page(result, written, number))


Progress = Callable[[str, int, int], None]
# Seconds between two lines of progress if stderr is not a terminal.
LINE_EVERY_S = 4.0


def compile_if_first_run(quiet: bool, time_limit_s: float | None = None) -> None:
    """Compile the cost core if that has not been done, and say so on stderr. Raises CannotTellError
    if the time limit ends first."""
    from planner.cost._ordinary import is_asked, note
    from planner.predict.warmup import missing, warm_up

    if not missing():
        if is_asked() and not quiet:
            click.echo(f"Note: {note()}.", err=True)
        return
    deadline = None if time_limit_s is None else time.perf_counter() + time_limit_s
    if not quiet and not sys.stderr.isatty():
        click.echo(
            "First run after an install: compiling the cost core, once (a few seconds).",
            err=True,
        )
    with watched(quiet) as progress:
        warm_up(progress, deadline)
    if is_asked() and not quiet:
        click.echo(f"Note: {note()}.", err=True)


@contextmanager
def limited(time_limit_s: float | None) -> Iterator[Until]:
    """A context with a time limit for a series of trials. At its end, trials that were left out are
    named on stderr."""
    from planner.search.limit_results import Until

    until = Until(None if time_limit_s is None else time.perf_counter() + time_limit_s)
    yield until
    if until.untried:
        first, count = until.untried[0], len(until.untried)
        rest = f" and {count - 1} more" if count > 1 else ""
        click.echo(f"--time-limit {time_limit_s:g} ended before: {first}{rest}", err=True)


@contextmanager
def watched(quiet: bool, kept: str = "") -> Iterator[Progress]:
    """A context that gives a progress callback: a bar on a terminal, otherwise a line on stderr
    every few seconds. After Ctrl-C a message says how far the command came, and `kept`: the results
    that are saved."""
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
    """Print on stderr every few seconds how far a command has come, even while it waits."""
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
