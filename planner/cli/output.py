"""Printing, writing and drawing: reports, JSON and CSV on stdout, plan files on disk, and `--plot
FILE`: which files can be drawn, and what a file's kind becomes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from planner.job.errors import UsageError
from planner.job.written import refuse_to_overwrite, write_bytes, write_text
from planner.report.charts.drawing import demand_plot, png, svg
from planner.report.draw import console, draw
from planner.report.tables import Report

if TYPE_CHECKING:
    from planner.cli.options import OutputFormat
    from planner.report.pages.page import Page
    from planner.search.result import SearchResult


def check_output(output: str | None, force: bool, option: str = "-o") -> Path | None:
    """The file to write, known to be writable; before the search starts."""
    if output is None:
        return None
    path = Path(output)
    refuse_to_overwrite(path, force, option)
    return path


def write_result(result: SearchResult, path: Path | None) -> None:
    """Write the plan file, if one was asked for."""
    from planner.search.plan_file import to_json

    if path is not None:
        write_text(path, to_json(result), force=_may_overwrite())


def show_result(result: SearchResult, style: OutputFormat, report: Callable[[], Report]) -> None:
    """On stdout the plan file's content, one row a plan (SI units, numbers as in the table), or
    the report, which is made only then."""
    match style:
        case "json":
            from planner.search.plan_file import to_json

            click.echo(to_json(result), nl=False)
        case "csv":
            from planner.search.frame import csv_text

            frame = result.to_frame()
            frame.insert(0, "plan", range(1, len(frame) + 1))
            click.echo(csv_text(frame), nl=False)
        case "text":
            print_report(report())


def show(as_json: bool, content: Callable[[], Any], report: Callable[[], Report]) -> None:
    """An answer on stdout, as JSON or as a report; only what is printed is made."""
    if as_json:
        click.echo(json.dumps(content(), indent=1, allow_nan=False))
    else:
        print_report(report())


def print_report(report: Report, stream: TextIO | None = None) -> None:
    """A report on stdout (or `stream`), in colour on a terminal."""
    context = click.get_current_context()
    options = context.obj or {}
    onto = console(stream or sys.stdout, no_color=options.get("no_color", False))
    draw(report, onto, wide=context.params.get("wide", False))


def check_files(options: dict[str, Any], option: str = "-o") -> Path | None:
    """The file of `-o`, where it is asked for; it and the picture are known to be writable."""
    output = check_output(options["output"], options["force"], option)
    check_plot(options.get("plot"), options["force"], output)
    return output


def check_plot(path: Path | None, force: bool, output: Path | None = None) -> None:
    """UsageError if the picture could not be drawn, or written beside `output`; before any work is
    done."""
    if path is None:
        return
    if path == output:
        raise UsageError(f"{path}: give --plot a file of its own, not that of another option")
    refuse_to_overwrite(path, force, "--plot")
    demand_plot()


def write_plot(path: Path, chart: Callable[[], Any], page: Callable[[], Page]) -> None:
    """Draw the chart into an SVG or a PNG file, or write the page."""
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
    """Whether the command that runs was given --force."""
    return bool(click.get_current_context().params["force"])


def write_result_plot(
    path: Path | None, result: SearchResult, written: Path | None, number: int = 0
) -> None:
    """Draw the front of a search, or plan `number` of it; or write its page, which opens with that
    plan. `written`: its plan file, if there is one."""
    if path is None:
        return
    from planner.report.pages.plans import result_page
    from planner.report.plots import plot_plan, plot_result

    def chart() -> Any:
        return plot_plan(result.plans[number - 1]) if number else plot_result(result)

    write_plot(path, chart, lambda: result_page(result, written, number))
