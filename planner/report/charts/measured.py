"""Charts of predicted against measured values: runs on two logarithmic axes, with one colour for
each family; and a pair of bars for each term."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.job.quantities import share
from planner.report.charts.drawing import Row, Specification, colours, table
from planner.report.charts.templates import BLUE, GREY, PALETTE, VERMILION, filled
from planner.report.traced import Pair

# Half-width of the band around the diagonal, as a share of the measured value.
BAND = 0.2
OTHERS = "others"
_PAIR_HEIGHT = 34
_KINDS = ("predicted", "measured")
_STEPS = (range(1, 10), (1, 2, 5), (1,))
_MOST_TICKS = 8
# Light yellow dots are hard to see on white.
_DOTS = tuple(colour for colour in PALETTE if colour not in ("#f0e442", GREY))


@dataclass(frozen=True, slots=True)
class RunPoint:
    """One run: its measured and predicted value in the same unit, its family, and a text for the
    tooltip."""

    measured: float
    predicted: float
    family: str
    text: str = ""


def scatter_chart(
    points: Sequence[RunPoint], title: str, unit: str, *, hover: bool = True
) -> Specification:
    """The chart. With `hover` each run is a dot with its text; otherwise all runs of a family are
    one path, which makes the file many times smaller. Values that are not positive have no place on
    a logarithmic axis, so such runs are left out."""
    drawn = [point for point in points if point.measured > 0.0 and point.predicted > 0.0]
    span = _span(drawn)
    # The families with the most runs have their own colour; the rest share one.
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
        # The band from -BAND to +BAND of the measured value, cut off at the frame.
        around=table(
            {"measured": end, "predicted": end * (1.0 - BAND), "above": end * (1.0 + BAND)}
            for end in span
        ),
        diagonal=table({"measured": end, "predicted": end} for end in span),
    )


def _shown(family: str, families: Sequence[str]) -> str:
    return family if family in families else OTHERS


def _span(points: Sequence[RunPoint]) -> tuple[float, float]:
    """The ends of both axes: all values with a little space, or a decade around 1 if there are
    none."""
    values = [value for point in points for value in (point.measured, point.predicted)]
    return min(values, default=0.5) / 1.15, max(values, default=5.0) * 1.15


def _ticks(low: float, high: float) -> list[float]:
    """Ticks at multiples of powers of ten: 1 to 9 if they fit, else 1, 2 and 5, else only 1."""
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
    """The rows of one path through all runs: each run, then a row without values. The empty row
    interrupts the path, so each run is drawn as a separate dot and no line joins them."""
    for index, (name, run) in enumerate(runs):
        place = 2 * index
        yield {"family": name, "place": place, **_place(run)}
        yield {"family": name, "place": place + 1, "measured": "", "predicted": ""}


def pairs_chart(pairs: Sequence[Pair], unit: str, title: str | None = None) -> Specification:
    """A pair of bars, predicted and measured, for each term, in reading order."""
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
    """The charts of several panels, one below the other, for a file. `panels`: bars and their unit
    by title."""
    drawn = [pairs_chart(pairs, unit, title) for title, (pairs, unit) in panels.items()]
    return {"vconcat": drawn, "spacing": 36}
