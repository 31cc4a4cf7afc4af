"""`planner scale`: throughput, days and money against the number of GPUs."""

from __future__ import annotations

from typing import Any

import click

from planner.cli.comparing import (
    begin_study,
    build_limits,
    build_settings,
    comparing_request,
    searched,
    show_study,
)
from planner.cli.errors import ExitStatus
from planner.compare.comparison import BATCHES, scale
from planner.job.errors import UsageError
from planner.job.pool import counts_between
from planner.report.studies import scaling_report


def run(**options: Any) -> None:
    shown = begin_study(options)
    counts = _counts(options)
    settings, limits = build_settings(options), build_limits(options)
    request = comparing_request(options)

    batch = options["batch"] or ("fixed" if options["batch_ramp"] else "both")
    batches = tuple(one for one in BATCHES if batch in (one, "both"))
    scaling = searched(
        options, len(counts) * len(batches), scale, request, options["gpu"], counts,
        options["tokens"], settings, batches=batches, limits=limits, objective=options["minimise"],
    )  # fmt: skip
    show_study(scaling, options, shown, scaling_report)
    if all(point.run is None for point in scaling.points):
        click.get_current_context().exit(ExitStatus.NOTHING_FITS)


def _counts(options: dict[str, Any]) -> tuple[int, ...]:
    """Numbers of GPUs, from --counts or from --from and --to."""
    given, first, last = options["counts"], options["first"], options["last"]
    if given is not None:
        if first is not None or last is not None:
            raise UsageError("give --counts, or --from and --to")
        return tuple(given)
    if first is None or last is None:
        raise UsageError("give the numbers of GPUs: --from 512 --to 16384, or --counts 512,768")
    return counts_between(first, last)
