"""The page of plans of reinforcement learning: the front, and one plan's step drawn and told."""

from __future__ import annotations

from pathlib import Path

from planner.predict.rl.step import RlStep
from planner.report.charts.drawing import Specification, in_file
from planner.report.charts.rl import phases_chart, step_drawings
from planner.report.pages.page import Page, Section
from planner.report.rl import front_table, job_rows, placement_text, plan_blocks, step_text
from planner.report.tables import Facts
from planner.search.rl.result import RlResult


def rl_page(result: RlResult, number: int, step: RlStep, written: Path | None) -> Page:
    """The page of a result, which shows plan `number`. `written`: its plan file, if there is
    one."""
    plan = result.plans[number - 1]
    saved = f"; plan file: {written}" if written else ""
    return Page(
        f"{result.job.model}, {result.job.algorithm} on {result.job.gpus:,} GPUs",
        f"plan {number}: {placement_text(plan)}, a step in {step_text(plan)}{saved}",
        (
            Section("The job", blocks=(Facts(tuple(job_rows(result.job))),)),
            Section("Plans", blocks=(front_table(result),)),
            Section(f"Plan {number}", tuple(step_drawings(step))),
            Section("In words", blocks=tuple(plan_blocks(result, number, step))),
        ),
    )


def rl_chart(step: RlStep) -> Specification:
    """The picture of a step for a file: what each side does when."""
    chart: Specification = in_file(phases_chart(step), "Where the time of a step goes")
    return chart
