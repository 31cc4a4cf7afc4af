"""`planner report`: a page of a plan file, a comparison or a scaling study."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli import option_types as types
from planner.cli.progress import compile_if_first_run
from planner.job.written import refuse_to_overwrite, write_text
from planner.report.charts.drawing import demand_plot


@click.command("report", epilog="Example: planner report plans.json -o report.html")
@click.argument("file", metavar="FILE.json", type=types.FILE)
@click.option(
    "-o", "--output", type=types.FILE, required=True, metavar="FILE.html", help="The page to write."
)
@click.option("--force", is_flag=True, help="Overwrite the page.")
@click.option("-q", "--quiet", is_flag=True, help="No notices on stderr.")
def command(file: str, output: str, force: bool, quiet: bool) -> None:
    """Make one page of what search, evaluate, compare or scale wrote into FILE.json.

    It shows the front, memory, time, schedule and cluster of every plan, or cost against time, and
    loads nothing from any network.
    """
    path = Path(output)
    refuse_to_overwrite(path, force)
    demand_plot()
    from planner.report.pages.files import page_of_file
    from planner.report.pages.page import render

    page = page_of_file(Path(file), lambda: compile_if_first_run(quiet))
    write_text(path, render(page))
    click.echo(f"Page written to {path}: open it in a browser.")
