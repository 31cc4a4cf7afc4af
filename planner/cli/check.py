"""`planner check`: whether launch files run and fit, how fast they are, and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from constraints.errors import ConstraintError
from hardware.errors import HardwareError
from planner.cli.errors import ExitStatus
from planner.cli.evaluate import as_result, measured_of
from planner.cli.options import output_format
from planner.cli.output import (
    check_plot,
    compile_if_first_run,
    limited,
    print_as,
    watched,
    write_result_plot,
)
from planner.job.errors import CannotTellError, UsageError
from planner.job.images import WITHOUT, demand_tokens, read_images
from planner.job.job import SURE_TO_FIT
from planner.job.written import refuse_to_overwrite, write_text
from planner.launch.check.assess import Assessment, assess
from planner.launch.check.changes import LaunchChange, best_changes
from planner.launch.check.document import as_csv, as_json, refusal_json
from planner.launch.check.fix import Read, fixed_files
from planner.launch.check.given import read_given
from planner.launch.read.found import Hints
from planner.predict.diagnosis.findings import Findings, findings_of
from planner.predict.diagnosis.measured import Measured
from planner.predict.memory.advice import Advice, Over, Watch, advise
from planner.report.check import check_report
from planner.search.explanation import Explanation, explain

_STATUS = {
    "runs and fits": ExitStatus.DONE,
    "will not fit": ExitStatus.NOTHING_FITS,
    "will not run": ExitStatus.NOTHING_FITS,
    "cannot tell": ExitStatus.CANNOT_TELL,
}


def run(paths: tuple[str, ...], **options: Any) -> None:
    style = output_format(options["as_json"], options["as_csv"])
    try:
        _checked(paths, style, options)
    except (CannotTellError, UsageError, HardwareError, ConstraintError) as error:
        if style == "json":
            click.echo(refusal_json(paths, error), nl=False)
        raise


def _checked(paths: tuple[str, ...], style: str, options: dict[str, Any]) -> None:
    hints = _hints(options)
    measured = measured_of(options)

    given = read_given(paths, hints, options["plan"], options["gpus"], options["cluster"])
    if options["output"] and not options["fix"]:
        raise UsageError("-o is the file that --fix writes: give --fix as well")
    for path in given.paths if options["fix"] else ():
        _fixed_path(path, options)
    check_plot(options["plot"], options["force"])
    compile_if_first_run(options["quiet"])

    assessment = assess(given.found, given.gpus, given.cluster, options["ignored"])
    with limited(options["time_limit"]) as until, watched(options["quiet"]) as watch:
        changes = best_changes(assessment, watch, until.over)
        advice = _advice(assessment, watch, until.over)
        findings = _findings(assessment, measured)
        if options["fix"]:
            _write_fixed(assessment, changes, given.read, options, watch)
    for rule in set(options["ignored"]) - {problem.rule for problem in assessment.problems}:
        click.echo(f"--ignore {rule}: nothing here breaches a rule of that name", err=True)
    explanation = _drawn(assessment, options["plot"], explained=style == "text")
    print_as(
        style,
        lambda: check_report(
            assessment, explanation, changes, findings, advice, verbose=options["verbose"]
        ),
        lambda: as_json(assessment, changes, findings, advice),
        lambda: as_csv(assessment, changes),
    )
    click.get_current_context().exit(_STATUS[assessment.verdict])


# --- options ----------------------------------------------------------------------------------


def _hints(options: dict[str, Any]) -> Hints:
    names = (
        "model", "vocab", "seq", "mbs", "gbs", "grad_acc", "recompute", "lengths", "images",
        "image_tokens",
    )  # fmt: skip
    if options["gbs"] and options["grad_acc"]:
        raise UsageError("give --gbs or --grad-acc, not both")
    if options["gpus"] and options["cluster"]:
        raise UsageError("give the GPUs by --gpus 64xH100 or by --cluster FILE.toml, not both")
    if options["images"] and options["image_tokens"]:
        raise UsageError("give the images of a sample by --images or by --image-tokens, not both")
    if options["image_tokens"] is not None:
        demand_tokens(options["image_tokens"])
    if options["images"] not in (None, WITHOUT):
        read_images(options["images"])
    return Hints(**{name: options[name] for name in names}, environment=dict(options["env"]))


def _fixed_path(changed: str, options: dict[str, Any]) -> Path:
    """Where a changed file is written: the path of -o, or FILE.fixed. UsageError if it exists."""
    path = Path(options["output"] or f"{changed}.fixed")
    refuse_to_overwrite(path, options["force"])
    return path


# --- results ----------------------------------------------------------------------------------


def _advice(assessment: Assessment, watch: Watch, over: Over) -> Advice | None:
    proposal, plan = assessment.proposal, assessment.plan
    if proposal is None or plan is None or plan.fit_probability >= SURE_TO_FIT:
        return None
    return advise(proposal, watch=watch, over=over)


def _findings(assessment: Assessment, measured: Measured | None) -> Findings | None:
    if measured is None:
        return None
    if assessment.proposal is None or assessment.job is None or assessment.plan is None:
        raise CannotTellError(
            "nothing to compare the measurement with: there is no prediction for these files ("
            + "; ".join(error.text for error in (assessment.errors or assessment.unpredictable))
            + ")"
        )
    return findings_of(assessment.proposal, assessment.job, assessment.plan, measured)


def _drawn(assessment: Assessment, plot: Path | None, *, explained: bool) -> Explanation | None:
    """Draw the predicted plan if --plot asks for it. Return its explanation if `explained`."""
    proposal, job, plan = assessment.proposal, assessment.job, assessment.plan
    if proposal is None or job is None or plan is None:
        if plot is not None:
            click.echo(f"{plot} was not written: there is no prediction to draw", err=True)
        return None
    result = as_result(proposal.request, plan)
    write_result_plot(plot, result, None, 1)
    return explain(result, 1, job) if explained else None


def _write_fixed(
    assessment: Assessment,
    changes: tuple[LaunchChange, ...],
    read: Read,
    options: dict[str, Any],
    watch: Any,
) -> None:
    """Write the improved files and say on stderr what was written, and what was not."""
    fixed = fixed_files(assessment, changes, read, watch)
    if options["output"] and len(fixed.texts) > 1:
        raise UsageError("--fix changes several files: leave -o out, and each gets .fixed")
    written = [(_fixed_path(name, options), text) for name, text in fixed.texts.items()]
    for path, text in written:
        write_text(path, text, force=options["force"])
    names = ", ".join(str(path) for path, _ in written)
    done = "; ".join(fixed.done)
    click.echo(f"wrote {names}: {done}" if written else "--fix: nothing to write", err=True)
    for text in fixed.left:
        click.echo(f"not written: {text}", err=True)
