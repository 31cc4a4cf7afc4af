"""`planner check`: will a launch that people have run and fit, how fast, what to change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.cli import complete
from planner.cli import option_types as types
from planner.cli.errors import ExitStatus
from planner.cli.help import GroupedCommand
from planner.cli.options import output_format, time_limit_option
from planner.cli.output import check_plot, plot_option, print_report, write_plan_plot
from planner.cli.progress import compile_if_first_run, limited, watched
from planner.job.errors import CannotTellError, UsageError

if TYPE_CHECKING:
    from planner.launch.check.assess import Assessment
    from planner.launch.check.changes import Change
    from planner.launch.check.fix import Read
    from planner.launch.check.measured import Findings, Measured
    from planner.launch.read.found import Hints
    from planner.search.result import SearchResult

_STATUS = {
    "runs and fits": ExitStatus.DONE,
    "will not fit": ExitStatus.NOTHING_FITS,
    "will not run": ExitStatus.NOTHING_FITS,
    "cannot tell": ExitStatus.CANNOT_TELL,
}
_EPILOG = """\b
Exit status: 0 runs and probably fits; 1 will not run, or not fit; 3 cannot
tell, and what is missing; 2 wrong use; all: planner --help.

\b
Example: planner check pretrain.sh --gpus 64xH100
         planner check run/
         planner check config.toml --gpus 64xH100 --fix
         planner check ds_config.json --model 8b --mbs 4 --gpus 8xA100"""


@click.command("check", cls=GroupedCommand, epilog=_EPILOG)
@click.argument("paths", type=types.FILE, metavar="FILE...", nargs=-1, required=True)
@click.option("--gpus", shell_complete=complete.gpus, help="64xH100, or nodes x GPUs: 8x8xH100.")
@click.option(
    "--cluster", type=types.FILE, help="Instead of --gpus: a TOML file that describes it."
)
@click.option("--model", help="The model, where the files do not describe it.")
@click.option("--vocab", type=types.WIDTH, help="Vocabulary, where the files do not say.")
@click.option("--seq", type=types.SEQUENCE, help="Sequence length in tokens.")
@click.option("--mbs", type=types.DEGREE, help="Micro-batch, sequences.")
@click.option("--gbs", type=types.SEQUENCES, help="Global batch, sequences.")
@click.option("--grad-acc", type=types.MICRO_BATCHES, help="Micro-batches per step.")
@click.option("--recompute", metavar="MODE", help="Where the files do not say: full, none, …")
@click.option("--env", type=types.VARIABLE, multiple=True, help="A shell variable.")
@click.option(
    "--plan", type=types.PLAN_NUMBER, help="Which plan of a plan file. [default: the recommended]"
)
@click.option(
    "--ignore", "ignored", multiple=True, metavar="RULE", help="Only note breaches of a rule."
)
@click.option(
    "--measured-step-time", type=types.MEASURED_S, metavar="SECONDS", help="Compare: s per step."
)
@click.option("--measured-mfu", type=types.MEASURED_SHARE, help="Compare: 0.41 or 41%.")
@click.option(
    "--measured-memory", type=types.MEASURED_GIB, metavar="GIB", help="Compare: peak GiB of a GPU."
)
@time_limit_option("Of the changes that are tried; those for which no time is left are named.")
@plot_option("memory, time and schedule of what is launched")
@click.option("--fix", is_flag=True, help="Write the improved file, to FILE.fixed or -o.")
@click.option("-o", "--output", type=types.FILE, help="Where --fix writes.")
@click.option("--force", is_flag=True, help="Overwrite the output file.")
@click.option("-v", "--verbose", is_flag=True, help="List settings without effect, too.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print one row for the launch and a change.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def command(paths: tuple[str, ...], **options: Any) -> None:
    """Say whether launch FILEs will run and fit, how fast, and what to change.

    FILEs: a Megatron-LM shell script or list of arguments, a torchtitan TOML or configuration
    function, a recipe of Megatron-Bridge or NeMo 2, a Primus, LLaMA-Factory, axolotl, accelerate
    or nanotron YAML, a DeepSpeed JSON, a Trainer script, a Kubernetes or SkyPilot job, or a plan
    file; several that belong together at once, or the whole folder. They are read, never run.
    """
    style = output_format(options["as_json"], options["as_csv"])
    hints = _hints(options)
    measured = _measured(options)

    from planner.launch.check.given import read_given

    given = read_given(paths, hints, options["plan"], options["gpus"], options["cluster"])
    _check_fix(given.paths, options)
    check_plot(options["plot"], options["force"])
    compile_if_first_run(options["quiet"])

    from planner.launch.check.assess import assess

    assessment = assess(given.found, given.gpus, given.cluster, options["ignored"])
    with limited(options["time_limit"]) as until, watched(options["quiet"]) as watch:
        from planner.launch.check.changes import best_changes

        changes = best_changes(assessment, watch, until.over)
        findings = _findings(assessment, measured)
        if options["fix"]:
            _write_fixed(assessment, changes, given.read, options, watch)
    result, plot = _result(assessment), options["plot"]
    if result is not None:
        write_plan_plot(plot, result, 1, None)
    elif plot is not None:
        click.echo(f"{plot} was not written: there is no prediction to draw", err=True)
    _print(style, assessment, changes, findings, result, verbose=options["verbose"])
    click.get_current_context().exit(_STATUS[assessment.verdict])


# --- options ----------------------------------------------------------------------------------


def _hints(options: dict[str, Any]) -> Hints:
    from planner.launch.read.found import Hints

    names = ("model", "vocab", "seq", "mbs", "gbs", "grad_acc", "recompute")
    if options["gbs"] and options["grad_acc"]:
        raise UsageError("give --gbs or --grad-acc, not both")
    if options["gpus"] and options["cluster"]:
        raise UsageError("give the GPUs once: --gpus 64xH100, or --cluster FILE.toml")
    return Hints(**{name: options[name] for name in names}, environment=dict(options["env"]))


def _measured(options: dict[str, Any]) -> Measured | None:
    from planner.launch.check.measured import Measured

    names = ("measured_step_time", "measured_mfu", "measured_memory")
    measured = Measured(*(options[name] for name in names))
    return measured if measured.is_given else None


def _check_fix(paths: tuple[str, ...], options: dict[str, Any]) -> None:
    """UsageError if --fix could not write, before anything is computed."""
    if options["output"] and not options["fix"]:
        raise UsageError("-o says where --fix writes: give --fix too")
    for path in paths if options["fix"] else ():
        _fixed_path(path, options)


def _fixed_path(changed: str, options: dict[str, Any]) -> Path:
    """Where the new text of a file goes: to FILE.fixed, or to the one that is named."""
    from planner.job.written import refuse_to_overwrite

    path = Path(options["output"] or f"{changed}.fixed")
    refuse_to_overwrite(path, options["force"])
    return path


# --- results ----------------------------------------------------------------------------------


def _findings(assessment: Assessment, measured: Measured | None) -> Findings | None:
    from planner.launch.check.measured import compare

    if measured is None:
        return None
    if assessment.setup is None or assessment.job is None or assessment.plan is None:
        raise CannotTellError(
            "nothing to compare the measurement with: there is no prediction for these files ("
            + "; ".join(error.text for error in (assessment.errors or assessment.unpredictable))
            + ")"
        )
    return compare(assessment.setup, assessment.job, assessment.plan, measured)


def _write_fixed(
    assessment: Assessment,
    changes: tuple[Change, ...],
    read: Read,
    options: dict[str, Any],
    watch: Any,
) -> None:
    """Write the improved files and say on stderr what was written, and what was not."""
    from planner.job.written import write_text
    from planner.launch.check.fix import fixed_files

    fixed = fixed_files(assessment, changes, read, watch)
    if options["output"] and len(fixed.texts) > 1:
        raise UsageError("--fix changes several files: leave -o out, and each gets .fixed")
    written = [(_fixed_path(name, options), text) for name, text in fixed.texts.items()]
    for path, text in written:
        write_text(path, text)
    names = ", ".join(str(path) for path, _ in written)
    done = "; ".join(fixed.done)
    click.echo(f"wrote {names}: {done}" if written else "--fix: nothing to write", err=True)
    for text in fixed.left:
        click.echo(f"not written: {text}", err=True)


def _result(assessment: Assessment) -> SearchResult | None:
    """What was predicted, as one plan; None if nothing could be."""
    from planner.cli.evaluate import as_result

    if assessment.setup is None or assessment.job is None or assessment.plan is None:
        return None
    return as_result(assessment.setup.request, assessment.plan)


def _print(
    style: str,
    assessment: Assessment,
    changes: tuple[Change, ...],
    findings: Findings | None,
    result: SearchResult | None,
    *,
    verbose: bool,
) -> None:
    from planner.launch.check.document import as_csv, as_json
    from planner.report.check import check_report
    from planner.search.explanation import explain

    if style == "json":
        click.echo(as_json(assessment, changes, findings), nl=False)
    elif style == "csv":
        click.echo(as_csv(assessment, changes), nl=False)
    else:
        explanation = None
        if result is not None and assessment.job is not None:
            explanation = explain(result, 1, assessment.job)
        print_report(check_report(assessment, explanation, changes, findings, verbose=verbose))
