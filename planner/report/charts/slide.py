"""A recommendation as one slide of 16:9: the choice to take, three bars for each choice, risk, and
prices.

Every mark is placed in pixels, so nothing can cover anything else: rows that do not fit are left
out, and lines are broken before they are placed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from planner.compare.buying import Buying
from planner.compare.decision import choice_of
from planner.compare.interval import Range
from planner.compare.results import Choice, Comparison, Decision
from planner.compare.settings import BASIS_NAMES
from planner.job.errors import UsageError
from planner.job.quantities import short_count
from planner.report.charts.drawing import Specification, table
from planner.report.charts.templates import BLUE, GREY, filled
from planner.report.said import days_text, energy, money
from planner.report.study_words import decision_facts, headline

WIDTH, HEIGHT = 1280, 720
# Margin that files have around every chart, in pixels.
_AROUND = 16
_MARGIN = 48 - _AROUND
_COLUMNS = 3
_GAP = 44
_COLUMN = (WIDTH - 2 * (_AROUND + _MARGIN) - (_COLUMNS - 1) * _GAP) / _COLUMNS
# Most choices that are drawn: the recommended one and the next best.
_MOST = 4
_ROW = 66
# Letters per line and most lines, for the headline and for the text below the bars.
_HEAD_LETTERS, _LINE_LETTERS = 64, 150
_HEAD_LINES, _FOOT_LINES = 3, 5
# Rows of the recommendation that a slide shows.
_SAID = ("because", "next best", "deadline kept", "budget kept")


def is_slide(name: str) -> bool:
    """Whether the name of a file, without its suffix, asks for a slide: `slide`, `q3-slide`."""
    return name.lower().endswith("slide")


@dataclass(frozen=True, slots=True)
class _Words:
    """A line of text and its place, in pixels."""

    x: float
    y: float
    text: str
    size: int
    bold: bool = False
    colour: str = "#1a1a1a"
    align: str = "left"


@dataclass(frozen=True, slots=True)
class _Bar:
    """A bar from `x` to `x2`, in pixels."""

    x: float
    x2: float
    y: float
    height: float
    colour: str


def slide_chart(study: Comparison | Buying) -> Specification:
    """The slide of a comparison or a purchase. Raises UsageError if nothing is recommended."""
    decision = study.decision
    if decision is None or decision.best is None:
        raise UsageError(
            "--plot slide: there is nothing to recommend; planner compare and planner buy say why "
            "without it"
        )
    choices = _choices(study, decision)
    words = [*_head(study, decision)]
    top = words[-1].y + 92
    words += _foot(study, decision)
    bars: list[_Bar] = []
    for column, (title, form, figure) in enumerate(_figures(study)):
        drawn = [(one, figure(one)) for one in choices]
        left = _MARGIN + column * (_COLUMN + _GAP)
        words.append(_Words(left, top - 22, title, 20, bold=True))
        known = [(one, found) for one, found in drawn if found is not None]
        _draw(left, top, known, form, words, bars)
    return filled(
        "slide",
        width=WIDTH - 2 * _AROUND,
        height=HEIGHT - 2 * _AROUND,
        words=table(_row(one) for one in words),
        bars=table(_row(one) for one in bars),
    )


def _row(one: Any) -> Mapping[str, object]:
    return {name: getattr(one, name) for name in one.__slots__}


def _choices(study: Comparison | Buying, decision: Decision) -> list[Choice]:
    """The recommended choice, or several of them if there are several jobs; then the others, the
    best by the objective (cost, time or energy) first. At most _MOST in total."""
    every = [*_every(study)]
    taken = {one.cluster for one in decision.best.choices} if decision.best else set()
    first = [one for one in every if one.cluster in taken]
    others = [one for one in every if one.cluster not in taken]
    by = {"cost": _cost, "time": lambda one: one.days.value, "energy": lambda one: one.mwh.value}
    return [*first, *sorted(others, key=by[decision.objective])][:_MOST]


def _cost(one: Choice) -> float:
    return float("inf") if one.cost is None else one.cost.value


def _every(study: Comparison | Buying) -> Iterator[Choice]:
    if isinstance(study, Buying):
        yield from (row.choice for row in study.rows if row.choice is not None)
        return
    for row in study.rows:
        if row.run is not None:
            yield choice_of("", row.name, row.run.job.num_gpus, row.run, study.basis)


Figure = tuple[str, Callable[[float], str], Callable[[Choice], Range | None]]


def _figures(study: Comparison | Buying) -> tuple[Figure, ...]:
    unit = f"{study.currency}, {BASIS_NAMES[study.basis]}"
    return (
        ("days", days_text, lambda one: one.days),
        (unit, money, lambda one: one.cost),
        ("MWh", energy, lambda one: one.mwh),
    )


def _draw(
    left: float,
    top: float,
    drawn: Sequence[tuple[Choice, Range]],
    form: Callable[[float], str],
    words: list[_Words],
    bars: list[_Bar],
) -> None:
    """Append the rows of one figure to `words` and `bars`: for each choice its name, a bar, a thin
    line for the interval, and the value in words. `form` writes a value. `left`, `top`: the upper
    left corner, in pixels."""
    longest = max((found.high for _, found in drawn if found.high < float("inf")), default=1.0)
    jobs = {one.job for one, _ in drawn}
    for row, (one, found) in enumerate(drawn):
        y = top + row * _ROW
        colour = BLUE if row == 0 else GREY
        high = min(found.high, longest)
        value, low, end = (_COLUMN * size / longest for size in (found.value, found.low, high))
        bars += [
            _Bar(left, left + value, y + 22, 20.0, colour),
            _Bar(left + low, left + end, y + 31, 2.0, "#1a1a1a"),
        ]
        name = f"{one.job} on {one.cluster}" if len(jobs) > 1 else one.cluster
        words.append(_Words(left, y + 14, name, 16, bold=row == 0))
        text = f"{form(found.value)} ({form(found.low)} to {form(found.high)})"
        words.append(_Words(left + _COLUMN, y + 14, text, 15, align="right"))


def _head(study: Comparison | Buying, decision: Decision) -> Iterator[_Words]:
    lines = textwrap.wrap(headline(decision, study.currency), _HEAD_LETTERS)[:_HEAD_LINES]
    for number, line in enumerate(lines):
        yield _Words(_MARGIN, 64 + 40 * number, line, 30, bold=True)
    for number, line in enumerate(textwrap.wrap(_job(study), _LINE_LETTERS)[:2]):
        y = 76 + 40 * len(lines) + 24 * number
        yield _Words(_MARGIN, y, line, 17, colour="#5a5a5a")


def _job(study: Comparison | Buying) -> str:
    if isinstance(study, Comparison):
        return f"{study.model}, {short_count(study.tokens)} tokens. Bars: 80 % intervals."
    jobs = ", ".join(dict.fromkeys(row.job for row in study.rows))
    return f"{jobs}. Bars: 80 % intervals."


def _foot(study: Comparison | Buying, decision: Decision) -> Iterator[_Words]:
    """The lines at the bottom: the reason, the next best choice, limits that are kept, and the
    prices with their age."""
    facts = decision_facts(decision, study.currency).rows
    choices = decision.best.choices if decision.best else ()
    prices = [text for label, text in facts if label == "price"]
    told = [*prices, *sorted({one.price_age for one in choices} - {""})]
    rows = [row for row in facts if row[0] in _SAID]
    rows.append(("price", "; ".join((*told, f"drawn {datetime.now(UTC):%Y-%m-%d}"))))
    wrapped = (textwrap.wrap(f"{label}: {text}", _LINE_LETTERS) for label, text in rows)
    lines = [line for each in wrapped for line in each][:_FOOT_LINES]
    first = HEIGHT - 2 * _AROUND - _MARGIN - 22 * (len(lines) - 1)
    words = _Words(_MARGIN, 0.0, "", 16)
    for number, line in enumerate(lines):
        yield replace(words, y=first + 22 * number, text=line)
