"""Types of command-line options and shell completion.

`[types]` of `options.toml` lists each type with its range or its parser below. Nothing heavy is
imported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from constraints.axes import LARGEST_DEGREE
from constraints.errors import ConstraintError
from hardware.files import shipped_toml
from hardware.ranges import LARGEST_PRICE
from planner.job import bounds
from planner.job.bounds import LONGEST_SEQ, MOST_LAYERS
from planner.job.errors import UsageError
from planner.job.quantities import parse_length, parse_tokens

if TYPE_CHECKING:
    from constraints.numbers import DegreeLimit


# Blocks of a pipeline that a list of layers may name.
_MOST_BLOCKS = 2**16
_LENGTHS = re.compile(r"^(\d{1,9})(?:[x×*](\d{1,9}))?$", re.ASCII)
_DURATION = re.compile(r"^(\d{1,12}(?:\.\d{1,12})?)\s*(s|min|m|h|d)?$", re.ASCII)
_SECONDS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S = 3650 * 86400.0
_SCALED = re.compile(r"^(\d[\d,]{0,18}(?:\.\d{1,6})?)\s*([A-Za-z]{0,2})$", re.ASCII)


class Number(click.FloatRange):
    """A number in a closed range, never nan or inf."""

    name = "number"

    def __init__(self, low: float, high: float, *, low_open: bool = False, high_open: bool = False):
        super().__init__(low, high, min_open=low_open, max_open=high_open)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number) or (isinstance(value, str) and not value.isascii()):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


class Parsed(click.ParamType[Any]):
    """A text that the function `parse` converts. Its UsageError becomes click's error message."""

    def __init__(self, name: str, parse: Callable[[str], Any], *examples: str) -> None:
        self.name, self.parse, self.examples = name, parse, examples

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except (UsageError, ConstraintError) as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete file names if the option takes a file."""
        if self.name == "file":
            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, param, incomplete)


def _number(text: str) -> float:
    """The text as a number; nan if it is not one, which is outside every range."""
    try:
        return float(text) if text.isascii() else math.nan
    except ValueError:
        return math.nan


def part(
    text: str, hint: str, *, zero: bool = False, one: bool = True, percent: bool = True
) -> float:
    """A share between 0 and 1, perhaps in percent. `zero`, `one`: whether these ends are
    allowed."""
    plain = text.strip().removesuffix("%") if percent else text
    given = _number(plain) / (100.0 if percent and text.strip().endswith("%") else 1.0)
    if not (0.0 < given < 1.0 or (given == 0.0 and zero) or (given == 1.0 and one)):
        raise UsageError(f"{text!r}: {hint}")
    return given


def share(text: str) -> float | str:
    if text.strip().lower() == "search":
        return "search"
    return part(text, "give a share in 0<=x<=1, as 0.5, or search", zero=True, percent=False)


def measured_share(text: str) -> float:
    """A share above 0 and up to 1, written as `0.41`, `41%` or `41`."""
    given = _number(text.strip().removesuffix("%"))
    given /= 100.0 if "%" in text or given > 1.0 else 1.0
    if not 0.0 < given <= 1.0:
        raise UsageError(f"{text!r}: write a share above 0 and up to 1, as 0.41 or 41%")
    return given


def ramp(text: str) -> str:
    """The text of a batch ramp, after a check of its syntax. Megatron's form is checked with a
    batch that suits it, because another option gives the real batch."""
    from planner.job.batch_ramp import read_ramp

    words = text.split()
    suits = len(words) == 3 and all(word.isdecimal() and len(word) < 19 for word in words)
    read_ramp(text, int(words[0]) + int(words[1]) if suits else None)
    return text


def trained_tokens(text: str) -> int:
    """A number of tokens to train on."""
    with suppress(UsageError):
        return parse_tokens(text)
    hint = "give the tokens to train on, a whole number above 0, as 15T or 300B"
    raise UsageError(f"{text!r}: {hint}")


def sample_count(text: str) -> int:
    """A number of samples in the data set."""
    with suppress(UsageError):
        return parse_tokens(text)
    raise UsageError(f"{text!r}: give the samples of the data set, a whole number, as 52k or 52000")


def sample_lengths(text: str) -> str:
    """The text, after a check of its syntax unless it names a file. Files are read later."""
    from planner.job.length_text import demand_lengths

    demand_lengths(text)
    return text


def length(text: str) -> int:
    with suppress(UsageError):
        if (given := parse_length(text)) <= LONGEST_SEQ:
            return given
    raise UsageError(
        f"{text!r}: a sequence has 1 to {LONGEST_SEQ:,} (128M) tokens, as 8192 or 8K (8,192)"
    )


class Length(Parsed):
    """A sequence length in tokens. `8K` means 8,192; a message on stderr says so, because K means
    1,000 in batches."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        given = super().convert(value, param, ctx)
        if isinstance(value, str) and re.search("[A-Za-z]$", value.strip().rstrip("iI")):
            option = param.opts[-1] if param and param.opts else "length"
            click.echo(f"note: {option} {value.strip()} is {given:,} tokens", err=True)
        return given


