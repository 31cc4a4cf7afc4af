"""Draws predicted against measured: runs over two logarithmic axes, one colour a family; and a
pair of bars for each term."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.job.quantities import share
from planner.report.charts.drawing import Row, Specification, colours, table
from planner.report.charts.templates import BLUE, GREY, PALETTE, VERMILION, filled
from planner.report.traced import Pair

# Around the diagonal: predictions within this share of the measured value.
BAND = 0.2
OTHERS = "others"
_PAIR_HEIGHT = 34
_KINDS = ("predicted", "measured")
_STEPS = (range(1, 10), (1, 2, 5), (1,))
_MOST_TICKS = 8
# The light yellow of the palette is a poor dot on white.
_DOTS = tuple(colour for colour in PALETTE if colour not in ("#f0e442", GREY))


@dataclass(frozen=True, slots=True)
class RunPoint:
    """One run: what was measured and predicted, in one unit; its family; a text to hover on."""

    measured: float
    predicted: float
    family: str
    text: str = ""


def scatter_chart(
    points: Sequence[RunPoint], title: str, unit: str, *, hover: bool = True
) -> Specification:
    """The drawing. With `hover` each run is a dot with its text, else all runs of a family are one
    path: many times smaller. Runs that are not positive cannot be drawn and are left out."""
    drawn = [point for point in points if point.measured > 0.0 and point.predicted > 0.0]
    span = _span(drawn)
    # Those with the most runs; the rest share one colour.
    most = Counter(point.family for point in drawn).most_common(len(_DOTS))
    families = [family for family, _ in most]
    counts = Counter(_shown(run.family, families) for run in drawn)
    names = {name: f"{name} ({counts[name]:,})" for name in (*families, OTHERS) if counts[name]}
    runs = [(names[_shown(run.family, families)], run) for run in drawn]
    dots = ({"family": name, **_place(run), "text": run.text} for name, run in runs)
    return filled(
        "scatter",
        title=title,
        unit=unit,
        band=share(BAND, 0),
        span=list(span),
        ticks=_ticks(*span),
        colours=colours(list(names.values()), [*_DOTS[: len(families)], GREY]),
        legend_columns=2 if hover else 3,
        legend_stroke=0 if hover else 5,
        hover=hover,
        strokes=not hover,
        runs=table(dots if hover else _strokes(runs)),
        # Between -BAND and +BAND of the measured value, cut off at the frame.
        around=table(
            {"measured": end, "predicted": end * (1.0 - BAND), "above": end * (1.0 + BAND)}
            for end in span
        ),
        diagonal=table({"measured": end, "predicted": end} for end in span),
    )


def _shown(family: str, families: Sequence[str]) -> str:
    return family if family in families else OTHERS


def _span(points: Sequence[RunPoint]) -> tuple[float, float]:
    """Both axes span all values with a little space; a decade around 1 without any."""
    values = [value for point in points for value in (point.measured, point.predicted)]
    return min(values, default=0.5) / 1.15, max(values, default=5.0) * 1.15


def _ticks(low: float, high: float) -> list[float]:
    """Multiples of powers of ten, as few kinds as are enough."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in _STEPS:
        marks = [step * 10.0**decade for decade in decades for step in steps]
        inside = [mark for mark in marks if low <= mark <= high]
        if len(inside) <= _MOST_TICKS:
            break
    return inside


def _place(run: RunPoint) -> Row:
    return {"measured": run.measured, "predicted": run.predicted}


def _strokes(runs: Sequence[tuple[str, RunPoint]]) -> Iterator[Row]:
    """Every run followed by a row without values, which closes its stroke: a dot of a path."""
    for index, (name, run) in enumerate(runs):
        place = 2 * index
        yield {"family": name, "place": place, **_place(run)}
        yield {"family": name, "place": place + 1, "measured": "", "predicted": ""}


def pairs_chart(pairs: Sequence[Pair], unit: str, title: str | None = None) -> Specification:
    """What was predicted beside what was measured, in reading order."""
    rows = [
        {
            "label": pair.label, "kind": kind, "value": value,
            "text": f"{pair.label}, {kind}: {value:,.2f} {unit}",
        }
        for pair in pairs
        for kind, value in zip(_KINDS, (pair.predicted, pair.measured), strict=True)
        if value is not None
    ]  # fmt: skip
    kinds = [kind for kind in _KINDS if any(row["kind"] == kind for row in rows)]
    return filled(
        "pairs",
        height=_PAIR_HEIGHT * len(pairs),
        title=title,
        unit=unit,
        bars=table(rows),
        labels=[pair.label for pair in pairs],
        kinds=kinds,
        colours=colours(kinds, (BLUE, VERMILION)[-len(kinds) :]),
    )


def panels_chart(panels: Mapping[str, tuple[Sequence[Pair], str]]) -> Specification:
    """Bars and their unit by title, one below the other, for a file."""
    drawn = [pairs_chart(pairs, unit, title) for title, (pairs, unit) in panels.items()]
    return {"vconcat": drawn, "spacing": 36}
