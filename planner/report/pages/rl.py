"""The page of plans for reinforcement learning: the front, and each plan's step in charts and
words."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from planner.job.quantities import GIB, seconds
from planner.predict.rl.step import RlStep, rl_step
from planner.predict.rl.timeline import PHASE_WORDS
from planner.report.charts.drawing import Specification, in_file
from planner.report.charts.rl import step_drawings
from planner.report.pages.cards import rl_card
from planner.report.pages.page import Page, Section
from planner.report.rl import front_table, job_rows, plan_blocks, plan_rows
from planner.report.rl_verdict import RlVerdict, name
from planner.report.tables import Column, Facts, Notes, TableData
from planner.search.rl.plan_file import read_rl_plan
from planner.search.rl.plans import layout_of
from planner.search.rl.result import RlPlan, RlResult

# Most plans that are drawn.
_MOST_DRAWN = 16


def rl_page(result: RlResult, number: int, step: RlStep, written: Path | None) -> Page:
    """The page of a result, opened with plan `number`. It draws the first plans and plan `number`.
    `step`: that plan's step, already costed; `written`: the plan file, None if none was written."""
    told = dict(job_rows(result.job))
    numbered = list(enumerate(result.plans, start=1))
    shown = [one for one in numbered if one[0] <= _MOST_DRAWN or one[0] == number]
    sections = [Section("All plans", blocks=(_table(result), Facts(tuple(told.items()))))]
    for shown_number, plan in shown:
        own = step if shown_number == number else rl_step(*layout_of(result.request, plan))
        sections += _plan_sections(result, shown_number, own, written)
    return Page(
        f"{result.job.model}, {result.job.algorithm} on {result.job.gpus:,} GPUs",
        f"{told['framework']}; {told['step']}",
        sections,
        [(one, f"{one}: {name(plan)}, {seconds(plan.step_s)}") for one, plan in shown],
        number,
        card=rl_card(RlVerdict(result), written),
        beside={one: _beside(plan) for one, plan in shown},
    )


def _table(result: RlResult) -> TableData:
    """The front, under the title by which the page recognizes a table of plans."""
    found = front_table(result)
    return replace(found, columns=(Column("plan"), *found.columns[1:]), title="")


def _plan_sections(
    result: RlResult, number: int, step: RlStep, written: Path | None
) -> Iterator[Section]:
    plan = result.plans[number - 1]
    file = "plans.json" if written is None else shlex.quote(str(written))
    commands = (
        "Write a folder that launches it:", f"    planner launch {file} {number} -o run-{number}",
        "See what else was close, and write a trace to open in Perfetto (ui.perfetto.dev):",
        f"    planner explain {file} {number} --trace step-{number}.json",
    )  # fmt: skip
    drawings = [replace(one, name=f"{one.name}-{number}") for one in step_drawings(step)]
    facts = Facts(tuple(plan_rows(plan)))
    yield Section(
        f"Plan {number}: {name(plan)}", drawings, (facts, Notes(commands)), plan=number
    )  # fmt: skip
    _, *rest = plan_blocks(result, number, step)
    yield Section("Figures and assumptions", blocks=rest, plan=number)


def _beside(plan: RlPlan) -> Mapping[str, object]:
    """The values with which a page compares a plan, as in `planner.report.beside.compared`."""
    memory: dict[str, float] = {}
    for phase in plan.phases:
        words = f"{phase.side}, {PHASE_WORDS[phase.name]}"
        memory[words] = round(phase.peak_bytes / GIB, 4)
    times = {PHASE_WORDS[one.name]: round(one.seconds, 4) for one in plan.phases}
    return {
        "name": name(plan), "step_s": plan.step_s, "gib": max(memory.values(), default=0.0),
        "settings": dict(plan_rows(plan)), "time": times, "memory": memory,
    }  # fmt: skip


def rl_page_of_file(path: Path) -> Page:
    """The page of a plan file, opened with the recommended plan. Raises UsageError if the file is
    wrong."""
    result, number = read_rl_plan(path)
    step = rl_step(*layout_of(result.request, result.plans[number - 1]))
    return rl_page(result, number, step, path)


def rl_chart(result: RlResult, step: RlStep) -> Specification:
    """The chart of a step for a file: the phases of each side, and the memory of its GPUs."""
    drawn = [one.chart | {"title": one.title} for one in step_drawings(step)]
    resolved = {"scale": {"color": "independent"}}
    chart: Specification = in_file(
        {"vconcat": drawn, "spacing": 36, "resolve": resolved},
        f"{result.job.model}, {result.job.algorithm} on {result.job.gpus:,} GPUs",
        RlVerdict(result).headline,
    )
    return chart
