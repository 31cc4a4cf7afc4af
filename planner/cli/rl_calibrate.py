"""`planner calibrate` with runs of reinforcement learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from hardware.load import load_cluster_file
from hardware.schema import Cluster
from planner.cli.output import compile_if_first_run, show
from planner.evidence.learn.cluster_file import cluster_text
from planner.evidence.learn.inputs import PLAN_FILE
from planner.evidence.rl.learn import (
    LearntPhases,
    PhaseTime,
    demand_one_gpu,
    learn,
    lengths_text,
    times_of_log,
    times_of_rows,
)
from planner.evidence.rl.lengths import cut_lognormal
from planner.evidence.rl.logs import RlLog, read_rl_log
from planner.evidence.rl.predict import predict_rl
from planner.evidence.rl.rows import is_bounds_table, read_rl_rows, rl_tables
from planner.job.errors import CannotTellError, UsageError
from planner.job.pool import parse_one_type
from planner.job.rl.frameworks import find_rl_framework
from planner.job.rl.job import RlJob
from planner.job.rl.request import RlRequest
from planner.job.written import write_text
from planner.launch.check.given import read_given
from planner.launch.check.rl import rl_check
from planner.launch.read.found import Hints
from planner.predict.rl.plan import RlLayout
from planner.report.rl_evidence import learnt_report
from planner.search.plan_file import is_rl_file
from planner.search.rl.plan_file import read_rl_plan
from planner.search.rl.plans import layout_of

# Suffixes of tables; a folder may contain several.
_TABLES = (".csv", ".json", ".gz", ".pkl", ".pickle")


def is_rl_evidence(paths: Sequence[Path]) -> bool:
    """Whether the files are runs of reinforcement learning. Raises UsageError if only some are."""
    found = [bool(rl_tables([path])) or any(map(_is_log, _files(path))) for path in paths]
    if any(found) and not all(found):
        other = paths[found.index(False)]
        raise UsageError(
            f"--from: {other} is of other training than {paths[found.index(True)]}; give runs of "
            "reinforcement learning in a separate command"
        )
    return any(found)


def _files(path: Path) -> list[Path]:
    """The runs to read in a path: the file itself, or the logs in a folder with an RL plan file.
    Empty for any other folder."""
    if not path.is_dir():
        return [path]
    plan = path / PLAN_FILE
    if not plan.is_file() or not is_rl_file(plan):
        return []
    return [file for ending in ("*.log", "*.jsonl") for file in sorted(path.glob(ending))]


def _is_log(path: Path) -> bool:
    return path.is_file() and path.suffix not in _TABLES and read_rl_log(path) is not None


def calibrate_rl(paths: Sequence[Path], options: Mapping[str, Any], output: Path | None) -> None:
    """Learn a factor for each kind of phase, report it and write the cluster file."""
    compile_if_first_run(options["quiet"])
    found, clusters = _learnt(paths, options)
    cluster = _machine(options, demand_one_gpu(clusters))
    base = Path(options["cluster"]) if options["cluster"] else None
    known = load_cluster_file(base).calibration if base else None
    calibration = found.calibration(known, [path.name for path in paths])
    show(options["as_json"], lambda: _record(found), lambda: learnt_report(found))
    if output is not None:
        text = cluster_text(output.name, cluster, calibration, base)
        write_text(output, text, force=options["force"])
        click.echo(f"wrote {output}", err=True)


def _learnt(
    paths: Sequence[Path], options: Mapping[str, Any]
) -> tuple[LearntPhases, list[Cluster]]:
    """The factors learnt from tables and logs, and the clusters that the runs used."""
    # The code that costs a step imports numba.
    from planner.evidence.rl.costing import cost_layout

    tables = [table for table in rl_tables(paths) if not is_bounds_table(table)]
    times, clusters, notes = _of_rows(tables)
    lengths = ""
    logs = [file for path in paths for file in _files(path) if file not in tables]
    for path in logs:
        if (log := read_rl_log(path) if _is_log(path) else None) is None:
            continue
        job, layout = _launched(log, options) if options["launch"] else _planned(log, options)
        times += times_of_log(log, cost_layout(job, layout))
        clusters.append(layout.trainer.job.cluster)
        lengths = lengths_text(log) or lengths
        notes.append(f"{path.name} ({log.framework}): {log.told}")
    if not clusters:
        told = ", ".join(map(str, paths))
        raise CannotTellError(f"no run of {told} can be predicted{_why(notes)}")
    if lengths:
        notes.append(f"its lengths, for the next search: --lengths {lengths}")
    return learn(times, notes, lengths), clusters


def _of_rows(tables: Sequence[Path]) -> tuple[list[PhaseTime], list[Cluster], list[str]]:
    predictions = predict_rl(row for table in tables for row in read_rl_rows(table))
    notes = [f"{one.row.place}: left out: {one.error}" for one in predictions if one.error]
    clusters = [one.mapped.layout.trainer.job.cluster for one in predictions if one.mapped]
    return times_of_rows(predictions), clusters, notes


def _why(notes: Sequence[str]) -> str:
    return f": {notes[0]}" if notes else ""


def _launched(log: RlLog, options: Mapping[str, Any]) -> tuple[RlJob, RlLayout]:
    """Job and layout from launch files, with the lengths of samples from the log. Raises
    UsageError or CannotTellError if they cannot be predicted."""
    machine = options["gpus"], options["cluster"]
    found = read_given(options["launch"], Hints(), 1, *machine).found
    told = rl_check(replace(found, lengths=lengths_text(log) or found.lengths), *machine)
    if told.request is None or told.job is None or told.layout is None:
        why = "; ".join(one.text for one in told.problems) or "they are of other training"
        raise CannotTellError(f"{options['launch'][0]}: this run cannot be predicted: {why}")
    _demand_framework(log, told.request.framework)
    return told.job, told.layout


def _planned(log: RlLog, options: Mapping[str, Any]) -> tuple[RlJob, RlLayout]:
    """Job and layout from a plan file, with the lengths of samples from the log. Raises
    UsageError if there is no plan file, or if another framework wrote the log."""
    given = options["plan_file"]
    plan_file = Path(given) if given else log.path.parent / PLAN_FILE
    if not plan_file.is_file():
        raise UsageError(
            f"{log.path}: a log does not say what ran; give --plan-file with a plan file of "
            "`planner search --rl`, --launch with the launch files, or put the log beside the "
            f"{PLAN_FILE} of its launch folder"
        )
    result, number = read_rl_plan(plan_file)
    request = result.request
    _demand_framework(log, request.framework)
    return layout_of(_at_lengths(request, log), result.plans[number - 1])


def _demand_framework(log: RlLog, framework: str) -> None:
    if find_rl_framework(framework).name != log.framework:
        raise UsageError(
            f"{log.path} is a log of {log.framework}, the configuration one of {framework}: give "
            "that of the run that wrote the log"
        )


def _at_lengths(request: RlRequest, log: RlLog) -> RlRequest:
    """The request with the mean lengths that the log reports, up to the plan's longest."""
    prompt, response = request.lengths
    mean = log.lengths.get("response_mean")
    if not mean:
        return request
    longest = max(response.longest, round(mean) + 1)
    answers = cut_lognormal(max(1, round(mean)), longest)
    asked = round(log.lengths.get("prompt_mean") or prompt.mean)
    prompts = cut_lognormal(max(1, asked), max(asked, prompt.longest))
    trainer = request.trainer.model_copy(update={"lengths": f"prompt={prompts},response={answers}"})
    return request.model_copy(update={"trainer": trainer})


def _machine(options: Mapping[str, Any], found: Cluster | None) -> Cluster:
    """The cluster of --cluster or --gpus, or that of the largest run."""
    if options["cluster"]:
        return load_cluster_file(Path(options["cluster"]))
    if options["gpus"]:
        return parse_one_type(options["gpus"])
    if found is None:
        raise UsageError("--from: no run names its machine; give --gpus or --cluster")
    return found


def _record(found: LearntPhases) -> dict[str, Any]:
    return {
        "phases": [one.model_dump() for one in found.phases],
        "times": [{**asdict(one), "ln": one.log} for one in found.times],
        "lengths": found.lengths,
        "notes": list(found.notes),
    }
