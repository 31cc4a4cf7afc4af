"""What commands that compare share: their options, what these become, how a study is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hardware.ranges import FIGURE_RANGES, FIGURES_ABOVE_LEAST
from planner.cli import option_types as types
from planner.cli.options import (
    Command,
    OutputFormat,
    build_request,
    condition_options,
    declared,
    limit_options,
    output_format,
    ramp_option,
    together,
    training_options,
    with_limits,
)
from planner.cli.output import check_files, print_report, write_plot
from planner.job.errors import UsageError
from planner.job.written import write_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

    from hardware.prices import Price
    from planner.compare.choice import Limits
    from planner.compare.offers import Offer
    from planner.compare.searches import How, Progress
    from planner.compare.settings import Settings
    from planner.job.job import Job
    from planner.job.request import Request
    from planner.report.pages.studies import Study
    from planner.report.tables import Report

# Option -> figure of hardware/catalog/economics.toml that it replaces, factor to its unit, help.
_FIGURES: dict[str, tuple[str, str]] = {
    "pue": ("pue", "Facility power over IT power."),
    "electricity": ("electricity", "USD/kWh."),
    "hosting": ("hosting", "USD per kW of rated power and month."),
    "amortisation": ("amortisation_years", "Years over which a purchase is paid."),
    "interest": ("interest", "Cost of capital a year: 0.08."),
    "utilisation": ("utilisation", "Share of an owned cluster's life in use."),
    "load": ("load", "Power drawn in training over rated power."),
    "rack-power": ("rack_power", "kW of rated power that a rack takes."),
    "mtbf-gpu": ("gpu_mtbf", "Hours between failures of a GPU."),
    "mtbf-node": ("node_mtbf", "Hours between failures of a node, its GPUs apart."),
    "write-bandwidth": ("write_bandwidth", "GB/s of checkpoints a node."),
}
# A process of its own starts in about the time of three searches (imports, compiled code).
SEARCHES_A_PROCESS = 4


def _default(key: str) -> str:
    """The catalogue's value; read as text to keep --help fast is not needed: the file is small."""
    from hardware.economics import load_economics

    return f"[default: {load_economics().figures[key].value:g}]"


# Prices, ownership, energy, interruptions.
money_options = together(
    declared("money"),
    *(
        click.option(f"--{name}", metavar="NUMBER",
        type=types.Number(*FIGURE_RANGES[key], low_open=key in FIGURES_ABOVE_LEAST),
        help=f"{text} {_default(key)}")
        for name, (key, text) in _FIGURES.items()
    ),
)  # fmt: skip
search_options, limits_options = declared("study"), declared("limits")
# What commands that compare share: the job without model and cluster, money, limits.
comparing_options = together(
    training_options, condition_options, ramp_option, money_options, limit_options, search_options
)


def processes_option(name: str) -> Callable[[Command], Command]:
    """How many searches run at a time, under the name that a command has for it."""
    return click.option(
        name, "jobs", type=types.PROCESSES, metavar="N",
        help="Searches at a time. [default: by their number]",
    )  # fmt: skip


def build_limits(options: dict[str, Any]) -> Limits:
    """The limits that the options give. UsageError for ones that nothing can keep."""
    from planner.compare.choice import Limits

    deadline_s = options["deadline"]
    if deadline_s == 0.0:
        raise UsageError("--deadline 0: give a time above 0, as 90d")
    if options["certainty"] < 0.5:
        raise UsageError(
            f"--certainty {options['certainty']:.0%}: under 50% more plans would break the limits "
            "than keep them; give 50% or more"
        )
    return Limits(
        deadline_days=None if deadline_s is None else deadline_s / 86400.0,
        budget=options["budget"],
        power_kw=options["power"],
        racks=options["racks"],
        certainty=options["certainty"],
    )


def build_settings(options: dict[str, Any]) -> Settings:
    """The settings that the options make. UsageError or HardwareError for wrong ones."""
    from planner.compare.settings import Settings

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
    from hardware.economics import Figure, load_economics

    known = load_economics().figures
    given = {
        key: Figure(value=value, unit=known[key].unit, source=f"--{name}")
        for name, (key, _) in _FIGURES.items()
        if (value := options[name.replace("-", "_")]) is not None
    }
    if (restart := options["restart_time"]) is not None:
        given["restart"] = Figure(value=restart, unit="s", source="--restart-time")
    if (repair := options["repair_time"]) is not None:
        given["repair"] = Figure(value=repair / 3600.0, unit="h", source="--repair-time")
    return given


def _prices(options: dict[str, Any]) -> tuple[Price, ...]:
    from hardware.prices import load_prices
    from hardware.skypilot import load_skypilot

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
    """The job without its cluster."""
    request = options | {"gpus": None, "cluster": None}
    return build_request(request, recompute=options["recompute"])


def offers_for(options: dict[str, Any]) -> tuple[Offer, ...]:
    """The clusters of --gpus and --clusters."""
    from planner.compare.offers import Offer, each_size, read_offers, several_clusters

    offers = tuple(Offer(gpus=text) for text in several_clusters(options["gpus"]))
    if options["clusters"] is not None:
        offers += each_size(read_offers(Path(options["clusters"])))
    if not offers:
        raise UsageError(
            "no cluster to compare: give --gpus 64xH100 or 64..512xH100, or --clusters FILE.toml"
        )
    return offers


def begin_study(options: dict[str, Any]) -> tuple[OutputFormat, Path | None]:
    """How the answer is printed, and the file it goes to; what cannot be written is told first."""
    return output_format(options["as_json"], options["as_csv"]), check_files(options)


def how(options: dict[str, Any], progress: Progress, searches: int = 1) -> How:
    """How the searches of a study run: as many at a time as is asked, else as many processes as pay
    for their own start; limits on degrees as each cluster's own request carries them."""
    import os

    from planner.compare.searches import How
    from planner.launch.plans import LAUNCH_NOTES

    usual = max(1, min(os.cpu_count() or 1, searches // SEARCHES_A_PROCESS))
    jobs = 1 if searches == 1 else int(options["jobs"] or usual)
    seed, limit_s = options["seed"], options["time_limit"]

    def prepare(request: Request, job: Job) -> Request:
        return with_limits(request, options, job)

    return How(prepare, jobs, seed, limit_s, progress, LAUNCH_NOTES)


def study_text(study: BaseModel) -> str:
    """The JSON of a study, without the memory of each plan's stages."""
    plan = {"plan": {"stages"}}
    runs = {"__all__": {"run": plan}}
    return (
        study.model_dump_json(indent=1, exclude={"run": plan, "rows": runs, "points": runs}) + "\n"
    )


def show_study(
    study: Study,
    options: dict[str, Any],
    style: OutputFormat,
    output: Path | None,
    report: Callable[[Any], Report] | None,
) -> None:
    """Write the files that were asked for, and print the study; without a report write alone."""
    if output is not None:
        write_text(output, study_text(study))
    if options["plot"] is not None:
        from planner.report.charts.curves import curves_chart
        from planner.report.pages.studies import figure_of, study_page

        write_plot(
            options["plot"], lambda: curves_chart(figure_of(study)), lambda: study_page(study)
        )
    if report is None:
        return
    if style == "json":
        click.echo(study_text(study), nl=False)
    elif style == "csv":
        click.echo(study.to_frame().to_csv(index=False), nl=False)
    else:
        print_report(report(study))
