"""What `planner fit` shows: the answer, with which plan, what else would fit, and the largest; and
what is shown of any job that nothing fits: the rules in conflict, and what would fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.job.quantities import gib
from planner.job.request import Request
from planner.launch.registry import target_of_profile
from planner.predict.memory.advice import Advice
from planner.predict.plan import Plan
from planner.predict.plan_text import (
    batch_sentence,
    configuration_text,
    fit_verdict,
    step_time_text,
)
from planner.predict.uncertainty.likely import EVEN_CHANCE
from planner.report.advice import leading_facts
from planner.report.said import described, notes, said, table_of
from planner.report.search import error_note, job_facts, riskier_table
from planner.report.tables import Block, Facts, Notes, TableData, as_report
from planner.search.fit import WHAT, FitAnswer, Largest
from planner.search.infeasibility import UNDECIDED_RULES, WhyNothingFits
from planner.search.outcome import job_summary
from planner.search.result import SearchResult


@as_report
def fit_report(
    answer: FitAnswer, assumed: tuple[str, ...], command: str, advice: Advice | None = None
) -> Iterator[Block]:
    """The whole report. `assumed`: what was taken for granted; `command`: the search that tells
    more; `advice`: what the lightest configuration lacks, where nothing fits."""
    if answer.result is not None:
        yield from _fitting(answer.result)
    elif answer.why is not None:
        leading = () if advice is None else leading_facts(advice)
        yield Facts((*_asked(answer.request), ("fits", _no(answer.why)), *leading))
        yield from nothing_fits_report(answer.why).blocks
    if answer.largest:
        largest = tuple((WHAT[item.what], _largest_text(item)) for item in answer.largest)
        yield Facts(largest, "At most")
    yield Notes(tuple(_notes(answer, assumed, command)))


def _fitting(result: SearchResult) -> Iterator[Block]:
    best = result.plans[max(result.recommended, 1) - 1]
    lightest = min(result.plans, key=lambda plan: plan.peak_bytes)
    word = {"fits": "YES", "probably fits": "PROBABLY"}.get(
        fit_verdict(best.fit_probability), fit_verdict(best.fit_probability).upper()
    )
    verdict = said(described("fit.fits"), best, word=word) or ""
    batch = batch_sentence(best, result.job.batch_target_sequences)
    yield Facts((*job_facts(result.job), ("batch", batch), ("fits", verdict)))
    named = (("→ use", best), ("lightest", lightest))[: 2 if lightest != best else 1]
    yield fitting_table("Plans", "plan", "as", named)


def _asked(request: Request) -> tuple[tuple[str, str], ...]:
    """What nothing fits: the job as its names were resolved."""
    job = request.resolve()
    return job_facts(job_summary(job, job.cluster.num_gpus))


def _no(why: WhyNothingFits) -> str:
    if not why.proven:
        return said(described("fit.undecided"), why) or ""
    verdicts = described("fit.verdicts")
    name = "unmodelled" if why.verdict == "cannot tell" and why.unmodelled else why.verdict
    text = verdicts.get(name, verdicts["otherwise"])
    return said(text, why, none=said(described("fit.none"), why)) or ""


def _largest_text(item: Largest) -> str:
    unit = " tokens" if item.what == "seq" else ""
    if item.value is None:
        return f"none fits, from {item.beyond}{unit} on"
    text = f"{item.value}{unit}"
    if item.plan is not None:
        plan = item.plan
        text += f" ({gib(plan.peak_bytes)} GiB, {step_time_text(plan)}: {configuration_text(plan)})"
    if item.beyond and not item.exact:
        return f"{text}; no plan for {item.beyond}, and between them nothing was tried"
    if item.beyond and item.proven:
        return f"{text}; {item.beyond} does not fit"
    return f"{text}; no plan found for {item.beyond}" if item.beyond else text


def _notes(answer: FitAnswer, assumed: tuple[str, ...], command: str) -> Iterator[str]:
    yield from assumed
    if answer.result is not None:
        yield error_note(answer.result.plans)
        launches = target_of_profile(answer.result.request.framework) is not None
        yield from notes("fit.notes", None, launches=launches, command=command)
    if answer.untried:
        yield f"No time was left for: {', '.join(answer.untried)}."


@as_report
def nothing_fits_report(why: WhyNothingFits) -> Iterator[Block]:
    """The rules in conflict, and what would fit."""
    yield from verdict_report(why).blocks
    yield from remedies_report(why).blocks


@as_report
def verdict_report(why: WhyNothingFits) -> Iterator[Block]:
    """That nothing fits, and the rules in conflict."""
    surely = " as surely as was asked" if why.riskier else ""
    none_fits = f"No configuration fits{surely}."
    none = "No configuration was found that fits, but not all were decided."
    if why.proven:
        none = "No configuration that is modelled fits." if why.unmodelled else none_fits
    decided = why.proven and UNDECIDED_RULES not in why.untried
    several = "These exclude each other" if decided else "What stands in the way"
    rules = tuple((rule.name, _sentence(rule.text)) for rule in why.conflict)
    yield Facts(rules, f"{none} {several if len(rules) > 1 else 'Why'}")
    if why.layouts:
        layouts = tuple((rule.name, _sentence(rule.text)) for rule in why.layouts)
        yield Facts(layouts, "No other split of its layers fits either")
    if why.riskier:
        yield riskier_table(why.riskier, why.usable_bytes, "These may fit")


@as_report
def remedies_report(why: WhyNothingFits) -> Iterator[Block]:
    """What would make the job fit, as far as it was tried."""
    if why.relaxations:
        found = [(relaxation.change, relaxation.plan) for relaxation in why.relaxations]
        title = "What would make it fit (searched), easiest first"
        yield fitting_table(title, "change", "plan", found)
        yield Notes(_relaxation_notes(why))
    elif why.in_vain or not why.untried:
        yield Notes(("None of the changes that were tried makes it fit.",))
    if why.in_vain:
        yield Notes((f"No plan was found with: {'; '.join(why.in_vain)}.",))
    if why.cut:
        yield Notes((f"{_sentence(why.cut)}.",))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def fitting_table(title: str, what: str, how: str, plans: Sequence[tuple[str, Plan]]) -> TableData:
    """Plans by a name, each in a line of words; `what`, `how`: titles of name and words."""
    rows = (
        {"name": name, "plan": plan, "step_words": step_time_text(plan),
         "configuration": configuration_text(plan)}
        for name, plan in plans
    )  # fmt: skip
    return table_of("check.fitting", rows, titled=title, what=what, how=how)


def _relaxation_notes(why: WhyNothingFits) -> tuple[str, ...]:
    asked, found = why.request.fit_probability, why.relaxations
    return tuple(
        notes(
            "fit.relaxed.notes", None, asked=asked, smaller=asked > EVEN_CHANCE,
            larger=[one.change for one in found if not one.smallest],
            errors=error_note([one.plan for one in found]),
            unproven=[one.change for one in found if one.plan.status != "optimal"],
        )
    )  # fmt: skip
