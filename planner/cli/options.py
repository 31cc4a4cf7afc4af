"""What options that commands share become: a `Request`, limits on degrees, a form of output."""

from __future__ import annotations

from typing import Any, Literal

import click

from constraints.numbers import DegreeLimit
from planner.cli.declared import option_rows
from planner.job.job import Job
from planner.job.request import Request

# Degrees that can be limited in a search, as the request calls them.
LIMITS = tuple(str(row["degree"]) for row in option_rows()["degrees"].values())
OutputFormat = Literal["text", "json", "csv"]


def output_format(as_json: bool, as_csv: bool) -> OutputFormat:
    """The one format asked for."""
    if as_json and as_csv:
        raise click.UsageError("give --json or --csv, not both")
    return "json" if as_json else "csv" if as_csv else "text"


def build_request(options: dict[str, Any], **more: Any) -> Request:
    """The request that the shared options make; a command without some takes their defaults."""
    named = Request.model_fields.keys() - {"recompute", "limits", "cp_sizes"}
    fields = {name: value for name, value in options.items() if name in named}
    if fields["precision"] is None:
        del fields["precision"]
    return Request(**fields, allow_tp_across_domains=options["allow_tp_across_nodes"], **more)


_ZERO_STAGES = range(4)


def with_limits(request: Request, options: dict[str, Any], job: Job) -> Request:
    """The request with the limits on degrees that the options set."""
    limits = limit_values(options, job)
    return request.model_copy(update={"limits": limits}) if limits else request


def limit_values(options: dict[str, Any], job: Job) -> dict[str, tuple[int, ...]]:
    """Values of each limited degree.

    Numbers that the user names stay as they are; a range stands for the values in it that a
    search tries: divisors of the GPUs, of the layers or of the experts, and powers of two.
    """
    return {
        name: _limited(options[name], name, job) for name in LIMITS if options[name] is not None
    }


def _limited(limit: DegreeLimit, name: str, job: Job) -> tuple[int, ...]:
    tried = _ZERO_STAGES if name == "zero" else _useful(job) | ({0} if name == "shard" else set())
    within = {value for value in tried if limit.allows_value(value)}
    return tuple(sorted(within | {value for value in limit.named if limit.allows_value(value)}))


def _useful(job: Job) -> set[int]:
    gpus, layers = job.cluster.num_gpus, job.model.layers
    experts = job.model.moe.experts if job.model.moe else 1
    powers = {1 << power for power in range(gpus.bit_length())}
    divisors = {
        value
        for number in (gpus, layers, layers + 1, layers + 2, experts)
        for value in range(1, number + 1)
        if number % value == 0
    }
    return powers | divisors
