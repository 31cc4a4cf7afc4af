"""What is shown of a measured run beside its prediction: whether they agree, and the ranked causes
of what differs."""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.quantities import seconds, share
from planner.predict.diagnosis.findings import SAME, Findings, GapExplanation
from planner.predict.diagnosis.measured import GIB, MeasuredComparison
from planner.predict.plan_text import error_text
from planner.report.said import table_of
from planner.report.tables import Block, Notes

# Causes whose test is written out below the table.
_TESTED = 3


def measured_blocks(findings: Findings) -> Iterator[Block]:
    """The comparison, the causes with what each explains and how to test it, what the predicted
    step loses, and what a stated MFU means."""
    if findings.comparisons:
        yield table_of(
            "diagnosis.compared", findings.comparisons, verdict=_verdict,
            measured_words=lambda one: _amount(one.figure, one.measured),
            predicted_words=_predicted,
        )  # fmt: skip
    for comparison in findings.comparisons:
        yield from _cause_blocks(findings, comparison)
    if findings.losses:
        yield Notes((_losses_text(findings),))
    if findings.conventions:
        yield table_of("diagnosis.conventions", findings.conventions)
        if findings.verdicts:
            yield Notes(findings.verdicts)


def _cause_blocks(findings: Findings, gap: MeasuredComparison) -> Iterator[Block]:
    found = [one for one in findings.explanations if one.figure == gap.figure]
    if not found:
        if abs(gap.ratio - 1.0) > SAME:
            yield Notes(("No cause that was tried explains the difference.",))
        return
    numbers = {id(one): number for number, one in enumerate(found, start=1)}
    figure = "the step time" if gap.figure == "step time" else "the peak of memory"
    rows = (
        {
            "number": number, "what": one.what, "effect": one.effect,
            "predicted_words": _amount(one.figure, one.predicted), "explains": _explains(one, gap),
        }
        for number, one in enumerate(found, start=1)
    )  # fmt: skip
    yield table_of("diagnosis.causes", rows, explained=figure)
    tested = [*found[:_TESTED], *(one for one in found[_TESTED:] if one.any_gap)]
    tests = tuple(f"{numbers[id(one)]}: {one.test}." for one in tested if one.test)
    yield Notes(tests, "How to test")


def _explains(explanation: GapExplanation, gap: MeasuredComparison) -> str:
    """How much of the gap a cause makes."""
    if explanation.any_gap:
        return "a gap of any size"
    if explanation.near:
        return "the measurement"
    beyond = (explanation.predicted - gap.measured) * (gap.ratio - 1.0) > 0.0
    if beyond:
        return "more than it"
    part = (explanation.predicted - gap.predicted) / (gap.measured - gap.predicted)
    return f"{share(part, 0)} of the gap"


def _losses_text(findings: Findings) -> str:
    named = ", ".join(f"{one.label} {share(one.share, 0)}" for one in findings.losses)
    return f"What keeps the MFU of the predicted step itself below 100 %: {named}."


def _verdict(comparison: MeasuredComparison) -> str:
    return "within" if comparison.agrees else "above" if comparison.ratio > 1 else "below"


def _predicted(comparison: MeasuredComparison) -> str:
    error = error_text(comparison.predicted, comparison.interval)
    return f"{_amount(comparison.figure, comparison.predicted)} {error}"


def _amount(figure: str, value: float) -> str:
    return seconds(value) if figure == "step time" else f"{value / GIB:.1f} GiB"
