"""Draws predicted against measured: both axes logarithmic, one colour a family."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from planner.job.quantities import share
from planner.report.charts.drawing import BLUE, GREY, PALETTE, Width, colours, table

# Around the diagonal: predictions within this share of the measured value.
BAND = 0.2
OTHERS = "others"
_SIDE = 420
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
    points: Sequence[RunPoint], title: str, unit: str, width: Width = _SIDE, *, hover: bool = True
) -> Any:
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
    rows = dots if hover else _strokes(runs)
    palette = [*_DOTS[: len(families)], GREY]
    base = alt.Chart(table(rows)).encode(
        x=_axis("measured", unit, span),
        y=_axis("predicted", unit, span),
        color=alt.Color(
            "family:N",
            title=f"band: ±{share(BAND, 0)}",
            scale=colours(list(names.values()), palette),
            legend=alt.Legend(
                columns=2 if hover else 3,
                labelLimit=240,
                symbolType="circle",
                symbolSize=40,
                symbolStrokeWidth=0 if hover else 5,
            ),
        ),
    )
    if hover:
        family = alt.selection_point(name="shown", fields=["family"], bind="legend")
        marks = (
            base.mark_circle(size=30)
            .encode(
                tooltip=alt.Tooltip("text:N", title="run"),
                opacity=alt.condition(family, alt.value(0.6), alt.value(0.02)),
            )
            .add_params(family)
            .properties(name="runs")
        )
    else:
        marks = base.mark_line(strokeCap="round", strokeWidth=4.5, opacity=0.5, aria=False).encode(
            order=alt.Order("place:Q")
        )
    return alt.layer(*_guides(unit, span), marks).properties(width=width, height=_SIDE, title=title)


def _shown(family: str, families: Sequence[str]) -> str:
    return family if family in families else OTHERS


def _span(points: Sequence[RunPoint]) -> tuple[float, float]:
    """Both axes span all values with a little space; a decade around 1 without any."""
    values = [value for point in points for value in (point.measured, point.predicted)]
    return min(values, default=0.5) / 1.15, max(values, default=5.0) * 1.15


def _axis(name: str, unit: str, span: tuple[float, float]) -> Any:
    return (alt.X if name == "measured" else alt.Y)(
        f"{name}:Q",
        title=f"{name}, {unit}",
        scale=alt.Scale(type="log", domain=list(span), nice=False),
        axis=alt.Axis(format=",~r", values=_ticks(*span)),
    )


def _ticks(low: float, high: float) -> list[float]:
    """Multiples of powers of ten, as few kinds as are enough."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in _STEPS:
        marks = [step * 10.0**decade for decade in decades for step in steps]
        inside = [mark for mark in marks if low <= mark <= high]
        if len(inside) <= _MOST_TICKS:
            break
    return inside


def _place(run: RunPoint) -> dict[str, object]:
    return {"measured": run.measured, "predicted": run.predicted}


def _strokes(runs: Sequence[tuple[str, RunPoint]]) -> Iterator[dict[str, object]]:
    """Every run followed by a row without values, which closes its stroke: a dot of a path."""
    for index, (name, run) in enumerate(runs):
        place = 2 * index
        yield {"family": name, "place": place, **_place(run)}
        yield {"family": name, "place": place + 1, "measured": "", "predicted": ""}


def _guides(unit: str, span: tuple[float, float]) -> Iterator[Any]:
    """Between -BAND and +BAND of the measured value, cut off at the frame; and the diagonal."""
    axes = {"x": _axis("measured", unit, span), "y": _axis("predicted", unit, span)}
    around = [
        {"measured": end, "predicted": end * (1.0 - BAND), "above": end * (1.0 + BAND)}
        for end in span
    ]
    band = alt.Chart(table(around)).mark_area(clip=True, opacity=0.12, color=BLUE)
    yield band.encode(**axes, y2=alt.Y2("above"))
    ends = alt.Chart(table([{"measured": end, "predicted": end} for end in span]))
    yield ends.mark_line(strokeDash=[4, 3], color=GREY).encode(**axes)
