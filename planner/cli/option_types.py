"""Types of options: what a text means. `[types]` of `options.toml` has each with its range, or with
one of the parsers below, what that takes beside the text, and examples of what people write. And
values that a shell completes: models, GPUs, frameworks. Nothing heavy is imported."""

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
    """A number in a range with two ends: neither nan nor inf is one."""

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
    """A text that `parse` understands, or refuses with a ValueError that says what to write."""

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
        """Files, where the text names one."""
        if self.name == "file":
            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, param, incomplete)


def _number(text: str) -> float:
    """The number that a text is; nan for none, which no range holds."""
    try:
        return float(text) if text.isascii() else math.nan
    except ValueError:
        return math.nan


def part(
    text: str, hint: str, *, zero: bool = False, one: bool = True, percent: bool = True
) -> float:
    """A share, in percent where it may be; `zero`, `one`: whether it may be so much."""
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
    """`0.41`, `41%` or `41`."""
    given = _number(text.strip().removesuffix("%"))
    given /= 100.0 if "%" in text or given > 1.0 else 1.0
    if not 0.0 < given <= 1.0:
        raise UsageError(f"{text!r}: write a share above 0 and up to 1, as 0.41 or 41%")
    return given


def ramp(text: str) -> str:
    """The text, read once: Megatron's form with a batch that suits, which is given elsewhere."""
    from planner.job.batch_ramp import read_ramp

    words = text.split()
    suits = len(words) == 3 and all(word.isdecimal() and len(word) < 19 for word in words)
    read_ramp(text, int(words[0]) + int(words[1]) if suits else None)
    return text


def trained_tokens(text: str) -> int:
    """A number of tokens, which the words of an error name as what is trained on."""
    with suppress(UsageError):
        return parse_tokens(text)
    hint = "give the tokens to train on, a whole number above 0, as 15T or 300B"
    raise UsageError(f"{text!r}: {hint}")


def sample_count(text: str) -> int:
    """A number of samples, which the words of an error name as such."""
    with suppress(UsageError):
        return parse_tokens(text)
    raise UsageError(f"{text!r}: give the samples of the data set, a whole number, as 52k or 52000")


def sample_lengths(text: str) -> str:
    """The text, read once where it names no file: files are read where the job is resolved."""
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
    """Tokens of a sequence. A letter stands for a power of two, of which the user is told: a batch
    of tokens counts in powers of ten."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        given = super().convert(value, param, ctx)
        if isinstance(value, str) and re.search("[A-Za-z]$", value.strip().rstrip("iI")):
            option = param.opts[-1] if param and param.opts else "length"
            click.echo(f"note: {option} {value.strip()} is {given:,} tokens", err=True)
        return given


def budget_tokens(text: str) -> int | str:
    """As `trained_tokens`, or a word for the best number of the model's size."""
    return "chinchilla" if text.strip().lower() == "chinchilla" else trained_tokens(text)


def layers(text: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for item in text.split(","):
        match = _LENGTHS.match(item.strip())
        if match is None:
            raise UsageError(f"{item!r}: write numbers of layers, as 19,20,20,21 or 4,5x14,4")
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
    """A positive number with a unit behind it; the largest sensible one is `high`."""
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
    """A text that a pattern matches as a whole: its group, or groups."""
    found = _groups(text, pattern, hint)
    return found if len(found) > 1 else found[0]


def rate(text: str, pattern: str, hint: str) -> tuple[str, float]:
    """A currency and its value in US dollars."""
    code, usd = _groups(text, pattern, hint)
    return code, float(usd)


def resolution(text: str) -> str:
    """The text, read once."""
    from planner.job.amounts import parse_resolution

    parse_resolution(text)
    return text


def condition(text: str, verb: Any) -> str:
    """A condition that can be read, as it was written."""
    from constraints.condition import user_condition

    return user_condition(verb, text).text


def modules(text: str) -> str:
    """Modules, `off` or `search`: which there are, the framework says."""
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
    """Allowed values of a degree."""

    def parse(text: str) -> DegreeLimit:
        from constraints.user import parse_degree_limit

        return parse_degree_limit(text, degree=degree)

    return Parsed("values", parse, "8", "1,2,4", "..8", "2..")


_DIGITS = re.compile("[-+]?[0-9]+")


class Whole(click.IntRange):
    """A whole number of a range in digits alone: Python reads `1_000` too, and refusals that then
    say 1000 name nothing that was given."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not _DIGITS.fullmatch(value.strip()):
            tokens = "; a batch in tokens: --gbs-tokens" if param and param.name == "gbs" else ""
            self.fail(f"{value!r} is not a valid integer: write digits alone{tokens}", param, ctx)
        return super().convert(value, param, ctx)


_BOUNDS = {**vars(bounds), "LARGEST_DEGREE": LARGEST_DEGREE, "LARGEST_PRICE": LARGEST_PRICE}


@cache
def option_type(name: str) -> click.ParamType[Any]:
    """A type of `[types]` of `options.toml`, where the ends of a range may be names."""
    row = dict(shipped_toml("planner.cli", "options.toml")["types"][name])
    for made, key in ((Whole, "whole"), (Number, "number")):
        if key in row:
            return made(*(_BOUNDS.get(end, end) for end in row.pop(key)), **row)
    text, parse, examples = row.pop("is"), row.pop("parse"), row.pop("examples")
    parsed = Length if parse == "length" else Parsed
    return parsed(text, partial(globals()[parse], **row), *examples)


def known_models(_ctx: click.Context, _param: click.Parameter, start: str) -> list[CompletionItem]:
    """Names and short names of the catalogue; else files: a config.json, a .toml."""
    from planner.job.models.catalog import model_names, short_names

    return _matching((*model_names(), *short_names()), start) or [
        CompletionItem(start, type="file")
    ]


def known_gpus(_ctx: click.Context, _param: click.Parameter, start: str) -> list[CompletionItem]:
    """GPUs and node shapes, behind a number as `64x` where there is one."""
    from hardware.load import cluster_names, gpu_names

    head, cross, _ = start.rpartition("x")
    count = f"{head}{cross}" if head[-1:].isdigit() else ""
    return _matching([f"{count}{name}" for name in (*gpu_names(), *cluster_names())], start)


def known_frameworks(
    _ctx: click.Context, _param: click.Parameter, start: str
) -> list[CompletionItem]:
    """Every name of a framework."""
    from planner.job.frameworks.names import known_names

    return _matching(known_names(), start)


def known_budgets(_ctx: click.Context, _param: click.Parameter, start: str) -> list[CompletionItem]:
    """The word among numbers."""
    return _matching(("chinchilla",), start)


def _matching(names: Iterable[str], start: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.lower().startswith(start.lower())]
