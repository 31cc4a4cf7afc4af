"""Curves and points over two axes: scaling studies and comparisons of clusters, drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from planner.compare.budget import Budget
from planner.compare.buying import Buying
from planner.compare.interval import Range
from planner.compare.laws import load_laws
from planner.compare.results import Comparison, Decision, Run, Scaling
from planner.compare.settings import BASIS_NAMES
from planner.job.quantities import short_count
from planner.predict.plan_text import degrees_text
from planner.report.charts.drawing import Row, Specification, colours, subtitle_lines, table
from planner.report.charts.templates import BLUE, PALETTE, VERMILION, filled
from planner.report.said import ranged
from planner.report.study_words import budget_headline, headline, taken_text

SERIES_NAMES = {"fixed": "fixed batch (strong)", "scaled": "batch grows (weak)"}
_FRONT, _DOMINATED = "none is both faster and cheaper", "others"
# Sizes on either side of the answer and the optimum, as a factor, and how many are drawn.
_SPAN, _STEPS = 6.0, 24
_COLOURS = (BLUE, VERMILION)
TAKE = "take "
# A panel alone is as wide as the other pictures.
_ALONE = {"width": 860, "height": 380}


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A point of a series, which has one colour, with the ends of its 80 % intervals on both axes;
    `marked` gets a ring, `label` stands beside it, on narrow pages only if it is `named`."""

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
    """One pair of axes; points of a series follow each other. `joined`: the only series whose
    points a line joins, else all are; `ideal`: the line of perfect scaling, if it has a meaning;
    `from_zero`: whether the vertical axis begins there; `limits`: what the two axes may not exceed,
    drawn as lines."""

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
    """The picture; `headline`: what the study says, in a sentence."""

    title: str
    note: str
    panels: tuple[Panel, ...]
    headline: str = ""


def scaling_figure(scaling: Scaling) -> CurvesFigure:
    """The picture of a scaling study: days, MFU and cost against GPUs, and cost against days."""
    days = _points(scaling, lambda run: run.days)
    counts = sorted({point.num_gpus for point in scaling.points})
    ideal = tuple((n, days[0].y * days[0].x / n) for n in counts) if days else ()
    unit = f"{scaling.currency}, {BASIS_NAMES[scaling.basis]}"
    costs = _points(scaling, lambda run: run.cost(scaling.basis))
    costs_in_time = _points(
        scaling, lambda run: run.cost(scaling.basis), lambda run: run.days.value
    )
    title, log_x, counted = "Days, interruptions included", (True, False), True
    panels = (
        Panel(title, "GPUs", "days", days, (True, True), ideal, counted),
        Panel("MFU", "GPUs", "%", _points(scaling, _mfu), log_x, (), counted),
        Panel("Cost of the run", "GPUs", unit, costs, log_x, (), counted),
        Panel("Cost against time", "days", unit, costs_in_time),
    )
    return CurvesFigure(
        f"{scaling.model} on {scaling.gpu}: {scaling.tokens / 1e12:g} T tokens",
        f"Bars: 80 % interval of step time and of published failure rates. {_knee(scaling)}"
        "Dashed: perfect scaling.",
        tuple(panel for panel in panels if panel.points),
        _headline(scaling),
    )


def _knee(scaling: Scaling) -> str:
    """What the ring is, where there is one."""
    if any(scaling.knees.values()):
        return "Ring: knee, beyond which speed costs more than it brings. "
    return "No knee up to the largest number. "


def comparison_figure(comparison: Comparison) -> CurvesFigure:
    """Cost against time of every cluster that runs the job; a ring: what to take."""
    decision = comparison.decision
    best = None if decision is None else decision.best
    taken = set() if best is None else {one.cluster for one in best.choices}
    points = []
    for row in comparison.rows:
        if row.run is None or (cost := row.run.cost(comparison.basis)) is None:
            continue
        text = f"{row.name}: {_run_text(row.run)}, {ranged(cost)} {comparison.currency}"
        series = _FRONT if row.on_front else _DOMINATED
        is_taken = row.name in taken
        points.append(
            _point(
                series, row.run.days, cost, text, label=f"{TAKE}{row.name}" * is_taken or row.name,
                named=row.on_front, marked=is_taken,
            )
        )  # fmt: skip
    points.sort(key=lambda point: (point.series != _FRONT, point.x))
    return CurvesFigure(
        f"{comparison.model}: {comparison.tokens / 1e12:g} T tokens",
        f"Bars: 80 % interval. {'Ring: what to take. ' if taken else ''}Clusters without a price "
        "or a plan are in the tables only.",
        _cost_panels(comparison, points, limits=_limits(decision)),
        _headline(comparison),
    )


