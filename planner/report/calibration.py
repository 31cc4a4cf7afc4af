"""What a calibration learnt, as a report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hardware.calibration import PARAMETERS, Calibration
from planner.evidence.learn.calibrate import FigureFit
from planner.evidence.learn.study import Learnt
from planner.evidence.learn.suggest import Suggestion
from planner.report.said import described, notes, said, table_of
from planner.report.tables import Block, Facts, Notes, as_report

_FIGURES = {"time": "step time", "memory": "peak memory"}


@as_report
def calibration_report(
    calibration: Calibration, fits: Sequence[FigureFit], notes: Sequence[str]
) -> Iterator[Block]:
    """Errors before and after, factors with intervals, what the runs cannot determine."""
    errors = (
        {"figure": title, "errors": one, "factor": math.exp(1.2816 * one.spread)}
        for name, title in _FIGURES.items()
        if (one := getattr(calibration, name)) is not None
    )
    runs = (
        {"run": run, "figure": _FIGURES[fit.figure], "before": math.expm1(-before),
         "after": math.expm1(-after)}
        for fit in fits
        for run, before, after in zip(fit.runs, fit.before, fit.after, strict=True)
    )  # fmt: skip
    tables = (
        table_of("calibration.errors", errors),
        table_of("calibration.runs", runs),
        table_of("calibration.factors", (one for one in calibration.factors if one.determined)),
    )
    yield from (one for one in tables if one.rows)
    if lines := tuple(_remarks(calibration, fits)):
        yield Notes(lines)
    if notes:
        yield Notes(tuple(notes), "Read")


def _remarks(calibration: Calibration, fits: Sequence[FigureFit]) -> Iterator[str]:
    """What is not taken whole, what the runs cannot determine, and which of them are odd."""
    words = described("calibration.remarks")
    told = {factor.name for factor in calibration.factors if factor.determined}
    figures = {fit.figure for fit in fits}
    left = [one.name for one in PARAMETERS if one.figure in figures and one.name not in told]
    remarks = (
        *(said(words["share"], fit, figure=_FIGURES[fit.figure])
          for fit in fits if 0.0 < fit.share < 0.95),
        said(words["left"], None, left=left) if left else None,
        *(said(words["odd"], run) for fit in fits for run in fit.odd),
    )  # fmt: skip
    return filter(None, remarks)


@as_report
def study_report(found: Sequence[Learnt], runs: int) -> Iterator[Block]:
    """Learning from k runs of every held-out source."""
    if not found:
        yield Notes(("No source has enough runs to hold some back.",))
        return
    noun = "run" if runs == 1 else "runs"
    yield Facts((
        ("learnt from", f"{runs} {noun} of each cluster, drawn again and again"),
        ("chosen", "by the runs that `calibrate --suggest` would choose, whatever they cost"),
    ))  # fmt: skip
    rows = [_means(str(one.cluster), one.runs, [one]) for one in found]
    rows.append(_means("mean of clusters", len(found), found))
    yield table_of("calibration.study", rows)


def _means(name: str, runs: int, found: Sequence[Learnt]) -> dict[str, object]:
    names = ("before", "factor", "after", "chosen", "refused", "covered")
    means = {each: sum(getattr(one, each) for one in found) / len(found) for each in names}
    return {"name": name, "runs": runs, **means}


@as_report
def suggestion_report(found: Sequence[Suggestion], runs: int) -> Iterator[Block]:
    """The runs to make next, in order, and what each leaves of the error bars."""
    if not found:
        yield Notes(("No short run would tell more than is known already.",))
        return
    rows = ({"number": number, "run": one} for number, one in enumerate(found, start=1))
    yield table_of("calibration.next", rows)
    known = "published runs alone" if not runs else f"{runs} of your runs"
    yield Notes(tuple(notes("calibration.suggestions", None, known=known)))
