"""Curves and points over two axes: scaling studies and comparisons of clusters, as plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.compare.budget import Budget
from planner.compare.buying import Buying
from planner.compare.interval import Range
from planner.compare.laws import load_laws
from planner.compare.results import Comparison, Run, Scaling
from planner.compare.settings import BASIS_NAMES
from planner.job.quantities import short_count
from planner.predict.plan_text import degrees_text
from planner.report.amounts import ranged

SERIES_NAMES = {"fixed": "fixed batch (strong)", "scaled": "batch grows (weak)"}
_FRONT, _DOMINATED = "none is both faster and cheaper", "others"
# Sizes on either side of the answer and the optimum, as a factor, and how many are drawn.
_SPAN, _STEPS = 6.0, 24


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A point with the ends of its 80 % interval on the vertical axis; `marked` gets a ring,
    `label` stands beside it."""

    x: float
    y: float
    low: float
    high: float
    text: str
    marked: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one colour; `joined` by a line, in order."""

    name: str
    points: tuple[CurvePoint, ...]
    joined: bool = True


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes. `ideal`: the line of perfect scaling, if it has a meaning; `from_zero`:
    whether the vertical axis begins there."""

    title: str
    x_title: str
    y_title: str
    series: tuple[Series, ...]
    logarithmic: tuple[bool, bool] = (False, False)
    ideal: tuple[tuple[float, float], ...] = ()
    whole_numbers: bool = False
    from_zero: bool = True


@dataclass(frozen=True, slots=True)
class CurvesFigure:
    """The picture."""

    title: str
    note: str
    panels: tuple[Panel, ...]


def scaling_figure(scaling: Scaling) -> CurvesFigure:
    """The picture of a scaling study: days, MFU and cost against GPUs, and cost against days."""
    days = _series(scaling, lambda run: run.days)
    first = next((line.points[0] for line in days if line.points), None)
    counts = sorted({point.num_gpus for point in scaling.points})
    ideal = () if first is None else tuple((n, first.y * first.x / n) for n in counts)
    unit = f"{scaling.currency}, {BASIS_NAMES[scaling.basis]}"

    def cost(run: Run) -> Range | None:
        return run.cost(scaling.basis)

    panels = (
        Panel(
            "Days, interruptions included", "GPUs", "days", days, (True, True), ideal,
            whole_numbers=True,
        ),
        Panel("MFU", "GPUs", "%", _series(scaling, _mfu), (True, False), whole_numbers=True),
        Panel(
            "Cost of the run", "GPUs", unit, _series(scaling, cost), (True, False),
            whole_numbers=True,
        ),
        Panel(
            "Cost against time", "days", unit, _series(scaling, cost, lambda run: run.days.value)
        ),
    )  # fmt: skip
    return CurvesFigure(
        f"{scaling.model} on {scaling.gpu}: {scaling.tokens / 1e12:g} T tokens",
        "Bars: 80 % interval of step time and of published failure rates. Ring: knee. "
        "Dashed: perfect scaling.",
        tuple(panel for panel in panels if any(line.points for line in panel.series)),
    )


def comparison_figure(comparison: Comparison) -> CurvesFigure:
    """Cost against time of every cluster that runs the job."""
    groups: dict[str, list[CurvePoint]] = {_FRONT: [], _DOMINATED: []}
    for row in comparison.rows:
        if row.run is None or (cost := row.run.cost(comparison.basis)) is None:
            continue
        text = f"{row.name}: {_run_text(row.run)}, {ranged(cost)} {comparison.currency}"
        point = _point(row.run.days.value, cost, text, label=row.name)
        groups[_FRONT if row.on_front else _DOMINATED].append(point)
    series = tuple(
        Series(name, tuple(sorted(points, key=lambda point: point.x)), joined=name == _FRONT)
        for name, points in groups.items()
        if points
    )
    cost_title = f"{comparison.currency}, {BASIS_NAMES[comparison.basis]}"
    panel = Panel("Cost against time", "days", cost_title, series)
    return CurvesFigure(
        f"{comparison.model}: {comparison.tokens / 1e12:g} T tokens",
        "Bars: 80 % interval. Clusters without a price or a plan are in the tables only.",
        (panel,) if series else (),
    )


