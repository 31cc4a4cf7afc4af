"""`planner calibrate`: a cluster's runs into a cluster file that predicts it better."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.cli import option_types as types
from planner.cli.errors import ExitStatus
from planner.cli.output import check_output, show
from planner.cli.progress import compile_if_first_run
from planner.job.errors import CannotTellError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hardware import Cluster
    from planner.evidence.learn.calibrate import FigureFit
    from planner.evidence.learn.inputs import Configured, LearntFrom
    from planner.evidence.learn.linear import Equations
    from planner.evidence.learn.logs import TrainingLog
    from planner.evidence.runs.mapping import MappedRow

_EPILOG = """\b
Example: planner calibrate --from measured.csv -o mycluster.toml
Further ones:
  planner calibrate --from train.log --launch run.sh --gpus 64xH100 -o my.toml
  planner search --model 70b --cluster my.toml --gbs-tokens 4M"""


@click.command("calibrate", epilog=_EPILOG)
@click.option(
    "--from",
    "paths",
    type=types.FILE,
    multiple=True,
    metavar="FILE|DIR",
    help="Measured runs: CSV, a launch folder with its measured.csv or logs, or a log of "
    "Megatron-LM, torchtitan, DeepSpeed, nanotron, MLPerf, a trainer_state.json, a profiler's "
    "trace, nccl-tests' output, or a table of benchmarks. May be given again.",
)
@click.option("-o", "--output", type=types.FILE, help="Write the calibrated cluster file.")
@click.option(
    "--launch",
    "launch",
    type=types.FILE,
    multiple=True,
    metavar="FILE|DIR",
    help="Launch files that logs given by --from are of, as `planner check` reads them.",
)
@click.option("--plan-file", type=types.FILE, help="The plan that logs are of, instead.")
@click.option("--gpus", help="The machine of the launch files, and of the file to write: 64xH100.")
@click.option(
    "--cluster",
    type=types.FILE,
    help="Instead: a cluster file, whose description the new one keeps.",
)
@click.option(
    "--accept-worse", is_flag=True, help="Write even what predicts the runs no better than without."
)
@click.option(
    "--suggest",
    is_flag=True,
    help="Instead: which short runs would shrink the error bars of the plans in --plan-file most.",
)
@click.option("--force", is_flag=True, help="Overwrite the output file.")
@click.option("--json", "as_json", is_flag=True, help="Print the calibration as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No notices on stderr.")
def command(paths: tuple[str, ...], **options: Any) -> None:
    """Learn a cluster's figures from its measured runs; `--cluster FILE` then uses them.

    Exit status 1 where the calibration would predict the runs worse than none.
    """
    from planner.evidence.learn.calibrate import calibrate, calibration_of
    from planner.evidence.learn.inputs import read_runs
    from planner.report.calibration import calibration_report

    output = _output(options)
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
    whole = calibration = calibration_of(fits, read.sources)
    told = whole, fits, read.notes
    show(options["as_json"], whole.model_dump, lambda: calibration_report(*told))
    if not options["accept_worse"]:
        better = [fit for fit in fits if not fit.is_refused]
        _say_refused([fit.figure for fit in fits if fit.is_refused], output, left=bool(better))
        calibration = calibration_of(better, read.sources)
    if output is not None:
        from planner.evidence.learn.cluster_file import cluster_text
        from planner.job.written import write_text

        base = Path(options["cluster"]) if options["cluster"] else None
        text = cluster_text(output.name, _machine(options, fits), calibration, base)
        write_text(output, text)
        click.echo(f"wrote {output}", err=True)


def _suggest(paths: tuple[str, ...], options: dict[str, Any]) -> None:
    """Print which runs to make next for the plans of a file."""
    from dataclasses import asdict

    from planner.evidence.learn.calibrate import fit_figure
    from planner.evidence.learn.inputs import read_runs
    from planner.evidence.learn.suggest import suggest
    from planner.report.calibration import suggestion_report
    from planner.search.plan_file import read_plan_file

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


def _output(options: dict[str, Any]) -> Path | None:
    """The file to write, known to be writable before any work is done."""
    if options["gpus"] and options["cluster"]:
        raise UsageError("give the GPUs once: --gpus 64xH100, or --cluster FILE.toml")
    return check_output(options["output"], options["force"])


def _configuration(options: dict[str, Any]) -> Configured:
    """What logs are of: the launch files or the plan file given, else what each says."""
    if options["launch"] and options["plan_file"]:
        raise UsageError("give what ran once: --launch FILES, or --plan-file FILE")
    if options["plan_file"]:
        from planner.evidence.learn.inputs import plan_configuration

        planned = plan_configuration(Path(options["plan_file"]))
        return lambda _: planned
    if options["launch"]:
        given = launched(options["launch"], options["gpus"], options["cluster"])
        return lambda _: given
    return lambda log: _told(log, options)


def _told(log: TrainingLog, options: dict[str, Any]) -> MappedRow | None:
    """The plan beside a log, else the arguments in one of Megatron; None where neither is there.
    UsageError without the machine that it ran on."""
    from planner.evidence.learn.inputs import plan_beside
    from planner.evidence.learn.logs import text_lines
    from planner.launch.read.megatron_attributes import logged_arguments

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
    from planner.evidence.runs.mapping import planned_row
    from planner.evidence.runs.rows import MeasuredRow
    from planner.launch.check.assess import assess
    from planner.launch.check.given import read_given
    from planner.launch.read.found import Hints

    given = read_given(paths, Hints(), 1, gpus, cluster, contents)
    found = assess(given.found, given.gpus, given.cluster)
    if found.job is None or found.plan is None:
        why = "; ".join(problem.text for problem in (found.errors or found.unpredictable))
        raise CannotTellError(f"{paths[0]}: there is no prediction of what it runs: {why}")
    return planned_row(MeasuredRow(Path(paths[0]).name, 1, {}), found.job, found.plan)


def _more_equations(read: LearntFrom, options: dict[str, Any]) -> Equations | None:
    """What traced terms and benchmarks say, the latter against the machine that they ran on.
    UsageError where none is given."""
    from planner.evidence.learn.benches import bench_equations
    from planner.evidence.learn.inputs import traced_equations

    if not read.benches and not read.traced:
        return None
    found = traced_equations(read.traced)
    if not read.benches:
        return found
    return found.and_also(bench_equations(read.benches, _machine(options, [])))


def _machine(options: dict[str, Any], fits: list[FigureFit]) -> Cluster:
    """The cluster to describe: the one given, else that of the run with the most GPUs."""
    from hardware import load_cluster_file
    from planner.job.pool import parse_one_type

    if options["cluster"]:
        return load_cluster_file(Path(options["cluster"]))
    if options["gpus"]:
        return parse_one_type(options["gpus"])
    found = [run.mapped.job.cluster for fit in fits for run in fit.runs if run.mapped]
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
