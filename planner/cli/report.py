"""`planner report`: a page of a plan file, a comparison or a scaling study."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.progress import compile_if_first_run
from planner.job.written import refuse_to_overwrite, write_text
from planner.report.charts.drawing import demand_plot


def run(file: str, output: str, force: bool, quiet: bool) -> None:
    path = Path(output)
    refuse_to_overwrite(path, force)
    demand_plot()
    from planner.report.pages.files import page_of_file
    from planner.report.pages.page import render

    page = page_of_file(Path(file), lambda: compile_if_first_run(quiet))
    write_text(path, render(page), force=force)
    click.echo(f"Page written to {path}: open it in a browser.")
