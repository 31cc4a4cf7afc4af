"""`planner compare --rl` and `planner buy --rl`: samples for the money on each cluster."""

from __future__ import annotations

from typing import Any

import click

from planner.cli.comparing import begin_study, build_limits, build_settings, offers_for
from planner.cli.errors import ExitStatus
from planner.cli.options import given, with_limits
from planner.cli.output import compile_if_first_run, print_as, watched
from planner.cli.rl import engine_limits
from planner.cli.rl_options import rl_request
from planner.compare.offers import several_clusters
from planner.compare.rl import RlComparison, RlHow, compare_rl
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.rl.request import RlRequest
from planner.job.written import write_text
from planner.report.rl_clusters import rl_clusters_report
from planner.search.frame import csv_text

# Options that do not apply to reinforcement learning, with advice.
_OF_TRAINING = {
    "tokens": "give --samples 10M for days and cost",
    "explain": "planner explain shows a plan",
    "precision_fallback": "leave it out",
    "jobs_file": "search one job at a time",
    "or_owned": "give --price-kind owned",
    "plot": "leave it out",
    "sort": "give --minimise cost, time or energy",
    "order": "leave it out",
}


def run_clusters(options: dict[str, Any], usual: tuple[str, ...] = ()) -> None:
    """Search for plans on every cluster with every choice of GPUs for sampling; write and print the
    results."""
    for name, instead in _OF_TRAINING.items():
        if name in options and given(name):
            raise UsageError(
                f"--{name.removesuffix('_file').replace('_', '-')} with --rl: {instead}"
            )
    if options["model"] is None:
        raise UsageError("--rl: give the model, as --model qwen3-32b")
    style, output = begin_study(options)
    settings, limits = build_settings(options), build_limits(options)
    offers = offers_for(options, usual)
    rollouts = _rollouts(options)
    blank = options | {"gpus": None, "cluster": None, "rollout_gpus": ()}
    request = rl_request(blank, recompute=options["recompute"])
    compile_if_first_run(options["quiet"])

    def prepare(request: RlRequest, job: Job) -> RlRequest:
        trainer = with_limits(request.trainer, options, job)
        return request.model_copy(update={"trainer": trainer})

    with watched(options["quiet"]) as progress:
        found = compare_rl(
            request, offers, rollouts, settings, samples=options["samples"], limits=limits,
            minimise=options["minimise"],
            how=RlHow(
                engine_limits(options), prepare, options["seed"], options["time_limit"], progress
            ),
        )  # fmt: skip
    document = found.model_dump_json(indent=1) + "\n"
    if output is not None:
        write_text(output, document, force=options["force"])
    print_as(
        style, lambda: rl_clusters_report(found, limits), lambda: document,
        lambda: csv_text(found.to_frame()),
    )  # fmt: skip
    _end(found)


def _rollouts(options: dict[str, Any]) -> tuple[str, ...]:
    """The choices of GPUs for sampling: numbers of GPUs to take from each cluster, then separate
    clusters."""
    texts = options["rollout_gpus"]
    numbers = tuple(text for text in texts if text.isdecimal())
    return (*numbers, *several_clusters([text for text in texts if not text.isdecimal()]))


def _end(found: RlComparison) -> None:
    if found.best is not None:
        return
    rows = found.rows
    refused = all(row.refused for row in rows)
    if all(row.plan is None for row in rows):
        click.echo(f"Error: the job runs on none of the clusters: {rows[0].reason}", err=True)
    click.get_current_context().exit(ExitStatus.WRONG_INPUT if refused else ExitStatus.NOTHING_FITS)
