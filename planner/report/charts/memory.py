"""The memory of a step as a chart: a bar for each phase, stacked by purpose."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.cost.terms import (
    BESIDE_TENSORS,
    LIVE_TERMS,
    MEMORY_GROUPS,
    MEMORY_TERMS,
    MEMORY_WORDS,
    OTHER_TENSORS,
)
from planner.job.quantities import GIB, gib
from planner.predict.memory.account import Footprint, StageAccount
from planner.predict.memory.terms import phase_rows
from planner.predict.plan import StageMemory
from planner.predict.plan_text import degrees_text
from planner.report.charts.drawing import Row, Specification, colours, subtitle_lines, table
from planner.report.charts.templates import PALETTE, filled
from planner.report.memory import peak_text, phase_text, total_sentence

# The group of each term of a phase and of a plan's stage (`StageMemory`), by the term's name.
_GROUP_OF = {
    **{term.name: term.group for term in MEMORY_TERMS},
    **{name: term.group for name, term in LIVE_TERMS.items()},
}
# The limit is drawn only if the bars reach this share of it; otherwise they would be too small to
# see.
_DWARFED = 0.25
_MOST_LABELS = 40


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar for a phase. `sizes`: bytes, one for each of MEMORY_GROUPS."""

    step: str
    phase: str
    sizes: tuple[float, ...]
    is_peak: bool

    @property
    def total_bytes(self) -> float:
        return sum(self.sizes)


@dataclass(frozen=True, slots=True)
class StagePanel:
    """The bars of one stage. `interval`: 80 % interval of the total, only for the heaviest
    stage."""

    title: str
    bars: tuple[Bar, ...]
    limit_bytes: float
    interval: tuple[float, float] | None

    @property
    def shows_limit(self) -> bool:
        """Whether the limit is drawn. It is not if the bars would be too small to see next to
        it."""
        ends = (self.interval[1],) if self.interval else ()
        highest: float = max((*(bar.total_bytes for bar in self.bars), *ends))
        return highest > _DWARFED * self.limit_bytes

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels under the bars. A long warm-up is labelled only at its first and last
        forward."""
        if len(self.bars) <= _MOST_LABELS:
            return tuple(bar.phase for bar in self.bars)
        return tuple(
            bar.phase if bar.is_peak or _is_end_of_warm_up(bar.phase) else "" for bar in self.bars
        )


@dataclass(frozen=True, slots=True)
class MemoryFigure:
    """Title, a sentence with the verdict, one panel for each stage, and a note."""

    title: str
    subtitle: str
    panels: tuple[StagePanel, ...]
    note: str


def _is_end_of_warm_up(phase: str) -> bool:
    """Whether a phase is the first or last forward of a warm-up (`forward 3/8`), or not a forward
    of a warm-up at all."""
    words = phase.removeprefix("forward ").partition(",")[0]
    index, slash, count = words.partition("/")
    return not slash or index in ("1", count)


def memory_figure(footprint: Footprint, stages: Sequence[StageAccount]) -> MemoryFigure:
    """The figure of some stages of a configuration."""
    configuration = footprint.configuration
    job, degrees = configuration.job, configuration.degrees
    return MemoryFigure(
        f"{job.model.name} on {degrees.gpus:,} {job.cluster.gpu.name}, {job.framework.name}",
        f"{degrees_text(degrees)}, {degrees.mbs:,} × {job.seq:,} tokens: "
        f"{total_sentence(footprint)}",
        tuple(memory_panel(footprint, account) for account in stages),
        f"Whisker: 80 % interval of the total, from {footprint.interval.family}. "
        "Memory outside tensors is drawn as it is at the peak.",
    )


def memory_panel(footprint: Footprint, account: StageAccount) -> StagePanel:
    outside = sum(account.outside.values())
    bars = tuple(
        Bar(
            "step 1" if row.step == "first" else "step 2 and later",
            phase_text(row.phase.name),
            group_sizes(dict(row.phase.terms), outside),
            row.is_peak,
        )
        for row in phase_rows(account)
    )
    interval = footprint.interval
    return StagePanel(
        f"Stage {account.stage} of {len(footprint.stages)}, peak: {peak_text(account)}",
        bars,
        footprint.limit_bytes,
        (interval.low, interval.high) if account is footprint.heaviest else None,
    )


def group_sizes(terms: Mapping[str, float], outside: float = 0.0) -> tuple[float, ...]:
    """Bytes of each of MEMORY_GROUPS. `outside`: bytes that are not tensors, if `terms` does not
    contain them."""
    sizes = dict.fromkeys(MEMORY_GROUPS, 0.0)
    for name, size in terms.items():
        sizes[_GROUP_OF.get(name, OTHER_TENSORS)] += size
    sizes[BESIDE_TENSORS] += outside
    return tuple(sizes.values())


def stage_sizes(stage: StageMemory) -> tuple[float, ...]:
    """The memory of a plan's stage at its peak, in bytes, for each of MEMORY_GROUPS."""
    return group_sizes({name: float(getattr(stage, name)) for name in MEMORY_WORDS})


