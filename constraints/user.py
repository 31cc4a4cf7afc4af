"""The user's limits on one degree (`--tp 1,2,4,8`, `--pp ..8`, `--cp 2..`), with a rule for each.

`constraints.condition` has conditions over several degrees.
"""

from __future__ import annotations

import re

from constraints.axes import AXES, LARGEST_DEGREE
from constraints.context import RuleContext
from constraints.errors import ConstraintError
from constraints.numbers import DEGREES, Columns, DegreeLimit, Mask
from constraints.rule import ShapeRule

_DIGITS = len(str(LARGEST_DEGREE))
_NUMBER = re.compile(r"[0-9]+")
_RANGE = re.compile(r"([0-9]*)\s*\.\.\s*([0-9]*)")


def parse_degree_limit(text: str, degree: str = "tp") -> DegreeLimit:
    """Parse "4", "1,2,4,8", "..8", "2..", "2..8" or a comma-separated mix of these.

    Raises ConstraintError, which names the degree, the input and the expected form.
    """
    spans: list[tuple[int, int | None]] = []
    named: list[int] = []
    for item in text.split(","):
        low, high, numbers = _parse_item(item.strip(), text, degree)
        spans.append((low, high))
        named.extend(numbers)
    return DegreeLimit(text.strip(), tuple(spans), tuple(dict.fromkeys(named)))


def _parse_item(item: str, text: str, degree: str) -> tuple[int, int | None, list[int]]:
    """Lower end, upper end (None: open) and the numbers written in one item of the list."""
    smallest = AXES[degree].least if degree in AXES else 1
    # Python refuses to parse thousands of digits. One digit more than the largest number is enough.
    numbers = [int((number.lstrip("0") or "0")[: _DIGITS + 1]) for number in _NUMBER.findall(item)]
    interval = _RANGE.fullmatch(item)
    if not numbers or not (interval or _NUMBER.fullmatch(item)):
        raise ConstraintError(
            f"{degree}={text!r}: cannot read {item!r}; "
            "write a number, a list 1,2,4,8 or a range 2..8, ..8, 2.."
        )
    if min(numbers) < smallest:
        raise ConstraintError(f"{degree}={text!r}: {degree} must be at least {smallest}")
    if max(numbers) > LARGEST_DEGREE:
        raise ConstraintError(f"{degree}={text!r}: {degree} must be at most {LARGEST_DEGREE:,}")
    if interval is None:
        return numbers[0], numbers[0], numbers
    low = numbers[0] if interval[1] else smallest
    high = numbers[-1] if interval[2] else None
    if high is not None and low > high:
        raise ConstraintError(
            f"{degree}={text!r}: the range {item} is empty; did you mean {high}..{low}?"
        )
    return low, high, numbers


def _user_rule(degree: str) -> ShapeRule:
    """The rule that a degree stays within the user's limit, if there is one."""

    def test(columns: Columns, ctx: RuleContext) -> Mask | bool:
        limit = ctx.limits.get(degree)
        return limit is None or limit.allows(columns[degree])

    def wording(ctx: RuleContext) -> str:
        limit = ctx.limits.get(degree)
        return f"{degree} is free" if limit is None else f"you asked for {degree} = {limit.text}"

    return ShapeRule(
        name=f"user-{degree.replace('_', '-')}",
        sentence=f"{degree} is one that the user allows",
        source="command line or job file",
        test=test,
        wording=wording,
    )


USER_RULES = tuple(_user_rule(degree) for degree in DEGREES)
