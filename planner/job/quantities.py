"""Numbers as text for people (GiB, seconds, shares, counts), and token counts that people write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeVar

from planner.job.errors import UsageError

GIB = 2**30
HOUR_S, DAY_S = 3600.0, 86_400.0
_SHORT_SCALE = ((1e12, " T"), (1e9, " B"), (1e6, " M"))


Value = TypeVar("Value")


def stated(value: Value | None, otherwise: Value) -> Value:
    """`value` unless it is None; 0 counts as a value."""
    return otherwise if value is None else value


def gib(size_bytes: float, digits: int = 1) -> str:
    """Bytes in GiB (2^30) without the unit, which the table's title names."""
    text = f"{size_bytes / GIB:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def seconds(time_s: float) -> str:
    """At least three significant digits from 0.1 s on, else milliseconds with one decimal: `1,230
    s`, `9.84 s`, `0.412 s`, `3.1 ms`."""
    if time_s >= 100:
        return f"{time_s:,.0f} s"
    if time_s >= 10:
        return f"{time_s:.1f} s"
    if time_s >= 1:
        return f"{time_s:.2f} s"
    return f"{time_s:.3f} s" if time_s >= 0.1 else f"{time_s * 1e3:.1f} ms"


def share(part: float, digits: int = 1) -> str:
    """0.4123 as `41.2 %`."""
    return f"{part * 100:.{digits}f} %"


def signed_share(part: float, digits: int = 1) -> str:
    """A relative difference: `+4.9 %`, `-0.5 %`, `+0.0 %`."""
    # Adding 0.0 turns a rounded -0.0 into 0.
    return f"{round(part * 100, digits) + 0.0:+.{digits}f} %"


def short_count(number: float) -> str:
    """70553706496 as `70.55 B`: T, B and M are powers of ten."""
    for scale, suffix in _SHORT_SCALE:
        if number >= scale:
            return f"{number / scale:.2f}{suffix}"
    return f"{number:,.0f}"


def rate(per_second: float) -> str:
    """A processing rate: `3.2 M`, `450,000`."""
    return f"{per_second / 1e6:.1f} M" if per_second >= 1e6 else f"{per_second:,.0f}"


def tflop_per_s(flop_per_s: float) -> str:
    """`989 TFLOP/s`."""
    return f"{flop_per_s / 1e12:,.0f} TFLOP/s"


def run_lengths(values: Iterable[int]) -> str:
    """`4, 5×14, 4`: runs of equal neighbours are counted."""
    runs = [(value, len(list(run))) for value, run in groupby(values)]
    return ", ".join(f"{value}×{count}" if count > 1 else f"{value}" for value, count in runs)


def number_ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as `1-3, 5`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{low}-{high}" if high > low else f"{low}" for low, high in spans)


def plural(count: int, noun: str) -> str:
    """`1 plan`, `1,234 plans`, `4 processes`."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}{ending}"


def percent_sure(probability: float) -> str:
    """A probability in percent, never rounded to certainty."""
    if probability > 0.99:
        return ">99 %"
    return "<1 %" if probability < 0.01 else f"{probability * 100:.0f} %"


# The largest accepted number of tokens, beyond any training.
MOST_TOKENS = 10**18

# Separators precede three digits; a comma elsewhere separates a list.
_QUANTITY = re.compile(
    r"^((?:[0-9]{1,3}(?:[,_][0-9]{3})+|[0-9]{1,19})(?:\.[0-9]{1,19})?)([kKmMgGbBtT]?)(i?)$"
)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "b": 3, "t": 4}


def parse_length(text: str) -> int:
    """Tokens of a sequence. `32K` and `32Ki` both mean 32,768, because lengths are powers of
    two."""
    return parse_tokens(text, 1024)


def parse_tokens(text: str, thousand: int = 1000) -> int:
    """`4M` = 4·10^6, `4Mi` = 4·2^20, likewise K, G (or B) and T; plain digits stay as they are.
    `thousand`: value of a K without an `i`."""
    match = _QUANTITY.match(text.strip())
    if not match:
        raise UsageError(
            f"{text!r} is not a number of tokens; write for example 4M (4·10^6), "
            "4Mi (4·2^20) or 4194304"
        )
    number, letter, binary = match.groups()
    if binary and not letter:
        raise UsageError(f"{text!r}: 'i' needs a letter before it, as in 4Mi")
    base = 1024 if binary else thousand
    value = float(re.sub("[,_]", "", number)) * base ** _POWERS[letter.lower()]
    if value < 1 or value != int(value):
        raise UsageError(f"{text!r} is {value:g} tokens; give a whole number of at least 1")
    if value > MOST_TOKENS:
        raise UsageError(f"{text!r}: more than 10^18 tokens, which is beyond any training")
    return int(value)
