"""Charts of plans and searches, and their HTML tables, for `--plot` and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import isfinite
from typing import Any, Literal, get_args

from planner.compare.cluster_front import ClusterFront
from planner.job.errors import UsageError, unknown_name
from planner.job.quantities import gib, seconds
from planner.predict.plan import Plan
from planner.predict.plan_text import configuration_text, plan_name
from planner.report.charts.drawing import Drawing, Specification, demand_plot, in_file
from planner.report.charts.front import (
    candidates,
    costed_or_reason,
    end_labels,
    front_chart,
    front_plans,
    riskier_plans,
)
from planner.report.charts.heat import heat_chart, heat_map
from planner.report.charts.plan import stage_bars, stages_chart, waterfall, waterfall_chart
from planner.report.charts.schedule import schedule_chart, schedule_gantt
from planner.report.cluster_front import front_headline
from planner.report.plan_table import plan_table
from planner.report.search import front_table, printed
from planner.report.tables import TableData
from planner.report.verdict import Verdict
from planner.search.result import SearchResult

PlanFigure = Literal["all", "memory", "time", "schedule"]
ResultFigure = Literal["front", "heat"]


def plot_plan(plan: Plan, figure: PlanFigure = "all") -> Any:
    """An Altair chart of a plan: `memory` of each pipeline stage at its peak, GiB; `time` of a step
    by term, s; the `schedule` of the pipeline; or `all` of them. Raises UsageError without the
    extra `plot`, for an unknown name, or for the schedule of a plan without a pipeline."""
    demand_plot()
    if figure not in get_args(PlanFigure):
        raise unknown_name("figure", figure, get_args(PlanFigure), "a plan has these: ")
    words, drawn = configuration_text(plan), {one.name: one for one in pictures(plan)}
    if figure in drawn:
        return in_file(drawn[figure].chart, drawn[figure].title, words)
    if figure != "all":
        why = f"it has no pipeline, or too long a one (pp {plan.degrees.pp})"
        raise UsageError(f"this plan has no schedule to draw: {why}")
    titled = [one.chart | {"title": one.title} for one in drawn.values()]
    resolved = {"scale": {"color": "independent"}}
    title = f"{plan_name(plan)}: {seconds(plan.step_time_s)} a step, {gib(plan.peak_bytes)} GiB"
    return in_file({"vconcat": titled, "spacing": 36, "resolve": resolved}, title, words)


def pictures(plan: Plan) -> Iterator[Drawing]:
    """Charts of a plan: memory, time and, with a pipeline, the schedule."""
    stages = stages_chart(stage_bars(plan), plan.limit_bytes)
    yield Drawing("memory", "Memory of each pipeline stage at its peak", stages)
    low, high = plan.step_time.low, plan.step_time.high
    # Terms of the step time, and the interval of their sum.
    interval = (low, high if isfinite(high) else plan.step_time_s)
    terms = waterfall_chart(waterfall(plan), interval)
    yield Drawing("time", f"Time of a step: {seconds(plan.step_time_s)}", terms)
    if (gantt := schedule_gantt(plan)) is not None:
        part = gantt.microbatches != gantt.of
        drawn = f" with {gantt.microbatches} of {gantt.of:,} micro-batches" if part else ""
        title = f"Schedule of the pipeline ({plan.schedule}){drawn}"
        yield Drawing("schedule", title, schedule_chart(gantt))


def plot_result(result: SearchResult, figure: ResultFigure = "front") -> Any:
    """An Altair chart of a search: its `front` of tokens/s per GPU against peak memory, GiB, with
    the shapes that were considered; or `heat`, the best shape for each pair of values of two
    degrees. Raises UsageError without the extra `plot`, for an unknown name, or if there is nothing
    to draw."""
    demand_plot()
    drawn: dict[str, Callable[[SearchResult], Specification]] = {"front": _front, "heat": _heat}
    if figure not in drawn:
        raise unknown_name("figure", figure, list(drawn), "a search has these: ")
    job = result.job
    said = Verdict(result).headline if result.recommended else ""
    return in_file(drawn[figure](result), f"{job.model} on {job.cluster}, {job.framework}", said)


def plot_cluster_front(front: ClusterFront) -> Any:
    """An Altair chart of one front over several clusters."""
    results = list(front.results.values())
    plans = [front.plan_of(point) for point in front.points]
    limits = {result.job.limit_bytes for result in results}
    names = [point.cluster for point in front.points]
    shown = front_plans(plans, end_labels(plans), names)
    limit = limits.pop() if len(limits) == 1 else None
    chart = front_chart(shown, (), (), limit)
    title = f"{results[0].job.model} on {len(results)} clusters"
    return in_file(chart, title, front_headline(front))


def _front(result: SearchResult) -> Specification:
    costed, _ = costed_or_reason(result)
    return front_chart(
        front_plans(result.plans, _labels(result)),
        riskier_plans([result]),
        () if costed is None else candidates(costed, result).dots,
        result.job.limit_bytes,
        result.recommended,
    )


def _labels(result: SearchResult) -> dict[int, str]:
    """Labels for the plans that matter; plain numbers if no plan is recommended."""
    if result.recommended:
        return Verdict(result).labels
    return {number: str(number) for number in range(1, len(result.plans) + 1)}


def _heat(result: SearchResult) -> Specification:
    costed, reason = costed_or_reason(result)
    found = None if costed is None else heat_map(costed, result)
    if found is None:
        why = reason or "fewer than two degrees are a choice"
        raise UsageError(f"no heat map can be drawn: {why}")
    return heat_chart(found, choose=False)


def result_html(result: SearchResult) -> str:
    """A table of the plans that the command prints, the recommended one in bold."""
    plans, job = printed(result), result.job
    head = f"{job.model} on {job.cluster}: {len(result.plans)} plans, {len(plans)} shown"
    return f"{_card(result)}<p>{escape(head)}</p>{_table(front_table(plans, result))}"


def _card(result: SearchResult) -> str:
    """The verdict for notebooks; empty if no plan is recommended."""
    if not result.recommended:
        return ""
    verdict = Verdict(result)
    listed = (
        f"{one.words}: {f'plan {one.number}, ' if one.number else ''}{one.name}"
        for one in verdict.alternatives
    )
    others = "".join(f"<li>{escape(text)}</li>" for text in listed)
    risk = f"<p>Risk: {escape(verdict.risk)}</p>"
    return f"<p><b>{escape(verdict.headline)}</b></p>{risk}<ul>{others}</ul>"


def plan_html(plan: Plan) -> str:
    """The figures of a plan as a table with one row."""
    return _table(plan_table([plan], plan.usable_bytes))


def _table(data: TableData) -> str:
    head = _row("th", [column.title for column in data.columns])
    body = "".join(_row("td", row, bold=row[0].startswith("→")) for row in data.rows)
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _row(tag: str, texts: Sequence[str], bold: bool = False) -> str:
    cells = (escape(text).replace("\n", "<br>") for text in texts)
    around = ("<b>", "</b>") if bold else ("", "")
    return f"<tr>{''.join(f'<{tag}>{around[0]}{cell}{around[1]}</{tag}>' for cell in cells)}</tr>"