def budget_tokens(text: str) -> int | str:
    """A number of tokens, or `chinchilla`."""
    return "chinchilla" if text.strip().lower() == "chinchilla" else trained_tokens(text)


def layers(text: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for item in text.split(","):
        match = _LENGTHS.match(item.strip())
        if match is None:
            raise UsageError(
                f"{item!r}: write the layers of each block, for example 19,20,20,21 or 4,5x14,4 "
                "(5x14: 14 blocks of 5)"
            )
        layers, blocks = int(match[1]), int(match[2] or 1)
        if layers > MOST_LAYERS or len(numbers) + blocks > _MOST_BLOCKS:
            raise UsageError(
                f"{item!r}: at most {MOST_LAYERS:,} layers a block, and {_MOST_BLOCKS:,} blocks"
            )
        numbers += [layers] * blocks
    return tuple(numbers)


def duration_s(text: str, plain: str = "s") -> float:
    match = _DURATION.match(text.strip())
    given = float(match[1]) * _SECONDS[match[2] or plain] if match else math.nan
    if not 0.0 <= given <= _LONGEST_S:
        raise UsageError(f"{text!r}: write a time as 90s, 10min, 3h or 2d, up to ten years")
    return given


def scaled(text: str, units: dict[str, float], low: float, high: float, hint: str) -> float:
    """A positive number with a unit, between `low` and `high`."""
    match = _SCALED.match(text.strip())
    unit = match[2].lower() if match else ""
    given = float(match[1].replace(",", "")) * units[unit] if match and unit in units else 0.0
    if not low <= given <= high:
        raise UsageError(f"{text!r}: write {hint}")
    return given


def stage(text: str) -> str | int:
    if text in ("heaviest", "all"):
        return text
    if text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST_DEGREE)):
        return int(text)
    raise UsageError(f"{text!r}: heaviest, all, or a stage from 0 on")


def _groups(text: str, pattern: str, hint: str) -> tuple[str, ...]:
    match = re.fullmatch(pattern, text, re.DOTALL)
    if match is None:
        raise UsageError(f"{text!r}: {hint}")
    return match.groups()


def spelt(text: str, pattern: str, hint: str) -> str | tuple[str, ...]:
    """The groups of a pattern that matches the whole text; a single group as a plain string."""
    found = _groups(text, pattern, hint)
    return found if len(found) > 1 else found[0]


def rate(text: str, pattern: str, hint: str) -> tuple[str, float]:
    """A currency and its value in US dollars."""
    code, usd = _groups(text, pattern, hint)
    return code, float(usd)


def resolution(text: str) -> str:
    """The text, after a check of its syntax."""
    from planner.job.amounts import parse_resolution

    parse_resolution(text)
    return text


