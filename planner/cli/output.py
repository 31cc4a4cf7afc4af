"""Printing and writing: reports, JSON and CSV on stdout, plan files on disk."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from planner.job.written import refuse_to_overwrite, write_text

if TYPE_CHECKING:
    from planner.cli.options import OutputFormat
    from planner.report.tables import Report
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
        write_text(path, to_json(result))


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
    from planner.report.draw import console, draw

    context = click.get_current_context()
    options = context.obj or {}
    onto = console(stream or sys.stdout, no_color=options.get("no_color", False))
    draw(report, onto, wide=context.params.get("wide", False))
