"""A request as the words of a command line, to copy."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from planner.job.request import Request
from planner.predict.plan import Degrees

# Fields whose option has another name; other options are called like their field.
_OPTIONS = {"allow_tp_across_domains": "--allow-tp-across-nodes"}
_LIMITS = {"shard": "--shard-size"}
# What a search chooses: no option of a command that costs one configuration.
_CHOSEN = ("gbs", "gbs_tokens", "gbs_tolerance", "limits", "recompute", "cp_sizes")
_CONDITIONS = ("require", "forbid", "fix", "fit_probability")


def search_command(request: Request) -> str:
    """`planner search --model 70b …`, with every option that is not at its default."""
    return shlex.join(("planner", "search", *_words(request)))


def evaluate_command(request: Request, degrees: Degrees | None = None, recompute: str = "") -> str:
    """`planner evaluate` of a configuration; without degrees what comes before them. Empty where
    the search chooses more than degrees: what to offload."""
    if "search" in (request.optimizer_offload, request.activation_offload):
        return ""
    given = request.model_copy(
        update={name: Request.model_fields[name].get_default() for name in _CONDITIONS}
    )
    words = ["planner", "evaluate", *_words(given, leave_out=_CHOSEN)]
    if degrees is not None:
        words += _degree_words(degrees, recompute)
    return shlex.join(words)


def _degree_words(degrees: Degrees, recompute: str) -> Iterator[str]:
    for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "mbs", "grad_acc"):
        value = getattr(degrees, name)
        if value != 1 or name in ("zero", "mbs", "grad_acc"):
            yield from (f"--{name.replace('_', '-')}", str(value))
    if degrees.shard:
        yield from ("--shard-size", str(degrees.shard))
    if recompute not in ("", "none"):
        yield from ("--recompute", recompute)


def _words(request: Request, leave_out: tuple[str, ...] = ()) -> Iterator[str]:
    """Options of the fields that differ from their defaults."""
    for name, field in Request.model_fields.items():
        value = getattr(request, name)
        if name in leave_out or value == field.get_default(call_default_factory=True):
            continue
        yield from _option(name, value)


def _option(name: str, value: object) -> Iterator[str]:
    option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
    match value:
        case bool():
            yield option if value else option.replace("--", "--no-", 1)
        case dict():
            for degree, values in value.items():
                limit = _LIMITS.get(degree, f"--{degree}")
                yield from (limit.replace("_", "-"), ",".join(str(number) for number in values))
        case tuple() if name in ("require", "forbid", "fix"):
            for condition in value:
                yield from (option, condition)
        case tuple():
            yield from (option, ",".join(str(part) for part in value))
        case _:
            yield from (option, str(value))
