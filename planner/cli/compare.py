"""`planner compare`: clusters for a job, each at its own best plan, in days, money and energy."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

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
    offers_for,
    processes_option,
    show_study,
)
from planner.cli.errors import ExitStatus
from planner.cli.help import GroupedCommand
from planner.cli.options import model_option
from planner.cli.output import plot_option, print_report
from planner.cli.progress import compile_if_first_run, watched
from planner.job.errors import UsageError
from planner.job.written import csv_text

if TYPE_CHECKING:
    from planner.compare.offers import Offer
    from planner.compare.results import Comparison
    from planner.compare.settings import Settings

_EPILOG = """\b
Offers in a file (--clusters): a table [[cluster]] each, with gpus = "64xH100"
or cluster = "FILE.toml", and if wanted name, provider, precision, on_demand,
reserved, spot (of a GPU hour), currency, date, source, capex_per_gpu.

\b
Price lists (--prices): CSV with a header; columns gpu, provider, kind
(on_demand, reserved, spot), usd_per_gpu_hour, or price_per_gpu_hour and
currency; may have date, source, instance, instance_gpus, note.

\b
Example: planner compare --model 70b --tokens 15T --gpus 64xH100 --gpus 8xB200"""


@click.command("compare", cls=GroupedCommand, epilog=_EPILOG)
@click.option("--tokens", required=True, type=types.TRAINED_TOKENS, help="Tokens to train on: 15T.")
@click.option(
    "--gpus",
    multiple=True,
    metavar="64xH100",
    shell_complete=complete.gpus,
    help="A cluster, or sizes as 64..512xH100 (doubled) and 64xany; may be given again.",
)
@click.option(
    "--clusters", type=types.FILE, metavar="FILE.toml", help="Offers in a file: see below."
)
@click.option(
    "--sort",
    type=click.Choice(["days", "cost", "tokens_per_s", "mfu", "energy", "given"]),
    default="days",
)
@click.option("--explain", metavar="CLUSTER", help="From the plan to dollars, step by step.")
@click.option(
    "--precision-fallback",
    metavar="NAME",
    help="Precision on GPUs that lack --precision: bf16 for those without fp8.",
)
@plot_option("cost against time")
@limits_options
@model_option()
@processes_option("--jobs")
@comparing_options
def command(**options: Any) -> None:
    """Compare clusters for a training run: each at its own best plan, in days, money and energy.

    Exit status 1 if the job runs on none of them.
    """
    style, output = begin_study(options)
    offers = offers_for(options)
    settings, limits = build_settings(options), build_limits(options)
    request = comparing_request(options)
    _check_explained(options["explain"], offers)
    compile_if_first_run(options["quiet"])

    from planner.compare.comparison import compare

    with watched(options["quiet"]) as progress:
        comparison = compare(
            request,
            offers,
            options["tokens"],
            settings,
            sort=options["sort"],
            fallback_precision=options["precision_fallback"],
            limits=limits,
            objective=options["minimise"],
            how=how(options, progress, len(offers)),
        )
    explained = options["explain"]
    from planner.report.comparison import comparison_report

    show_study(comparison, options, style, output, None if explained else comparison_report)
    if explained:
        _print_chain(comparison, settings, style, explained)
    if all(row.run is None for row in comparison.rows):
        from planner.report.comparison import failure_text

        short = "the job runs on none of the clusters"
        click.echo(f"Error: {short if style == 'text' else failure_text(comparison)}", err=True)
        click.get_current_context().exit(ExitStatus.NOTHING_FITS)


def _check_explained(name: str | None, offers: tuple[Offer, ...]) -> None:
    """A misspelt name is told before the searches, not after."""
    from planner.job.errors import unknown_name

    labels = [offer.label for offer in offers]
    if name is not None and name not in labels:
        raise unknown_name("cluster", name, labels, "--explain takes: " + ", ".join(labels))


def _print_chain(comparison: Comparison, settings: Settings, style: str, name: str) -> None:
    from planner.report.comparison import trace_report
    from planner.report.comparison_trace import trace

    row = next(row for row in comparison.rows if row.name == name)
    if row.run is None:
        needs = "".join(f"; would fit (searched): {need}" for need in row.needs[:3])
        raise UsageError(f"{name} has no plan to explain: {row.reason}{needs}")
    chapters = trace(row.run, comparison, settings)
    if style == "text":
        print_report(trace_report(f"{name}: {row.cluster}", chapters))
        return
    steps = [{"chapter": title} | asdict(step) for title, some in chapters.items() for step in some]
    if style == "json":
        click.echo(json.dumps({"cluster": name, "steps": steps}, indent=1, ensure_ascii=False))
    else:
        click.echo(csv_text(steps[0], steps), nl=False)
