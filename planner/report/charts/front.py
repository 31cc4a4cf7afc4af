"""Peak memory against speed: the front of a search, and behind it every legal shape with its layers
spread evenly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from constraints.axes import AXES, Axis
from planner.cost import fields as f
from planner.job.errors import UsageError
from planner.job.pool import SeveralTypes
from planner.job.quantities import GIB, gib, percent_sure, seconds
from planner.job.request import Request
from planner.predict.command_line import evaluate_command
from planner.predict.configuration import decided_request, row_degrees
from planner.predict.plan import Degrees, Plan
from planner.predict.plan_text import configuration_text
from planner.report.charts.drawing import Specification, limit_line, table
from planner.report.charts.labels import Labelled, Span, label_columns, words_beside
from planner.report.charts.templates import filled
from planner.search.result import SearchResult
from planner.search.shares import CostedJob, cost_job

# Most dots on a page. If there are more, both axes are divided into this many cells, and only the
# fastest shape of each cell is drawn.
MOST_DOTS = 8_000
_CELLS = 80
# Slower or heavier shapes are not drawn: shares of the best plan's speed and of the memory limit.
_SLOWEST, _HEAVIEST = 0.3, 1.25

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A shape that the search considered: its peak memory in GiB, its tokens/s per GPU, its degrees
    and its recompute mode."""

    gib: float
    tokens_per_s: float
    degrees: Degrees
    recompute: str


@dataclass(frozen=True, slots=True)
class CandidateDots:
    """The dots to draw. `legal`: number of all legal shapes, drawn or not. `is_thinned`: whether
    dots were left out because they lie close to others."""

    dots: tuple[Candidate, ...] = ()
    legal: int = 0
    is_thinned: bool = False


def costed_or_reason(result: SearchResult) -> tuple[CostedJob | None, str]:
    """All legal shapes of a search, costed again, and an empty text. If they cannot be costed or
    there is no plan: None and the reason."""
    if isinstance(result.request.gpu_words, SeveralTypes):
        return None, "its GPUs are of several types"
    if not result.plans:
        return None, "there is no plan to compare them with"
    try:
        return cost_job(result.request.resolve().decided()[0]), ""
    except UsageError as error:
        return None, str(error)


def speeds(costed: CostedJob) -> Floats:
    """Tokens/s per GPU of every legal shape."""
    job, columns = costed.job, costed.candidates.columns
    step_s = costed.costed.steps[:, f.STEP_TIME]
    found: Floats = columns["gbs"] * job.sample_tokens / step_s / job.cluster.num_gpus
    return found


def peaks_gib(costed: CostedJob) -> Floats:
    """Peak memory of a GPU for every legal shape, GiB."""
    found: Floats = costed.costed.steps[:, f.STEP_PEAK_BYTES] / GIB
    return found


def candidates(costed: CostedJob, result: SearchResult) -> CandidateDots:
    """The shapes that are neither far slower than the fastest plan nor far above the memory limit.
    If there are more than MOST_DOTS, only the fastest of those that lie close together is kept."""
    fastest = max(plan.tokens_per_s_per_gpu for plan in result.plans)
    limit = costed.job.hbm_limit_bytes / GIB
    speed, size = speeds(costed), peaks_gib(costed)
    near = np.flatnonzero((speed > _SLOWEST * fastest) & (size < _HEAVIEST * limit))
    drawn = near
    if len(near) > MOST_DOTS:
        order = near[np.argsort(-speed[near], kind="stable")]
        cells = np.stack((size[order] / limit, speed[order] / fastest), axis=1)
        _, first = np.unique((cells * _CELLS).astype(np.int64), axis=0, return_index=True)
        drawn = order[np.sort(first)]
    dots = tuple(
        Candidate(float(size[row]), float(speed[row]), *shape_of(costed, row))
        for row in drawn.tolist()
    )
    return CandidateDots(dots, len(speed), len(drawn) < len(near))


def shape_of(costed: CostedJob, row: int) -> tuple[Degrees, str]:
    """Degrees and recompute mode of a legal shape."""
    columns = costed.candidates.columns
    mode = costed.job.recompute[int(columns["recompute"][row])]
    return row_degrees(columns, row), mode.name


@dataclass(frozen=True, slots=True)
class FrontPlan:
    """A plan of the front, or a `riskier` one that is less likely to fit than was asked for: its
    peak memory in GiB and its tokens/s per GPU. `label`: its number and, for some plans, the reason
    to consider it. `ends`: the ends of its 80 % intervals in the same units, drawn if it has a
    label. `command`: the command that evaluates a riskier plan again."""

    number: int
    label: str
    gib: float
    tokens_per_s: float
    text: str
    ends: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    command: str = ""


def front_plans(
    plans: Sequence[Plan], labels: Mapping[int, str], names: Sequence[str] = ()
) -> tuple[FrontPlan, ...]:
    """Every plan with its number, some with a label. `names`: the cluster of each plan, if there
    are several clusters."""
    found = []
    for number, plan in enumerate(plans, start=1):
        where = f" on {names[number - 1]}" if names else ""
        label = labels.get(number, "")
        found.append(_front_plan(plan, number, label, f"plan {number}{where}"))
    return tuple(found)


