"""`planner scale`: throughput, days and money against the number of GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.cli import complete
from planner.cli import option_types as types
from planner.cli.comparing import (
    build_limits,
    build_settings,
    comparing_options,
    comparing_request,
    jobs_for,
    limits_for,
    limits_options,
)
from planner.cli.errors import ExitStatus
from planner.cli.help import GroupedCommand
from planner.cli.options import output_format
from planner.cli.output import check_output, print_report
from planner.cli.pictures import check_plot, plot_option, write_plot
from planner.cli.progress import compile_if_first_run, watched
from planner.job.errors import UsageError
from planner.job.written import write_text

if TYPE_CHECKING:
    from planner.compare.results import Scaling

_STAGES = {"points": {"__all__": {"run": {"plan": {"stages"}}}}}


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
@comparing_options
def command(**options: Any) -> None:
    """Show throughput, MFU, days and money against the number of GPUs, each after a full search.

    Exit status 1 if the job fits on none.
    """
    style = output_format(options["as_json"], options["as_csv"])
    output = check_output(options["output"], options["force"])
    plot = options["plot"]
    check_plot(plot, options["force"], output)
    counts = _counts(options)
    settings, limits = build_settings(options), build_limits(options)
    request = comparing_request(options)
    compile_if_first_run(options["quiet"])

    from planner.compare.scaling import BATCHES, scale
    from planner.launch.registry import LAUNCH_NOTES

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
            prepare=limits_for(options),
            jobs=jobs_for(options, len(counts) * len(batches)),
            seed=options["seed"],
            time_limit_s=options["time_limit"],
            progress=progress,
            launch=LAUNCH_NOTES,
            limits=limits,
            objective=options["minimise"],
        )
    _write(scaling, output, plot)
    _print(scaling, style)
    if all(point.run is None for point in scaling.points):
        click.get_current_context().exit(ExitStatus.NOTHING_FITS)


def _counts(options: dict[str, Any]) -> tuple[int, ...]:
    """Numbers of GPUs, from --counts or from --from and --to."""
    from planner.compare.scaling import counts_between

    given, first, last = options["counts"], options["first"], options["last"]
    if given is not None:
        if first is not None or last is not None:
            raise UsageError("give --counts, or --from and --to")
        return tuple(given)
    if first is None or last is None:
        raise UsageError("give the numbers of GPUs: --from 512 --to 16384, or --counts 512,768")
    return counts_between(first, last)


def _write(scaling: Scaling, output: Path | None, plot: Path | None) -> None:
    if output is not None:
        write_text(output, _json(scaling))
    if plot is None:
        return
    from planner.report.charts.curves import curves_chart
    from planner.report.figures.curves import scaling_figure
    from planner.report.pages.studies import scaling_page

    write_plot(plot, lambda: curves_chart(scaling_figure(scaling)), lambda: scaling_page(scaling))


def _json(scaling: Scaling) -> str:
    return scaling.model_dump_json(indent=1, exclude=_STAGES) + "\n"


def _print(scaling: Scaling, style: str) -> None:
    if style == "json":
        click.echo(_json(scaling), nl=False)
    elif style == "csv":
        click.echo(scaling.to_frame().to_csv(index=False), nl=False)
    else:
        from planner.report.scaling import scaling_report

        print_report(scaling_report(scaling))