def buying_figure(buying: Buying) -> CurvesFigure:
    """Cost against time: each job on each cluster that was searched, and the sets that none beats
    in both; a ring: what to take."""
    decision = buying.decision
    best = None if decision is None else decision.best
    sets = () if decision is None else decision.front
    jobs = list(dict.fromkeys(row.job for row in buying.rows))
    text = "{0.job} on {0.cluster}: {1}"
    points = [
        _point(job, one.days, one.cost, text.format(one, row.plan), label=one.cluster)
        for job in jobs
        for row in buying.rows
        if (one := row.choice) is not None and one.job == job and one.cost is not None
    ]
    points += [
        CurvePoint(_FRONT, one.days, one.cost, one.cost, one.cost,
                   " + ".join(choice.cluster for choice in one.choices),
                   marked=best is not None and one.choices == best.choices,
                   label=TAKE + taken_text(best) if best and one.choices == best.choices else "",
                   named=True)
        for one in sorted(sets, key=lambda one: one.days)
        if one.cost is not None
    ]  # fmt: skip
    return CurvesFigure(
        "Which GPUs to take",
        "Dots: as predicted, with the 80 % interval. Line: bounds at the certainty asked for, of "
        "sets that none beats in both. Ring: what to take.",
        # Jobs differ by orders of magnitude, sizes for one job by less.
        _cost_panels(buying, points, logarithmic=len(jobs) > 1, limits=_limits(decision)),
        _headline(buying),
    )


def _headline(study: Comparison | Buying | Scaling) -> str:
    return "" if study.decision is None else headline(study.decision, study.currency)


def _cost_panels(
    study: Comparison | Buying,
    points: Sequence[CurvePoint],
    *,
    logarithmic: bool = False,
    limits: tuple[float | None, float | None] = (None, None),
) -> tuple[Panel, ...]:
    """Cost against time, the front joined, and the limits of both; nothing without a point."""
    unit, scales = f"{study.currency}, {BASIS_NAMES[study.basis]}", (logarithmic, logarithmic)
    panel = Panel(
        "Cost against time", "days", unit, tuple(points), scales, from_zero=False, joined=_FRONT,
        limits=limits,
    )  # fmt: skip
    return (panel,) if points else ()


def _limits(decision: Decision | None) -> tuple[float | None, float | None]:
    """Deadline, days, and budget."""
    if decision is None:
        return None, None
    return decision.limits.deadline_days, decision.limits.budget


def budget_figure(found: Budget) -> CurvesFigure:
    """Loss against size for the FLOP of the budget, the answer with a ring."""
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
    """What a model of another size would reach with the same FLOP."""
    tokens = found.tokens.times(found.parameters / parameters)
    loss = load_laws()[0].loss(parameters, tokens)
    size, trained = short_count(parameters), short_count(tokens.value)
    text = f"{size} parameters on {trained} tokens: {ranged(loss)} nats a token"
    marked = parameters == found.parameters
    return _point(f"{found.flop.value:.3g} FLOP", parameters / 1e9, loss, text, marked=marked)


def _points(
    scaling: Scaling,
    figure: Callable[[Run], Range | None],
    place: Callable[[Run], float] = lambda run: run.job.num_gpus,
) -> tuple[CurvePoint, ...]:
    """One series a kind of batch: a figure of each run that has it against its place."""
    return tuple(
        _point(
            name,
            place(run),
            value,
            f"{point.num_gpus:,} GPUs: {ranged(value)}; {_run_text(run)}",
            marked=point.num_gpus == scaling.knees.get(batch),
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
    """A figure at its place, which may have an interval as well."""
    place = Range(value=x, low=x, high=x) if isinstance(x, float | int) else x
    return CurvePoint(
        series, place.value, figure.value, figure.low, figure.high, text, marked, label,
        place.low, place.high, named,
    )  # fmt: skip


def _run_text(run: Run) -> str:
    return f"{ranged(run.days)} days, {degrees_text(run.plan.degrees)}"


def _mfu(run: Run) -> Range:
    """Percent; a longer step is a lower MFU."""
    plan = run.plan
    mfu, error = plan.mfu * 100.0, plan.step_time
    low, high = (mfu * plan.step_time_s / end for end in (error.high, error.low))
    return Range(value=mfu, low=low, high=high)


def curves_chart(figure: CurvesFigure) -> Specification:
    """The whole picture, two panels a row, with one legend below."""
    told = [*subtitle_lines(figure.headline), *subtitle_lines(figure.note)]
    title = {"text": figure.title, "subtitle": told}
    if len(figure.panels) == 1:
        return curves_panel(figure.panels[0]) | _ALONE | {"title": title}
    return {
        "concat": [curves_panel(panel, panel.title) for panel in figure.panels],
        "columns": 2,
        "spacing": 40,
        "title": title,
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
        points=table(_point_rows(panel)),
        joined=[name for name in names if panel.joined in ("", name)],
        marked=any(point.marked for point in points),
        labelled=any(point.label for point in points),
        deadline=_line(panel.limits[0], "deadline", [point.x for point in points]),
        budget=_line(panel.limits[1], "budget", [point.y for point in points]),
        ideal=table({"x": float(x), "y": y} for x, y in panel.ideal) if panel.ideal else None,
    )


def _point_rows(panel: Panel) -> list[Row]:
    # A bar without an upper end stops at its point.
    return [
        asdict(point)
        | {"x": float(point.x), "high": _end(point.high, point.y)}
        | {"left": _end(point.left, point.x), "right": _end(point.right, point.x)}
        for point in panel.points
    ]


def _end(end: float, value: float) -> float:
    return float(end if math.isfinite(end) else value)


# A limit this many times beyond the largest figure would leave nothing to see of these.
_DWARFS = 1.6


def _line(limit: float | None, words: str, figures: Sequence[float]) -> Specification | None:
    """A limit with its words, where there is one that the figures come near."""
    if limit is None or limit > _DWARFS * max(figures):
        return None
    return table([{"limit": float(limit), "words": words}])
