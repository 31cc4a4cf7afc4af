"""Shared by the commands that compare clusters: their options, searches and output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from pydantic import BaseModel

from hardware.facts import Figure, load_economics
from hardware.prices import Price, load_prices
from hardware.skypilot import load_skypilot
from planner.cli.declared import option_rows
from planner.cli.options import OutputFormat, build_request, output_format, with_limits
from planner.cli.output import check_files, compile_if_first_run, print_as, watched, write_plot
from planner.cli.usual_framework import take_usual_framework
from planner.compare.offers import Offer, each_size, read_offers, several_clusters
from planner.compare.results import ChoiceLimits
from planner.compare.searches import How, Progress
from planner.compare.settings import Settings
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.quantities import DAY_S, HOUR_S, share
from planner.job.request import Request
from planner.job.tuning import read_tuning
from planner.job.written import write_text
from planner.launch.plans import LAUNCH_NOTES
from planner.report.tables import Report

if TYPE_CHECKING:
    from planner.report.pages.studies import Study

Found = TypeVar("Found")
Shown = tuple[OutputFormat, Path | None]

# A separate process takes about as long to start as three searches (imports, compiled code).
SEARCHES_A_PROCESS = 4


def build_limits(options: dict[str, Any]) -> ChoiceLimits:
    """The limits on a purchase. Raises UsageError for a deadline of 0 or a certainty below 50 %."""
    deadline_s = options["deadline"]
    if deadline_s == 0.0:
        raise UsageError("--deadline 0: give a time above 0, as 90d")
    if options["certainty"] < 0.5:
        raise UsageError(
            f"--certainty {share(options['certainty'], 0)}: below 50 %, most plans would "
            "break the limits; give 50% or more"
        )
    return ChoiceLimits(
        deadline_days=None if deadline_s is None else deadline_s / DAY_S,
        budget=options["budget"],
        power_kw=options["power"],
        racks=options["racks"],
        certainty=options["certainty"],
    )


def build_settings(options: dict[str, Any]) -> Settings:
    """Prices, rates and economic figures. Raises UsageError or HardwareError if one of them is
    wrong."""
    names = ("basis", "providers", "currency", "spares", "asynchronous")
    return Settings(
        **{name: options[name] for name in names},
        figures=_figures(options),
        prices=_prices(options),
        rates=dict(options["rates"]),
        capex_usd=options["capex"],
        carbon_g_per_kwh=options["carbon"],
        checkpoint_interval_s=options["checkpoint_interval"] or None,
    )


def _figures(options: dict[str, Any]) -> dict[str, Any]:
    known = load_economics().figures
    given = {
        key: Figure(value=value, unit=known[key].unit, source=f"--{name}")
        for name, row in option_rows()["money"].items()
        if (key := row.get("figure")) and (value := options[name.replace("-", "_")]) is not None
    }
    for key, unit, unit_s in (("restart", "s", 1.0), ("repair", "h", HOUR_S)):
        if (time_s := options[f"{key}_time"]) is not None:
            given[key] = Figure(value=time_s / unit_s, unit=unit, source=f"--{key}-time")
    return given


def _prices(options: dict[str, Any]) -> tuple[Price, ...]:
    found: list[Price] = []
    for name in options["prices"]:
        found += load_prices(Path(name))
    for name in options["skypilot"]:
        read = load_skypilot(Path(name))
        found += read.prices
        if read.skipped and not options["quiet"]:
            rows = sum(read.skipped.values())
            click.echo(
                f"{name}: {rows:,} rows left out, of accelerators that the catalogue lacks or "
                f"without a price: {', '.join(sorted(read.skipped))}",
                err=True,
            )
    return tuple(found)


def comparing_request(options: dict[str, Any]) -> Request:
    """The request for the job, without GPUs: each cluster of the comparison adds its own."""
    request = options | {"gpus": None, "cluster": None}
    tuned = options["lengths"] is not None and options["samples"] is not None
    if tuned or read_tuning(options["train"], options["freeze"]).has_adapters:
        take_usual_framework(request)
    return build_request(request, recompute=options["recompute"])


def offers_for(options: dict[str, Any], usual: tuple[str, ...] = ()) -> tuple[Offer, ...]:
    """The clusters to compare: those of --gpus and --clusters, or those of `usual` if neither is
    given. UsageError if there is none."""
    texts = options["gpus"] or (() if options["clusters"] else usual)
    offers = tuple(Offer(gpus=text) for text in several_clusters(texts))
    if options["clusters"] is not None:
        offers += each_size(read_offers(Path(options["clusters"])))
    if not offers:
        raise UsageError(
            "no cluster to compare: give --gpus 64xH100 or 64..512xH100, or --clusters FILE.toml"
        )
    return offers


def how(options: dict[str, Any], progress: Progress, searches: int = 1) -> How:
    """Settings for the searches of a study. The number of processes is that of --jobs, otherwise as
    many as save more time than they take to start."""
    import os

    usual = max(1, min(os.cpu_count() or 1, searches // SEARCHES_A_PROCESS))
    jobs = 1 if searches == 1 else int(options["jobs"] or usual)
    seed, limit_s = options["seed"], options["time_limit"]

    def prepare(request: Request, job: Job) -> Request:
        return with_limits(request, options, job)

    return How(prepare, jobs, seed, limit_s, progress, LAUNCH_NOTES)


def searched(
    options: dict[str, Any], searches: int, find: Callable[..., Found], *given: Any, **more: Any
) -> Found:
    """Run `find` with a progress bar, after the cost core is compiled."""
    compile_if_first_run(options["quiet"])
    with watched(options["quiet"]) as progress:
        return find(*given, how=how(options, progress, searches), **more)


def study_text(study: BaseModel) -> str:
    """The JSON of a study, without the memory of each plan's stages."""
    plan = {"plan": {"stages"}}
    runs = {"__all__": {"run": plan}}
    return (
        study.model_dump_json(indent=1, exclude={"run": plan, "rows": runs, "points": runs}) + "\n"
    )


def begin_study(options: dict[str, Any]) -> Shown:
    """The output format, and the path of the output file (None without -o). Raises an error before
    any work is done if the file cannot be written."""
    return output_format(options["as_json"], options["as_csv"]), check_files(options)


def show_study(
    study: Study, options: dict[str, Any], shown: Shown, report: Callable[[Any], Report] | None
) -> None:
    """Write the files that were asked for and print the study. Prints nothing if `report` is
    None."""
    style, output = shown
    if output is not None:
        write_text(output, study_text(study), force=options["force"])
    if options["plot"] is not None:
        from planner.compare.buying import Buying
        from planner.compare.results import Comparison
        from planner.report.charts.curves import curves_chart
        from planner.report.charts.slide import is_slide, slide_chart
        from planner.report.pages.studies import figure_of, study_page

        def chart() -> Any:
            slide = is_slide(options["plot"].stem)
            if slide and isinstance(study, Comparison | Buying):
                return slide_chart(study)
            return curves_chart(figure_of(study))

        write_plot(options["plot"], chart, lambda: study_page(study))
    if report is not None:
        from planner.search.frame import csv_text

        print_as(
            style,
            lambda: report(study),
            lambda: study_text(study),
            lambda: csv_text(study.to_frame()),
        )
