"""Draws studies, as curves and points over two axes; and a step's memory, as bars of phases."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from planner.cost.terms import MEMORY_GROUPS
from planner.job.quantities import GIB, gib
from planner.report.charts.drawing import (
    BLUE,
    PALETTE,
    VERMILION,
    Row,
    Specification,
    colours,
    filled,
    table,
)
from planner.report.figures.curves import CurvesFigure, Panel
from planner.report.figures.memory import MemoryFigure, StagePanel

_COLOURS = (BLUE, VERMILION)
_NAMES = list(MEMORY_GROUPS)


def curves_chart(figure: CurvesFigure) -> Specification:
    """The whole picture, two panels a row, with one legend below."""
    return {
        "concat": [curves_panel(panel, panel.title) for panel in figure.panels],
        "columns": 2,
        "spacing": 40,
        "title": {"text": figure.title, "subtitle": figure.note},
    }


def curves_panel(panel: Panel, title: str = "") -> Specification:
    """One pair of axes. Numbers of GPUs are marked where there are points."""
    points = panel.points
    names = list(dict.fromkeys(point.series for point in points))
    logarithmic_x, logarithmic_y = panel.logarithmic
    return filled(
        "curves",
        title=title,
        told=panel.title,
        x_title=panel.x_title,
        y_title=panel.y_title,
        x_scale="log" if logarithmic_x else "linear_x",
        y_scale="log" if logarithmic_y else "linear_y",
        x_axis="counts" if panel.whole_numbers else "amounts",
        from_zero=panel.from_zero,
        whole_numbers=sorted({point.x for point in points}),
        colours=colours(names, _COLOURS if len(names) <= len(_COLOURS) else PALETTE),
        points=table(_points(panel)),
        joined=[name for name in names if panel.joined in ("", name)],
        marked=any(point.marked for point in points),
        labelled=any(point.label for point in points),
        ideal=table({"x": float(x), "y": y} for x, y in panel.ideal) if panel.ideal else None,
    )


def _points(panel: Panel) -> list[Row]:
    # A bar without an upper end stops at its point.
    return [
        asdict(point)
        | {"x": float(point.x), "high": point.high if math.isfinite(point.high) else point.y}
        for point in panel.points
    ]


def memory_chart(figure: MemoryFigure) -> Specification:
    """The whole picture, one panel below the other."""
    used = [name for panel in figure.panels for name in _used(panel)]
    return {
        "vconcat": [memory_panel(panel, panel.title, used) for panel in figure.panels],
        "resolve": {"scale": {"color": "shared"}},
        "title": {"text": figure.title, "subtitle": [figure.subtitle, figure.note]},
    }


def memory_panel(
    panel: StagePanel, title: str = "", used: Sequence[str] | None = None
) -> Specification:
    """One stage: a bar for each phase, a gap between the two steps; a legend of the groups that
    are `used`; the whisker of the heaviest bar's interval; the limit, of which the words alone
    are shown if it lies beyond the top."""
    places = _places(panel)
    names = [name for name in _NAMES if name in (_used(panel) if used is None else used)]
    return filled(
        "memory",
        title=title,
        told=panel.title,
        domain=list(range(places[-1] + 1)),
        labels=json.dumps(dict(zip(map(str, places), panel.labels, strict=True))),
        bars=table(_bars(panel, places)),
        groups=names,
        colours=colours(names, [PALETTE[_NAMES.index(name)] for name in names]),
        steps=table(_steps(panel, places)),
        peak=table([_peak(panel, places)]),
        has_interval=panel.interval is not None,
        limit=table([{"limit": panel.limit_bytes / GIB, "text": panel.limit_text}]),
        shows_limit=panel.shows_limit,
        limit_is_beyond=not panel.shows_limit,
    )


def _used(panel: StagePanel) -> list[str]:
    """Names of the groups that hold something."""
    return [
        name for index, name in enumerate(_NAMES) if any(bar.sizes[index] for bar in panel.bars)
    ]


def _places(panel: StagePanel) -> list[int]:
    first = sum(bar.step == panel.bars[0].step for bar in panel.bars)
    return [index + (index >= first) for index in range(len(panel.bars))]


def _bars(panel: StagePanel, places: list[int]) -> Iterator[Row]:
    for place, bar in zip(places, panel.bars, strict=True):
        for layer, (group, size) in enumerate(zip(MEMORY_GROUPS, bar.sizes, strict=True)):
            if size:
                text = f"{bar.step}, {bar.phase}: {group} {gib(size, 2)} GiB"
                yield {
                    "place": place, "group": group, "layer": layer, "gib": size / GIB,
                    "text": text,
                }  # fmt: skip


def _steps(panel: StagePanel, places: list[int]) -> Iterator[Row]:
    """Names of the two steps, where the bars of each begin."""
    first: dict[str, int] = {}
    for place, bar in zip(places, panel.bars, strict=True):
        first.setdefault(bar.step, place)
    return ({"place": place, "text": name} for name, place in first.items())


def _peak(panel: StagePanel, places: list[int]) -> Row:
    """The total of the heaviest bar and the ends of its interval."""
    place, bar = next(pair for pair in zip(places, panel.bars, strict=True) if pair[1].is_peak)
    low, high = panel.interval or (bar.total_bytes, bar.total_bytes)
    return {
        "place": place, "low": low / GIB, "high": high / GIB,
        "text": f"{gib(bar.total_bytes)} GiB",
    }  # fmt: skip
