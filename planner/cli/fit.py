"""`planner fit`: whether a job fits its GPUs, how, and what is the largest that does."""

from __future__ import annotations

import sys
from typing import Any

import click

from planner.cli.errors import ExitStatus
from planner.cli.options import build_request, with_limits
from planner.cli.output import print_report
from planner.cli.progress import compile_if_first_run, limited, watched
from planner.job.request import Request
from planner.launch.plans import LAUNCH_NOTES
from planner.predict.command_line import search_command
from planner.report.fit import fit_report
from planner.search.fit import SEQUENCES_PER_GPU, does_it_fit
from planner.search.pools.jobs import first_job


def run(**options: Any) -> None:
    request, assumed = fit_request(options)
    compile_if_first_run(options["quiet"])

    with limited(options["time_limit"]) as until, watched(options["quiet"]) as progress:
        answer = does_it_fit(request, until=until, progress=progress, launch=LAUNCH_NOTES)
    if options["as_json"]:
        click.echo(answer.model_dump_json(indent=1))
    else:
        print_report(fit_report(answer, assumed, search_command(request)), sys.stdout)
    click.get_current_context().exit(0 if answer.fits else ExitStatus.NOTHING_FITS)


def fit_request(options: dict[str, Any]) -> tuple[Request, tuple[str, ...]]:
    """The request, and what was taken for granted: the batch, where none is given."""
    assumed: tuple[str, ...] = ()
    if options["gbs"] is None and options["gbs_tokens"] is None:
        gpus = first_job(build_request({**options, "gbs": 1}, recompute=None)).cluster.num_gpus
        options["gbs"] = SEQUENCES_PER_GPU * gpus
        assumed = (
            f"Batch: {options['gbs']:,} sequences, {SEQUENCES_PER_GPU} a GPU, as none was given "
            "(--gbs, --gbs-tokens).",
        )
    request = build_request(options, recompute=options.get("recompute"))
    return with_limits(request, options, first_job(request)), assumed
