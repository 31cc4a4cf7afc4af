"""`--plot FILE`: which files can be drawn, and what a file's kind becomes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.search.plan_file import refuse_to_overwrite, write_bytes

if TYPE_CHECKING:
    from planner.report.pages.page import Page


def check_plot(path: Path | None, force: bool) -> None:
    """UsageError if the picture could not be drawn or written; before any work is done."""
    if path is not None:
        refuse_to_overwrite(path, force, "--plot")
        demand_plot()


def demand_plot() -> None:
    """UsageError if a library of the extra `plot` is missing."""
    from planner.report.charts.drawing import demand_plot as demand

    demand()


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
