"""Charts of a plan, from its plan file only: memory by stage, time of a step, and the GPUs on their
nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from planner.cost.terms import MEMORY_GROUPS
from planner.job.quantities import GIB, gib, seconds, share
from planner.predict.plan import Degrees, Plan
from planner.report.charts.drawing import BAR_HEIGHT, Row, Specification, colours, limit_line, table
from planner.report.charts.memory import stage_sizes
from planner.report.charts.templates import GREY, PALETTE, filled
from planner.search.explanation import time_terms

# Most GPUs that are drawn, and fewest in a row of the drawing.
MOST_GPUS = 1024
_ROW_GPUS = 32
GROUP_KINDS = ("pp", "tp", "cp", "ep", "dp")


@dataclass(frozen=True, slots=True)
class BarPart:
    """A part of a bar, from `start` to `end`."""

    label: str
    part: str
    start: float
    end: float
    text: str


@dataclass(frozen=True, slots=True)
class DrawnGpu:
    """One GPU: its place in the drawing (column and row), its rank, the number of its group for
    each of GROUP_KINDS, and its tooltip."""

    column: int
    row: int
    rank: int
    groups: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class DrawnCluster:
    """GPUs in rank order. `left_out`: number of GPUs that are not drawn."""

    gpus: tuple[DrawnGpu, ...]
    kinds: tuple[str, ...]
    left_out: int


def stage_bars(plan: Plan) -> tuple[BarPart, ...]:
    """Memory of every pipeline stage at its peak, GiB, stacked by group of terms."""
    bars = []
    for stage in plan.stages:
        start = 0.0
        for group, size in zip(MEMORY_GROUPS, stage_sizes(stage), strict=True):
            if size:
                end = start + size / GIB
                text = f"stage {stage.stage}, {group}: {gib(size, 2)} GiB"
                bars.append(BarPart(str(stage.stage), group, start, end, text))
                start = end
    return tuple(bars)


def waterfall(plan: Plan) -> tuple[BarPart, ...]:
    """Terms of the step time in seconds. Each starts where the one above it ends; the whole step
    comes last."""
    bars, start = [], 0.0
    for term in time_terms(plan):
        text = f"{term.label}: {seconds(term.amount)}, {share(term.share)}"
        end = start + term.amount
        bars.append(BarPart(term.label, "term", start, end, text))
        start = end
    low, high = plan.step_time.low, plan.step_time.high
    text = f"step: {seconds(start)} ({seconds(low)} to {seconds(high)} with 80 % probability)"
    return (*bars, BarPart("step", "step", 0.0, start, text))


def cluster_of(degrees: Degrees, gpus_per_node: int) -> DrawnCluster:
    """Ranks on their nodes, in the order tp-cp-ep-dp-pp that `planner.cost.placement` assumes."""
    node_gpus = min(gpus_per_node, degrees.gpus)
    nodes_a_row = max(1, _ROW_GPUS // node_gpus)
    drawn = min(degrees.gpus, MOST_GPUS)
    gpus = tuple(_gpu(rank, degrees, node_gpus, nodes_a_row) for rank in range(drawn))
    kinds = tuple(kind for kind in GROUP_KINDS if getattr(degrees, kind) > 1)
    return DrawnCluster(gpus, kinds or ("dp",), degrees.gpus - drawn)


def _gpu(rank: int, degrees: Degrees, node_gpus: int, nodes_a_row: int) -> DrawnGpu:
    node, inside = divmod(rank, node_gpus)
    row, place = divmod(node, nodes_a_row)
    shown = _strides(degrees)
    if degrees.ep == 1:
        del shown["ep"]
    where = ", ".join(f"{kind} {rank // stride % size}" for kind, (stride, size) in shown.items())
    column = place * (node_gpus + 1) + inside
    return DrawnGpu(column, row, rank, _groups(rank, degrees), f"rank {rank}, node {node}: {where}")


def _strides(degrees: Degrees) -> dict[str, tuple[int, int]]:
    """For each kind of group (tp, cp, dp, pp, ep): the distance between the ranks of neighbouring
    members, and the number of members. A rank has the position t in its tensor group, c in its
    context group, d in its data group, and p in the pipeline:

        rank = t + tp (c + cp (d + dp p))

    Experts are spread over the ranks of the data, context and tensor groups.
    """
    tp, cp, dp = degrees.tp, degrees.cp, degrees.dp
    return {
        "tp": (1, tp), "cp": (tp, cp), "dp": (tp * cp, dp), "pp": (tp * cp * dp, degrees.pp),
        "ep": (degrees.etp, degrees.ep),
    }  # fmt: skip


def _groups(rank: int, degrees: Degrees) -> tuple[int, ...]:
    """For each of GROUP_KINDS, the number of the group to which the rank belongs. For `pp` it is
    the number of its stage instead, because ranks of a stage hold the same layers."""
    strides = _strides(degrees)
    of = {
        kind: rank % stride + stride * (rank // (stride * size))
        for kind, (stride, size) in strides.items()
    }
    of["pp"] = rank // strides["pp"][0]
    return tuple(of[kind] for kind in GROUP_KINDS)


_GPU_HEIGHT = 26
# A stage's bar as a share of the picture's width, at most.
_MOST_BAR = 0.18
_CLUSTER_COLOURS = tuple(colour for colour in PALETTE if colour != GREY)
_GROUP_LABELS = {
    "pp": "pipeline stage", "tp": "tensor group", "cp": "context group", "ep": "expert group",
    "dp": "data-parallel group",
}  # fmt: skip


def stages_chart(bars: Sequence[BarPart], limit_bytes: float) -> Specification:
    """Memory of every stage at its peak, stacked by purpose, with a line at the limit."""
    names = list(MEMORY_GROUPS)
    used = [name for name in names if any(bar.part == name for bar in bars)]
    return filled(
        "stages",
        bars=table(_bar_rows(bars)),
        # One or two stages would else be as wide as the picture.
        band=min(0.9, _MOST_BAR * len({bar.label for bar in bars})),
        groups=names,
        colours=colours(used, [PALETTE[names.index(name)] for name in used]),
        limit=limit_line(limit_bytes, "y"),
    )


def waterfall_chart(bars: Sequence[BarPart], interval: tuple[float, float]) -> Specification:
    """Terms of the step time one after the other, and below them the whole step with its
    interval."""
    labels, (low, high) = [bar.label for bar in bars], interval
    rows = _bar_rows(bars)
    return filled(
        "waterfall",
        height=BAR_HEIGHT * len(bars),
        labels=labels,
        bars=table(rows),
        whisker=table([{"label": labels[-1], "low": low, "high": high}]),
        # Room for the labels, on a phone too.
        end=1.25 * high,
    )


def _bar_rows(bars: Sequence[BarPart]) -> list[Row]:
    return [asdict(bar) | {"amount": seconds(bar.end - bar.start)} for bar in bars]


def cluster_chart(cluster: DrawnCluster) -> Specification:
    """GPUs on their nodes, coloured by group. Pointing at a GPU highlights its group."""
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
