"""Draws a step's memory: bars of phases, stacked by what holds them, against the limit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from planner.cost.terms import MEMORY_GROUPS
from planner.job.quantities import GIB, gib
from planner.report.charts.drawing import (
    FILE_WIDTH,
    LIMIT_DASH,
    PALETTE,
    VERMILION,
    Width,
    colours,
    table,
)
from planner.report.figures.memory import MemoryFigure, StagePanel

_HEIGHT = 260
_NAMES = list(MEMORY_GROUPS)


def memory_chart(figure: MemoryFigure) -> Any:
    """The whole picture, one panel below the other."""
    used = [name for panel in figure.panels for name in _used(panel)]
    charts = [panel_chart(panel, FILE_WIDTH, panel.title, used) for panel in figure.panels]
    return (
        alt.vconcat(*charts)
        .resolve_scale(color="shared")
        .properties(title=alt.TitleParams(figure.title, subtitle=[figure.subtitle, figure.note]))
    )


def panel_chart(
    panel: StagePanel, width: Width, title: str = "", used: Sequence[str] | None = None
) -> Any:
    """One stage: a bar for each phase, a gap between the two steps; a legend of the groups that
    are `used`."""
    places = _places(panel)
    labels = {str(place): text for place, text in zip(places, panel.labels, strict=True)}
    axis = alt.Axis(
        title=None, labelAngle=-40, labelOverlap=False, labelLimit=150, grid=False, ticks=False,
        labelExpr=f"{json.dumps(labels)}[datum.value] || ''",
    )  # fmt: skip
    x = alt.X("place:O", scale=alt.Scale(domain=list(range(places[-1] + 1))), axis=axis)
    names = [name for name in _NAMES if name in (_used(panel) if used is None else used)]
    palette = [PALETTE[_NAMES.index(name)] for name in names]
    bars = (
        alt.Chart(table(_rows(panel, places)))
        .mark_bar()
        .encode(
            x=x,
            y=alt.Y("gib:Q", title="GiB", stack="zero"),
            color=alt.Color("group:N", title=None, scale=colours(names, palette), sort=names),
            order=alt.Order("layer:O"),
            tooltip=alt.Tooltip("text:N", title=panel.title),
        )
    )
    layers = [bars, _steps(panel, places), *_peak(panel, places), *limit_layers(panel)]
    return alt.layer(*layers).properties(
        width=width, height=_HEIGHT, title=alt.TitleParams(title, offset=30)
    )


def _used(panel: StagePanel) -> list[str]:
    """Names of the groups that hold something."""
    return [
        name for index, name in enumerate(_NAMES) if any(bar.sizes[index] for bar in panel.bars)
    ]


def limit_layers(panel: StagePanel) -> tuple[Any, ...]:
    """The dashed line of the limit with its words; the words alone if it lies beyond the top."""
    data = table([{"limit": panel.limit_bytes / GIB, "text": panel.limit_text}])
    chart = alt.Chart(data)
    y = alt.Y("limit:Q") if panel.shows_limit else alt.value(0)
    words = chart.mark_text(align="left", dx=4, dy=-7, color=VERMILION).encode(
        x=alt.value(0), y=y, text=alt.Text("text:N")
    )
    if not panel.shows_limit:
        return (words,)
    line = chart.mark_rule(color=VERMILION, strokeDash=LIMIT_DASH, strokeWidth=1.5).encode(y=y)
    return line, words


def _places(panel: StagePanel) -> list[int]:
    first = sum(bar.step == panel.bars[0].step for bar in panel.bars)
    return [index + (index >= first) for index in range(len(panel.bars))]


def _rows(panel: StagePanel, places: list[int]) -> Iterator[dict[str, object]]:
    for place, bar in zip(places, panel.bars, strict=True):
        for layer, (group, size) in enumerate(zip(MEMORY_GROUPS, bar.sizes, strict=True)):
            if size:
                text = f"{bar.step}, {bar.phase}: {group} {gib(size, 2)} GiB"
                yield {
                    "place": place, "group": group, "layer": layer, "gib": size / GIB,
                    "text": text,
                }  # fmt: skip


def _steps(panel: StagePanel, places: list[int]) -> Any:
    """Names of the two steps below the top of their bars' part of the picture."""
    first: dict[str, int] = {}
    for place, bar in zip(places, panel.bars, strict=True):
        first.setdefault(bar.step, place)
    rows = [{"place": place, "text": name} for name, place in first.items()]
    return (
        alt.Chart(table(rows))
        .mark_text(align="left", baseline="top", dx=-8, opacity=0.75)
        .encode(x=alt.X("place:O"), y=alt.value(-26), text=alt.Text("text:N"))
    )


def _peak(panel: StagePanel, places: list[int]) -> Iterator[Any]:
    """The total of the heaviest bar, with the whisker of its interval."""
    place, bar = next(pair for pair in zip(places, panel.bars, strict=True) if pair[1].is_peak)
    low, high = panel.interval or (bar.total_bytes, bar.total_bytes)
    row = {
        "place": place, "low": low / GIB, "high": high / GIB,
        "text": f"{gib(bar.total_bytes)} GiB",
    }  # fmt: skip
    chart = alt.Chart(table([row]))
    if panel.interval is not None:
        yield chart.mark_rule(strokeWidth=1.5).encode(
            x=alt.X("place:O"), y=alt.Y("low:Q"), y2=alt.Y2("high")
        )
    yield chart.mark_text(dy=-7, fontWeight="bold").encode(
        x=alt.X("place:O"), y=alt.Y("high:Q"), text=alt.Text("text:N")
    )
