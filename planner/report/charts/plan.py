"""Draws a plan: the front it lies on, memory by stage, time, the schedule, the cluster; and what
two degrees leave."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from constraints.axes import AXES, Axis
from planner.cost.terms import MEMORY_GROUPS
from planner.job.quantities import GIB, seconds
from planner.report.charts.drawing import GREY, PALETTE, Row, Specification, colours, filled, table
from planner.report.figures import schedule
from planner.report.figures.candidates import Candidate
from planner.report.figures.heat import HeatMap
from planner.report.figures.plan import GROUP_KINDS, BarPart, DrawnCluster, FrontPlan

_BAR_HEIGHT, _CELL_HEIGHT, _GPU_HEIGHT = 24, 34, 26
# Beyond so many dots each is smaller and fainter.
_MANY_DOTS = 1500
_KIND_COLOURS = dict(
    zip(
        schedule.KINDS,
        ("#0072b2", "#009e73", "#56b4e9", "#e69f00", "#d55e00", "#cc79a7", "#bbbbbb"),
        strict=True,
    )
)
_CLUSTER_COLOURS = tuple(colour for colour in PALETTE if colour != GREY)
_GROUP_LABELS = {
    "pp": "pipeline stage", "tp": "tensor group", "cp": "context group", "ep": "expert group",
    "dp": "data-parallel group",
}  # fmt: skip


def front_chart(
    plans: Sequence[FrontPlan],
    riskier: Sequence[FrontPlan],
    dots: Sequence[Candidate],
    limit_bytes: float | None,
    marked: int = 1,
    before: Sequence[FrontPlan] = (),
) -> Specification:
    """Peak memory against speed: candidates as faint dots, plans joined by their front, riskier
    ones hollow, the front `before` dashed. The page sets the parameter `selected` to a plan's
    number, `marked` at first, and `picked` to any other dot that was clicked."""
    modes = list(dict.fromkeys(dot.recompute for dot in dots))
    many = len(dots) > _MANY_DOTS
    return filled(
        "front",
        marked=marked,
        first=_front_table(plans[:1]),
        plans=_front_table(plans),
        riskier=_front_table(riskier) if riskier else None,
        before=_front_table(before) if before else None,
        dots=_dots_table(dots, modes) if dots else None,
        # The page makes a dot's text of its degrees: many times smaller.
        modes=modes,
        degrees=" + ".join(map(_degree_expression, AXES.values())),
        dot_size=12 if many else 22,
        dot_opacity=0.25 if many else 0.35,
        limit=None if limit_bytes is None else _limit(limit_bytes, "x"),
    )


def _front_table(plans: Sequence[FrontPlan]) -> Specification:
    return table(
        {
            "number": plan.number, "label": f" {plan.label}", "radius": 110 if plan.label else 45,
            "gib": plan.gib, "speed": plan.tokens_per_s, "text": plan.text,
        } | ({"command": plan.command} if plan.command else {})
        for plan in plans
    )  # fmt: skip


def _dots_table(dots: Sequence[Candidate], modes: list[str]) -> Specification:
    return table(
        {"gib": dot.gib, "speed": dot.tokens_per_s, "mode": modes.index(dot.recompute)}
        | dot.degrees.model_dump()
        for dot in dots
    )


def _degree_expression(axis: Axis) -> str:
    """A degree of a dot as the text of `Degrees` has it."""
    shown = f"'{axis.letter or axis.name}' + datum.{axis.name} + ' '"
    changed = f"(datum.{axis.name} > {axis.least} ? {shown} : '')"
    return {"always": shown, "changed": changed, "never": "''"}[axis.shown]


def _limit(limit_bytes: float, channel: str) -> Specification:
    """The dashed line of the memory that may be used, with its words."""
    place = table([{"limit": limit_bytes / GIB, "text": "HBM that may be used"}])
    return filled("limit", place=place, channel=channel)


def stages_chart(bars: Sequence[BarPart], limit_bytes: float) -> Specification:
    """Memory of every stage at its peak, stacked by term, against the HBM line."""
    names = list(MEMORY_GROUPS)
    used = [name for name in names if any(bar.part == name for bar in bars)]
    return filled(
        "stages",
        bars=table(_bar_rows(bars)),
        groups=names,
        colours=colours(used, [PALETTE[names.index(name)] for name in used]),
        limit=_limit(limit_bytes, "y"),
    )


def waterfall_chart(bars: Sequence[BarPart], interval: tuple[float, float]) -> Specification:
    """Terms of the step time one after the other, the whole step below with its interval."""
    labels, (low, high) = [bar.label for bar in bars], interval
    rows = [{**row, "right": row["end"]} for row in _bar_rows(bars)]
    rows[-1]["right"] = high
    return filled(
        "waterfall",
        height=_BAR_HEIGHT * len(bars),
        labels=labels,
        bars=table(rows),
        whisker=table([{"label": labels[-1], "low": low, "high": high}]),
        # Space for the words, on a phone too.
        end=1.25 * high,
    )


def _bar_rows(bars: Sequence[BarPart]) -> list[Row]:
    return [asdict(bar) | {"amount": seconds(bar.end - bar.start)} for bar in bars]


def schedule_chart(gantt: schedule.Gantt) -> Specification:
    """What every stage does when; what is grey is the bubble."""
    kinds = [kind for kind in schedule.KINDS if any(bar.kind == kind for bar in gantt.bars)]
    stages = 1 + max(bar.stage for bar in gantt.bars)
    passes = (
        {
            "s": bar.stage, "k": kinds.index(bar.kind), "a": round(bar.start_s, 4),
            "b": round(bar.end_s, 4),
            "c": bar.chunk, "m": bar.microbatch,
        }
        for bar in gantt.bars
    )  # fmt: skip
    return filled(
        "schedule",
        height=max(120, min(_BAR_HEIGHT, 900 // stages) * stages),
        passes=table(passes),
        kinds=kinds,
        colours=colours(kinds, [_KIND_COLOURS[kind] for kind in kinds]),
        # Where passes are narrow, borders would hide them.
        bordered_from=4 * len(gantt.bars) // stages,
    )


def cluster_chart(cluster: DrawnCluster) -> Specification:
    """GPUs on their nodes, coloured by a group; pointing at one shows the group it is in."""
    shown = {_GROUP_LABELS[kind]: f"g{GROUP_KINDS.index(kind)}" for kind in cluster.kinds}
    gpus = (
        {"x": gpu.column, "y": gpu.row, "text": gpu.text}
        | {f"g{index}": group for index, group in enumerate(gpu.groups)}
        for gpu in cluster.gpus
    )
    return filled(
        "cluster",
        height=_GPU_HEIGHT * (1 + max(gpu.row for gpu in cluster.gpus)),
        gpus=table(gpus),
        columns=list(range(1 + max(gpu.column for gpu in cluster.gpus))),
        groups=list(shown),
        first=next(iter(shown)),
        choice=", ".join(f"'{name}': datum.{field}" for name, field in shown.items()),
        count=len(_CLUSTER_COLOURS),
        colours=colours(range(len(_CLUSTER_COLOURS)), _CLUSTER_COLOURS),
    )


def heat_chart(found: HeatMap, choose: bool = True) -> Specification:
    """A cell for each pair of values of two degrees; `choose`: lists below the picture change
    which."""
    cells = [cell for cell in found.cells if choose or {cell.a, cell.b} == set(found.first)]
    across, up = found.first
    return filled(
        "heat",
        height=_CELL_HEIGHT * len(found.values[up]),
        cells=table(map(asdict, cells)),
        across=across,
        up=up,
        choose=choose,
        degrees=list(found.values),
        # `tp 4`: the cells' places as the values that they stand for.
        values=json.dumps(dict(found.values)),
    )
