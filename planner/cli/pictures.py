"""`--plot FILE`: which files can be drawn, and what a file's kind becomes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.cli import option_types as types
from planner.cli.options import Command
from planner.job.errors import UsageError
from planner.job.written import refuse_to_overwrite, write_bytes
from planner.report.charts.drawing import demand_plot

if TYPE_CHECKING:
    from planner.report.pages.page import Page
    from planner.search.result import SearchResult


def plot_option(what: str) -> Callable[[Command], Command]:
    """`--plot FILE` of a command that has something to see."""
    return click.option("--plot", type=types.PLOT, help=f"Draw {what}: FILE.html, .svg or .png.")


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
    from planner.report.charts.drawing import png, svg
    from planner.report.pages.page import render

    match path.suffix.lower():
        case ".html":
            content = render(page()).encode()
        case ".svg":
            content = svg(chart()).encode()
        case _:
            content = png(chart())
    write_bytes(path, content)


def write_result_plot(path: Path | None, result: SearchResult, written: Path | None) -> None:
    """Draw the front of a search, or write its page; `written`: its plan file, if there is one."""
    if path is None:
        return
    from planner.report.pages.plans import result_page
    from planner.report.plots import plot_result

    write_plot(path, lambda: plot_result(result), lambda: result_page(result, written))


def write_plan_plot(
    path: Path | None, result: SearchResult, number: int, written: Path | None
) -> None:
    """Draw plan `number` of a search, or write the page that opens with it."""
    if path is None:
        return
    from planner.report.pages.plans import result_page
    from planner.report.plots import plot_plan

    plan = result.plans[number - 1]
    write_plot(path, lambda: plot_plan(plan), lambda: result_page(result, written, number))
