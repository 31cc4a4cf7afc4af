"""Builds requests, limits on degrees and output formats from shared options."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NoReturn

import click
from click.core import ParameterSource

from constraints.axes import AXES, LARGEST_DEGREE
from constraints.numbers import DegreeLimit
from planner.job.errors import unknown_name
from planner.job.job import Job
from planner.job.request import Request

# Degrees that can be limited in a search, as the request calls them.
LIMITS = tuple(name for name, axis in AXES.items() if axis.limited)
OutputFormat = Literal["text", "json", "csv"]


def given(name: str) -> bool:
    """Whether the user gave this option on the command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source not in (None, ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)


def output_format(as_json: bool, as_csv: bool) -> OutputFormat:
    """The output format. Raises UsageError if two are given."""
    if as_json and as_csv:
        raise click.UsageError("give --json or --csv, not both")
    return "json" if as_json else "csv" if as_csv else "text"


def build_request(options: dict[str, Any], **more: Any) -> Request:
    """The request that the shared options describe."""
    named = Request.model_fields.keys() - {"recompute", "limits", "cp_sizes"}
    fields = {name: value for name, value in options.items() if name in named}
    if fields["precision"] is None:
        del fields["precision"]
    return Request(**fields, allow_tp_across_domains=options["allow_tp_across_nodes"], **more)


def with_limits(request: Request, options: dict[str, Any], job: Job) -> Request:
    """The request with limits on degrees from the options."""
    limits = limit_values(options, job)
    return request.model_copy(update={"limits": limits}) if limits else request


def limit_values(options: dict[str, Any], job: Job) -> dict[str, tuple[int, ...]]:
    """Allowed values of each limited degree.

    A list of numbers is kept as it is. A range becomes the values that a search tries: divisors of
    the GPUs, layers and experts, and powers of two.
    """
    return {
        name: _limited(options[name], name, job) for name in LIMITS if options[name] is not None
    }


def _limited(limit: DegreeLimit, name: str, job: Job) -> tuple[int, ...]:
    axis = AXES[name]
    few = axis.largest < LARGEST_DEGREE
    tried = range(axis.least, axis.largest + 1) if few else _useful(job) | {axis.least}
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


# Reports a wrong field: (field, text).
Refuse = Callable[[str, str], NoReturn]


def by_spelling(parameters: Iterable[click.Parameter]) -> dict[str, click.Parameter]:
    """Options by their names without dashes (`gbs-tokens`), including both spellings of a
    switch."""
    return {
        spelling.removeprefix("--"): parameter
        for parameter in parameters
        for spelling in parameter.opts
    }


def option_of(key: str, known: dict[str, click.Parameter], refuse: Refuse) -> click.Parameter:
    """The option for a field of a file; `gbs_tokens` and `gbs-tokens` are the same. For an unknown
    field, `refuse` is called, which raises."""
    found = known.get(key.replace("_", "-"))
    if found is None:
        refuse(key, str(unknown_name("field", key, known, ", ".join(sorted(known)))))
    return found


def option_value(parameter: click.Parameter, key: str, value: Any, refuse: Refuse) -> Any:
    """A value from a file, converted as on the command line. For a wrong value, `refuse` is called,
    which raises."""
    if parameter.multiple:
        listed = value if isinstance(value, list) else [value]
        return tuple(_one(parameter, key, item, refuse) for item in listed)
    return _one(parameter, key, value, refuse)


def _one(parameter: click.Parameter, key: str, value: Any, refuse: Refuse) -> Any:
    switch = isinstance(parameter.type, click.types.BoolParamType)
    if isinstance(value, list | dict) or (isinstance(value, bool) and not switch):
        refuse(key, f"{key} = {str(value).lower()}: give a value")
    try:
        return parameter.type.convert(value if switch else str(value), parameter, None)
    except click.UsageError as error:
        refuse(key, f"{key}: {error.message}")
