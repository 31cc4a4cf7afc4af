"""Pictures of a plan, from its plan file alone: the front, memory by stage, time, the cluster."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from planner.cost.terms import MEMORY_GROUPS
from planner.job.quantities import GIB, gib, percent_sure, seconds, share
from planner.job.request import Request
from planner.predict.command_line import evaluate_command
from planner.predict.configuration import decided_request
from planner.predict.plan import Degrees, Plan
from planner.predict.plan_text import configuration_text
from planner.report.figures.memory import stage_sizes
from planner.search.explanation import time_terms
from planner.search.result import SearchResult

# GPUs of the drawn part of a cluster, and how many a row of the drawing holds at least.
MOST_GPUS = 1024
_ROW_GPUS = 32
GROUP_KINDS = ("pp", "tp", "cp", "ep", "dp")


@dataclass(frozen=True, slots=True)
class FrontPlan:
    """A plan of the front, or a `riskier` one beyond it: peak of a GPU against tokens/s of a GPU.
    `label`: its number, if it is shown in full; `command`: what costs a riskier one again."""

    number: int
    label: str
    gib: float
    tokens_per_s: float
    text: str
    command: str = ""


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
    """A GPU of the cluster: its place in the drawing, and its rank's group of every kind."""

    column: int
    row: int
    rank: int
    groups: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class DrawnCluster:
    """GPUs in rank order; `left_out`: those that are not drawn."""

    gpus: tuple[DrawnGpu, ...]
    kinds: tuple[str, ...]
    left_out: int


def front_plans(
    plans: Sequence[Plan], labelled: Collection[int], names: Sequence[str] = ()
) -> tuple[FrontPlan, ...]:
    """Every plan with its number, those `labelled` with a label; `names`: the cluster of each,
    where there are several."""
    found = []
    for number, plan in enumerate(plans, start=1):
        where = f" on {names[number - 1]}" if names else ""
        label = str(number) if number in labelled else ""
        found.append(_front_plan(plan, number, label, f"plan {number}{where}"))
    return tuple(found)


def riskier_plans(results: Sequence[SearchResult]) -> tuple[FrontPlan, ...]:
    """Plans that fit less surely than was asked: number 0, as they have none."""
    return tuple(_riskier(result.request, plan) for result in results for plan in result.riskier)


def _riskier(request: Request, plan: Plan) -> FrontPlan:
    found = _front_plan(plan, 0, "", f"fits with {percent_sure(plan.fit_probability)}")
    request = decided_request(request, plan)
    command = evaluate_command(request, plan.degrees, plan.recompute, plan.layout)
    return replace(found, command=command)


def _front_plan(plan: Plan, number: int, label: str, name: str) -> FrontPlan:
    text = (
        f"{name}: {configuration_text(plan)}; {seconds(plan.step_time_s)}, "
        f"{gib(plan.peak_bytes)} GiB"
    )
    return FrontPlan(number, label, plan.peak_bytes / GIB, plan.tokens_per_s_per_gpu, text)


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
    """Terms of the step time, each where the ones above it end, s; the whole step last."""
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
    """Ranks on their nodes, in the order tp-cp-ep-dp-pp that `planner.cost.placement` costs."""
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
    """How far the members of a group of each kind lie apart, and how many they are:
    rank = t + tp (c + cp (d + dp p)), and experts within data, context and tensor groups."""
    tp, cp, dp = degrees.tp, degrees.cp, degrees.dp
    return {
        "tp": (1, tp), "cp": (tp, cp), "dp": (tp * cp, dp), "pp": (tp * cp * dp, degrees.pp),
        "ep": (degrees.etp, degrees.ep),
    }  # fmt: skip


def _groups(rank: int, degrees: Degrees) -> tuple[int, ...]:
    """Number of the group of each of GROUP_KINDS that a rank is in. Of `pp` it is the stage: the
    ranks that hold the same layers."""
    strides = _strides(degrees)
    of = {
        kind: rank % stride + stride * (rank // (stride * size))
        for kind, (stride, size) in strides.items()
    }
    of["pp"] = rank // strides["pp"][0]
    return tuple(of[kind] for kind in GROUP_KINDS)
