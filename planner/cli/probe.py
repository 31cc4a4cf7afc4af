"""`planner probe`: benchmarks of the machine at hand into a calibrated cluster file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from planner.cli.output import print_report
from planner.cli.progress import compile_if_first_run, watched
from planner.evidence.learn.benches import bench_equations
from planner.evidence.learn.calibrate import calibrate, calibration_of, fit_figure
from planner.evidence.learn.cluster_file import cluster_text
from planner.evidence.learn.inputs import plan_configuration
from planner.evidence.learn.probe import raw_csv
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.rows import MeasuredRow
from planner.job.written import csv_text, refuse_to_overwrite, write_text
from planner.report.evidence import calibration_report


def run(**options: Any) -> None:
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
        gpu = mapped.job.cluster.gpu.name
        steps = real_steps.real_steps(torch, gpu, progress) if writes else []
    if writes:
        compile_if_first_run(options["quiet"])
        _write(mapped, benches, steps, files, options["force"])


def _write(
    mapped: Any, benches: Any, steps: Any, files: tuple[Path, Path, Path], force: bool
) -> None:
    """The raw figures, then the calibrated cluster file, and a report."""
    output, raw, ran = files
    write_text(raw, raw_csv(benches), force=force)
    write_text(ran, csv_text(list(steps[0]) if steps else ["source"], steps), force=force)
    cluster, names = mapped.job.cluster, [raw.name, ran.name]
    fits = calibrate([], names, bench_equations(benches, cluster))
    runs = predict_rows(MeasuredRow(ran.name, line, one) for line, one in enumerate(steps, 2))
    held = fit_figure(runs, "memory")
    notes = [f"{len(benches):,} benchmarks", f"{len(steps)} small models trained, for their memory"]
    if held is not None and held.is_refused:
        notes.append("their memory is predicted no better by each other: not calibrated")
    elif held is not None:
        fits.append(held)
    calibration = calibration_of(fits, names)
    write_text(output, cluster_text(output.name, cluster, calibration, None), force=force)
    print_report(calibration_report(calibration, fits, notes))
    click.echo(f"wrote {output}, {raw} and {ran}", err=True)
