"""Types of options: what a text means, and the range of every number, declared once.

A type that is made of a function carries examples: what people write.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from constraints.axes import LARGEST_DEGREE
from constraints.errors import ConstraintError
from hardware.ranges import LARGEST_PRICE
from planner.job.batch_ramp import read_ramp
from planner.job.bounds import (
    LONGEST_SEQ,
    MOST_LAYERS,
    MOST_MICRO_BATCHES,
    MOST_MTP_LAYERS,
    MOST_SEQUENCES,
    WIDEST,
)
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


def _part(
    text: str, hint: str, *, zero: bool = False, one: bool = True, percent: bool = True
) -> float:
    """A share, in percent where it may be; `zero`, `one`: whether it may be so much."""
    plain = text.strip().removesuffix("%") if percent else text
    given = _number(plain) / (100.0 if percent and text.strip().endswith("%") else 1.0)
    if not (0.0 < given < 1.0 or (given == 0.0 and zero) or (given == 1.0 and one)):
        raise UsageError(f"{text!r}: {hint}")
    return given


def _share(text: str) -> float | str:
    if text.strip().lower() == "search":
        return "search"
    return _part(text, "give a share in 0<=x<=1, as 0.5, or search", zero=True, percent=False)


def _measured_share(text: str) -> float:
    """`0.41`, `41%` or `41`."""
    given = _number(text.strip().removesuffix("%"))
    share = given / 100.0 if "%" in text or given > 1.0 else given
    if not 0.0 < share <= 1.0:
        raise UsageError(f"{text!r}: write a share above 0 and up to 1, as 0.41 or 41%")
    return share


def _ramp(text: str) -> str:
    """The text, read once: Megatron's form with a batch that suits, which is given elsewhere."""
    words = text.split()
    suits = len(words) == 3 and all(word.isdecimal() and len(word) < 19 for word in words)
    read_ramp(text, int(words[0]) + int(words[1]) if suits else None)
    return text


def _tokens(text: str, hint: str) -> int:
    with suppress(UsageError):
        return parse_tokens(text)
    raise UsageError(f"{text!r}: {hint}")


def _length(text: str) -> int:
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


_trained_tokens = partial(
    _tokens, hint="give the tokens to train on, a whole number above 0, as 15T or 300B"
)


def _budget_tokens(text: str) -> int | str:
    return "chinchilla" if text.strip().lower() == "chinchilla" else _trained_tokens(text)


def _layers(text: str) -> tuple[int, ...]:
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


def _duration_s(text: str, plain: str = "s") -> float:
    match = _DURATION.match(text.strip())
    given = float(match[1]) * _SECONDS[match[2] or plain] if match else math.nan
    if not 0.0 <= given <= _LONGEST_S:
        raise UsageError(f"{text!r}: write a time as 90s, 10min, 3h or 2d, up to ten years")
    return given


def _scaled(units: dict[str, float], low: float, high: float, hint: str) -> Callable[[str], float]:
    """A parser of positive numbers with a unit behind them; the largest sensible one is `high`."""

    def parse(text: str) -> float:
        match = _SCALED.match(text.strip())
        unit = match[2].lower() if match else ""
        given = float(match[1].replace(",", "")) * units[unit] if match and unit in units else 0.0
        if not low <= given <= high:
            raise UsageError(f"{text!r}: write {hint}")
        return given

    return parse


def _stage(text: str) -> str | int:
    if text in ("heaviest", "all"):
        return text
    if text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST_DEGREE)):
        return int(text)
    raise UsageError(f"{text!r}: heaviest, all, or a stage from 0 on")


def _spelt(pattern: str, hint: str, make: Callable[..., Any]) -> Callable[[str], Any]:
    """A parser of texts that a pattern matches as a whole, made of its groups."""

    def parse(text: str) -> Any:
        match = re.fullmatch(pattern, text, re.DOTALL)
        if match is None:
            raise UsageError(f"{text!r}: {hint}")
        return make(*match.groups())

    return parse


def _resolution(text: str) -> str:
    """The text, read once."""
    from planner.job.amounts import parse_resolution

    parse_resolution(text)
    return text


def _condition(verb: Any, example: str) -> Parsed:
    """A condition that can be read, as it was written."""

    def parse(text: str) -> str:
        from constraints.condition import user_condition

        return user_condition(verb, text).text

    return Parsed("condition", parse, example)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise UsageError(f"{text!r}: write names, comma-separated, as none,full")
    return names


def _counts(text: str) -> tuple[int, ...]:
    items = [item.strip() for item in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,7}", item) and int(item) > 0 for item in items):
        raise UsageError(f"{text!r}: write numbers of GPUs, as 512,768,1024")
    return tuple(map(int, items))


def _file(text: str) -> str:
    if not text.strip():
        raise UsageError(f"{text!r} names no file")
    try:
        return str(Path(text).expanduser())
    except RuntimeError:
        raise UsageError(
            f"{text!r}: no such user; write ./{text} for a file of that name"
        ) from None


def _plot(endings: tuple[str, ...], text: str) -> Path:
    path = Path(_file(text))
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


