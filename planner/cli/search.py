"""`planner search`: the best plans for a job."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from planner.cli.epochs import check_epochs, training_of, trainings_of
from planner.cli.errors import ExitStatus
from planner.cli.options import OutputFormat, build_request, output_format, with_limits
from planner.cli.output import (
    check_files,
    compile_if_first_run,
    print_as,
    print_report,
    show_result,
    watched,
    write_plot,
    write_result,
    write_result_plot,
)
from planner.cli.rl_options import asks_for_rl
from planner.cli.usual_framework import take_usual_framework
from planner.job.errors import UsageError
from planner.job.pool import SeveralSizes, read_gpus
from planner.job.request import Request
from planner.job.tuning import read_tuning
from planner.job.written import write_text
from planner.launch.plans import find_plans
from planner.report.search import search_report
from planner.report.tables import Report
from planner.search.fewer_gpus import faster_on_fewer
from planner.search.frame import csv_text
from planner.search.infeasibility import DoesNotFitError, WhyNothingFits
from planner.search.outcome import sort_value
from planner.search.result import SearchResult

# Seconds of the time limit that must be left to check whether fewer GPUs are faster.
_SECOND_LOOK_S = 2.0
# The field of a plan for each value of --sort.
SORTS = {
    "tokens_per_s": "tokens_per_s",
    "mfu": "mfu",
    "peak": "peak_bytes",
    "step_time": "step_time_s",
    "fit": "fit_probability",
}


def run(**options: Any) -> None:
    if asks_for_rl(options):
        from planner.cli.rl import run_search

        run_search(options)
        return
    style = output_format(options["as_json"], options["as_csv"])
    check_epochs(options)
    output = check_files(options)
    usual = Request.model_fields["resolution"].default
    options["whole"] = options["whole"] or options["resolution"] != usual
    words = [read_gpus(text) for text in options["gpus"]]
    if len(words) > 1 or any(isinstance(one, SeveralSizes) for one in words):
        several = options | {"gpus": None}
        if read_tuning(options["train"], options["freeze"]).has_adapters:
            take_usual_framework(several)
        request = build_request(several, recompute=options["recompute"])
        search_several(request, options, SORTS[options["sort"]], style, output)
        return
    options["gpus"] = next(iter(options["gpus"]), None)

    assumed = take_usual_framework(options)
    request = build_request(options, recompute=options["recompute"])
    job = request.resolve()
    request = with_limits(request, options, job)
    compile_if_first_run(options["quiet"], options["time_limit"])

    started, said = perf_counter(), list[WhyNothingFits]()
    try:
        with watched(options["quiet"]) as progress:
            result = find_plans(
                request,
                sort=SORTS[options["sort"]],
                seed=options["seed"],
                top=options["top"],
                time_limit_s=options["time_limit"],
                progress=progress,
                short=_printed_plans(options, style),
                verdict=said.append if style != "text" else partial(_say_verdict, said),
            )
    except DoesNotFitError as error:
        print_failure(error.why, style, said=bool(said))
        if style == "text":
            from planner.report.fit import trainings_report

            print_report(trainings_report(trainings_of(options, request, error.why)), sys.stderr)
        click.echo("".join(f"{note}\n" for note in assumed), err=True, nl=False)
        click.get_current_context().exit(ExitStatus.NOTHING_FITS)
    taken = result.plans[max(0, result.recommended - 1)]
    training = training_of(options, request, job, taken)
    assumed += (f"On plan {max(1, result.recommended)}, {training}",) if training else ()
    result = _with_fewer_gpus(request, result, options, started).noted(*assumed)
    write_result(result, output)
    write_result_plot(options["plot"], result, output)
    show_result(result, style, lambda: _report(result, output, options))
    if result.stopped == "interrupted":
        click.get_current_context().exit(ExitStatus.INTERRUPTED)


def _with_fewer_gpus(
    request: Request, result: SearchResult, options: dict[str, Any], started: float
) -> SearchResult:
    """The result, with a note if fewer GPUs would be faster and there is time to check."""
    if request.resolve().pool is not None:
        return result
    limit_s = options["time_limit"]
    left_s = None if limit_s is None else limit_s - (perf_counter() - started)
    if left_s is not None and left_s < _SECOND_LOOK_S:
        return result

    def fastest(other: Request) -> SearchResult:
        return find_plans(
            other, top=1, seed=options["seed"], time_limit_s=left_s, fastest_only=True,
            relaxed=False,
        )  # fmt: skip

    note = faster_on_fewer(request, result, fastest)
    return result.noted(note) if note else result


def _report(result: SearchResult, output: Path | None, options: dict[str, Any]) -> Report:
    saved_as, most = str(output) if output else None, options["top"] or MOST_PRINTED
    whole = options["whole"] or options["top"] is not None
    return search_report(result, saved_as, most, whole, options["verbose"])


def _printed_plans(options: dict[str, Any], style: OutputFormat) -> int | None:
    """The number of plans in the printed table. None if all are needed, because they are written,
    drawn, printed as JSON or CSV, or sorted by memory."""
    written = options["output"] or options["plot"] or style != "text"
    if options["whole"] or written or options["sort"] in ("peak", "fit"):
        return None
    return options["top"] or MOST_PRINTED


def _say_verdict(said: list[WhyNothingFits], why: WhyNothingFits) -> None:
    """Print that nothing fits, before the search for changes that would fit."""
    from planner.report.fit import verdict_report

    print_report(verdict_report(why), sys.stderr)
    said.append(why)


def print_failure(why: WhyNothingFits, style: OutputFormat, *, said: bool) -> None:
    """Print why nothing fits and which changes would. `said`: the verdict was printed before."""
    match style:
        case "json":
            click.echo(why.model_dump_json(indent=1))
        case "csv":
            import pandas as pd

            click.echo(csv_text(pd.DataFrame(why.rows())), nl=False)
        case "text":
            from planner.report.fit import nothing_fits_report, remedies_report

            print_report(remedies_report(why) if said else nothing_fits_report(why), sys.stderr)


# Number of plans in the table, unless --top gives it.
MOST_PRINTED = 8


def search_several(
    request: Request, options: dict[str, Any], sort: str, style: OutputFormat, output: Path | None
) -> None:
    """Search every cluster of --gpus; print and write the combined front."""
    # Importing the comparison of clusters takes an eighth of a second, and a single cluster does
    # not need it.
    from planner.cli.comparing import how
    from planner.compare.cluster_front import search_clusters, shortened
    from planner.compare.offers import several_clusters
    from planner.report.cluster_front import cluster_front_report

    if options["cluster"] is not None:
        raise UsageError("--cluster describes one cluster; with several --gpus leave it out")

    clusters = several_clusters(options["gpus"])
    compile_if_first_run(options["quiet"])

    with watched(options["quiet"]) as progress:
        at_a_time = how(options | {"jobs": options["workers"]}, progress, len(clusters))
        front = search_clusters(request, clusters, how=at_a_time)
    written = output if front.points else None
    document = front.model_dump_json(indent=1) + "\n"
    if written is not None:
        write_text(written, document, force=options["force"])
    if options["plot"] is not None and front.points:
        from planner.report.pages.plans import cluster_front_page
        from planner.report.plots import plot_cluster_front

        page = partial(cluster_front_page, front, output)
        write_plot(options["plot"], lambda: plot_cluster_front(front), page)
    shown = shortened(front.points, options["top"] or MOST_PRINTED)
    shown.sort(key=lambda cluster_point: sort_value(front.plan_of(cluster_point), sort))
    print_as(
        style,
        lambda: cluster_front_report(front, shown, str(written) if written else None),
        lambda: document,
        lambda: csv_text(front.to_frame()),
    )
    context = click.get_current_context()
    if front.stopped == "interrupted":
        context.exit(ExitStatus.INTERRUPTED)
    if not front.points:
        click.echo(
            "Error: nothing fits on any of the clusters; search one alone to see what would fit",
            err=True,
        )
        context.exit(ExitStatus.NOTHING_FITS)
