"""`planner compare`: clusters for a job, each at its own best plan, in days, money and energy."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from planner.cli.comparing import (
    begin_study,
    build_limits,
    build_settings,
    comparing_request,
    offers_for,
    searched,
    show_study,
)
from planner.cli.errors import ExitStatus
from planner.cli.output import print_report
from planner.compare.comparison import compare_clusters
from planner.compare.results import Comparison
from planner.compare.settings import Settings
from planner.job.errors import UsageError, unknown_name
from planner.job.written import csv_text
from planner.report.comparison import comparison_report, failure_text, trace, trace_report


def run(**options: Any) -> None:
    shown = begin_study(options)
    offers = offers_for(options)
    settings, limits = build_settings(options), build_limits(options)
    request = comparing_request(options)
    labels, explained = [offer.label for offer in offers], options["explain"]
    # A misspelt name is told before the searches, not after.
    if explained is not None and explained not in labels:
        raise unknown_name("cluster", explained, labels, "--explain takes: " + ", ".join(labels))
    comparison = searched(
        options, len(offers), compare_clusters, request, offers, options["tokens"], settings,
        sort=options["sort"], fallback_precision=options["precision_fallback"], limits=limits,
        objective=options["minimise"],
    )  # fmt: skip
    style, _ = shown
    show_study(comparison, options, shown, None if explained else comparison_report)
    if explained:
        _print_chain(comparison, settings, style, explained)
    if all(row.run is None for row in comparison.rows):
        short = "the job runs on none of the clusters"
        click.echo(f"Error: {short if style == 'text' else failure_text(comparison)}", err=True)
        click.get_current_context().exit(ExitStatus.NOTHING_FITS)


def _print_chain(comparison: Comparison, settings: Settings, style: str, name: str) -> None:
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
