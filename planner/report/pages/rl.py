"""The page of plans of reinforcement learning: the front, and one plan's step drawn and told."""

from __future__ import annotations

from pathlib import Path

from planner.job.quantities import seconds
from planner.predict.rl.step import RlStep, rl_step
from planner.report.charts.drawing import Specification, in_file
from planner.report.charts.rl import phases_chart, step_drawings
from planner.report.pages.page import Card, Page, Section
from planner.report.rl import front_table, job_rows, placement_text, plan_blocks, step_text
from planner.report.rl_verdict import RlVerdict, name
from planner.report.tables import Facts
from planner.search.rl.plan_file import read_rl_plan
from planner.search.rl.plans import layout_of
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
        card=rl_card(RlVerdict(result)),
    )


# Classes of the page's style by what a part of the step does.
_STYLES = {"samples": "samples", "judges": "waiting", "reads": "exchange", "trains": "compute"}


def rl_card(verdict: RlVerdict) -> Card:
    """The answer on top of the page."""
    whole = sum(verdict.kinds.values())
    parts = [
        (size / whole, _STYLES.get(kind, "waiting"), f"{kind} {seconds(size)}")
        for kind, size in verdict.kinds.items()
    ]
    choices = [
        (0, f"plan {number}, {words}", f"{name(plan)}: {verdict.than(plan)}")
        for number, words, plan in verdict.alternatives
    ]
    bars = (
        ("memory", verdict.memory_text, [(verdict.memory_share, "used", "held")]),
        ("step", seconds(verdict.plan.step_s), parts),
    )
    return Card(verdict.headline, bars, (("risk", verdict.risk),), choices)


def rl_page_of_file(path: Path) -> Page:
    """The page of a plan file, with the plan to take in full. UsageError."""
    result, number = read_rl_plan(path)
    step = rl_step(*layout_of(result.request, result.plans[number - 1]))
    return rl_page(result, number, step, path)


def rl_chart(step: RlStep) -> Specification:
    """The picture of a step for a file: what each side does when."""
    chart: Specification = in_file(phases_chart(step), "Where the time of a step goes")
    return chart
