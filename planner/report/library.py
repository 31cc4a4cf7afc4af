"""What notebooks show of plans and searches: charts, and tables in HTML."""

from __future__ import annotations

from html import escape

from planner.job.quantities import gib, percent_sure, seconds
from planner.predict.plan import Plan
from planner.predict.plan_text import batch_text, recompute_text
from planner.report.plots import plot_plan, plot_result
from planner.report.search import printed, recommended_note
from planner.search.result import SearchResult

__all__ = ["plan_html", "plot_plan", "plot_result", "result_html"]

_TITLES = (
    "plan", "step", "tokens/s a GPU", "MFU %", "peak GiB", "fits", "degrees", "mbs×grad_acc",
    "recompute",
)  # fmt: skip


def result_html(result: SearchResult) -> str:
    """The plans that the command prints, the recommended one in bold, and why it is."""
    rows = [_cells(str(number), plan) for number, plan in printed(result)]
    bold = [number == result.recommended for number, _ in printed(result)]
    job = result.job
    head = f"{job.model} on {job.cluster}: {len(result.plans)} plans, {len(rows)} shown"
    notes = "".join(f"<p>{escape(line)}</p>" for line in recommended_note(result))
    return f"<p>{escape(head)}</p>{_table(rows, bold)}{notes}"


def plan_html(plan: Plan) -> str:
    """The figures of a plan in one row."""
    return _table([_cells("", plan)], [False])


def _cells(number: str, plan: Plan) -> tuple[str, ...]:
    return (
        number,
        seconds(plan.step_time_s),
        f"{plan.tokens_per_s_per_gpu:,.0f}",
        f"{plan.mfu * 100:.1f}",
        f"{gib(plan.peak_bytes)} of {gib(plan.limit_bytes)}",
        percent_sure(plan.fit_probability),
        str(plan.degrees),
        batch_text(plan.degrees),
        recompute_text(plan),
    )


def _table(rows: list[tuple[str, ...]], bold: list[bool]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in _TITLES)
    body = "".join(
        f"<tr>{''.join(_cell(text, mark) for text in row)}</tr>"
        for row, mark in zip(rows, bold, strict=True)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(text: str, mark: bool) -> str:
    return f"<td><b>{escape(text)}</b></td>" if mark else f"<td>{escape(text)}</td>"
