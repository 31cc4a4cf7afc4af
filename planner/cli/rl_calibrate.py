"""`planner calibrate` by runs of reinforcement learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hardware.load import load_cluster_file
from hardware.schema import Cluster
from planner.cli.output import compile_if_first_run, show
from planner.evidence.learn.cluster_file import cluster_text
from planner.evidence.rl.learn import (
    LearntPhases,
    PhaseTime,
    demand_one_gpu,
    learn,
    times_of_rows,
)
from planner.evidence.rl.predict import predict_rl
from planner.evidence.rl.rows import is_bounds_table, read_rl_rows, rl_tables
from planner.job.errors import CannotTellError, UsageError
from planner.job.pool import parse_one_type
from planner.job.written import write_text
from planner.report.rl_evidence import learnt_report


def is_rl_evidence(paths: Sequence[Path]) -> bool:
    """Whether files are of runs of reinforcement learning. UsageError for some that are and some
    that are not."""
    found = [bool(rl_tables([path])) for path in paths]
    if any(found) and not all(found):
        other = paths[found.index(False)]
        raise UsageError(
            f"--from: {other} is of other training than {paths[found.index(True)]}; give runs of "
            "reinforcement learning to a command of their own"
        )
    return any(found)


def calibrate_rl(paths: Sequence[Path], options: Mapping[str, Any], output: Path | None) -> None:
    """Learn a factor for each kind of phase, say what it does, and write the cluster file."""
    compile_if_first_run(options["quiet"])
    times, clusters, notes = _times(paths)
    cluster = _machine(options, demand_one_gpu(clusters))
    found = learn(times, notes)
    base = Path(options["cluster"]) if options["cluster"] else None
    known = load_cluster_file(base).calibration if base else None
    calibration = found.calibration(known, [path.name for path in paths])
    show(options["as_json"], lambda: _record(found), lambda: learnt_report(found))
    if output is not None:
        text = cluster_text(output.name, cluster, calibration, base)
        write_text(output, text, force=options["force"])
        click.echo(f"wrote {output}", err=True)


def _times(paths: Sequence[Path]) -> tuple[list[PhaseTime], list[Cluster], list[str]]:
    tables = [table for table in rl_tables(paths) if not is_bounds_table(table)]
    predictions = predict_rl(row for table in tables for row in read_rl_rows(table))
    mapped = [one.mapped for one in predictions if one.mapped is not None]
    if not mapped:
        why = predictions[0].error if predictions else "upper bounds are no measurements"
        raise CannotTellError(f"no run of {', '.join(map(str, paths))} can be predicted: {why}")
    notes = [f"{one.row.place}: left out: {one.error}" for one in predictions if one.error]
    clusters = [one.layout.trainer.job.cluster for one in mapped]
    return times_of_rows(predictions), clusters, notes


def _machine(options: Mapping[str, Any], found: Cluster | None) -> Cluster:
    """The cluster to describe: the one given, else that of the largest run."""
    if options["cluster"]:
        return load_cluster_file(Path(options["cluster"]))
    if options["gpus"]:
        return parse_one_type(options["gpus"])
    if found is None:
        raise UsageError("--from: no run says what machine it ran on; give --gpus or --cluster")
    return found


def _record(found: LearntPhases) -> dict[str, Any]:
    return {
        "phases": [one.model_dump() for one in found.phases],
        "times": [{**asdict(one), "ln": one.log} for one in found.times],
        "notes": list(found.notes),
    }
