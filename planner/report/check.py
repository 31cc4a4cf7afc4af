"""What `planner check` shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planner.job.job import SURE_TO_FIT
from planner.job.quantities import gib, percent_sure, plural, seconds, share, signed_share
from planner.launch.check.assess import Assessment
from planner.launch.check.changes import Change
from planner.launch.check.measured import GIB, Comparison, Findings
from planner.launch.check.measured import Explanation as GapExplanation
from planner.launch.check.request import variation
from planner.launch.read.found import Found, Problem
from planner.predict.plan_text import (
    activations_text,
    batch_sentence,
    batch_text,
    degrees_text,
    error_text,
    ramp_rows,
    recompute_text,
    step_time_text,
)
from planner.report.explain import metric_notes, peak_sentence, stage_table, time_table
from planner.report.full_memory import full_memory_facts
from planner.report.search import job_facts
from planner.report.tables import Block, Facts, Notes, Report, TableData, headings
from planner.search.explanation import Explanation

_FORMATS = {
    "megatron": "Megatron-LM arguments",
    "megatron-bridge": "Megatron-Bridge overrides",
    "torchtitan-0.2": "torchtitan 0.2 TOML",
    "torchtitan-0.3": "torchtitan 0.3 configuration function",
    "deepspeed": "DeepSpeed JSON",
    "accelerate": "accelerate YAML",
    "nanotron": "nanotron YAML",
    "settings": "settings of a trainer",
    "recipe": "recipe in Python",
    "plan": "plan file",
}
_MARKS = {"error": "ERROR", "missing": "MISSING", "warning": "warning", "note": "note"}
_MOST_PLACES = 3


def check_report(
    assessment: Assessment,
    explanation: Explanation | None,
    changes: Sequence[Change],
    findings: Findings | None,
    *,
    verbose: bool = False,
) -> Report:
    """The whole report: verdict, problems, prediction, changes, measurement."""
    blocks: list[Block] = [Facts(_head_facts(assessment, explanation))]
    blocks += _problem_blocks(assessment)
    if explanation is not None:
        blocks += [stage_table(explanation), time_table(explanation)]
        blocks.append(Notes(metric_notes(explanation)))
    if findings is not None:
        blocks += _measured_blocks(findings)
    blocks += _change_blocks(assessment, changes)
    blocks += _setting_blocks(assessment.found, verbose=verbose)
    return Report(tuple(blocks))


def verdict(assessment: Assessment) -> str:
    """One sentence: whether it will run, and fit."""
    plan, errors = assessment.plan, assessment.errors
    if errors:
        fits = ""
        if plan is not None:
            fits = ", and would not fit" if not plan.fits else "; mended, it would fit"
        return f"WILL NOT RUN: {plural(len(errors), 'error')}{fits}"
    if plan is None:
        reasons = "; ".join(
            f"{entry.text} (give {entry.fix})" if entry.fix.startswith("--") else entry.text
            for entry in assessment.unpredictable
        )
        return f"CANNOT TELL: no error found, and no prediction: {reasons}"
    sure = percent_sure(plan.fit_probability)
    if assessment.verdict == "cannot tell":
        return (
            f"CANNOT TELL: as predicted it would not fit (probability {sure}), but something that "
            "saves memory is left out: see Problems"
        )
    if not plan.fits:
        unsure = "PROBABLY " if plan.fit_probability > 1.0 - SURE_TO_FIT else ""
        return f"{unsure}WILL NOT FIT (probability to fit {sure})"
    warned = sum(problem.severity == "warning" for problem in assessment.problems)
    also = f"; {plural(warned, 'warning')}" if warned else ""
    if plan.fit_probability < SURE_TO_FIT:
        return f"runs, MAY NOT FIT (probability to fit {sure}){also}"
    return f"runs and fits (probability {sure}){also}"


def _head_facts(
    assessment: Assessment, explanation: Explanation | None
) -> tuple[tuple[str, str], ...]:
    found, setup, plan = assessment.found, assessment.setup, assessment.plan
    files = ", ".join(Path(path).name for path in found.files)
    rows = [("files", f"{files} ({_FORMATS[found.format]})"), ("verdict", verdict(assessment))]
    if explanation is not None:
        rows += job_facts(explanation.job)
    if setup is not None:
        rows.append(("degrees", degrees_text(setup.degrees)))
        target = float(setup.request.gbs or setup.degrees.gbs)
        if plan is not None:
            rows += [("batch", batch_sentence(plan, target)), *ramp_rows(plan)]
        rows.append(("mbs×acc", batch_text(setup.degrees)))
        rows.append(("recompute", recompute_text(plan) if plan else setup.recompute))
        if plan and plan.activation_offload:
            rows.append(("on the host", activations_text(plan)))
    for name in found.variations:
        rows.append(("setting", variation(name, found.framework).words))
    if assessment.job is not None and assessment.job.cluster.sharp:
        rows.append(("setting", "gradients reduced in the switches (SHARP)"))
    rows += [("assumed", text) for text in found.assumed]
    if plan is not None:
        rows += [
            ("step time", f"{step_time_text(plan)}, {plan.tokens_per_s:,.0f} tokens/s"),
            ("MFU", _mfu_text(assessment)),
            ("peak", f"stage {plan.heaviest_stage}: {peak_sentence(plan)}"),
            *full_memory_facts(plan),
        ]
    return tuple(rows)


def _mfu_text(assessment: Assessment) -> str:
    """MFU with the interval that the step time's makes."""
    plan = assessment.plan
    if plan is None:
        return ""
    low, high = (plan.mfu * plan.step_time_s / t for t in (plan.step_time.high, plan.step_time.low))
    return f"{share(plan.mfu)} ({share(low)} to {share(high)}, 80 % interval)"


