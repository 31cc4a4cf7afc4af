"""Report of `planner fit` and of jobs that do not fit, and advice on memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.job.quantities import gib, plural, signed_share
from planner.launch.plans import is_launchable
from planner.predict.command_line import fit_command
from planner.predict.memory.advice import Advice, Move
from planner.predict.memory.solve import SAFE_PROBABILITY
from planner.predict.ops.table import parameter_count
from planner.predict.plan import Plan
from planner.predict.plan_text import (
    batch_sentence,
    configuration_text,
    error_text,
    fit_verdict,
    sample_rows,
    step_time_text,
)
from planner.predict.uncertainty.likely import EVEN_CHANCE
from planner.report.passes import passes_blocks
from planner.report.said import described, notes, said, table_of
from planner.report.search import error_note, job_facts, riskier_table
from planner.report.tables import Block, Facts, Notes, TableData, as_report
from planner.search.fit import WHAT, FitAnswer, Largest, OtherTraining
from planner.search.infeasibility import UNDECIDED_RULES, WhyNothingFits
from planner.search.outcome import job_summary
from planner.search.result import SearchResult

# The amount of training, and for each change the hours and cost it takes.
Trainings = tuple[str, tuple[tuple[str, str], ...]]
NO_TRAININGS: Trainings = ("", ())
# Most changes that a table lists.
_MOST_ROWS = 12
# Smaller shares of the step time are shown as none.
_LEAST_SHARE = 5e-4


def leading_facts(advice: Advice) -> tuple[tuple[str, str], ...]:
    """The most important advice, as labelled rows: the largest term at the peak and how to shrink
    it. If the job is not likely to fit, also the pair of changes that comes closest if none
    suffices, and the easiest change that makes the job fit."""
    largest, base_s = advice.largest, advice.base.step_time_s
    text = f"{gib(largest.size_bytes)} of {gib(largest.total_bytes)} GiB are {largest.label}"
    if largest.move is None:
        text += "; no single change that was tried shrinks it much"
    else:
        text += f": {_outcome(largest.move, base_s)}"
    facts = [("largest", text)]
    if advice.base.fit_probability < SAFE_PROBABILITY:
        easiest = next(iter((*advice.sufficient, *advice.pairs)), None)
        if advice.closest is not None:
            facts.append(("closest", _outcome(advice.closest, base_s)))
        if easiest not in (None, largest.move):
            facts.append(("easiest fix", _outcome(easiest, base_s)))
    return tuple(facts)


def _outcome(move: Move, base_s: float) -> str:
    """`--with liger-kernels → 99.0 GiB (fits >99 %, step +0.3 %)`."""
    text = described("advice.outcome")
    return said(text, move, costs=_cost_text(move, base_s), also=_also(move)) or ""


def advice_blocks(advice: Advice, most: int = _MOST_ROWS) -> Iterator[Block]:
    """Tables of changes: those that make the job fit, those that help but do not suffice, and pairs
    of changes. Each table has at most `most` rows. A note at the end says which changes were tried.
    """
    makes = "Changes that make it fit"
    if advice.base.fit_probability >= SAFE_PROBABILITY:
        makes = "It fits without changes; changes that free memory"
    order = "easiest first"
    closest = () if advice.closest is None else (advice.closest,)
    for title, moves in (
        (f"{makes}, {order}", advice.sufficient),
        ("Changes that help but do not suffice, most memory first", advice.partial),
        (f"Pairs of changes that make it fit, {order}", advice.pairs),
        ("No pair makes it fit on these GPUs; the lightest", closest),
    ):
        more = f" ({len(moves) - most} more with --json)" if len(moves) > most else ""
        if moves:
            yield table_of(
                "advice.moves", moves[:most], titled=title + more, also=_also,
                costs=lambda move: _cost_text(move, advice.base.step_time_s),
            )  # fmt: skip
    base = advice.base
    told = notes(
        "advice.notes", base, error=error_text(base.peak_bytes, base.peak_interval),
        tried=advice.tried, nothing=not (advice.sufficient or advice.pairs),
    )  # fmt: skip
    yield Notes(tuple(told))


def _also(move: Move) -> str:
    words = (move.learns, plural(move.more_gpus, "more GPU") if move.more_gpus else "")
    return ", ".join(word for word in words if word)


def _cost_text(move: Move, base_s: float) -> str:
    return signed_share(0.0 if abs(move.extra_s) < _LEAST_SHARE * base_s else move.extra_s / base_s)


@as_report
def fit_report(
    answer: FitAnswer, assumed: tuple[str, ...], command: str, advice: Advice | None = None,
    training: str = "", trainings: Trainings = NO_TRAININGS,
) -> Iterator[Block]:  # fmt: skip
    """The whole report. `assumed`: notes on defaults; `command`: a search for further plans;
    `advice`: given if nothing fits; `training`: hours and cost of training with the best plan;
    `trainings`: the same for each change that makes the job fit."""
    if answer.result is not None:
        yield from _fitting(answer.result, training)
    elif answer.why is not None:
        leading = () if advice is None else leading_facts(advice)
        job = answer.request.resolve()
        asked = job_facts(job_summary(job, job.cluster.num_gpus))
        yield Facts((("fits", _no(answer.why)), *leading, *asked))
        yield from nothing_fits_report(answer.why).blocks
    if answer.other is not None:
        yield Facts(tuple(_other(answer.other)), "As another training")
    yield from trainings_report(trainings).blocks
    if answer.largest:
        largest = tuple((WHAT[item.what], _largest_text(item)) for item in answer.largest)
        yield Facts(largest, "At most")
    yield Notes(tuple(_notes(answer, assumed, command)))


@as_report
def trainings_report(trainings: Trainings) -> Iterator[Block]:
    """Hours and dollars of a training, for each change that makes it fit."""
    title, rows = trainings
    if rows:
        yield Facts(rows, title)


def _other(other: OtherTraining) -> Iterator[tuple[str, str]]:
    """Rows on training adapters, which fits although training all weights does not: how they are
    trained, the plan, and the command that shows more."""
    plan = other.plan
    yield "train", said(described("fit.other"), other, whole=_whole(other)) or ""
    yield (
        "plan",
        (
            f"{gib(plan.peak_bytes)} of {gib(plan.usable_bytes)} GiB, {step_time_text(plan)}: "
            f"{configuration_text(plan)}"
        ),
    )
    yield "more", fit_command(other.request)


def _whole(other: OtherTraining) -> int:
    return parameter_count(other.request.resolve().model).total


def _fitting(result: SearchResult, training: str) -> Iterator[Block]:
    best = result.plans[max(result.recommended, 1) - 1]
    lightest = min(result.plans, key=lambda plan: plan.peak_bytes)
    word = {"fits": "YES", "probably fits": "PROBABLY"}.get(
        fit_verdict(best.fit_probability), fit_verdict(best.fit_probability).upper()
    )
    verdict = said(described("fit.fits"), best, word=word) or ""
    batch = batch_sentence(best, result.job.batch_target_sequences)
    takes = (("training", training),) if training else ()
    beside = sample_rows(best)
    yield Facts((("fits", verdict), *job_facts(result.job), ("batch", batch), *beside, *takes))
    named = (("→ use", best), ("lightest", lightest))[: 2 if lightest != best else 1]
    yield fitting_table("Plans", "plan", "as", named)
    yield from passes_blocks(best.passes)


def _no(why: WhyNothingFits) -> str:
    if not why.proven:
        return said(described("fit.undecided"), why) or ""
    verdicts = described("fit.verdicts")
    name: str = "unmodelled" if why.verdict == "cannot tell" and why.unmodelled else why.verdict
    asked = why.request.fit_probability
    if name == "does not fit" and any(one.plan.fit_probability >= asked for one in why.relaxations):
        name = "changed"
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
        plans, request = answer.result.plans, answer.result.request
        launches = bool(plans) and is_launchable(plans[0], request)
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
    """That nothing fits, and which rules conflict."""
    surely = " with the required probability" if why.riskier else ""
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
    """Changes that would make the job fit."""
    if why.relaxations:
        found = [(relaxation.change, relaxation.plan) for relaxation in why.relaxations]
        title = "Changes that would make it fit (searched), easiest first"
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
    """A table of plans: a name and a line of text for each. `what`, `how`: titles of the two
    columns."""
    rows = ({"name": name, "plan": plan} for name, plan in plans)
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