def buying_figure(buying: Buying) -> CurvesFigure:
    """Cost against time: each job on each cluster that was searched, and the sets that none beats
    in both; a ring: what to take."""
    decision = buying.decision
    best = None if decision is None else decision.best
    sets = () if decision is None else decision.front
    found = [
        Series(
            job,
            tuple(
                _point(
                    one.days.value,
                    one.cost,
                    f"{one.job} on {one.cluster}: {row.plan}",
                    label=one.cluster,
                )
                for row in buying.rows
                if (one := row.choice) is not None and one.job == job and one.cost is not None
            ),
            joined=False,
        )
        for job in dict.fromkeys(row.job for row in buying.rows)
    ]
    front = tuple(
        CurvePoint(one.days, one.cost, one.cost, one.cost,
              " + ".join(choice.cluster for choice in one.choices),
              marked=best is not None and one.choices == best.choices)
        for one in sorted(sets, key=lambda one: one.days)
        if one.cost is not None
    )  # fmt: skip
    cost = f"{buying.currency}, {BASIS_NAMES[buying.basis]}"
    found.append(Series(_FRONT, front))
    # Jobs differ by orders of magnitude, sizes for one job by less.
    log = len(found) > 2
    shown = tuple(s for s in found if s.points)
    panel = Panel("Cost against time", "days", cost, shown, logarithmic=(log, log))
    return CurvesFigure(
        "Which GPUs to take",
        "Dots: as predicted, with the 80 % interval. Line: bounds at the certainty asked for, of "
        "sets that none beats in both. Ring: what to take.",
        (panel,) if panel.series else (),
    )


def budget_figure(found: Budget) -> CurvesFigure:
    """Loss against size for the FLOP of the budget, the answer with a ring."""
    if found.loss is None:
        return CurvesFigure(f"{found.model}: {found.goal}", f"No loss: {found.why_no_loss}.", ())
    around = (found.parameters, found.best_parameters.value)
    first, last = min(around) / _SPAN, max(around) * _SPAN
    sizes = {first * (last / first) ** (step / _STEPS) for step in range(_STEPS + 1)}
    points = [_loss_point(found, size) for size in sorted(sizes | {found.parameters})]
    line = Series(f"{found.flop.value:.3g} FLOP", tuple(points))
    title = "Loss of the same FLOP, by size"
    panel = Panel(
        title, "billions of parameters", "nats a token", (line,), (True, False), from_zero=False
    )
    note = f"Bars: 80 % interval. Ring: {found.model}. Fewer parameters, more tokens."
    return CurvesFigure(f"{found.goal}: {found.model}", note, (panel,))


def _loss_point(found: Budget, parameters: float) -> CurvePoint:
    """What a model of another size would reach with the same FLOP."""
    tokens = found.tokens.times(found.parameters / parameters)
    loss = load_laws()[0].loss(parameters, tokens)
    size, trained = short_count(parameters), short_count(tokens.value)
    text = f"{size} parameters on {trained} tokens: {ranged(loss)} nats a token"
    return _point(parameters / 1e9, loss, text, marked=parameters == found.parameters)


def _series(
    scaling: Scaling,
    figure: Callable[[Run], Range | None],
    place: Callable[[Run], float] = lambda run: run.job.num_gpus,
) -> tuple[Series, ...]:
    """One series a kind of batch: a figure of each run that has it against its place."""
    found = []
    for batch, name in SERIES_NAMES.items():
        points = [
            _point(
                place(run),
                value,
                f"{point.num_gpus:,} GPUs: {ranged(value)}; {_run_text(run)}",
                marked=point.num_gpus == scaling.knees.get(batch),
            )
            for point in scaling.series(batch)
            if (run := point.run) is not None and (value := figure(run)) is not None
        ]
        if points:
            found.append(Series(name, tuple(points)))
    return tuple(found)


def _point(
    x: float, figure: Range, text: str, *, marked: bool = False, label: str = ""
) -> CurvePoint:
    return CurvePoint(x, figure.value, figure.low, figure.high, text, marked, label)


def _run_text(run: Run) -> str:
    return f"{ranged(run.days)} days, {degrees_text(run.plan.degrees)}"


def _mfu(run: Run) -> Range:
    """Percent; a longer step is a lower MFU."""
    plan = run.plan
    mfu, error = plan.mfu * 100.0, plan.step_time
    low, high = (mfu * plan.step_time_s / end for end in (error.high, error.low))
    return Range(value=mfu, low=low, high=high)
