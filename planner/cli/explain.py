"""`planner explain`: one plan of a plan file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from planner.cli.output import print_report
from planner.cli.progress import notice_if_first_run
from planner.plan_file import read_plan_file


@click.command("explain", epilog="Example: planner explain plans.json 1")
@click.argument("plan_file", metavar="PLANFILE")
@click.argument("number", type=int, default=1)
@click.option(
    "--neighbours/--no-neighbours",
    default=True,
    show_default=True,
    help="Cost the configurations that differ by one degree.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the explanation as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No notices on stderr.")
def command(plan_file: str, number: int, neighbours: bool, as_json: bool, quiet: bool) -> None:
    """Show plan NUMBER of PLANFILE: memory, time, assumptions, and why not its neighbours."""
    result = read_plan_file(Path(plan_file))

    from planner.explain import explain, pick_plan

    plan = pick_plan(result, number)
    job = result.request.resolve()
    if job.cluster.num_gpus != result.job.used_gpus:
        job = replace(job, cluster=job.cluster.with_gpus(result.job.used_gpus))
    evaluator = None
    if neighbours:
        notice_if_first_run(quiet)
        from planner.explain import job_evaluator

        evaluator = job_evaluator(job, plan)
    explanation = explain(result, number, job, evaluator)
    if as_json:
        click.echo(explanation.model_dump_json(indent=1))
        return
    from planner.report.explain import explanation_report

    print_report(explanation_report(explanation))
