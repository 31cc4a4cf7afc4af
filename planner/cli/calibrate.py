"""`planner calibrate`: a cluster's runs into a cluster file that predicts it better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hardware.load import load_cluster_file
from hardware.schema import Cluster
from planner.cli.errors import ExitStatus
from planner.cli.output import check_output, show
from planner.cli.progress import compile_if_first_run
from planner.evidence.learn.benches import bench_equations
from planner.evidence.learn.calibrate import FigureFit, calibrate, calibration_of, fit_figure
from planner.evidence.learn.cluster_file import cluster_text
from planner.evidence.learn.inputs import (
    Configured,
    LearntFrom,
    plan_beside,
    plan_configuration,
    read_runs,
    traced_equations,
)
from planner.evidence.learn.linear import Equations
from planner.evidence.learn.logs import TrainingLog, text_lines
from planner.evidence.learn.suggest import suggest
from planner.evidence.runs.mapping import MappedRow, planned_row
from planner.evidence.runs.rows import MeasuredRow
from planner.job.errors import CannotTellError, UsageError
from planner.job.pool import parse_one_type
from planner.job.written import write_text
from planner.launch.check.assess import assess
from planner.launch.check.given import read_given
from planner.launch.dialects.megatron.attributes import logged_arguments
from planner.launch.read.found import Hints
from planner.report.evidence import calibration_report, suggestion_report
from planner.search.plan_file import read_plan_file


def run(paths: tuple[str, ...], **options: Any) -> None:
    if options["gpus"] and options["cluster"]:
        raise UsageError("give the GPUs once: --gpus 64xH100, or --cluster FILE.toml")
    if options["gpus"]:
        parse_one_type(options["gpus"])
    if options["cluster"]:
        load_cluster_file(Path(options["cluster"]))
    # Known to be writable before any work is done.
    output = check_output(options["output"], options["force"])
    if options["suggest"]:
        _suggest(paths, options)
        return
    if not paths:
        raise UsageError(
            "give the runs to learn from: --from measured.csv, or a log (--from again for more)"
        )
    compile_if_first_run(options["quiet"])
    read = read_runs([Path(path) for path in paths], _configuration(options))
    fits = calibrate(read.predictions, read.sources, _more_equations(read, options))
    calibration = calibration_of(fits, read.sources)
    told = calibration_report(calibration, fits, read.notes)
    show(options["as_json"], calibration.model_dump, lambda: told)
    if not options["accept_worse"]:
        better = [fit for fit in fits if not fit.is_refused]
        _say_refused([fit.figure for fit in fits if fit.is_refused], output, left=bool(better))
        calibration = calibration_of(better, read.sources)
    if output is not None:
        base = Path(options["cluster"]) if options["cluster"] else None
        text = cluster_text(output.name, _machine(options, fits), calibration, base)
        write_text(output, text, force=options["force"])
        click.echo(f"wrote {output}", err=True)


def _suggest(paths: tuple[str, ...], options: dict[str, Any]) -> None:
    """Print which runs to make next for the plans of a file."""
    if options["plan_file"] is None:
        raise UsageError("--suggest: give the decision at hand, --plan-file plans.json")
    if options["output"] is not None:
        raise UsageError("--suggest writes no file; leave -o out")
    result = read_plan_file(Path(options["plan_file"]))
    compile_if_first_run(options["quiet"])
    # Here the plan file is what is to be decided, not what the logs are of.
    configuration = _configuration(options | {"plan_file": None})
    runs = read_runs([Path(path) for path in paths], configuration).predictions
    known = fit_figure(runs, "time") if runs else None
    found = suggest(result.request, result.plans, known)
    count = len(known.runs) if known else 0
    show(options["as_json"], lambda: [*map(asdict, found)], lambda: suggestion_report(found, count))


def _configuration(options: dict[str, Any]) -> Configured:
    """What logs are of: the launch files or the plan file given, else what each says."""
    if options["launch"] and options["plan_file"]:
        raise UsageError("give what ran once: --launch FILES, or --plan-file FILE")
    if options["plan_file"]:
        planned = plan_configuration(Path(options["plan_file"]))
        return lambda _: planned
    if options["launch"]:
        given = launched(options["launch"], options["gpus"], options["cluster"])
        return lambda _: given
    return lambda log: _told(log, options)


def _told(log: TrainingLog, options: dict[str, Any]) -> MappedRow | None:
    """The plan beside a log, else the arguments in one of Megatron; None where neither is there.
    UsageError without the machine that it ran on."""

    if (planned := plan_beside(log)) is not None:
        return planned
    logged = logged_arguments(text_lines(log.path)) if log.format == "Megatron-LM" else None
    if logged is None:
        return None
    text, count = logged
    if not (options["gpus"] or options["cluster"]):
        raise UsageError(
            f"{log.path}: it ran on {count:,} GPUs; say of which kind: --gpus {count}xH100"
        )
    name = str(log.path)
    found = launched((name,), options["gpus"], options["cluster"], {name: text})
    if found.degrees.gpus != count:
        raise UsageError(f"{name}: it ran on {count:,} GPUs, not on {found.degrees.gpus:,}")
    return found


def launched(
    paths: tuple[str, ...],
    gpus: str | None,
    cluster: str | None,
    contents: Mapping[str, str] | None = None,
) -> MappedRow:
    """The configuration of launch files, as `planner check` reads them; `contents`: texts that
    stand for those of some. UsageError, CannotTellError where they do not say what runs."""

    given = read_given(paths, Hints(), 1, gpus, cluster, contents)
    found = assess(given.found, given.gpus, given.cluster)
    if found.job is None or found.plan is None:
        why = "; ".join(problem.text for problem in (found.errors or found.unpredictable))
        raise CannotTellError(f"{paths[0]}: there is no prediction of what it runs: {why}")
    return planned_row(MeasuredRow(Path(paths[0]).name, 1, {}), found.job, found.plan)


def _more_equations(read: LearntFrom, options: dict[str, Any]) -> Equations | None:
    """What traced terms and benchmarks say, the latter against the machine that they ran on.
    UsageError where none is given."""

    if not read.benches and not read.traced:
        return None
    found = traced_equations(read.traced)
    if not read.benches:
        return found
    return found.and_also(bench_equations(read.benches, _machine(options, [])))


def _machine(options: dict[str, Any], fits: list[FigureFit]) -> Cluster:
    """The cluster to describe: the one given, else that of the run with the most GPUs."""
    if options["cluster"]:
        return load_cluster_file(Path(options["cluster"]))
    if options["gpus"]:
        return parse_one_type(options["gpus"])
    found = [run.job.cluster for fit in fits for run in fit.runs]
    if not found:
        raise UsageError(
            "--from: benchmarks do not say what machine they ran on; give --gpus or --cluster"
        )
    return max(found, key=lambda cluster: cluster.num_gpus)


def _say_refused(worse: list[str], output: Path | None, *, left: bool) -> None:
    """Say which figures are not calibrated; with none left, end with status 1."""
    if not worse:
        return
    what = " and ".join({"time": "step times", "memory": "peak memory"}[one] for one in worse)
    kept = f"; {output} was not written" if output is not None and not left else ""
    click.echo(
        f"The runs do not agree on a calibration of {what}: each as the others correct it, they "
        f"are not predicted better than without, so it is left out{kept}. More runs, or runs of "
        "one software version, may help; --accept-worse takes it all the same.",
        err=True,
    )
    if not left:
        click.get_current_context().exit(ExitStatus.NOTHING_FITS)
