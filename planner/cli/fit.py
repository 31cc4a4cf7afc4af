"""`planner fit`: whether a job fits its GPUs, how, and what is the largest that does."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from planner.cli import option_types as types
from planner.cli.errors import ExitStatus
from planner.cli.help import GroupedCommand
from planner.cli.options import (
    build_request,
    condition_options,
    job_options,
    limit_options,
    time_limit_option,
    with_limits,
)
from planner.cli.output import print_report
from planner.cli.progress import compile_if_first_run, limited, watched

if TYPE_CHECKING:
    from planner.job.request import Request


@click.command(
    "fit", cls=GroupedCommand, epilog="Example: planner fit --model 8b --gpus 1xRTX4090 --seq 4096"
)
@job_options
@click.option(
    "--recompute", type=types.NAMES, metavar="MODES", help="Modes to try. [default: all usual]"
)
@limit_options
@condition_options
@time_limit_option("Of all searches together; what no time was left for is named.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON, nothing else.")
@click.option("--wide", is_flag=True, help="All columns, however wide the terminal is.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def command(**options: Any) -> None:
    """Say whether a training job fits its GPUs, and how: yes or no, by searching.

    With which plan it fits; if it does not, what would make it fit; and the longest sequence and
    the largest model of the catalogue that fit. Exit status 1 if it does not fit.
    """
    request, assumed = fit_request(options)
    compile_if_first_run(options["quiet"])

    from planner.launch.plans import LAUNCH_NOTES
    from planner.predict.command_line import search_command
    from planner.report.fit import fit_report
    from planner.search.fit import does_it_fit

    with limited(options["time_limit"]) as until, watched(options["quiet"]) as progress:
        answer = does_it_fit(request, until=until, progress=progress, launch=LAUNCH_NOTES)
    if options["as_json"]:
        click.echo(answer.model_dump_json(indent=1))
    else:
        print_report(fit_report(answer, assumed, search_command(request)), sys.stdout)
    click.get_current_context().exit(0 if answer.fits else ExitStatus.NOTHING_FITS)


def fit_request(options: dict[str, Any]) -> tuple[Request, tuple[str, ...]]:
    """The request, and what was taken for granted: the batch, where none is given."""
    from planner.search.fit import SEQUENCES_PER_GPU
    from planner.search.pools.jobs import first_job

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