def condition(text: str, verb: Any) -> str:
    """The text of a condition, after a check of its syntax."""
    from constraints.condition import user_condition

    return user_condition(verb, text).text


def modules(text: str) -> str:
    """Names of modules, `off` or `search`. The framework checks the names later."""
    return text.strip().lower()


def names(text: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise UsageError(f"{text!r}: write names, comma-separated, as none,full")
    return found


def counts(text: str) -> tuple[int, ...]:
    items = [item.strip() for item in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,7}", item) and int(item) > 0 for item in items):
        raise UsageError(f"{text!r}: write numbers of GPUs, as 512,768,1024")
    return tuple(map(int, items))


def file(text: str) -> str:
    if not text.strip():
        raise UsageError(f"{text!r} names no file")
    try:
        return str(Path(text).expanduser())
    except RuntimeError:
        raise UsageError(
            f"{text!r}: no such user; write ./{text} for a file of that name"
        ) from None


def plot(text: str, endings: Sequence[str]) -> Path:
    path = Path(file(text))
    if path.suffix.lower() not in endings:
        raise UsageError(f"{text!r}: the name must end in {', '.join(endings)}")
    return path


def degree_limit(degree: str) -> Parsed:
    """A type for the allowed values of a degree."""

    def parse(text: str) -> DegreeLimit:
        from constraints.user import parse_degree_limit

        return parse_degree_limit(text, degree=degree)

    return Parsed("values", parse, "8", "1,2,4", "..8", "2..")


_DIGITS = re.compile("[-+]?[0-9]+")


class Whole(click.IntRange):
    """A whole number in a range, written with digits only. Python would also read `1_000`, and the
    error message would then quote 1000, a number that the user did not write."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not _DIGITS.fullmatch(value.strip()):
            tokens = "; a batch in tokens: --gbs-tokens" if param and param.name == "gbs" else ""
            self.fail(f"{value!r} is not a valid integer: write only digits{tokens}", param, ctx)
        return super().convert(value, param, ctx)


_BOUNDS = {**vars(bounds), "LARGEST_DEGREE": LARGEST_DEGREE, "LARGEST_PRICE": LARGEST_PRICE}


@cache
def option_type(name: str) -> click.ParamType[Any]:
    """A type from `[types]` of `options.toml`. Ends of ranges may be names of constants."""
    row = dict(shipped_toml("planner.cli", "options.toml")["types"][name])
    for made, key in ((Whole, "whole"), (Number, "number")):
        if key in row:
            return made(*(_BOUNDS.get(end, end) for end in row.pop(key)), **row)
    text, parse, examples = row.pop("is"), row.pop("parse"), row.pop("examples")
    parsed = Length if parse == "length" else Parsed
    return parsed(text, partial(globals()[parse], **row), *examples)


def known_models(_ctx: click.Context, _param: click.Parameter, start: str) -> list[CompletionItem]:
    """Model names for completion, or files if no name matches."""
    from planner.job.models.catalog import model_names, short_names

    return _matching((*model_names(), *short_names()), start) or [
        CompletionItem(start, type="file")
    ]


def known_gpus(_ctx: click.Context, _param: click.Parameter, start: str) -> list[CompletionItem]:
    """GPU and node names for completion, after a count such as `64x`."""
    from hardware.load import cluster_names, gpu_names

    head, cross, _ = start.rpartition("x")
    count = f"{head}{cross}" if head[-1:].isdigit() else ""
    return _matching([f"{count}{name}" for name in (*gpu_names(), *cluster_names())], start)


def known_frameworks(
    _ctx: click.Context, _param: click.Parameter, start: str
) -> list[CompletionItem]:
    """Framework names for completion."""
    from planner.job.frameworks.names import known_names

    return _matching(known_names(), start)


def known_budgets(_ctx: click.Context, _param: click.Parameter, start: str) -> list[CompletionItem]:
    """`chinchilla` for completion."""
    return _matching(("chinchilla",), start)


def _matching(names: Iterable[str], start: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.lower().startswith(start.lower())]
