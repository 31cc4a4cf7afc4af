"""What the plot of a scaling study shows: lasting pace and MFU against GPUs, as plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.compare.results import ScalePoint, Scaling

# Okabe & Ito 2008, told apart by colour-blind readers too.
COLOURS = {"fixed": "#0072b2", "scaled": "#d55e00"}
NAMES = {"fixed": "fixed batch (strong)", "scaled": "batch grows (weak)"}


@dataclass(frozen=True, slots=True)
class Series:
    """Points (GPUs, value, low, high) of one series; `knee`: GPUs at its knee."""

    name: str
    colour: str
    points: tuple[tuple[int, float, float, float], ...]
    knee: int | None


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes. `logarithmic`: of the vertical axis. `ideal`: the line of perfect scaling
    through the first point, if it has a meaning."""

    title: str
    unit: str
    logarithmic: bool
    series: tuple[Series, ...]
    ideal: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """The picture."""

    title: str
    note: str
    panels: tuple[Panel, Panel]


def scaling_figure(scaling: Scaling) -> Figure:
    """The picture of a scaling study."""
    days = _series(scaling, _days)
    first = next((own.points[0] for own in days if own.points), None)
    counts = sorted({point.num_gpus for point in scaling.points})
    ideal = () if first is None else tuple((n, first[1] * first[0] / n) for n in counts)
    return Figure(
        f"{scaling.model} on {scaling.gpu}: {scaling.tokens / 1e12:g} T tokens",
        "Bars: 80 % interval of step time and of published failure rates. Ring: knee. "
        "Dashed: perfect scaling.",
        (
            Panel("Days, interruptions included", "days", True, days, ideal),
            Panel("MFU", "%", False, _series(scaling, _mfu), ()),
        ),
    )


def _series(
    scaling: Scaling, value: Callable[[ScalePoint], tuple[float, float, float] | None]
) -> tuple[Series, ...]:
    return tuple(
        Series(
            NAMES[batch],
            COLOURS[batch],
            tuple(
                (point.num_gpus, *found)
                for point in scaling.series(batch)
                if (found := value(point)) is not None
            ),
            scaling.knees.get(batch),
        )
        for batch in NAMES
        if scaling.series(batch)
    )


def _days(point: ScalePoint) -> tuple[float, float, float] | None:
    if point.run is None:
        return None
    days = point.run.days
    return days.value, days.low, days.high


def _mfu(point: ScalePoint) -> tuple[float, float, float] | None:
    if point.run is None:
        return None
    plan = point.run.plan
    mfu = plan.mfu * 100.0
    error = plan.step_time
    return mfu, mfu * plan.step_time_s / error.high, mfu * plan.step_time_s / error.low
