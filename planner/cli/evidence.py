"""Commands that read measured runs: `planner calibrate`, `probe`, `validate` and `trace`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hardware.load import load_cluster_file
from hardware.schema import Cluster
from planner.cli.errors import ExitStatus
from planner.cli.options import output_format
from planner.cli.output import (
    check_output,
    check_plot,
    compile_if_first_run,
    json_text,
    print_as,
    print_report,
    show,
    watched,
    write_plot,
)
from planner.cli.rl_calibrate import calibrate_rl, is_rl_evidence
from planner.cli.rl_evidence import validate_rl
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
from planner.evidence.learn.priors import published
from planner.evidence.learn.probe import raw_csv
from planner.evidence.learn.study import study
from planner.evidence.learn.suggest import suggest
from planner.evidence.rl.rows import PUBLISHED as PUBLISHED_RL
from planner.evidence.rl.rows import rl_tables
from planner.evidence.runs.document import csv_columns, csv_record, document
from planner.evidence.runs.doubts import with_open_facts
from planner.evidence.runs.families import Family, family_by
from planner.evidence.runs.left_out import other_views
from planner.evidence.runs.mapping import MappedRow, planned_row
from planner.evidence.runs.predict import Prediction, predict_rows, recalibrated
from planner.evidence.runs.rows import (
    MEASURED_COLUMNS,
    PUBLISHED,
    TUNED_RUNS,
    MeasuredRow,
    read_rows,
)
from planner.evidence.traces.findings import findings
from planner.evidence.traces.rank import RankTrace, read_rank
from planner.evidence.traces.snapshot import Snapshot, read_snapshot
from planner.job.errors import CannotTellError, UsageError
from planner.job.pool import parse_one_type
from planner.job.written import csv_text, refuse_to_overwrite, write_text
from planner.launch.check.assess import assess
from planner.launch.check.given import read_given
from planner.launch.dialects.megatron.attributes import logged_arguments
from planner.launch.read.found import Hints
from planner.report.evidence import (
    calibration_report,
    study_report,
    suggestion_report,
    validation_report,
)
from planner.report.tables import Report
from planner.report.traced import (
    panels_of_snapshots,
    panels_of_trace,
    snapshot_report,
    trace_report,
)
from planner.search.explanation import pick_plan
from planner.search.plan_file import read_plan, read_plan_file


def run_calibrate(paths: tuple[str, ...], **options: Any) -> None:
    if options["gpus"] and options["cluster"]:
        raise UsageError("give the GPUs by --gpus 64xH100 or by --cluster FILE.toml, not both")
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
    if is_rl_evidence([Path(path) for path in paths]):
        calibrate_rl([Path(path) for path in paths], options, output)
        return
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
    if options["plan_file"] is None:
        raise UsageError("--suggest: give the plans to choose from: --plan-file plans.json")
    if options["output"] is not None:
        raise UsageError("--suggest writes no file; leave -o out")
    result = read_plan_file(Path(options["plan_file"]))
    compile_if_first_run(options["quiet"])
    # The plan file is the decision for which --suggest looks; it does not describe the logs.
    configuration = _configuration(options | {"plan_file": None})
    runs = read_runs([Path(path) for path in paths], configuration).predictions
    known = fit_figure(runs, "time") if runs else None
    found = suggest(result.request, result.plans, known)
    count = len(known.runs) if known else 0
    show(options["as_json"], lambda: [*map(asdict, found)], lambda: suggestion_report(found, count))


def _configuration(options: dict[str, Any]) -> Configured:
    """The configuration of each log: from --launch, from --plan-file, or from the log itself."""
    if options["launch"] and options["plan_file"]:
        raise UsageError(
            "give the configuration by --launch FILES or by --plan-file FILE, not both"
        )
    if options["plan_file"]:
        planned = plan_configuration(Path(options["plan_file"]))
        return lambda _: planned
    if options["launch"]:
        given = launched(options["launch"], options["gpus"], options["cluster"])
        return lambda _: given
    return lambda log: _told(log, options)


def _told(log: TrainingLog, options: dict[str, Any]) -> MappedRow | None:
    """The configuration from a plan file beside the log, or from the arguments that Megatron
    logs. None if there is neither. Raises UsageError if the GPUs are unknown."""

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
    """The configuration of launch files, read as `planner check` does. `contents`: texts to
    use in place of some files. Raises UsageError or CannotTellError if it cannot be
    predicted."""

    given = read_given(paths, Hints(), 1, gpus, cluster, contents)
    found = assess(given.found, given.gpus, given.cluster)
    if found.job is None or found.plan is None:
        why = "; ".join(problem.text for problem in (found.errors or found.unpredictable))
        raise CannotTellError(f"{paths[0]}: this run cannot be predicted: {why}")
    return planned_row(MeasuredRow(Path(paths[0]).name, 1, {}), found.job, found.plan)


def _more_equations(read: LearntFrom, options: dict[str, Any]) -> Equations | None:
    """Equations from traces and benchmarks. Raises UsageError if the machine of a benchmark
    is unknown."""

    if not read.benches and not read.traced:
        return None
    found = traced_equations(read.traced)
    if not read.benches:
        return found
    return found.and_also(bench_equations(read.benches, _machine(options, [])))


def _machine(options: dict[str, Any], fits: list[FigureFit]) -> Cluster:
    """The cluster of --cluster or --gpus, or that of the run with the most GPUs."""
    if options["cluster"]:
        return load_cluster_file(Path(options["cluster"]))
    if options["gpus"]:
        return parse_one_type(options["gpus"])
    found = [run.job.cluster for fit in fits for run in fit.runs]
    if not found:
        raise UsageError("--from: benchmarks do not name their machine; give --gpus or --cluster")
    return max(found, key=lambda cluster: cluster.num_gpus)


def _say_refused(worse: list[str], output: Path | None, *, left: bool) -> None:
    """Say which figures were not calibrated. Exit with status 1 if none was."""
    if not worse:
        return
    what = " and ".join({"time": "step times", "memory": "peak memory"}[one] for one in worse)
    kept = f"; {output} was not written" if output is not None and not left else ""
    click.echo(
        f"The runs do not agree on a calibration of {what}: predicted from the other runs, they "
        f"do not become more accurate, so it is left out{kept}. More runs, or runs of "
        "one software version, may help; --accept-worse uses it nevertheless.",
        err=True,
    )
    if not left:
        click.get_current_context().exit(ExitStatus.NOTHING_FITS)


def run_probe(**options: Any) -> None:
    from planner.evidence.learn import probe, real_steps

    output = Path(options["output"])
    files = output, Path(f"{output}.csv"), Path(f"{output}.steps.csv")
    for path in files:
        refuse_to_overwrite(path, options["force"])
    planned = plan_configuration(Path(options["plan_file"])) if options["plan_file"] else None
    torch = probe.load_torch()
    world, nodes, writes = probe.start_group(torch)
    mapped = planned or probe.usual_configuration(torch, world)
    with watched(options["quiet"] or not writes) as progress:
        benches = probe.run_benches(torch, probe.wanted(mapped, world, nodes), progress)
        gpu = mapped.job.cluster.gpu
        steps = real_steps.real_steps(torch, gpu, progress) if writes else []
    if writes:
        compile_if_first_run(options["quiet"])
        _write(mapped, benches, steps, files, options["force"])


def _write(
    mapped: Any, benches: Any, steps: Any, files: tuple[Path, Path, Path], force: bool
) -> None:
    output, raw, ran = files
    write_text(raw, raw_csv(benches), force=force)
    write_text(ran, csv_text(list(steps[0]) if steps else ["source"], steps), force=force)
    cluster, names = mapped.job.cluster, [raw.name, ran.name]
    fits = calibrate([], names, bench_equations(benches, cluster))
    runs = predict_rows(MeasuredRow(ran.name, line, one) for line, one in enumerate(steps, 2))
    held = fit_figure(runs, "memory")
    notes = [f"{len(benches):,} benchmarks", f"{len(steps)} small models trained, for their memory"]
    if held is not None and held.is_refused:
        notes.append("their memory does not help to predict each other: not calibrated")
    elif held is not None:
        fits.append(held)
    calibration = calibration_of(fits, names)
    write_text(output, cluster_text(output.name, cluster, calibration, None), force=force)
    print_report(calibration_report(calibration, fits, notes))
    click.echo(f"wrote {output}, {raw} and {ran}", err=True)


def run_validate(paths: tuple[str, ...], **options: Any) -> None:
    style, plot = output_format(options["as_json"], options["as_csv"]), options["plot"]
    check_plot(plot, options["force"])

    if options["published_rl"]:
        if paths:
            raise UsageError("give --rl or --data FILE, not both")
        paths = (str(PUBLISHED_RL),)
    if tables := rl_tables([Path(path) for path in paths]):
        validate_rl(tables, paths, options, style)
        return
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
    predictions = with_open_facts(predictions)
    if plot is not None:
        from planner.report.pages.studies import time_chart, validation_page

        write_plot(
            plot, lambda: time_chart(predictions),
            lambda: validation_page(predictions, family, _report(predictions, family)),
        )  # fmt: skip
    print_as(
        style,
        lambda: _report(predictions, family),
        lambda: json_text(document(predictions, family, other_views(predictions))),
        lambda: csv_text(csv_columns(predictions), map(csv_record, predictions)),
    )


def _study(predictions: Sequence[Prediction], runs: int, as_json: bool) -> None:
    found = study(published(predictions, "time"), runs)
    records = [{**asdict(one), "cluster": one.cluster._asdict()} for one in found]
    show(as_json, lambda: records, lambda: study_report(found, runs))


def _predictions(given: Sequence[str], unnamed: bool) -> list[Prediction]:
    paths = [Path(path) for path in given] or [PUBLISHED, TUNED_RUNS]
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


def _report(predictions: Sequence[Prediction], family: Family) -> Report:
    return validation_report(predictions, family, other_views(predictions))


def run_trace(paths: tuple[str, ...], **options: Any) -> None:
    plot = options["plot"]
    check_plot(plot, options["force"])
    plan = None
    if options["plan_file"] is not None:
        plan = pick_plan(*read_plan(Path(options["plan_file"]), options["plan"]))
    files = [Path(path) for path in paths]
    snapshots = [path for path in files if path.suffix in (".pickle", ".pkl")]
    if snapshots and len(snapshots) < len(files):
        raise UsageError("give traces or memory snapshots, not both at once")
    content: Any
    if snapshots:
        title, found = "Memory snapshots", [read_snapshot(path) for path in snapshots]
        content, report = _records(found), snapshot_report(found, plan)
        panels = panels_of_snapshots(found, plan)
    else:
        title, ranks = "Traced steps", _ranks(files, options["quiet"])
        patterns = findings(ranks)
        report = trace_report(ranks, patterns, plan)
        content = {"ranks": _records(ranks), "findings": [asdict(one) for one in patterns]}
        panels = panels_of_trace(ranks, plan)
    if plot is not None:
        from planner.report.charts.measured import panels_chart
        from planner.report.pages.studies import pairs_page

        write_plot(plot, lambda: panels_chart(panels), lambda: pairs_page(title, panels, report))
    show(options["as_json"], lambda: content, lambda: report)


def _ranks(files: list[Path], quiet: bool) -> list[RankTrace]:
    ranks: list[RankTrace] = []
    with watched(quiet) as progress:
        for number, path in enumerate(files):
            progress(f"reading {path.name}", number, len(files))
            ranks.append(read_rank(path, number))
    return ranks


def _records(read: Sequence[RankTrace | Snapshot]) -> list[dict[str, Any]]:
    return [asdict(one) | {"path": str(one.path)} for one in read]
