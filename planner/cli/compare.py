"""`planner compare`: clusters for a job, each at its own best plan, in days, money and energy."""

from __future__ import annotations

import json
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

if TYPE_CHECKING:
    from planner.compare.offers import Offer
    from planner.compare.results import Comparison
    from planner.compare.settings import Settings

_STAGES = {"rows": {"__all__": {"run": {"plan": {"stages"}}}}}

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
    help="A cluster; give it for each.",
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
@comparing_options
def command(**options: Any) -> None:
    """Compare clusters for a training run: each at its own best plan, in days, money and energy.

    Exit status 1 if the job runs on none of them.
    """
    style = output_format(options["as_json"], options["as_csv"])
    output = check_output(options["output"], options["force"])
    check_plot(options["plot"], options["force"], output)
    offers = _offers(options)
    settings, limits = build_settings(options), build_limits(options)
    request = comparing_request(options)
    _check_explained(options["explain"], offers)
    compile_if_first_run(options["quiet"])

    from planner.compare.comparison import compare
    from planner.launch.registry import LAUNCH_NOTES

    with watched(options["quiet"]) as progress:
        comparison = compare(
            request,
            offers,
            options["tokens"],
            settings,
            sort=options["sort"],
            fallback_precision=options["precision_fallback"],
            prepare=limits_for(options),
            jobs=jobs_for(options, len(offers)),
            seed=options["seed"],
            time_limit_s=options["time_limit"],
            progress=progress,
            launch=LAUNCH_NOTES,
            limits=limits,
            objective=options["minimise"],
        )
    if output is not None:
        _write(output, comparison)
    _draw(options["plot"], comparison)
    _print(comparison, settings, style, options["explain"])
    if all(row.run is None for row in comparison.rows):
        from planner.report.comparison import failure_text

        short = "the job runs on none of the clusters"
        click.echo(f"Error: {short if style == 'text' else failure_text(comparison)}", err=True)
        click.get_current_context().exit(ExitStatus.NOTHING_FITS)


def _offers(options: dict[str, Any]) -> tuple[Offer, ...]:
    from planner.compare.offers import Offer, read_offers

    offers = [Offer(gpus=text) for text in options["gpus"]]
    if options["clusters"] is not None:
        offers += read_offers(Path(options["clusters"]))
    if not offers:
        raise UsageError(
            "no cluster to compare: give --gpus 64xH100 for each, or --clusters FILE.toml"
        )
    return tuple(offers)


def _check_explained(name: str | None, offers: tuple[Offer, ...]) -> None:
    """A misspelt name is told before the searches, not after."""
    from planner.job.errors import unknown_name

    labels = [offer.label for offer in offers]
    if name is not None and name not in labels:
        raise unknown_name("cluster", name, labels, "--explain takes: " + ", ".join(labels))


def _json(comparison: Comparison) -> str:
    return comparison.model_dump_json(indent=1, exclude=_STAGES) + "\n"


def _write(path: Path, comparison: Comparison) -> None:
    from planner.job.written import write_text

    write_text(path, _json(comparison))


def _draw(plot: Path | None, comparison: Comparison) -> None:
    if plot is None:
        return
    from planner.report.charts.curves import curves_chart
    from planner.report.figures.curves import comparison_figure
    from planner.report.pages.studies import comparison_page

    write_plot(
        plot,
        lambda: curves_chart(comparison_figure(comparison)),
        lambda: comparison_page(comparison),
    )


def _print(comparison: Comparison, settings: Settings, style: str, explained: str | None) -> None:
    if explained is not None:
        _print_chain(comparison, settings, style, explained)
    elif style == "json":
        click.echo(_json(comparison), nl=False)
    elif style == "csv":
        click.echo(comparison.to_frame().to_csv(index=False), nl=False)
    else:
        from planner.report.comparison import comparison_report

        print_report(comparison_report(comparison))


def _print_chain(comparison: Comparison, settings: Settings, style: str, name: str) -> None:
    from planner.report.comparison import trace_report
    from planner.report.comparison_trace import pick_row, trace

    row = pick_row(comparison, name)
    if row.run is None:
        needs = "".join(f"; would fit (searched): {need}" for need in row.needs[:3])
        raise UsageError(f"{name} has no plan to explain: {row.reason}{needs}")
    chapters = trace(row.run, comparison, settings)
    if style == "text":
        print_report(trace_report(f"{name}: {row.cluster}", chapters))
        return
    steps = [
        {
            "chapter": chapter.title,
            "name": s.name,
            "value": s.value,
            "how": s.how,
            "source": s.source,
        }
        for chapter in chapters
        for s in chapter.steps
    ]
    if style == "json":
        click.echo(json.dumps({"cluster": name, "steps": steps}, indent=1, ensure_ascii=False))
    else:
        import pandas as pd

        click.echo(pd.DataFrame(steps).to_csv(index=False), nl=False)
