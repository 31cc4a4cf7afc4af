"""`planner explain`: one plan of a plan file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.cli import option_types as types
from planner.cli.options import time_limit_option
from planner.cli.output import check_output, check_plot, plot_option, print_report, write_plan_plot
from planner.cli.progress import compile_if_first_run, limited, watched
from planner.job.errors import UsageError
from planner.job.written import write_text

if TYPE_CHECKING:
    from planner.search.explanation import Explanation
    from planner.search.result import SearchResult


@click.command("explain", epilog="Example: planner explain plans.json 1 --what-if")
@click.argument("plan_file", type=types.FILE, metavar="PLANFILE")
@click.argument("number", type=types.PLAN_NUMBER, required=False)
@click.option(
    "--neighbours/--no-neighbours",
    default=True,
    help="Cost the configurations that differ by one degree.",
)
@click.option(
    "--what-if",
    "with_what_if",
    is_flag=True,
    help="Solve again with more memory, faster links, one more node, without your conditions.",
)
@time_limit_option("Of --what-if; changes for which no time is left are named.")
@plot_option("the plan's memory, time and schedule")
@click.option(
    "--trace",
    type=types.FILE,
    metavar="FILE.json",
    help="Write the step as a trace for Perfetto: passes of every pipeline stage.",
)
@click.option("--force", is_flag=True, help="Overwrite files.")
@click.option("--json", "as_json", is_flag=True, help="Print the explanation as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No notices on stderr.")
def command(plan_file: str, number: int | None, **options: Any) -> None:
    """Show plan NUMBER of PLANFILE, or the recommended one: memory, time, assumptions, and why not
    its neighbours.
    """
    trace = check_output(options["trace"], options["force"], "--trace")
    check_plot(options["plot"], options["force"], trace)
    from planner.job.pool import is_pool
    from planner.search.plan_file import read_plan

    result, number = read_plan(Path(plan_file), number)
    if is_pool(result.request.gpus):
        if options["with_what_if"]:
            raise UsageError(
                f"--what-if: {plan_file} holds plans on GPUs of several types "
                f"({result.request.gpus}), whose changes are not solved; leave --what-if out, or "
                "search one type of GPU"
            )
        from planner.search.pools.explain import explain_pool

        explanation = explain_pool(result, number)
    else:
        explanation = _explained(result, number, options)
    if trace is not None:
        from planner.report.trace import step_trace

        text = json.dumps(step_trace(result.plans[number - 1]), allow_nan=False)
        write_text(trace, text + "\n")
    write_plan_plot(options["plot"], result, number, Path(plan_file))
    if options["as_json"]:
        click.echo(explanation.model_dump_json(indent=1))
    else:
        from planner.report.explain import explanation_report

        print_report(explanation_report(explanation))


def _explained(result: SearchResult, number: int, options: dict[str, Any]) -> Explanation:
    """The explanation of a plan on GPUs of one type."""
    from planner.predict.decided import decided_request
    from planner.search.explanation import explain, job_evaluator, pick_plan

    plan = pick_plan(result, number)
    job, searched = (
        request.resolve().on_gpus(result.job.used_gpus)
        for request in (decided_request(result.request, plan), result.request)
    )
    evaluator = None
    if options["neighbours"]:
        if plan.status != "evaluated":
            compile_if_first_run(options["quiet"])
        evaluator = job_evaluator(job, plan)
    explanation = explain(result, number, job, evaluator)
    if not options["with_what_if"]:
        return explanation
    compile_if_first_run(options["quiet"])
    from planner.search.what_if import what_if

    with limited(options["time_limit"]) as until, watched(options["quiet"]) as progress:
        found = what_if(result.request, searched, plan, progress, until)
    return explanation.model_copy(update={"what_if": found})
