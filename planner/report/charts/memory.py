"""Draws a step's memory: bars of phases, stacked by what holds them, against the limit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from planner.cost.terms import MEMORY_GROUPS
from planner.job.quantities import GIB, gib
from planner.report.charts.drawing import FILE_WIDTH, Row, Specification, Width, colours, table
from planner.report.charts.templates import PALETTE, filled
from planner.report.figures.memory import MemoryFigure, StagePanel

_NAMES = list(MEMORY_GROUPS)


def memory_chart(figure: MemoryFigure) -> Specification:
    """The whole picture, one panel below the other."""
    used = [name for panel in figure.panels for name in _used(panel)]
    return {
        "vconcat": [panel_chart(panel, FILE_WIDTH, panel.title, used) for panel in figure.panels],
        "resolve": {"scale": {"color": "shared"}},
        "title": {"text": figure.title, "subtitle": [figure.subtitle, figure.note]},
    }


def panel_chart(
    panel: StagePanel, width: Width, title: str = "", used: Sequence[str] | None = None
) -> Specification:
    """One stage: a bar for each phase, a gap between the two steps; a legend of the groups that
    are `used`; the whisker of the heaviest bar's interval; the limit, of which the words alone
    are shown if it lies beyond the top."""
    places = _places(panel)
    names = [name for name in _NAMES if name in (_used(panel) if used is None else used)]
    return filled(
        "memory",
        width=width,
        title=title,
        told=panel.title,
        domain=list(range(places[-1] + 1)),
        labels=json.dumps(dict(zip(map(str, places), panel.labels, strict=True))),
        bars=table(_rows(panel, places)),
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


def _rows(panel: StagePanel, places: list[int]) -> Iterator[Row]:
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
