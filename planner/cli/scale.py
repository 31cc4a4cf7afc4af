"""`planner scale`: throughput, days and money against the number of GPUs."""

from __future__ import annotations

from typing import Any

import click

from planner.cli import complete
from planner.cli import option_types as types
from planner.cli.comparing import (
    begin_study,
    build_limits,
    build_settings,
    comparing_options,
    comparing_request,
    how,
    limits_options,
    processes_option,
    show_study,
)
from planner.cli.errors import ExitStatus
from planner.cli.help import GroupedCommand
from planner.cli.options import model_option
from planner.cli.output import plot_option
from planner.cli.progress import compile_if_first_run, watched
from planner.job.errors import UsageError


@click.command(
    "scale",
    cls=GroupedCommand,
    epilog="Example: planner scale --model 405b --gpus H100 --from 512 --to 16384 --plot s.svg",
)
@click.option(
    "--gpus",
    "gpu",
    required=True,
    metavar="H100",
    shell_complete=complete.gpus,
    help="Kind of GPU, or node shape.",
)
@click.option("--from", "first", type=types.DEGREE, help="Fewest GPUs; then doubled.")
@click.option("--to", "last", type=types.DEGREE, help="Most GPUs.")
@click.option(
    "--counts", type=types.COUNTS, metavar="512,768", help="Instead: these numbers of GPUs."
)
@click.option(
    "--batch",
    type=click.Choice(["fixed", "scaled", "both"]),
    help="Strong scaling: the batch stays; weak: it grows with the GPUs from the first number on. "
    "[default: both, fixed with --batch-ramp]",
)
@click.option(
    "--tokens",
    default="1T",
    type=types.TRAINED_TOKENS,
    help="Tokens to train on.",
)
@plot_option("days, MFU and cost against GPUs")
@limits_options
@model_option()
@processes_option("--jobs")
@comparing_options
def command(**options: Any) -> None:
    """Show throughput, MFU, days and money against the number of GPUs, each after a full search.

    Exit status 1 if the job fits on none.
    """
    style, output = begin_study(options)
    counts = _counts(options)
    settings, limits = build_settings(options), build_limits(options)
    request = comparing_request(options)
    compile_if_first_run(options["quiet"])

    from planner.compare.scaling import BATCHES, scale
    from planner.report.scaling import scaling_report

    batch = options["batch"] or ("fixed" if options["batch_ramp"] else "both")
    batches = tuple(one for one in BATCHES if batch in (one, "both"))
    with watched(options["quiet"]) as progress:
        scaling = scale(
            request,
            options["gpu"],
            counts,
            options["tokens"],
            settings,
            batches=batches,
            limits=limits,
            objective=options["minimise"],
            how=how(options, progress, len(counts) * len(batches)),
        )
    show_study(scaling, options, style, output, scaling_report)
    if all(point.run is None for point in scaling.points):
        click.get_current_context().exit(ExitStatus.NOTHING_FITS)


def _counts(options: dict[str, Any]) -> tuple[int, ...]:
    """Numbers of GPUs, from --counts or from --from and --to."""
    from planner.compare.offers import counts_between

    given, first, last = options["counts"], options["first"], options["last"]
    if given is not None:
        if first is not None or last is not None:
            raise UsageError("give --counts, or --from and --to")
        return tuple(given)
    if first is None or last is None:
        raise UsageError("give the numbers of GPUs: --from 512 --to 16384, or --counts 512,768")
    return counts_between(first, last)
