"""Callbacks of click: what the text of an option means, or why it means nothing."""

from __future__ import annotations

import math
import re
from typing import Any

import click

from constraints import ConstraintError, DegreeLimit, parse_degree_limit
from planner.job.errors import UsageError
from planner.job.request import LONGEST_SEQ, parse_tokens

_LENGTHS = re.compile(r"^(\d+)(?:[x×*](\d+))?$")


def share(ctx: click.Context, param: click.Parameter, value: str) -> float | str:
    """A share from 0 to 1, or `search`."""
    if value.strip().lower() == "search":
        return "search"
    given = _number(value)
    if not 0.0 <= given <= 1.0:
        hint = f"{value!r}: give a share in 0<=x<=1, as 0.5, or search"
        raise click.BadParameter(hint, ctx, param)
    return given


def fraction(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """A fraction above 0 and up to 1."""
    given = _number(value)
    if not 0.0 < given <= 1.0:
        hint = f"{value!r}: give a fraction in 0<x<=1, as 0.5; no search chooses it"
        raise click.BadParameter(hint, ctx, param)
    return given


def probability(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """A probability between 0 and 1, as 80% or 0.8."""
    text = value.strip()
    given = _number(text[:-1]) / 100.0 if text.endswith("%") else _number(text)
    if not 0.0 < given < 1.0:
        hint = f"{value!r}: give a probability above 0 and below 1, as 80% or 0.8"
        raise click.BadParameter(hint, ctx, param)
    return given


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan


def modules(ctx: click.Context, param: click.Parameter, value: str) -> str:  # noqa: ARG001
    """Module names, or `off` or `search`, in lower case."""
    return value.strip().lower()


def tokens(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A number of tokens, as 4M, 4Mi or 4194304."""
    if value is None:
        return None
    try:
        return parse_tokens(value)
    except UsageError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def sequence(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A sequence length in tokens, within what a model could ever be trained on."""
    if value is None:
        return None
    try:
        own = parse_tokens(value)
    except UsageError:
        own = 0
    if not 1 <= own <= LONGEST_SEQ:
        hint = f"{value!r}: a sequence has 1 to {LONGEST_SEQ:,} (128Mi) tokens, as 8192 or 8Ki"
        raise click.BadParameter(hint, ctx, param)
    return own


def layers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Numbers of layers in pipeline order, as 19,20,20,21 or 4,5x14,4."""
    if value is None:
        return None
    numbers: list[int] = []
    for item in value.split(","):
        match = _LENGTHS.match(item.strip())
        if match is None:
            hint = f"{item!r}: write numbers of layers, as 19,20,20,21 or 4,5x14,4"
            raise click.BadParameter(hint, ctx, param)
        numbers += [int(match[1])] * int(match[2] or 1)
    return tuple(numbers)


def limit(ctx: click.Context, param: click.Parameter, value: str | None) -> DegreeLimit | None:
    """Allowed values of a degree, as 8, 1,2,4, ..8 or 2.. ."""
    if value is None:
        return None
    try:
        return parse_degree_limit(value, param.name or "")
    except ConstraintError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def time_limit(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Seconds that a search may take."""
    if value is None or (value > 0 and math.isfinite(value)):
        return value
    hint = f"{value:g}: a search needs some time; give seconds, as 10, or leave the option out"
    raise click.BadParameter(hint, ctx, param)


def condition(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    """Conditions that can be read, as they were written."""
    from constraints import user_condition

    verb: Any = param.name
    try:
        return tuple(user_condition(verb, text).text for text in value)
    except ConstraintError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def split_names(text: str | None) -> tuple[str, ...] | None:
    """`none,full` as a tuple."""
    if text is None:
        return None
    return tuple(name.strip() for name in text.split(",") if name.strip())
