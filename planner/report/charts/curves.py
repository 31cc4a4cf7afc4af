"""Charts of curves and points on two axes, for scaling studies and comparisons of clusters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from planner.compare.budget import Budget
from planner.compare.buying import Buying
from planner.compare.interval import Range
from planner.compare.laws import load_laws
from planner.compare.results import Comparison, Run, Scaling, Taken
from planner.compare.settings import BASIS_NAMES
from planner.job.quantities import short_count
from planner.predict.plan_text import degrees_text
from planner.report.charts.drawing import Row, Specification, colours, subtitle_lines, table
from planner.report.charts.labels import Labelled, Span, label_columns, words_beside
from planner.report.charts.templates import BLUE, PALETTE, VERMILION, filled
from planner.report.said import ranged
from planner.report.study_words import budget_headline, headline, taken_text

SERIES_NAMES = {"fixed": "fixed batch (strong)", "scaled": "batch grows (weak)"}
_FRONT, _DOMINATED = "no other is both faster and cheaper", "others"
# The chart spans this factor on either side of the answer and the optimum, with this many sizes.
_SPAN, _STEPS = 6.0, 24
# Number of parts into which a line between two points is divided.
_PARTS = 16
_COLOURS = (BLUE, VERMILION)
TAKE = "take "
# A single panel is as wide as other charts.
_ALONE = {"width": 860, "height": 380}


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A point of a series. `low`, `high`: ends of its 80 % interval on the vertical axis; `left`,
    `right`: on the horizontal axis, NaN for none. All points of a series have the same colour.
    `text`: its tooltip. A `marked` point gets a ring. `label`: text next to the point; on narrow
    pages only if the point is `named` or `marked`."""

    series: str
    x: float
    y: float
    low: float
    high: float
    text: str
    marked: bool = False
    label: str = ""
    left: float = math.nan
    right: float = math.nan
    named: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes; the points of a series are consecutive. `joined`: the only series whose
    points are joined by a line; empty joins all. `ideal`: the line of perfect scaling, if there is
    one. `from_zero`: whether the vertical axis begins at zero. `limits`: upper limits on the two
    axes, drawn as lines."""

    title: str
    x_title: str
    y_title: str
    points: tuple[CurvePoint, ...]
    logarithmic: tuple[bool, bool] = (False, False)
    ideal: tuple[tuple[float, float], ...] = ()
    whole_numbers: bool = False
    from_zero: bool = True
    joined: str = ""
    limits: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True, slots=True)
class CurvesFigure:
    """A figure with one or more panels. `headline`: the result of the study in a sentence."""

    title: str
    note: str
    panels: tuple[Panel, ...]
    headline: str = ""


def scaling_figure(scaling: Scaling) -> CurvesFigure:
    """The figure of a scaling study: days, MFU and cost against GPUs, and cost against days."""
    days, mfu = _points(scaling, lambda run: run.days), _points(scaling, _mfu)
    counts = sorted({point.num_gpus for point in scaling.points})
    ideal = tuple((n, days[0].y * days[0].x / n) for n in counts) if days else ()
    unit = f"{scaling.currency}, {BASIS_NAMES[scaling.basis]}"
    costs = _points(scaling, lambda run: run.cost(scaling.basis), is_cost=True)
    lasts = {(one.series, one.x): one for one in days}
    in_time = tuple(
        replace(cost, x=day.y, left=day.low, right=day.high)
        for cost in costs
        if (day := lasts[cost.series, cost.x])
    )
    title, log_x, counted = "Days, interruptions included", (True, False), True
    panels = (
        Panel(title, "GPUs", "days", days, (True, True), ideal, counted),
        Panel("MFU", "GPUs", "%", mfu, log_x, (), counted),
        Panel("Cost of the run", "GPUs", unit, costs, log_x, (), counted),
        Panel("Cost against time", "days", unit, in_time),
    )
    return CurvesFigure(
        f"{scaling.model} on {scaling.gpu}: {short_count(scaling.tokens)} tokens",
        f"Bars: 80 % interval of step time and of published failure rates. {_knee(scaling)}"
        "Dashed: perfect scaling.",
        tuple(panel for panel in panels if panel.points),
        _headline(scaling),
    )


def _knee(scaling: Scaling) -> str:
    """A sentence about the ring for the subtitle. The ring marks the knee: the number of GPUs
    beyond which more speed is not worth its cost. If there is no knee, the sentence says that speed
    is worth its price up to the largest number."""
    if any(scaling.knees.values()):
        return "Ring: knee, beyond which more speed is not worth its cost. "
    return "Speed is worth its price up to the largest number. "


def comparison_figure(comparison: Comparison) -> CurvesFigure:
    """Cost against time of every cluster that can run the job. A ring marks the recommendation."""
    texts = {row.name: _run_text(row.run) for row in comparison.rows if row.run is not None}
    found = (
        _Offer(row.name, row.run.days, row.run.cost(comparison.basis), texts[row.name],
               row.on_front)
        for row in comparison.rows if row.run is not None
    )  # fmt: skip
    title = f"{comparison.model}: {short_count(comparison.tokens)} tokens"
    return _offers_figure(title, comparison, found)


def buying_figure(buying: Buying) -> CurvesFigure:
    """Cost against time of each cluster that was searched. If there are several jobs: of each job,
    and of the sets of clusters that no other set beats in both cost and time."""
    title = "Which GPUs to take"
    sets = () if buying.decision is None else buying.decision.front
    if len({row.job for row in buying.rows}) > 1:
        return _sets_figure(title, buying, sets)
    front = {choice.cluster for one in sets for choice in one.choices}
    found = (
        _Offer(one.cluster, one.days, one.cost, row.plan, one.cluster in front)
        for row in buying.rows if (one := row.choice) is not None
    )  # fmt: skip
    return _offers_figure(title, buying, found)


class _Offer(NamedTuple):
    """One cluster with its days and cost; the cost is None without a price. `on_front`: no other
    cluster is both faster and cheaper."""

    cluster: str
    days: Range
    cost: Range | None
    text: str
    on_front: bool


def _offers_figure(
    title: str, study: Comparison | Buying, offers: Iterable[_Offer]
) -> CurvesFigure:
    """Cost against time of the clusters that have a price. A line joins the clusters that no other
    beats in both, and a ring marks the recommendation."""
    best = None if study.decision is None else study.decision.best
    taken = set() if best is None else {one.cluster for one in best.choices}
    points = [
        _point(
            _FRONT if one.on_front else _DOMINATED, one.days, one.cost,
            f"{one.cluster}: {one.text}, {ranged(one.cost)} {study.currency}",
            label=f"{TAKE * (one.cluster in taken)}{one.cluster}", named=one.on_front,
            marked=one.cluster in taken,
        )
        for one in offers if one.cost is not None
    ]  # fmt: skip
    points.sort(key=lambda point: (point.series != _FRONT, point.x))
    return CurvesFigure(
        title,
        f"Bars: 80 % interval. {'Ring: what to take. ' if taken else ''}Clusters without a price "
        "or a plan are in the tables only.",
        _cost_panels(study, points),
        _headline(study),
    )


def _sets_figure(title: str, buying: Buying, sets: Sequence[Taken]) -> CurvesFigure:
    """Cost against time: dots for each job on each cluster, and a line for the sets of clusters
    that run all jobs and that no other set beats in both. A ring marks the recommended set."""
    best = None if buying.decision is None else buying.decision.best
    text = "{0.job} on {0.cluster}: {1}"
    points = [
        _point(one.job, one.days, one.cost, text.format(one, row.plan), label=one.cluster)
        for row in sorted(buying.rows, key=lambda row: row.job)
        if (one := row.choice) is not None and one.cost is not None
    ]
    for bounds in sorted(sets, key=lambda one: one.days):
        if bounds.cost is not None:
            is_best = best is not None and bounds.choices == best.choices
            points.append(
                CurvePoint(
                    _FRONT, bounds.days, bounds.cost, bounds.cost, bounds.cost,
                    " + ".join(choice.cluster for choice in bounds.choices), marked=is_best,
                    label=TAKE + taken_text(bounds) if is_best else "", named=True,
                )
            )  # fmt: skip
    return CurvesFigure(
        title,
        "Dots: as predicted, with the 80 % interval. Line: bounds at the certainty asked for, of "
        "sets that none beats in both. Ring: what to take.",
        # Logarithmic because jobs differ by orders of magnitude, sizes for one job by less.
        _cost_panels(buying, points, logarithmic=True),
        _headline(buying),
    )


def _headline(study: Comparison | Buying | Scaling) -> str:
    return "" if study.decision is None else headline(study.decision, study.currency)


def _cost_panels(
    study: Comparison | Buying, points: Sequence[CurvePoint], *, logarithmic: bool = False
) -> tuple[Panel, ...]:
    """Cost against time, with a line along the front and the limits on both; empty without
    points."""
    unit, given = f"{study.currency}, {BASIS_NAMES[study.basis]}", study.decision
    limits = (given.limits.deadline_days, given.limits.budget) if given else (None, None)
    panel = Panel(
        "Cost against time", "days", unit, tuple(points), (logarithmic, logarithmic),
        from_zero=False, joined=_FRONT, limits=limits,
    )  # fmt: skip
    return (panel,) if points else ()


def budget_figure(found: Budget) -> CurvesFigure:
    """The loss, in nats per token, that models of different sizes reach with the FLOP of the
    budget. A ring marks the recommended size. If the loss is unknown, a figure without panels that
    says why."""
    if found.loss is None:
        return CurvesFigure(f"{found.model}: {found.goal}", f"No loss: {found.why_no_loss}.", ())
    around = (found.parameters, found.best_parameters.value)
    first, last = min(around) / _SPAN, max(around) * _SPAN
    sizes = {first * (last / first) ** (step / _STEPS) for step in range(_STEPS + 1)}
    points = [_loss_point(found, size) for size in sorted(sizes | {found.parameters})]
    title = "Loss of the same FLOP, by size"
    panel = Panel(
        title,
        "billions of parameters",
        "nats a token",
        tuple(points),
        (True, False),
        from_zero=False,
    )
    note = f"Bars: 80 % interval. Ring: {found.model}. Fewer parameters, more tokens."
    title = f"{found.goal}: {found.model}".capitalize()
    return CurvesFigure(title, note, (panel,), budget_headline(found))


def _loss_point(found: Budget, parameters: float) -> CurvePoint:
    """The loss that a model of this size would reach with the same FLOP."""
    tokens = found.tokens.times(found.parameters / parameters)
    loss = load_laws()[0].loss(parameters, tokens)
    size, trained = short_count(parameters), short_count(tokens.value)
    text = f"{size} parameters on {trained} tokens: {ranged(loss)} nats a token"
    marked = parameters == found.parameters
    return _point(f"{found.flop.value:.3g} FLOP", parameters / 1e9, loss, text, marked=marked)


def _points(
    scaling: Scaling, figure: Callable[[Run], Range | None], *, is_cost: bool = False
) -> tuple[CurvePoint, ...]:
    """One point for each run: its figure against its number of GPUs. Each kind of batch is a series
    of its own. Runs without the figure are left out. A ring marks the knee. In charts of cost, the
    recommended number of GPUs also gets a label."""
    best = scaling.decision and scaling.decision.best
    taken = best.choices[0].num_gpus if best and is_cost else 0
    return tuple(
        _point(
            name,
            run.job.num_gpus,
            value,
            f"{point.num_gpus:,} GPUs: {ranged(value)}; {_run_text(run)}",
            marked=point.num_gpus == scaling.knees.get(batch),
            label=f"{TAKE}{taken}" * (batch == "fixed" and point.num_gpus == taken),
            named=True,
        )
        for batch, name in SERIES_NAMES.items()
        for point in scaling.series(batch)
        if (run := point.run) is not None and (value := figure(run)) is not None
    )


def _point(
    series: str,
    x: float | Range,
    figure: Range,
    text: str,
    *,
    marked: bool = False,
    label: str = "",
    named: bool = False,
) -> CurvePoint:
    """A point for a figure. `x` may have an interval, too."""
    place = Range(value=x, low=x, high=x) if isinstance(x, float | int) else x
    return CurvePoint(
        series, place.value, figure.value, figure.low, figure.high, text, marked, label,
        place.low, place.high, named,
    )  # fmt: skip


def _run_text(run: Run) -> str:
    return f"{ranged(run.days)} days, {degrees_text(run.plan.degrees)}"


def _mfu(run: Run) -> Range:
    """MFU of a run in percent, with the interval that follows from the interval of the step time:
    the longest step gives the lowest MFU."""
    plan = run.plan
    mfu, error = plan.mfu * 100.0, plan.step_time
    low, high = (mfu * plan.step_time_s / end for end in (error.high, error.low))
    return Range(value=mfu, low=low, high=high)


def curves_chart(figure: CurvesFigure) -> Specification:
    """The whole figure, two panels to a row."""
    told = [*subtitle_lines(figure.headline), *subtitle_lines(figure.note)]
    title = {"text": figure.title, "subtitle": told}
    if len(figure.panels) == 1:
        return curves_panel(figure.panels[0]) | _ALONE | {"title": title}
    return {
        "concat": [curves_panel(panel, panel.title, "true") for panel in figure.panels],
        "columns": 2,
        "spacing": 40,
        "title": title,
    }


def curves_panel(panel: Panel, title: str = "", is_phone: str = "width < 560") -> Specification:
    """One pair of axes. An axis of GPUs has its ticks at the points. `is_phone`: see
    `words_beside`."""
    points = panel.points
    names = list(dict.fromkeys(point.series for point in points))
    (logarithmic_x, logarithmic_y), limits = panel.logarithmic, _limits_drawn(panel)
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
        points=table(_point_rows(panel)),
        joined=[name for name in names if panel.joined in ("", name)],
        marked=any(point.marked for point in points),
        labels=_labels(panel, is_phone),
        deadline=_line(limits[0], "deadline"),
        budget=_line(limits[1], "budget"),
        ideal=table({"x": float(x), "y": y} for x, y in panel.ideal) if panel.ideal else None,
    )


def _labels(panel: Panel, is_phone: str) -> Specification | None:
    """The labels next to points; on phones only those of named points and of the recommendation."""
    points = sorted((point for point in panel.points if point.label), key=_is_unmarked)
    if not points:
        return None
    ends = [_ends(point) for point in panel.points]
    limits = _limits_drawn(panel)
    wide = Span([*(end for one in ends for end in one[:2]), *limits[0]], panel.logarithmic[0])
    high = Span([*(end for one in ends for end in one[2:]), *limits[1]], panel.logarithmic[1])
    dots = [*map(_labelled, points), *_on_line(panel)]
    dots += [Labelled(one.x, one.y, ends=_ends(one)) for one in panel.points if not one.label]
    return words_beside(
        table(
            {"x": float(point.x), "y": point.y, "bold": point.marked, **words}
            for point, words in zip(points, label_columns(dots, wide, high), strict=False)
        ),
        "x", "y", is_phone,
    )  # fmt: skip


def _is_unmarked(point: CurvePoint) -> bool:
    return not point.marked


def _labelled(point: CurvePoint) -> Labelled:
    brief = point.label if point.named or point.marked else ""
    return Labelled(point.x, point.y, point.label, brief, _ends(point))


def _on_line(panel: Panel) -> Iterator[Labelled]:
    """Points without a label along the lines that join the panel's points. Labels that avoid dots
    then avoid the lines, too."""
    for one, other in pairwise(panel.points):
        if one.series == other.series and panel.joined in ("", one.series):
            for part in range(1, _PARTS):
                at = part / _PARTS
                yield Labelled(
                    one.x + at * (other.x - one.x), one.y + at * (other.y - one.y)
                )  # fmt: skip


def _ends(point: CurvePoint) -> tuple[float, float, float, float]:
    """The ends of a point's interval bars: left, right, low, high. If an end is missing or
    infinite, the position of the point takes its place."""
    ends = ((point.left, point.x), (point.right, point.x), (point.low, point.y),
            (point.high, point.y))  # fmt: skip
    left, right, low, high = (float(end if math.isfinite(end) else at) for end, at in ends)
    return left, right, low, high


def _point_rows(panel: Panel) -> Iterator[Row]:
    names = ("left", "right", "low", "high")
    for point in panel.points:
        yield asdict(point) | {"x": float(point.x)} | dict(zip(names, _ends(point), strict=True))


# A limit that exceeds the largest figure by more than this factor would leave too little room for
# the points.
_DWARFS = 1.6


def _limits_drawn(panel: Panel) -> tuple[list[float], list[float]]:
    """The limit on the horizontal and on the vertical axis, each as a list of one number. A list is
    empty if there is no limit, or if the limit is far beyond the largest figure."""
    days, cost = ([getattr(point, axis) for point in panel.points] for axis in ("x", "y"))
    found = zip(panel.limits, (days, cost), strict=True)
    wide, high = ([limit] if limit and limit <= _DWARFS * max(figures) else []
                  for limit, figures in found)  # fmt: skip
    return wide, high


def _line(limit: Sequence[float], words: str) -> Specification | None:
    """The data of the line for a limit, with its label; None without a limit."""
    return table([{"limit": float(limit[0]), "words": words}]) if limit else None
