"""`planner validate`: predictions against measured runs, by family."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.cli import option_types as types
from planner.cli.options import output_format
from planner.cli.output import check_plot, print_report, show, write_plot
from planner.cli.progress import compile_if_first_run
from planner.job.written import csv_text

if TYPE_CHECKING:
    from planner.evidence.runs.families import Family
    from planner.evidence.runs.predict import Prediction
    from planner.report.pages.page import Page
    from planner.report.tables import Report

_EPILOG = """\b
Runs are CSV files, one row a run. A header names the columns; needed are
layers hidden heads seq gpu num_gpus framework; used as well: ffn kv_heads
vocab act moe gpus_per_node tp pp vpp cp ep dp zero seq_parallel mbs gbs
precision recompute flash schedule kernel software layers_per_stage
head_stage, and facts of machine and run: fabric host power_w compile overlap
cuda_graphs loss dropout deterministic transformer_impl optimizer
state_precision grad_precision fp8_recipe fp8_gather recompute_share
zero_group offload etp ep_dispatch moe_gemm routing cp_comm pipeline_runs
gbs_tokens tuning sequences mixer mla mtp_layers head_dim qk_norm tied bias
position. Measurements: step_time_s peak_mem_gib mem_kind mem_scope oom;
doubt (`time: ...`) keeps one out of all figures. source model notes label
only. An empty cell takes a default, which the column `assumed` of --json,
--csv names.

\b
Example: planner validate --data my_runs.csv --by gpu --plot page.html"""


@click.command("validate", epilog=_EPILOG)
@click.option(
    "--data",
    "paths",
    type=types.FILE,
    multiple=True,
    metavar="FILE|DIR",
    help="Measured runs; may be given again. Without it: the published runs that ship.",
)
@click.option(
    "--by",
    "by",
    default="source",
    metavar="COLUMNS",
    help="What makes a family, comma-separated: source, gpu, framework, model, precision, ...",
)
@click.option(
    "--cluster",
    type=types.FILE,
    help="Predict runs on its GPU with what `planner calibrate` wrote into this cluster file.",
)
@click.option(
    "--unnamed",
    is_flag=True,
    help="As if no name told the framework: by what the rows state that it does.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one object a row and a summary.")
@click.option("--csv", "as_csv", is_flag=True, help="Print one line a row.")
@click.option(
    "--plot",
    type=types.PLOT,
    help="Draw predicted against measured: FILE.svg or .png; or FILE.html with all rows.",
)
@click.option(
    "--learn",
    type=click.IntRange(1, 1000),
    metavar="K",
    help="Instead: hold each source out, calibrate by K of its runs, predict the others.",
)
@click.option("--force", is_flag=True, help="Overwrite output files.")
@click.option("-q", "--quiet", is_flag=True, help="No notices on stderr.")
def command(paths: tuple[str, ...], **options: Any) -> None:
    """Predict measured runs from their configuration alone, and show the errors by family."""
    style, plot = output_format(options["as_json"], options["as_csv"]), options["plot"]
    check_plot(plot, options["force"])

    from planner.evidence.runs.families import family_by

    family = family_by(options["by"])
    compile_if_first_run(options["quiet"])
    predictions = _predictions(paths, options["unnamed"])
    if options["cluster"] is not None:
        from hardware.load import load_cluster_file
        from planner.evidence.runs.predict import recalibrated

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
            click.echo(_json_text(predictions, family), nl=False)
        case "csv":
            from planner.evidence.runs.document import csv_columns, csv_record

            records = map(csv_record, predictions)
            click.echo(csv_text(csv_columns(predictions), records), nl=False)
        case "text":
            print_report(_report(predictions, family))


def _study(predictions: Sequence[Prediction], runs: int, as_json: bool) -> None:
    """What learning from so many runs of each source brings, as a table or JSON."""
    from planner.evidence.learn.priors import published
    from planner.evidence.learn.study import study
    from planner.report.calibration import study_report

    found = study(published(predictions, "time"), runs)
    records = [{**asdict(one), "cluster": one.cluster._asdict()} for one in found]
    show(as_json, lambda: records, lambda: study_report(found, runs))


def _predictions(given: Sequence[str], unnamed: bool) -> list[Prediction]:
    """All rows of all files, predicted. UsageError if there are none."""
    from planner.evidence.runs.predict import predict_rows
    from planner.evidence.runs.rows import MEASURED_COLUMNS, PUBLISHED, read_rows
    from planner.job.errors import CannotTellError, UsageError

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


def _json_text(predictions: Sequence[Prediction], family: Family) -> str:
    from planner.evidence.fit.held_out import left_out
    from planner.evidence.runs.document import document
    from planner.evidence.runs.report import report

    content = document(predictions, family)
    content["summary"]["left_out"] = [*map(asdict, report(left_out(predictions), family))]
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _page(predictions: Sequence[Prediction], family: Family) -> Page:
    from planner.evidence.runs.document import document
    from planner.evidence.runs.worst import describe
    from planner.report.pages.validation import validation_page

    families = [family(prediction) for prediction in predictions]
    labels = [f"{one.row.place}: {describe(one)}" for one in predictions]
    content, report = document(predictions, family), _report(predictions, family)
    return validation_page(content, report, families, labels)


def _report(predictions: Sequence[Prediction], family: Family) -> Report:
    from planner.evidence.fit.held_out import left_out
    from planner.report.validation import validation_report

    return validation_report(predictions, family, left_out(predictions))
