"""Reinforcement learning in `planner search`, `evaluate` and `explain`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from constraints.axes import AXES
from planner.cli.errors import ExitStatus
from planner.cli.options import OutputFormat, output_format, with_limits
from planner.cli.output import (
    check_files,
    check_output,
    check_plot,
    compile_if_first_run,
    limited,
    numbered_csv,
    print_as,
    print_report,
    watched,
    write_plot,
)
from planner.cli.rl_options import rl_request
from planner.job.errors import UsageError
from planner.job.written import write_text
from planner.launch.rl import RlLaunch, launch_note
from planner.predict.rl.step import rl_step
from planner.report.charts.step_trace import rl_trace
from planner.report.rl import (
    rl_explanation_report,
    rl_plan_report,
    rl_search_report,
    training_text,
)
from planner.search.rl.engines import EngineLimits
from planner.search.rl.explain import explain_rl
from planner.search.rl.given import GivenLayout, evaluated_layout
from planner.search.rl.plan_file import read_rl_plan, to_json
from planner.search.rl.plans import layout_of, one_plan
from planner.search.rl.result import RlResult
from planner.search.rl.search import find_rl_plans
from planner.search.rl.why import RlDoesNotFitError


def engine_limits(options: dict[str, Any]) -> EngineLimits:
    """The engine degrees, and the way of sending new weights to the engines, as the options give
    them. A degree is None, and the way empty, if the search decides."""
    degrees = {name: options[f"rollout_{name}"] for name in ("tp", "pp", "ep", "dp")}
    return EngineLimits(**degrees, way=options["rollout_way"] or "")


def given_layout(options: dict[str, Any]) -> GivenLayout:
    """The layout that the options of `planner evaluate` describe."""
    names = ("recompute", "layers_per_stage", "recompute_layers", "mtp_standalone")
    return GivenLayout(
        {name: options[name] for name in AXES},
        engine_limits(options),
        tuple(options[name] for name in names),
        trainer_leaves=options["trainer_leaves"],
    )


def run_search(options: dict[str, Any]) -> None:
    """`planner search --rl`."""

    style = output_format(options["as_json"], options["as_csv"])
    output = check_files(options)
    if len(options["gpus"]) > 1:
        raise UsageError(
            "--rl with several --gpus: planner compare takes several clusters; give one here, and "
            "--rollout-gpus 32xL40S for others that sample"
        )
    options["gpus"] = next(iter(options["gpus"]), None)
    request = rl_request(options, recompute=options["recompute"])
    job = request.resolve()
    trainer = with_limits(request.trainer, options, job.trainer)
    request = request.model_copy(update={"trainer": trainer})
    compile_if_first_run(options["quiet"], options["time_limit"])
    try:
        with watched(options["quiet"]) as progress:
            result = find_rl_plans(
                request,
                limits=engine_limits(options),
                seed=options["seed"],
                time_limit_s=options["time_limit"],
                progress=progress,
            )
    except RlDoesNotFitError as error:
        if style == "json":
            click.echo(json.dumps(asdict(error.why), indent=1))
        else:
            click.echo(f"Error: {error}", err=True)
        click.get_current_context().exit(ExitStatus.NOTHING_FITS)
    result = _with_launch_note(result)
    if options["top"] is not None:
        result = result.model_copy(update={"plans": result.plans[: options["top"]]})
    if options["samples"] is not None:
        note = training_text(result.plans[result.recommended - 1], options["samples"])
        result = result.model_copy(update={"notes": (*result.notes, note)})
    _show(result, style, output, options)
    _draw(result, result.recommended, options, output)
    if result.stopped == "interrupted":
        click.get_current_context().exit(ExitStatus.INTERRUPTED)


def _with_launch_note(result: RlResult) -> RlResult:
    """The result, with a note if no launch files can be written for the recommended plan."""
    plan = result.plans[result.recommended - 1]
    note = launch_note(RlLaunch(result.request, *layout_of(result.request, plan)))
    if note is None:
        return result
    words = f"plan {result.recommended}: {note}"
    return result.model_copy(update={"notes": (*result.notes, words)})


def _show(
    result: RlResult, style: OutputFormat, output: Path | None, options: dict[str, Any]
) -> None:
    """Write the plan file if asked for, and print the plans."""
    if output is not None:
        write_text(output, to_json(result), force=options["force"])
    print_as(
        style,
        lambda: rl_search_report(result, str(output) if output else None),
        lambda: to_json(result),
        lambda: numbered_csv(result.to_frame()),
    )


def run_evaluate(options: dict[str, Any]) -> None:
    """`planner evaluate --rl`: one given layout."""
    style = output_format(options["as_json"], options["as_csv"])
    output = check_files(options)
    request = rl_request(options)
    job, step = evaluated_layout(request, given_layout(options))
    result = one_plan(request, job, step)
    if style == "text":
        if output is not None:
            write_text(output, to_json(result), force=options["force"])
        print_report(rl_plan_report(result, 1, step, str(output) if output else None))
    else:
        _show(result, style, output, options)
    _draw(result, 1, options, output)
    click.get_current_context().exit(0 if step.fits else ExitStatus.NOTHING_FITS)


def run_explain(path: Path, number: int | None, options: dict[str, Any]) -> None:
    """`planner explain` of a plan file of reinforcement learning."""
    trace = check_output(options["trace"], options["force"], "--trace")
    check_plot(options["plot"], options["force"], path)
    for name in ("measured_step_time", "measured_tokens_per_s", "measured_mfu"):
        if options[name] is not None:
            raise UsageError(
                f"--{name.replace('_', '-')}: {path} holds plans of reinforcement learning, where "
                "it has no meaning; leave it out, or draw the step with --plot FILE.html"
            )
    result, number = read_rl_plan(path, number)
    if options["with_what_if"]:
        compile_if_first_run(options["quiet"], options["time_limit"])
    with limited(options["time_limit"]) as until, watched(options["quiet"]) as progress:
        explanation = explain_rl(
            result, number, neighbours=options["neighbours"], what_if=options["with_what_if"],
            until=until, progress=progress,
        )  # fmt: skip
    _draw(result, number, options, path)
    step = rl_step(*layout_of(result.request, result.plans[number - 1]))
    if trace is not None:
        text = json.dumps(rl_trace(step), allow_nan=False)
        write_text(trace, text + "\n", force=options["force"])
    if options["as_json"]:
        click.echo(explanation.model_dump_json(indent=1))
        return
    print_report(rl_explanation_report(result, explanation, step, str(path)))


def _draw(result: RlResult, number: int, options: dict[str, Any], written: Path | None) -> None:
    """Draw one plan, or write its page, if --plot is given."""
    if options["plot"] is None:
        return
    from planner.report.pages.rl import rl_chart, rl_page

    job, layout = layout_of(result.request, result.plans[number - 1])
    step = rl_step(job, layout)
    write_plot(
        options["plot"],
        lambda: rl_chart(result, step),
        lambda: rl_page(result, number, step, written),
    )