# --- problems -------------------------------------------------------------------------------------


def _problem_blocks(assessment: Assessment) -> list[Block]:
    if not assessment.problems:
        return [Notes(("No rule of the framework is broken.",))]
    rows = tuple(
        (_MARKS[problem.severity], problem_text(problem)) for problem in assessment.problems
    )
    return [Facts(rows, "Problems")]


def problem_text(problem: Problem) -> str:
    """Sentence, fix, rule and places of a problem."""
    said = any(words in problem.text for words in ("run time", "found out", "without a word"))
    late = " (not found before run time)" if problem.late and not said else ""
    fix = f". Write: {problem.fix}" if problem.fix else ""
    places = ", ".join(_short(place) for place in problem.places[:_MOST_PLACES])
    more = " …" if len(problem.places) > _MOST_PLACES else ""
    where = f"  {places}{more}" if places else ""
    return f"{problem.text}{late}{fix}  [{problem.rule}]{where}"


def _short(place: str) -> str:
    """A place by the file's name alone."""
    return place.rsplit("/", 1)[-1]


# --- changes --------------------------------------------------------------------------------------


def _change_blocks(assessment: Assessment, changes: Sequence[Change]) -> list[Block]:
    if assessment.setup is None or assessment.unpredictable:
        return []
    if not changes:
        text = "No single change that was tried makes it faster by 1 % and fits."
        if assessment.plan is None or not assessment.plan.fits:
            text = "No single change that was tried makes it run and fit."
        return [Notes((text,))]
    table = TableData(
        title=_change_title(assessment, changes),
        columns=headings("~change | step time | tokens/s | peak\nGiB | fits | ~gain"),
        rows=tuple(_change_row(change) for change in changes),
    )
    return [table]


def _change_title(assessment: Assessment, changes: Sequence[Change]) -> str:
    if assessment.plan is None:
        return "Single changes that would run"
    if assessment.plan.fits and changes[0].sufficient:
        return "Best single changes"
    if not changes[0].sufficient:
        return "No single change makes it fit safely; those that help most"
    return "Best single changes that make it fit"


