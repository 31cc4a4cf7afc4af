"""`planner validate`: predictions against measured runs, by family."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hardware.load import load_cluster_file
from planner.cli.options import output_format
from planner.cli.output import check_plot, print_report, show, write_plot
from planner.cli.progress import compile_if_first_run
from planner.evidence.fit.held_out import left_out
from planner.evidence.learn.priors import published
from planner.evidence.learn.study import study
from planner.evidence.runs.document import csv_columns, csv_record, document
from planner.evidence.runs.families import Family, family_by
from planner.evidence.runs.predict import Prediction, predict_rows, recalibrated
from planner.evidence.runs.report import family_reports
from planner.evidence.runs.rows import MEASURED_COLUMNS, PUBLISHED, read_rows
from planner.job.errors import CannotTellError, UsageError
from planner.job.written import csv_text
from planner.report.evidence import study_report, validation_report
from planner.report.tables import Report

if TYPE_CHECKING:
    from planner.report.pages.page import Page


def run(paths: tuple[str, ...], **options: Any) -> None:
    style, plot = output_format(options["as_json"], options["as_csv"]), options["plot"]
    check_plot(plot, options["force"])

    family = family_by(options["by"])
    compile_if_first_run(options["quiet"])
    predictions = _predictions(paths, options["unnamed"])
    if options["cluster"] is not None:
        predictions = recalibrated(predictions, load_cluster_file(Path(options["cluster"])))
    if options["learn"] is not None:
        if style == "csv" or plot is not None:
            raise click.UsageError("--learn prints a table, or JSON with --json")
        _study(predictions, options["learn"], options["as_json"])
        return
    if plot is not None:
        from planner.report.accuracy import time_chart

        write_plot(plot, lambda: time_chart(predictions), lambda: _page(predictions, family))
    match style:
        case "json":
            content = document(predictions, family)
            unseen = family_reports(left_out(predictions), family)
            content["summary"]["left_out"] = [asdict(one) for one in unseen]
            click.echo(json.dumps(content, indent=1, allow_nan=False))
        case "csv":
            records = map(csv_record, predictions)
            click.echo(csv_text(csv_columns(predictions), records), nl=False)
        case "text":
            print_report(_report(predictions, family))


def _study(predictions: Sequence[Prediction], runs: int, as_json: bool) -> None:
    """What learning from so many runs of each source brings, as a table or JSON."""
    found = study(published(predictions, "time"), runs)
    records = [{**asdict(one), "cluster": one.cluster._asdict()} for one in found]
    show(as_json, lambda: records, lambda: study_report(found, runs))


def _predictions(given: Sequence[str], unnamed: bool) -> list[Prediction]:
    """All rows of all files, predicted. UsageError if there are none."""
    paths = [Path(path) for path in given] or [PUBLISHED]
    rows = [row for path in paths for row in read_rows(path)]
    predictions = predict_rows(row.unnamed if unnamed else row for row in rows)
    if all(prediction.error for prediction in predictions):
        raise UsageError(
            f"none of {len(predictions):,} rows can be predicted; the first: {predictions[0].error}"
        )
    columns = (*MEASURED_COLUMNS, "oom")
    if not any(row.text(column) for row in rows for column in columns):
        raise CannotTellError(
            f"no row of {', '.join(map(str, paths))} says what was measured: fill in "
            f"{', '.join(columns[:-1])} or {columns[-1]}"
        )
    return predictions


def _page(predictions: Sequence[Prediction], family: Family) -> Page:
    from planner.report.pages.studies import validation_page

    return validation_page(predictions, family, _report(predictions, family))


def _report(predictions: Sequence[Prediction], family: Family) -> Report:
    return validation_report(predictions, family, left_out(predictions))
