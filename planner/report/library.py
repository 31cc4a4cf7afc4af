"""What notebooks show of plans and searches: charts, and tables in HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import import_module
from typing import Any

from planner.predict.plan import Plan
from planner.report.charts.drawing import demand_plot
from planner.report.plan_table import plan_table
from planner.report.search import front_table, printed, recommended_note
from planner.report.tables import TableData
from planner.search.result import SearchResult


def plot_plan(plan: Plan, figure: Any) -> Any:
    """`planner.report.plots.plot_plan`; UsageError without the extra `plot`."""
    return _plots().plot_plan(plan, figure)


def plot_result(result: SearchResult, figure: Any) -> Any:
    """`planner.report.plots.plot_result`; UsageError without the extra `plot`."""
    return _plots().plot_result(result, figure)


def _plots() -> Any:
    demand_plot()
    return import_module("planner.report.plots")


def result_html(result: SearchResult) -> str:
    """The plans that the command prints, the recommended one in bold, and why it is."""
    plans, job = printed(result), result.job
    head = f"{job.model} on {job.cluster}: {len(result.plans)} plans, {len(plans)} shown"
    notes = "".join(f"<p>{escape(line)}</p>" for line in recommended_note(result))
    return f"<p>{escape(head)}</p>{_table(front_table(plans, result))}{notes}"


def plan_html(plan: Plan) -> str:
    """The figures of a plan in one row."""
    return _table(plan_table([plan], plan.usable_bytes))


def _table(data: TableData) -> str:
    head = _row("th", [column.title for column in data.columns])
    body = "".join(_row("td", row, bold=row[0].startswith("→")) for row in data.rows)
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _row(tag: str, texts: Sequence[str], bold: bool = False) -> str:
    cells = (escape(text).replace("\n", "<br>") for text in texts)
    around = ("<b>", "</b>") if bold else ("", "")
    return f"<tr>{''.join(f'<{tag}>{around[0]}{cell}{around[1]}</{tag}>' for cell in cells)}</tr>"