# No model has more experts than this for one rank to take the load of.
MOST_IMBALANCE = 4096
IMBALANCE = Number(1, MOST_IMBALANCE)
TOLERANCE = Number(0, 1, high_open=True)
UTILISATION = Number(0, 1, low_open=True)
CAPEX = Number(0, LARGEST_PRICE, low_open=True)
CARBON = Number(0, 1e4)
DEGREE = Whole(1, LARGEST_DEGREE)
MTP_LAYERS = Whole(0, MOST_MTP_LAYERS)
MICRO_BATCHES = Whole(1, MOST_MICRO_BATCHES)
SEQUENCES = Whole(1, MOST_SEQUENCES)
# Of an engine that serves.
SERVED = Whole(1, 10**6)
WIDTH = Whole(1, WIDEST)
PLAN_NUMBER = Whole(1, 10**6)
PLANS = Whole(1, 10**6)
NODES = Whole(0, LARGEST_DEGREE)
PROCESSES = Whole(1, 1024)
SEED = Whole(0, 2**31 - 1)
PORT = Whole(0, 65535)
RUNS = Whole(1, 1000)
# The longest that anyone waits: a year.
TIME_LIMIT = Number(0, 365 * 86400, low_open=True)
MEASURED_S = Number(0, 1e6, low_open=True)
MEASURED_GIB = Number(0, 1e6, low_open=True)
MEASURED_TOKENS = Number(0, 1e15, low_open=True)

SHARE = Parsed("share", _share, "0", "0.5", "1", "search")
FRACTION = Parsed(
    "fraction",
    partial(_part, hint="give a fraction in 0<x<=1, as 0.5; no search chooses it", percent=False),
    "0.5", "1",
)  # fmt: skip
PROBABILITY = Parsed(
    "probability",
    partial(_part, hint="give a probability above 0 and below 1, as 80% or 0.8", one=False),
    "80%", "0.8",
)  # fmt: skip
RESOLUTION = Parsed("share,size", _resolution, "0.5%,1GiB", "1%", "1GiB")
MEASURED_SHARE = Parsed("share", _measured_share, "0.41", "41%")
TOKENS = Parsed("tokens", parse_tokens, "4M", "4Mi", "4194304")
RAMP = Parsed("ramp", _ramp, "64..512/469B", "4Mi:252M,8Mi:2.87T,16Mi", "16 8 300000")
TRAINED_TOKENS = Parsed("tokens", _trained_tokens, "15T", "300B")
BUDGET_TOKENS = Parsed("tokens", _budget_tokens, "15T", "chinchilla")
SEQUENCE = Length("tokens", _length, "8192", "8K", "8Ki")
LAYERS = Parsed("layers", _layers, "19,20,20,21", "4,5x14,4", "16")
DURATION = Parsed("time", _duration_s, "90s", "10min", "3h", "2d")
# Nobody has a deadline in seconds.
DEADLINE = Parsed("days", partial(_duration_s, plain="d"), "90d")
AMOUNT = Parsed(
    "amount",
    _scaled({"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}, 1.0, 1e12, "a sum of money, as 12M or 250k"),
    "12M", "250k",
)  # fmt: skip
POWER_KW = Parsed(
    "power", _scaled({"kw": 1.0, "mw": 1e3, "gw": 1e6}, 0.1, 1e8, "a power, as 1.2MW or 800kW"),
    "1.2MW", "800kW",
)  # fmt: skip
PARAMETERS = Parsed(
    "parameters",
    _scaled({"": 1.0, "m": 1e6, "b": 1e9, "t": 1e12}, 1e8, 2e13, "a size, as 13B, up to 20T"),
    "13B", "500M",
)  # fmt: skip
FLOP = Number(1e15, 1e35)
DAYS = Number(0, 3650, low_open=True)
STAGE = Parsed("stage", _stage, "heaviest", "all", "0")
RATE = Parsed(
    "rate",
    _spelt(
        r"\s*([A-Z]{3})=(?!0+(?:\.0+)?\s*$)([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*",
        "write EUR=1.10, US dollars for one EUR", lambda code, usd: (code, float(usd)),
    ),
    "EUR=1.10",
)  # fmt: skip
CURRENCY = Parsed(
    "code", _spelt("([A-Z]{3})", "write three capitals, as USD or EUR", str), "USD", "EUR"
)
VARIABLE = Parsed(
    "name=value", _spelt(r"(\w+)=(.*)", "write NAME=VALUE", lambda *pair: pair), "TP=4"
)
NAMES = Parsed("names", _names, "none", "none,full")
COUNTS = Parsed("counts", _counts, "8", "8,16")
REQUIRE, FORBID = _condition("require", "pp <= 4"), _condition("forbid", "zero == 3")
FIX = _condition("fix", "mbs=1")
# Modules, `off` or `search`: which there are, the framework says.
MODULES = Parsed("modules", lambda text: text.strip().lower(), "off", "all", "search", "core_attn")
FILE = Parsed("file", _file, "out.json")
PLOT = Parsed("file", partial(_plot, (".html", ".svg", ".png")), "step.svg")