def _change_row(change: Change) -> tuple[str, ...]:
    plan = change.plan
    return (
        change.change,
        step_time_text(plan),
        f"{plan.tokens_per_s:,.0f}",
        gib(plan.peak_bytes),
        percent_sure(plan.fit_probability),
        _gain(change),
    )


def _gain(change: Change) -> str:
    if change.faster is None or change.saved_bytes is None:
        return "runs"
    faster_by = f"{signed_share(change.faster)} tokens/s"
    size = gib(abs(change.saved_bytes))
    if float(size) == 0.0:
        return f"{faster_by}, same memory"
    return f"{faster_by}, {size} GiB {'less' if change.saved_bytes > 0 else 'more'}"


# --- measurement ----------------------------------------------------------------------------------


def _measured_blocks(findings: Findings) -> list[Block]:
    blocks: list[Block] = []
    if findings.comparisons:
        rows = tuple(_comparison_row(comparison) for comparison in findings.comparisons)
        columns = headings("< | measured | predicted | ratio | ~verdict")
        blocks.append(TableData(columns, rows, "Measured against predicted"))
    if findings.explanations:
        rows = tuple(
            (
                explanation.what,
                _amount(explanation.figure, explanation.predicted),
                _explains(explanation, findings),
            )
            for explanation in findings.explanations
        )
        blocks.append(
            TableData(
                headings("~if … | predicted | <explains the gap"),
                rows,
                "What could explain the gap: the model with one thing changed",
            )
        )
    elif any(not comparison.agrees for comparison in findings.comparisons):
        blocks.append(Notes(("No single thing that was tried explains the gap.",)))
    blocks += _convention_blocks(findings)
    return blocks


def _explains(explanation: GapExplanation, findings: Findings) -> str:
    """How much of the gap a single thing makes."""
    if explanation.near:
        return "near"
    gap = next(each for each in findings.comparisons if each.figure == explanation.figure)
    beyond = (explanation.predicted - gap.measured) * (gap.ratio - 1.0) > 0.0
    return "more than it" if beyond else "a part of it"


def _convention_blocks(findings: Findings) -> list[Block]:
    if not findings.conventions:
        return []
    rows = tuple(
        (convention.name, seconds(convention.step_time_s), "yes" if convention.plausible else "no")
        for convention in findings.conventions
    )
    table = TableData(
        headings("~MFU counted as | step time | plausible"),
        rows,
        "What the stated MFU means",
    )
    return [table, *([Notes(findings.verdicts)] if findings.verdicts else [])]


def _comparison_row(comparison: Comparison) -> tuple[str, ...]:
    verdict_text = (
        "within the 80 % interval"
        if comparison.agrees
        else f"{'above' if comparison.ratio > 1 else 'below'} the 80 % interval"
    )
    error = error_text(comparison.predicted, comparison.interval)
    return (
        comparison.figure,
        _amount(comparison.figure, comparison.measured),
        f"{_amount(comparison.figure, comparison.predicted)} {error}",
        f"{comparison.ratio:.2f}",
        verdict_text,
    )


def _amount(figure: str, value: float) -> str:
    return seconds(value) if figure == "step time" else f"{value / GIB:.1f} GiB"


# --- settings -------------------------------------------------------------------------------------


def _setting_blocks(found: Found, *, verbose: bool) -> list[Block]:
    blocks: list[Block] = []
    if found.unmodelled:
        rows = tuple(
            (entry.key, f"{why}  {_short(entry.place)}") for entry, why in found.unmodelled
        )
        blocks.append(
            Notes(tuple(f"{key}: {text}" for key, text in rows), "Left out of the prediction")
        )
    if found.unused and verbose:
        rows = tuple((entry.key, f"{entry.value}  {_short(entry.place)}") for entry in found.unused)
        blocks.append(Facts(rows, "Known, and without effect on memory and time"))
    elif found.unused:
        text = f"{plural(len(found.unused), 'setting')} without effect on memory and time (-v)."
        blocks.append(Notes((text,)))
    return blocks
