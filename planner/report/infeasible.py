"""What `planner search` shows when nothing fits: the rules in conflict, and what would fit."""

from __future__ import annotations

from collections.abc import Sequence

from planner.job.quantities import gib, percent_sure, share
from planner.predict.plan import Plan
from planner.predict.plan_text import configuration_text, step_time_text
from planner.report.search import error_note, riskier_table
from planner.report.tables import Block, Facts, Notes, Report, TableData, headings
from planner.search.infeasibility import UNDECIDED_RULES, Relaxation, WhyNothingFits


def nothing_fits_report(why: WhyNothingFits) -> Report:
    """The whole report."""
    none = "No configuration was found that fits, but not all were decided."
    if why.proven:
        none = "No configuration fits."
    decided = why.proven and UNDECIDED_RULES not in why.untried
    several = "These exclude each other" if decided else "What stands in the way"
    rules = Facts(
        tuple((rule.name, _sentence(rule.text)) for rule in why.conflict),
        f"{none} {several if len(why.conflict) > 1 else 'Why'}",
    )
    blocks: list[Block] = [rules]
    if why.layouts:
        layouts = tuple((rule.name, _sentence(rule.text)) for rule in why.layouts)
        blocks.append(Facts(layouts, "No other split of its layers fits either"))
    if why.riskier:
        blocks.append(riskier_table(why.riskier, why.usable_bytes, "These may fit"))
    if why.relaxations:
        blocks += [relaxation_table(why.relaxations), Notes(_notes(why))]
    elif why.in_vain or not why.untried:
        blocks.append(Notes(("None of the changes that were tried makes it fit.",)))
    if why.in_vain:
        blocks.append(Notes((f"No plan was found with: {'; '.join(why.in_vain)}.",)))
    if why.cut:
        blocks.append(Notes((f"{_sentence(why.cut)}.",)))
    return Report(tuple(blocks))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def relaxation_table(relaxations: tuple[Relaxation, ...]) -> TableData:
    """One row a relaxation and the plan that was found with it."""
    title = "What would make it fit (searched), fastest first"
    found = [(relaxation.change, relaxation.plan) for relaxation in relaxations]
    return fitting_table(title, "change", "plan", found)


def fitting_table(title: str, what: str, how: str, plans: Sequence[tuple[str, Plan]]) -> TableData:
    """Plans by a name, each in a line of words; `what`, `how`: titles of name and words."""
    return TableData(
        title=title,
        columns=headings(f"~{what} | step time | peak\nGiB | fits | ~{how}"),
        rows=tuple(_row(name, plan) for name, plan in plans),
    )


def _row(name: str, plan: Plan) -> tuple[str, ...]:
    fits = percent_sure(plan.fit_probability)
    return name, step_time_text(plan), gib(plan.peak_bytes), fits, configuration_text(plan)


def _notes(why: WhyNothingFits) -> tuple[str, ...]:
    notes = [
        "For each kind of change the smallest that fits with a probability of "
        f"{share(why.request.fit_probability, 0)}, and a smaller one that fits with 50 %."
    ]
    larger = [relaxation.change for relaxation in why.relaxations if not relaxation.smallest]
    if larger:
        notes[0] += f" Not every smaller one was tried for: {'; '.join(larger)}."
    notes.append(error_note([relaxation.plan for relaxation in why.relaxations]))
    open_plans = [
        relaxation for relaxation in why.relaxations if relaxation.plan.status != "optimal"
    ]
    if open_plans:
        changes = "; ".join(open_plan.change for open_plan in open_plans)
        notes.append(f"A faster plan may exist with: {changes}.")
    return tuple(notes)
