"""What `planner fit` shows: the answer, with which plan, what else would fit, and the largest."""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.pool import is_pool
from planner.job.quantities import gib, percent_sure, plural, share
from planner.job.request import Request
from planner.predict.plan_text import (
    batch_sentence,
    configuration_text,
    step_time_text,
)
from planner.report.infeasible import fitting_table, nothing_fits_report
from planner.report.search import error_note, job_facts
from planner.report.tables import Block, Facts, Notes, Report
from planner.search.fit import WHAT, FitAnswer, Largest
from planner.search.infeasibility import WhyNothingFits
from planner.search.result import SearchResult
from planner.search.search import job_summary


def fit_report(answer: FitAnswer, assumed: tuple[str, ...], command: str) -> Report:
    """The whole report. `assumed`: what was taken for granted; `command`: the search that tells
    more."""
    blocks: list[Block] = []
    if answer.result is not None:
        blocks += _fitting(answer.result)
    elif answer.why is not None:
        facts = (*_asked(answer.request), ("fits", _no(answer.why)))
        blocks += [Facts(facts), *nothing_fits_report(answer.why).blocks]
    if answer.largest:
        blocks.append(
            Facts(
                tuple((WHAT[item.what], _largest_text(item)) for item in answer.largest), "At most"
            )
        )
    blocks.append(Notes(tuple(_notes(answer, assumed, command))))
    return Report(tuple(blocks))


def _fitting(result: SearchResult) -> Iterator[Block]:
    best = result.plans[max(result.recommended, 1) - 1]
    lightest = min(result.plans, key=lambda plan: plan.peak_bytes)
    verdict = (
        f"YES: {gib(best.peak_bytes)} of {gib(best.usable_bytes)} GiB, with a probability of "
        f"{percent_sure(best.fit_probability)}"
    )
    yield Facts(
        (
            *job_facts(result.job),
            ("batch", batch_sentence(best, result.job.batch_target_sequences)),
            ("fits", verdict),
        )
    )
    named = (("→ use", best), ("lightest", lightest))[: 2 if lightest != best else 1]
    yield fitting_table("Plans", "plan", "as", named)


def _asked(request: Request) -> tuple[tuple[str, str], ...]:
    """What nothing fits: the job as its names were resolved, on GPUs of one type."""
    return () if is_pool(request.gpus) else job_facts(job_summary(request.resolve(), request))


def _no(why: WhyNothingFits) -> str:
    asked = f"with a probability of {share(why.request.fit_probability, 0)} or more"
    if why.proven:
        return f"NO: none of {plural(why.legal, 'legal configuration')} does {asked}"
    return f"not found: no configuration that does {asked}; not all were decided"


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
    if item.beyond:
        text += (
            f"; {item.beyond} does not fit" if item.proven else f"; no plan found for {item.beyond}"
        )
    return text


def _notes(answer: FitAnswer, assumed: tuple[str, ...], command: str) -> Iterator[str]:
    yield from assumed
    if answer.result is not None:
        yield error_note(answer.result.plans)
        yield "Largest: all else as asked; sequences at powers of two, models of the catalogue."
        yield "All plans between them, and files to launch:"
        yield f"    {command}"
    if answer.untried:
        yield f"No time was left for: {', '.join(answer.untried)}."
