"""What a calibration learnt, as a report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hardware.calibration import PARAMETERS, Calibration
from planner.evidence.learn.calibrate import FigureFit
from planner.evidence.learn.study import Learnt
from planner.evidence.learn.suggest import Suggestion
from planner.job.quantities import share, signed_share
from planner.report.tables import Block, Facts, Notes, TableData, as_report, table

_FIGURES = {"time": "step time", "memory": "peak memory"}


@as_report
def calibration_report(
    calibration: Calibration, fits: Sequence[FigureFit], notes: Sequence[str]
) -> Iterator[Block]:
    """Errors before and after, factors with intervals, what the runs cannot determine."""
    tables = _errors(calibration), _runs(fits), _factors(calibration)
    yield from (one for one in tables if one.rows)
    if lines := tuple(_remarks(calibration, fits)):
        yield Notes(lines)
    if notes:
        yield Notes(tuple(notes), "Read")


def _errors(calibration: Calibration) -> TableData:
    learnt = ((title, getattr(calibration, name)) for name, title in _FIGURES.items())
    rows = (
        (
            title,
            f"{one.runs:,}",
            share(one.error_before),
            share(one.error_after),
            "-" if one.error_left_out is None else share(one.error_left_out),
            f"×/÷ {math.exp(1.2816 * one.spread):.2f}",
        )
        for title, one in learnt
        if one is not None
    )
    titles = "<figure | runs | error before | after | each by the others | 80 % of further runs"
    return table(titles, rows, "Errors")


def _runs(fits: Sequence[FigureFit]) -> TableData:
    rows = (
        (
            run.row.place,
            _FIGURES[fit.figure],
            signed_share(math.expm1(-before)),
            signed_share(math.expm1(-after)),
        )
        for fit in fits
        for run, before, after in zip(fit.runs, fit.before, fit.after, strict=True)
    )
    return table("~run | <figure | before | after", rows, "Predicted against measured")


def _factors(calibration: Calibration) -> TableData:
    rows = (
        (one.name, f"{one.value:.3f}", f"{one.low:.2f} to {one.high:.2f}", one.meaning)
        for one in calibration.factors
        if one.determined
    )
    titles = "<parameter | factor | 80 % interval | ~what it multiplies"
    return table(titles, rows, "Learnt factors")


def _remarks(calibration: Calibration, fits: Sequence[FigureFit]) -> Iterator[str]:
    """What is not taken whole, what the runs cannot determine, and which of them are odd."""
    for fit in fits:
        if 0.0 < fit.share < 0.95:
            yield (
                f"{share(fit.share, 0)} of what the runs teach of {_FIGURES[fit.figure]} is taken: "
                "judged by the others, some are predicted better by it, some worse, or most are "
                "off by no more than repeats of one run."
            )
    told = {factor.name for factor in calibration.factors if factor.determined}
    figures = {fit.figure for fit in fits}
    if left := [one.name for one in PARAMETERS if one.figure in figures and one.name not in told]:
        yield f"The runs cannot determine: {', '.join(left)}."
    for run in (run for fit in fits for run in fit.odd):
        yield f"{run.row.place}: disagrees with the other runs and hardly counts."


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
    rows = [_study_row(str(one.cluster), f"{one.runs:,}", [one]) for one in found]
    rows.append(_study_row("mean of clusters", f"{len(found)}", found))
    titles = (
        "~source, GPU, framework"
        " | runs | before | one factor | calibrated | chosen | refused | in 80%"
    )
    yield table(titles, rows, "Median error of the runs not learnt from")


def _study_row(name: str, runs: str, found: Sequence[Learnt]) -> tuple[str, ...]:
    names = ("before", "factor", "after", "chosen", "refused", "covered")
    means = [sum(getattr(one, name) for one in found) / len(found) for name in names]
    return (
        name, runs, *(share(mean) for mean in means[:4]), *(share(mean, 0) for mean in means[4:])
    )  # fmt: skip


@as_report
def suggestion_report(found: Sequence[Suggestion], runs: int) -> Iterator[Block]:
    """The runs to make next, in order, and what each leaves of the error bars."""
    if not found:
        yield Notes(("No short run would tell more than is known already.",))
        return
    rows = (
        (
            str(number),
            one.configuration,
            f"{one.gpus:,}",
            f"{one.minutes:,.0f}",
            "-" if one.usd is None else f"{one.usd:,.0f}",
            f"±{share(one.before)}",
            f"±{share(one.after)}",
        )
        for number, one in enumerate(found, start=1)
    )
    yield table(" | ~run | GPUs | minutes | USD | error bars | left", rows, "Runs to make next")
    known = "published runs alone" if not runs else f"{runs} of your runs"
    yield Notes((
        "Error bars: what is not known of the plans' step times (80 %), of the cluster's figures "
        f"and of configurations like these, by {known}. Each run counts on those above it.",
        "Then: planner calibrate --from RUNS -o mycluster.toml",
    ))  # fmt: skip
