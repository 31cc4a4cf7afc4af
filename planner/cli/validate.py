"""`planner validate`: predictions against measured runs, by family."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import click

from planner.cli.output import print_report
from planner.cli.progress import notice_if_first_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from planner.measured.predict import Prediction

_FAMILIES = ("source", "gpu", "framework", "model", "precision", "num_gpus")
_SHOWN_REFUSALS = 8

_EPILOG = """\b
Runs are CSV files, one row a run. A header names the columns; needed are
layers hidden heads seq gpu num_gpus framework and mbs or gbs; used as well:
source model ffn kv_heads vocab act moe gpus_per_node tp pp vpp cp ep zero
seq_parallel precision recompute flash kernel layers_per_stage head_stage, and
as measurements step_time_s peak_mem_gib mem_kind mem_scope oom.

\b
Example: planner validate --data my_runs.csv --by framework,gpu"""


@click.command("validate", epilog=_EPILOG)
@click.option(
    "--data",
    "paths",
    multiple=True,
    metavar="FILE|DIR",
    help="Measured runs; may be given again. Without it: the published runs that ship.",
)
@click.option(
    "--by",
    "by",
    default="source",
    show_default=True,
    metavar="COLUMNS",
    help=f"What makes a family, comma-separated: {', '.join(_FAMILIES)}.",
)
@click.option("--json", "as_json", is_flag=True, help="One object a row and a summary, on stdout.")
@click.option("--quiet", is_flag=True, help="No notices on stderr.")
def command(paths: tuple[str, ...], by: str, as_json: bool, quiet: bool) -> None:
    """Predict measured runs from their configuration alone, and show the errors by family."""
    from planner.measured.predict import predict_rows
    from planner.measured.rows import read_rows

    columns = _family_columns(by)
    notice_if_first_run(quiet)
    predictions = predict_rows(row for path in _paths(paths) for row in read_rows(path))
    if as_json:
        click.echo(json.dumps(_document(predictions), indent=1))
        return
    _print_tables(predictions, columns)


def _family_columns(by: str) -> tuple[str, ...]:
    columns = tuple(name.strip() for name in by.split(","))
    unknown = [name for name in columns if name not in _FAMILIES]
    if unknown:
        raise click.UsageError(
            f"--by {by!r}: {unknown[0]!r} makes no family; choose from {', '.join(_FAMILIES)}"
        )
    return columns


def _paths(given: tuple[str, ...]) -> Sequence[Path]:
    from importlib.resources import files
    from pathlib import Path

    if given:
        return [Path(path).expanduser() for path in given]
    return [Path(str(files("planner").joinpath("literature/published.csv")))]


def _print_tables(predictions: Sequence[Prediction], columns: tuple[str, ...]) -> None:
    from planner.measured.ranking import rank_groups
    from planner.measured.report import report
    from planner.report.validation import validation_report

    def family(prediction: Prediction) -> str:
        return ", ".join(prediction.row.text(name) or "unstated" for name in columns)

    (total,) = report(predictions, lambda _: "all rows")
    refused = Counter(own.error for own in predictions if own.error is not None)
    print_report(
        validation_report(
            report(predictions, family),
            total,
            rank_groups(predictions),
            refused.most_common(_SHOWN_REFUSALS),
        )
    )


def _document(predictions: Sequence[Prediction]) -> dict[str, object]:
    """Rows with their predictions, then the summary over all of them."""
    from dataclasses import asdict

    from planner.measured.report import report

    (total,) = report(predictions, lambda _: "all rows")
    return {"rows": [_row(own) for own in predictions], "summary": asdict(total)}


def _row(prediction: Prediction) -> dict[str, object]:
    from planner.measured.report import memory_error, time_error
    from planner.uncertainty import step_time_interval

    row: dict[str, object] = dict(prediction.row.cells)
    if prediction.mapped is None or prediction.step_time_s is None:
        return row | {"error": prediction.error}
    job, degrees = prediction.mapped.job, prediction.mapped.degrees
    interval = step_time_interval(job, prediction.step_time_s)
    tokens = degrees.gbs * job.seq / (prediction.step_time_s * job.cluster.num_gpus)
    kind, scope = prediction.row.text("mem_kind"), prediction.row.text("mem_scope")
    peak, limit = prediction.memory_bytes(), prediction.limit_bytes
    time, memory = time_error(prediction), memory_error(prediction)
    return row | {
        "predicted_step_time_s": prediction.step_time_s,
        "predicted_low_s": interval.low,
        "predicted_high_s": interval.high,
        "predicted_tokens_per_s_per_gpu": tokens,
        "predicted_peak_mem_gib": (prediction.memory_bytes(kind, scope) or 0.0) / 2**30,
        "predicted_fits": peak is not None and limit is not None and peak <= limit,
        "time_ape": None if time is None else abs(time),
        "mem_ape": None if memory is None else abs(memory),
        "error": None,
    }
