"""Report of `planner check`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from planner.job.quantities import gib, percent_sure, plural, share, signed_share
from planner.launch.check.assess import Assessment
from planner.launch.check.changes import LaunchChange
from planner.launch.check.network import NETWORK_RULE, network_sentence
from planner.launch.check.opened import opened_sentences
from planner.launch.check.request import variation
from planner.launch.read.found import Found, Problem
from planner.launch.registry import formats
from planner.predict.diagnosis.findings import Findings
from planner.predict.memory.advice import Advice
from planner.predict.plan_text import (
    FitVerdict,
    activations_text,
    batch_rows,
    batch_sentence,
    batch_text,
    degrees_text,
    fit_verdict,
    recompute_text,
    step_time_text,
)
from planner.report.differences import gain_text
from planner.report.explain import (
    measured_blocks,
    metric_notes,
    peak_sentence,
    stage_table,
    time_table,
)
from planner.report.fit import advice_blocks, leading_facts
from planner.report.plan_table import full_memory_facts
from planner.report.rl_check import rl_blocks, rl_facts, rl_verdict
from planner.report.said import described, table_of
from planner.report.search import job_facts
from planner.report.tables import Block, Facts, Notes, as_report
from planner.search.explanation import Explanation

_MARKS = {"error": "ERROR", "missing": "MISSING", "warning": "warning", "note": "note"}
_MOST_PLACES = 3
# Most rows in a table of advice.
_MOST_MOVES = 6


@as_report
def check_report(
    assessment: Assessment,
    explanation: Explanation | None,
    changes: Sequence[LaunchChange],
    findings: Findings | None,
    advice: Advice | None = None,
    *,
    verbose: bool = False,
) -> Iterator[Block]:
    """The whole report. `advice`: changes that would make the job fit, if it may not."""
    leading = () if advice is None else leading_facts(advice)
    facts = list(_head_facts(assessment, explanation))
    answer = [row for row in facts if row[0] == "verdict"]
    yield Facts((*answer, *leading, *(row for row in facts if row not in answer)))
    # Warnings about the network are shown in the head of the report, and are not repeated.
    problems = [
        one for one in assessment.problems
        if one.rule != NETWORK_RULE or one.severity != "warning"
    ]  # fmt: skip
    if problems:
        yield Facts(
            tuple((_MARKS[one.severity], problem_text(one)) for one in problems), "Problems"
        )
    else:
        yield Notes(("No rule of the framework is broken.",))
    yield from rl_blocks(assessment.rl)
    if explanation is not None:
        yield stage_table(explanation)
        yield time_table(explanation)
        yield Notes(metric_notes(explanation))
    if findings is not None:
        yield from measured_blocks(findings)
    if advice is not None:
        yield from advice_blocks(advice, _MOST_MOVES)
    elif assessment.proposal is not None and not assessment.unpredictable:
        yield _changes(assessment, changes)
    yield from _setting_blocks(assessment.found, verbose=verbose)


# For a launch that breaks a rule: whether it would fit once that is corrected.
_MENDED: dict[FitVerdict, str] = {
    "fits": "; mended, it would fit",
    "probably fits": "; mended, it would probably fit",
    "cannot tell": "; mended, CANNOT TELL whether it fits",
    "probably does not fit": ", and would probably not fit",
    "does not fit": ", and would not fit",
}


def verdict(assessment: Assessment) -> str:
    """A sentence: whether it will run and fit."""
    plan, errors = assessment.plan, assessment.errors
    if errors:
        fits = "" if plan is None else _MENDED[fit_verdict(plan.fit_probability)]
        first = f", the first at {_short(errors[0].places[0])}" if errors[0].places else ""
        return f"WILL NOT RUN: {plural(len(errors), 'error')}{first}{fits}"
    if assessment.rl is not None and assessment.rl.step is not None:
        return rl_verdict(assessment.rl)
    if plan is None:
        reasons = " ".join(_reasons(assessment.unpredictable))
        return f"CANNOT TELL: no error was found, and there is no prediction. {reasons}"
    sure = percent_sure(plan.fit_probability)
    verdicts = described("check.verdicts")
    if assessment.leaves_out_memory:
        return str(verdicts["memory left out"].format(sure=sure))
    warned = sum(problem.severity == "warning" for problem in assessment.problems)
    also = f"; {plural(warned, 'warning')}" if warned else ""
    return f"{verdicts[fit_verdict(plan.fit_probability)].format(sure=sure)}{also}"


def _reasons(problems: Sequence[Problem]) -> Iterator[str]:
    """Why there is no prediction, a sentence for each problem, in the given order. If neighbouring
    problems have the same fix, it is given once, after them."""
    for _, group in groupby(problems, key=lambda problem: problem.fix):
        several = tuple(group)
        for problem in several:
            where = f"{_short(problem.places[0])}: " if problem.places else ""
            text = problem.text if where else _capital(problem.text)
            yield f"{where}{text}."
        if advice := _advice(several[-1]):
            yield f"{advice}."


# Options of `planner check`, which the user gives; all other options are written in the files.
_GIVEN = re.compile(r"--(env|vocab|model|gpus|cluster|lengths|seq|mbs|gbs|grad-acc|recompute)\b")


def _advice(problem: Problem) -> str:
    """The fix of a problem as a sentence without a full stop: which option to give or which line to
    write. Empty if the problem has no fix."""
    fix = problem.fix
    if not fix or fix.startswith("give "):
        return _capital(fix)
    is_given = _GIVEN.match(fix) and problem.severity != "error"
    return f"{'Give' if is_given else 'Write'}: {fix}"


def _capital(text: str) -> str:
    """The sentence with a capital first letter, unless it begins with the name of an option,
    setting or file."""
    first = text.partition(" ")[0]
    return text[:1].upper() + text[1:] if first.isalpha() else text


def _head_facts(
    assessment: Assessment, explanation: Explanation | None
) -> Iterator[tuple[str, str]]:
    found, proposal, plan = assessment.found, assessment.proposal, assessment.plan
    files = ", ".join(dict.fromkeys(Path(path).name for path in found.files))
    if assessment.network is not None and assessment.network.costs:
        problem = next(item for item in assessment.problems if item.rule == NETWORK_RULE)
        yield "first", f"unset {network_sentence(assessment.network)}  {_places(problem)}"
    known = formats().get(found.format)
    yield "files", f"{files} ({known.words if known else 'plan file'})"
    yield "verdict", verdict(assessment)
    yield from rl_facts(found, assessment.rl)
    if explanation is not None:
        yield from job_facts(explanation.job)
    if proposal is not None:
        yield "degrees", degrees_text(proposal.degrees)
        if plan is not None:
            yield "batch", batch_sentence(plan, float(proposal.request.gbs or proposal.degrees.gbs))
            yield from batch_rows(plan)
        yield "mbs×acc", batch_text(proposal.degrees)
        yield "recompute", recompute_text(plan) if plan else proposal.recompute
        if plan and plan.activation_offload:
            yield "on the host", activations_text(plan)
    for name in found.variations:
        yield "setting", variation(name, found.framework).words
    if assessment.job is not None and assessment.job.cluster.sharp:
        yield "setting", "gradients reduced in the switches (SHARP)"
    yield from (("assumed", text) for text in found.assumed)
    if plan is not None:
        # MFU with an interval that follows from that of the step time.
        ends = plan.step_time.high, plan.step_time.low
        low, high = (share(plan.mfu * plan.step_time_s / end_s) for end_s in ends)
        yield "step time", f"{step_time_text(plan)}, {plan.tokens_per_s:,.0f} tokens/s"
        yield "MFU", f"{share(plan.mfu)} ({low} to {high}, 80 % interval)"
        yield "peak", f"stage {plan.heaviest_stage}: {peak_sentence(plan)}"
        yield from full_memory_facts(plan)
        said = dict.fromkeys(opened_sentences(plan, assessment.opened).values())
        yield from (("open", text) for text in said)


# --- problems -------------------------------------------------------------------------------------


def problem_text(problem: Problem) -> str:
    """Sentence, fix, rule and places of a problem."""
    said = any(words in problem.text for words in ("run time", "found out", "without a word"))
    late = " (not found before run time)" if problem.late and not said else ""
    fix = f". {advice}" if (advice := _advice(problem)) else ""
    where = f"  {_places(problem)}" if problem.places else ""
    return f"{problem.text}{late}{fix}  [{problem.rule}]{where}"


def _places(problem: Problem) -> str:
    places = ", ".join(_short(place) for place in problem.places[:_MOST_PLACES])
    return places + (" …" if len(problem.places) > _MOST_PLACES else "")


def _short(place: str) -> str:
    return place.rsplit("/", 1)[-1]


# --- changes --------------------------------------------------------------------------------------


def _changes(assessment: Assessment, changes: Sequence[LaunchChange]) -> Block:
    if changes:
        return table_of(
            "check.changes", changes, titled=_change_title(assessment, changes), gain=_gain
        )
    text = "No single change that was tried makes it faster by 1 % and fits."
    if assessment.plan is None or not assessment.plan.fits:
        text = "No single change that was tried makes it run and fit."
    return Notes((text,))


# The best of many predictions tends to be too good (`planner.predict.uncertainty.selection`).
_EXPECT = "expect: 80 % interval of the gain, corrected for choosing the best of many predictions"


def _change_title(assessment: Assessment, changes: Sequence[LaunchChange]) -> str:
    if assessment.plan is None:
        others = " once the other errors are mended" if len(assessment.errors) > 1 else ""
        return f"Single changes that would run{others}"
    if assessment.plan.fits and changes[0].sufficient:
        return f"Best single changes ({_EXPECT})"
    if not changes[0].sufficient:
        return "No single change makes it fit safely; those that help most"
    return "Best single changes that make it fit"


def _gain(change: LaunchChange) -> str:
    if change.faster is None or change.saved_bytes is None:
        return "runs"
    faster_by = f"{signed_share(change.faster)} tokens/s"
    if change.expected is not None:
        faster_by += f" (expect {gain_text(change.expected)})"
    size = gib(abs(change.saved_bytes))
    if float(size) == 0.0:
        return f"{faster_by}, same memory"
    return f"{faster_by}, {size} GiB {'less' if change.saved_bytes > 0 else 'more'}"


# --- settings -------------------------------------------------------------------------------------


def _setting_blocks(found: Found, *, verbose: bool) -> Iterator[Block]:
    if found.unmodelled:
        left_out = (f"{one.key}: {why}  {_short(one.place)}" for one, why in found.unmodelled)
        yield Notes(tuple(left_out), "Left out of the prediction")
    if found.unused and verbose:
        rows = tuple((entry.key, f"{entry.value}  {_short(entry.place)}") for entry in found.unused)
        yield Facts(rows, "Known, and without effect on memory and time")
    elif found.unused:
        text = f"{plural(len(found.unused), 'setting')} without effect on memory and time (-v)."
        yield Notes((text,))