_NAMES = list(MEMORY_GROUPS)
# Height of a line of text as a share of the chart's height, and the position across the chart from
# which on centred text would leave it.
_WORDS_HIGH, _SIDE = 0.09, 0.6


def memory_chart(figure: MemoryFigure) -> Specification:
    """The whole figure, one panel below the other."""
    used = [name for panel in figure.panels for name in _used(panel)]
    return {
        "vconcat": [memory_panel_chart(panel, panel.title, used) for panel in figure.panels],
        "resolve": {"scale": {"color": "shared"}},
        "title": {
            "text": figure.title,
            "subtitle": [*subtitle_lines(figure.subtitle), *subtitle_lines(figure.note)],
        },
    }


def memory_panel_chart(
    panel: StagePanel, title: str = "", used: Sequence[str] | None = None
) -> Specification:
    """One stage: a bar for each phase, with a gap between the two steps; a legend of the groups in
    `used`; a whisker for the interval of the heaviest bar; and the limit, as a line if it is within
    the chart."""
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
        limit=table([_limit(panel)]),
        shows_limit=panel.shows_limit,
    )


def _limit(panel: StagePanel) -> Row:
    """The memory limit in GiB, its label, and a shorter label for a phone. If the chart does not
    reach the limit, the label says so."""
    size = panel.limit_bytes / GIB
    beyond = "" if panel.shows_limit else " (beyond the top)"
    text = f"- - HBM that may be used: {size:.1f} GiB{beyond}"
    return {"limit": size, "text": text, "brief": f"- - HBM {size:.1f} GiB{beyond}"}


def _used(panel: StagePanel) -> list[str]:
    """Names of the groups that are not empty."""
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
    """For each of the two steps, its name and the position of its first bar."""
    first: dict[str, int] = {}
    for place, bar in zip(places, panel.bars, strict=True):
        first.setdefault(bar.step, place)
    return ({"place": place, "text": name} for name, place in first.items())


def _peak(panel: StagePanel, places: list[int]) -> Row:
    """The label of the heaviest bar: its total and, if the panel has an interval, the interval;
    with the position of the label and the ends of the whisker, GiB."""
    place, bar = next(pair for pair in zip(places, panel.bars, strict=True) if pair[1].is_peak)
    text, (low, high) = f"{gib(bar.total_bytes)} GiB", panel.interval or (bar.total_bytes,) * 2
    if panel.interval is not None:
        text += f" ({gib(low)} to {gib(high)})"
    # The label at the end of the whisker moves above the line of the limit if that line would cross
    # it.
    is_struck = high <= panel.limit_bytes <= high + _WORDS_HIGH * max(high, panel.limit_bytes)
    along = place / places[-1]
    return {
        "place": place, "low": low / GIB, "high": high / GIB,
        "words": (panel.limit_bytes if is_struck else high) / GIB, "text": text,
        "align": "right" if along > _SIDE else "left" if along < 1.0 - _SIDE else "center",
    }  # fmt: skip
