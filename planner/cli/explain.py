"""`planner explain`: one plan of a plan file, or two side by side."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click

from planner.cli.evaluate import measured_of, with_measured
from planner.cli.output import (
    check_output,
    check_plot,
    compile_if_first_run,
    limited,
    print_report,
    show,
    watched,
    write_result_plot,
)
from planner.job.errors import UsageError
from planner.job.pool import SeveralTypes
from planner.job.written import write_text
from planner.predict.configuration import decided_request
from planner.predict.diagnosis.findings import Findings, findings_of
from planner.predict.diagnosis.measured import Measured
from planner.predict.evaluate import Proposal
from planner.predict.plan_text import plan_name
from planner.report.beside import Beside, TwoPlans, beside_report
from planner.report.charts.step_trace import step_trace
from planner.report.explain import explanation_report
from planner.report.verdict import PlanCard
from planner.search.explanation import Explanation, explain, job_evaluator, pick_plan
from planner.search.limit_results import Until
from planner.search.plan_file import is_rl_file, read_plan
from planner.search.result import SearchResult
from planner.search.what_if import what_if


def run(plan_file: str, number: int | None, other: int | None, **options: Any) -> None:
    path = Path(plan_file)
    if number is not None and other is not None:
        _explain_two(path, number, other, options)
        return
    if is_rl_file(path):
        from planner.cli.rl import run_explain

        run_explain(path, number, options)
        return
    with limited(options["time_limit"]) as until:
        _explain(path, number, until, options)


# Options that apply to a single plan only, and their spelling.
_OF_ONE = {
    "trace": "--trace", "plot": "--plot", "with_what_if": "--what-if",
    "measured_step_time": "--measured-step-time",
    "measured_tokens_per_s": "--measured-tokens-per-s", "measured_mfu": "--measured-mfu",
    "measured_memory": "--measured-memory",
}  # fmt: skip


def _explain_two(path: Path, number: int, other: int, options: dict[str, Any]) -> None:
    """Differences between two plans of a file, and the reason why one is faster."""
    for name, spelled in _OF_ONE.items():
        if options[name]:
            raise UsageError(f"{spelled} needs a single plan: give one number, or leave it out")
    if number == other:
        raise UsageError(
            f"plan {number} cannot be compared with itself: give the numbers of two plans"
        )
    beside = _beside(path, number, other)
    show(options["as_json"], beside.record, lambda: beside_report(beside))


def _beside(path: Path, number: int, other: int) -> TwoPlans:
    if not is_rl_file(path):
        return Beside(read_plan(path, number)[0], number, other)
    # Reinforcement learning imports the engines, which other plans do not need.
    from planner.report.rl_beside import RlBeside
    from planner.search.rl.plan_file import read_rl_plan

    return RlBeside(read_rl_plan(path, number)[0], number, other)


def _explain(path: Path, number: int | None, until: Until, options: dict[str, Any]) -> None:
    trace = check_output(options["trace"], options["force"], "--trace")
    check_plot(options["plot"], options["force"], trace)

    measured = measured_of(options)

    result, number = read_plan(path, number)
    findings = None if measured is None else _findings(result, number, measured)
    explanation = _explained(result, number, until, options)
    if trace is not None:
        text = json.dumps(step_trace(result.plans[number - 1], explanation.links), allow_nan=False)
        write_text(trace, text + "\n", force=options["force"])
    write_result_plot(options["plot"], result, path, number)
    if options["as_json"] and findings is not None:
        click.echo(with_measured(explanation.model_dump(mode="json"), findings))
    elif options["as_json"]:
        click.echo(explanation.model_dump_json(indent=1))
    else:
        plan = result.plans[number - 1]
        start = f"planner launch {shlex.quote(str(path))} {number} -o run"
        card = PlanCard(plan, f"Plan {number}, {plan_name(plan)}", start)
        print_report(explanation_report(explanation, findings, card=card))


def _findings(result: SearchResult, number: int, measured: Measured) -> Findings:
    if isinstance(result.request.gpu_words, SeveralTypes):
        raise UsageError(
            f"--measured-…: the plans are on GPUs of several types ({result.request.gpus}), where "
            "no cause is costed; leave it out"
        )
    plan = pick_plan(result, number)
    proposal = Proposal.of_plan(result.request, plan)
    return findings_of(proposal, proposal.request.resolve(), plan, measured)


def _explained(
    result: SearchResult, number: int, until: Until, options: dict[str, Any]
) -> Explanation:
    plan = pick_plan(result, number)
    job, searched = (
        request.resolve().on_gpus(result.job.used_gpus)
        for request in (decided_request(result.request, plan), result.request)
    )
    evaluator = None
    if options["neighbours"]:
        if plan.status != "evaluated":
            compile_if_first_run(options["quiet"], until.seconds_left)
        evaluator = job_evaluator(job, plan, until)
    explanation = explain(result, number, job, evaluator, until)
    if not options["with_what_if"] or until.over("--what-if"):
        return explanation
    compile_if_first_run(options["quiet"], until.seconds_left)

    with watched(options["quiet"]) as progress:
        found = what_if(result.request, searched, plan, progress, until)
    return explanation.model_copy(update={"what_if": found})
