"""`planner validate` with runs of reinforcement learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hardware.load import load_cluster_file
from hardware.schema import Cluster
from planner.cli.output import compile_if_first_run, json_text, print_as
from planner.evidence.rl.bounds import Bounded, bounded
from planner.evidence.rl.document import csv_rows, rl_document
from planner.evidence.rl.predict import RlPrediction, predict_rl
from planner.evidence.rl.rows import is_bounds_table, read_rl_rows, rl_tables
from planner.job.errors import UsageError
from planner.job.written import csv_text
from planner.report.rl_evidence import rl_validation_report


def validate_rl(
    tables: Sequence[Path], given: Sequence[str], options: Mapping[str, Any], style: str
) -> None:
    """Print measured runs next to their predictions, and whether runs stay within their upper
    bounds."""
    _demand_alone(tables, given, options)
    compile_if_first_run(options["quiet"])
    cluster = load_cluster_file(Path(options["cluster"])) if options["cluster"] else None
    predictions, bounds = _predicted(tables, cluster)
    print_as(
        style,
        lambda: rl_validation_report(predictions, bounds),
        lambda: json_text(rl_document(predictions, bounds)),
        lambda: csv_text(*csv_rows(predictions)),
    )


def _predicted(
    tables: Sequence[Path], cluster: Cluster | None
) -> tuple[list[RlPrediction], list[Bounded]]:
    runs = [row for path in tables if not is_bounds_table(path) for row in read_rl_rows(path)]
    limits = [row for path in tables if is_bounds_table(path) for row in read_rl_rows(path)]
    predictions = predict_rl(runs, cluster=cluster)
    if runs and all(one.error for one in predictions):
        raise UsageError(
            f"none of {len(runs):,} rows can be predicted; the first: {predictions[0].error}"
        )
    return predictions, bounded(limits)


def _demand_alone(tables: Sequence[Path], given: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raise UsageError for options or files that only fit other kinds of training."""
    others = [path for path in map(Path, given) if path not in tables and not rl_tables([path])]
    if others:
        raise UsageError(
            f"--data: {tables[0]} has runs of reinforcement learning and {others[0]} has others; "
            "give them in separate commands"
        )
    for name, option in (("plot", "--plot"), ("learn", "--learn")):
        if options[name] is not None:
            raise UsageError(
                f"{option}: runs of reinforcement learning have no such view; leave it out"
            )
    if options["unnamed"]:
        raise UsageError("--unnamed: runs of reinforcement learning need their framework's name")
