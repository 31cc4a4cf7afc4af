"""What `planner fit` shows: the answer, with which plan, what else would fit, and the largest; and
what is shown of any job that nothing fits: the rules in conflict, and what would fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.job.pool import is_pool
from planner.job.quantities import gib, percent_sure, plural, share
from planner.job.request import Request
from planner.launch.registry import target_of_profile
from planner.predict.fit_words import fit_verdict
from planner.predict.memory.advice import Advice
from planner.predict.plan import Plan
from planner.predict.plan_text import batch_sentence, configuration_text, step_time_text
from planner.report.advice import leading_facts
from planner.report.search import error_note, job_facts, riskier_table
from planner.report.tables import Block, Facts, Notes, TableData, as_report, table
from planner.search.costed import EVEN_CHANCE
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
    verdict = (
        f"{word}: {gib(best.peak_bytes)} of {gib(best.usable_bytes)} GiB, with a probability of "
        f"{percent_sure(best.fit_probability)}"
    )
    batch = batch_sentence(best, result.job.batch_target_sequences)
    yield Facts((*job_facts(result.job), ("batch", batch), ("fits", verdict)))
    named = (("→ use", best), ("lightest", lightest))[: 2 if lightest != best else 1]
    yield fitting_table("Plans", "plan", "as", named)


def _asked(request: Request) -> tuple[tuple[str, str], ...]:
    """What nothing fits: the job as its names were resolved, on GPUs of one type."""
    if is_pool(request.gpus):
        return ()
    job = request.resolve()
    return job_facts(job_summary([job], job.cluster.num_gpus))


def _no(why: WhyNothingFits) -> str:
    asked = f"with a probability of {share(why.request.fit_probability, 0)} or more"
    if not why.proven:
        return f"CANNOT TELL: no configuration was found that does {asked}; not all were decided"
    none = f"none of {plural(why.legal, 'legal configuration')} does {asked}"
    sure = percent_sure(why.best_probability)
    match why.verdict:
        case "does not fit":
            return f"NO: {none}"
        case "probably does not fit":
            return f"PROBABLY NOT: {none}; the surest does with {sure}"
        case "cannot tell" if why.unmodelled:
            return (
                f"CANNOT TELL: {none}, but this is not modelled and may make it fit: "
                f"{'; '.join(why.unmodelled)}"
            )
        case "cannot tell":
            return f"CANNOT TELL: {none}; the surest does with {sure}"
    return f"PROBABLY: {none}, but the surest does with {sure}"


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
        yield "Largest: all else as asked; sequences at powers of two, models of the catalogue."
        launches = target_of_profile(answer.result.request.framework) is not None
        yield f"All plans between them{', and files to launch' if launches else ''}:"
        yield f"    {command}"
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
        (name, step_time_text(plan), gib(plan.peak_bytes), percent_sure(plan.fit_probability),
         configuration_text(plan))
        for name, plan in plans
    )  # fmt: skip
    return table(f"~{what} | step time | peak\nGiB | fits | ~{how}", rows, title)


def _relaxation_notes(why: WhyNothingFits) -> tuple[str, ...]:
    asked = why.request.fit_probability
    smaller = ", and a smaller one that fits with 50 %" if asked > EVEN_CHANCE else ""
    notes = [
        "For each kind of change the smallest that fits with a probability of "
        f"{share(asked, 0)}{smaller}."
    ]
    larger = [relaxation.change for relaxation in why.relaxations if not relaxation.smallest]
    if larger:
        notes[0] += f" Not every smaller one was tried for: {'; '.join(larger)}."
    notes.append(error_note([relaxation.plan for relaxation in why.relaxations]))
    unproven = [each.change for each in why.relaxations if each.plan.status != "optimal"]
    if unproven:
        notes.append(f"A faster plan may exist with: {'; '.join(unproven)}.")
    return tuple(notes)