def end_labels(plans: Sequence[Plan]) -> dict[int, str]:
    """Labels for the fastest and the lightest plan, by plan number; for a single plan, `this plan`.
    They are used if no plan is recommended."""
    numbered = list(enumerate(plans, start=1))
    fastest, _ = min(numbered, key=lambda one: one[1].step_time_s)
    if len(numbered) == 1:
        return {1: "this plan"}
    lightest, _ = min(numbered, key=lambda one: one[1].peak_bytes)
    return {lightest: f"{lightest} lightest"} | {fastest: f"{fastest} fastest"}


def riskier_plans(results: Sequence[SearchResult]) -> tuple[FrontPlan, ...]:
    """Plans that fit with a lower probability than was asked for. Their number is 0, because plan
    files do not number them."""
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
    speed, peak, step = plan.tokens_per_s_per_gpu, plan.peak_interval, plan.step_time
    slow, fast = (speed * plan.step_time_s / end for end in (step.high, step.low))
    ends = (peak.low / GIB, peak.high / GIB, slow, fast)
    return FrontPlan(number, label, plan.peak_bytes / GIB, speed, text, ends)


# Dots are smaller and fainter if there are more than this.
_MANY_DOTS = 1500


def front_chart(
    plans: Sequence[FrontPlan],
    riskier: Sequence[FrontPlan],
    dots: Sequence[Candidate],
    limit_bytes: float | None,
    marked: int = 1,
    before: Sequence[FrontPlan] = (),
) -> Specification:
    """Peak memory against speed: candidates as faint dots, plans joined by a line, riskier plans as
    hollow dots, and the front `before` as a dashed line. The page sets the parameter `selected` to
    a plan's number, at first to `marked`, and `picked` to any other dot that the user clicks."""
    modes = list(dict.fromkeys(dot.recompute for dot in dots))
    many = len(dots) > _MANY_DOTS
    named = _named_table(plans, [*riskier, *dots], limit_bytes)
    return filled(
        "front",
        marked=marked,
        first=_front_table(plans[:1]),
        plans=_front_table(plans),
        named=named,
        labels=words_beside(named, "gib", "speed"),
        riskier=_front_table(riskier) if riskier else None,
        before=_front_table(before) if before else None,
        dots=_dots_table(dots, modes) if dots else None,
        # The page writes a dot's text from its degrees, which makes it many times smaller.
        modes=modes,
        degrees=" + ".join(map(_degree_expression, AXES.values())),
        dot_size=12 if many else 22,
        dot_opacity=0.25 if many else 0.35,
        limit=None if limit_bytes is None else limit_line(limit_bytes, "x"),
    )


def _front_table(plans: Sequence[FrontPlan]) -> Specification:
    return table(
        {
            "number": plan.number, "radius": 110 if plan.label else 45,
            "gib": plan.gib, "speed": plan.tokens_per_s, "text": plan.text,
        } | ({"command": plan.command} if plan.command else {})
        for plan in plans
    )  # fmt: skip


def _named_table(
    plans: Sequence[FrontPlan], around: Sequence[FrontPlan | Candidate], limit_bytes: float | None
) -> Specification:
    """Plans with a label: their 80 % intervals, and the positions of their labels. `around`:
    everything else in the picture."""
    every = [(one.gib, one.tokens_per_s) for one in (*plans, *around)]
    limit = () if limit_bytes is None else (limit_bytes / GIB,)
    ends = [plan.ends for plan in plans if plan.label]
    wide = Span((*(one[0] for one in every), *limit, *(end for one in ends for end in one[:2])))
    high = Span((*(one[1] for one in every), *(end for one in ends for end in one[2:])))
    names = ("lightest", "heaviest", "slowest", "fastest")
    columns = label_columns([_labelled(plan) for plan in plans], wide, high)
    return table(
        {"gib": plan.gib, "speed": plan.tokens_per_s, "bold": True,
         **dict(zip(names, plan.ends, strict=True)), **words}
        for plan, words in zip(plans, columns, strict=True) if plan.label
    )  # fmt: skip


def _labelled(plan: FrontPlan) -> Labelled:
    if not plan.label:
        return Labelled(plan.gib, plan.tokens_per_s)
    return Labelled(plan.gib, plan.tokens_per_s, plan.label, str(plan.number), plan.ends)


def _dots_table(dots: Sequence[Candidate], modes: list[str]) -> Specification:
    return table(
        {"gib": dot.gib, "speed": dot.tokens_per_s, "mode": modes.index(dot.recompute)}
        | dot.degrees.model_dump()
        for dot in dots
    )


def _degree_expression(axis: Axis) -> str:
    """A Vega expression that writes one degree of a dot, in the way in which `Degrees` writes it:
    always, only if it is above its least value, or never."""
    shown = f"'{axis.letter or axis.name}' + datum.{axis.name} + ' '"
    changed = f"(datum.{axis.name} > {axis.least} ? {shown} : '')"
    return {"always": shown, "changed": changed, "never": "''"}[axis.shown]
