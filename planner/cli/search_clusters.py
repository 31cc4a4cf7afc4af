"""`planner search` where several clusters are allowed: one front over all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.cli import complete
from planner.cli.errors import ExitStatus
from planner.cli.options import Command, OutputFormat
from planner.cli.output import print_report
from planner.cli.pictures import write_plot
from planner.cli.progress import compile_if_first_run, watched
from planner.job.errors import UsageError

if TYPE_CHECKING:
    from planner.compare.cluster_front import ClusterFront, ClusterPoint
    from planner.job.request import Request


def several_gpus(function: Command) -> Command:
    """`--gpus` of `job_options`, here as often as the user likes."""
    declared: list[click.Parameter] = function.__dict__["__click_params__"]
    for parameter in declared:
        if parameter.name == "gpus" and isinstance(parameter, click.Option):
            declared[declared.index(parameter)] = click.Option(
                ["--gpus"],
                multiple=True,
                metavar="TEXT",
                shell_complete=complete.gpus,
                help="64xH100, or nodes x GPUs: 8x8xH100; 32..128xH100 or --gpus again: one front "
                "over several clusters.",
            )
    return function


def names_several(gpus: tuple[str, ...]) -> bool:
    """Whether --gpus names more than one cluster."""
    return len(gpus) > 1 or any(".." in text for text in gpus)


# Plans in a table, unless --top says otherwise.
MOST_PRINTED = 8


def search_several(
    request: Request, options: dict[str, Any], sort: str, style: OutputFormat, output: Path | None
) -> None:
    """Search every cluster that --gpus names, print and write the front over all."""
    if options["cluster"] is not None:
        raise UsageError("--cluster describes one cluster; with several --gpus leave it out")
    from planner.compare.ranges import several_clusters

    clusters = several_clusters(options["gpus"])
    compile_if_first_run(options["quiet"])
    from planner.cli.comparing import how
    from planner.compare.cluster_front import search_clusters, shortened
    from planner.job.written import write_text
    from planner.search.outcome import sort_value

    with watched(options["quiet"]) as progress:
        front = search_clusters(
            request,
            clusters,
            how=how(options | {"jobs": options["workers"]}, progress, len(clusters)),
        )
    if output is not None and front.points:
        write_text(output, _json(front))
    _draw(front, options["plot"], output)
    shown = shortened(front.points, options["top"] or MOST_PRINTED)
    shown.sort(key=lambda cluster_point: sort_value(front.plan_of(cluster_point), sort))
    _print(front, shown, style, output)
    context = click.get_current_context()
    if front.stopped == "interrupted":
        context.exit(ExitStatus.INTERRUPTED)
    if not front.points:
        click.echo(
            "Error: nothing fits on any of the clusters; search one alone to see what would fit",
            err=True,
        )
        context.exit(ExitStatus.NOTHING_FITS)


def _draw(front: ClusterFront, plot: Path | None, output: Path | None) -> None:
    if plot is None or not front.points:
        return
    from planner.report.pages.files import cluster_front_page
    from planner.report.plots import plot_cluster_front

    write_plot(plot, lambda: plot_cluster_front(front), lambda: cluster_front_page(front, output))


def _json(front: ClusterFront) -> str:
    return front.model_dump_json(indent=1) + "\n"


def _print(
    front: ClusterFront, shown: list[ClusterPoint], style: OutputFormat, output: Path | None
) -> None:
    if style == "json":
        click.echo(_json(front), nl=False)
    elif style == "csv":
        from planner.search.frame import csv_text

        click.echo(csv_text(front.to_frame()), nl=False)
    else:
        from planner.report.cluster_front import cluster_front_report

        saved = str(output) if output is not None and front.points else None
        print_report(cluster_front_report(front, shown, saved))
