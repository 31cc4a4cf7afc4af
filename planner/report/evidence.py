"""Reports of prediction errors and of calibrations."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from statistics import median
from typing import Any

from hardware.calibration import PARAMETERS, Calibration
from planner.evidence.learn.calibrate import FigureFit
from planner.evidence.learn.study import Learnt
from planner.evidence.learn.suggest import Suggestion
from planner.evidence.runs.bars import FamilyBars, Views, family_bars
from planner.evidence.runs.doubts import narrowing_sentence, open_summary
from planner.evidence.runs.families import Family
from planner.evidence.runs.predict import Prediction
from planner.evidence.runs.report import (
    FamilyReport,
    Summary,
    comparison,
    error_of,
    family_report,
    family_reports,
    in_doubt,
    mean_of_sources,
    summary_of,
)
from planner.evidence.runs.rows import FIRST_SIGHT
from planner.evidence.runs.worst import GOOD, missed_picks
from planner.job.job import SURE_TO_FIT
from planner.job.quantities import gib, plural, seconds, share
from planner.predict.uncertainty.families import Figure
from planner.predict.uncertainty.intervals import learnt_text
from planner.report.said import described, facts, notes, said, table_of
from planner.report.tables import Block, Notes, TableData, as_report

_NONE = "-"
_MEAN = "mean of sources"
_SHOWN_REFUSALS = 8
_SHOWN_PICKS = 12
_SHOWN_OPEN = 12
# Up to this many runs are also listed one by one.
_MOST_RUNS = 6


_TITLES: dict[str, Figure] = {"Step time": "time", "Peak memory": "memory"}
# Views of the same rows (`planner.evidence.runs.bars`), as they are worded in table titles.
_VIEWS = {"known": "", "left_out": ", source left out", "first_sight": ", at first sight"}
_FIGURES: dict[Figure, str] = {"time": "step time", "memory": "peak memory"}
_IN_DOUBT = ", in doubt"


@as_report
def validation_report(
    predictions: Sequence[Prediction], family: Family, views: Views | None = None
) -> Iterator[Block]:
    """Tables of errors by family (the groups that `--by` names), of intervals, picks and whether
    runs fit, then the rows that were refused. `views`: predictions of the same rows made in another
    way: with constants fitted without the row's source (`left_out`), or as recorded before anything
    was changed because of the row (`first_sight`)."""
    found = summary_of(predictions, family)
    means, halves = found.mean_of_sources, (found.stated, found.unstated)
    totals = (found.total, *(halves if all(half.rows for half in halves) else ()))
    parts = {_VIEWS[name]: some for name, some in (views or {}).items() if some}
    doubted = in_doubt(predictions)
    errors = (
        one
        for title, figure in _TITLES.items()
        for one in (
            _errors(title, figure, found.families, totals, means),
            *(
                _errors(f"{title}{words}", figure, *_reports(some, family), mean_of_sources(some))
                for words, some in parts.items()
            ),
            _errors(f"{title}{_IN_DOUBT}", figure, *_reports(doubted, family)),
        )
    )
    bars = (
        _bars(f"{title}{words}", family_bars(some, figure))
        for title, figure in _TITLES.items()
        for words, some in ({"": predictions} | parts).items()
    )
    tables = [
        *_runs(predictions),
        *errors,
        *bars,
        table_of("validation.open", open_summary(predictions)[:_SHOWN_OPEN]),
        _picks(found.families, totals, means),
        table_of("validation.missed", missed_picks(predictions)[:_SHOWN_PICKS], good=GOOD),
        table_of(
            "validation.fits",
            (
                {**asdict(one.fit), "family": one.family}
                for one in (*found.families, *totals)
                if one.fit.ran or one.fit.out_of_memory
            ),
        ),
    ]
    yield Notes((validation_headline(predictions),))
    yield from (one for one in tables if one.rows)
    if opened := tuple(_open_sentences(predictions)):
        yield Notes(opened)
    shown = (*parts, *((_IN_DOUBT,) if doubted else ()))
    yield Notes(tuple(_notes(found, shown)))


def validation_headline(predictions: Sequence[Prediction]) -> str:
    """How far predictions are off: the median error, and the error that nine in ten stay within."""
    return f"{'; '.join(_spreads(predictions)) or 'nothing was measured'}.".capitalize()


def _spreads(predictions: Sequence[Prediction]) -> Iterator[str]:
    for figure, name in _FIGURES.items():
        errors = sorted(
            abs(off) for one in predictions if (off := error_of(one, figure)) is not None
        )
        if errors:
            most = errors[math.ceil(0.9 * len(errors)) - 1]
            yield (
                f"{name}: half of {plural(len(errors), 'run')} within {share(median(errors))}, "
                f"nine in ten within {share(most)}"
            )


def _reports(
    some: Sequence[Prediction], family: Family
) -> tuple[list[FamilyReport], tuple[FamilyReport, ...]]:
    """The summary of each family of these predictions; and, as a tuple of one, the summary of all
    of them."""
    return family_reports(some, family), (family_report("all of them", some),)


def _runs(predictions: Sequence[Prediction]) -> Iterator[TableData]:
    """A table with a row for each run and figure (step time, memory). No table if there are more
    than _MOST_RUNS runs."""
    rows = [
        {
            "line": f"line {one.row.line}", "figure": figure, "found": found,
            "predicted": text(found.predicted), "measured": text(found.measured),
            "low": text(found.interval.low), "high": text(found.interval.high),
        }
        for one in predictions
        for figure, found, text in (
            ("step time", comparison(one, "time"), seconds),
            ("memory", comparison(one, "memory"), lambda size: f"{gib(size)} GiB"),
        )
        if found is not None
    ]  # fmt: skip
    if 0 < len(predictions) <= _MOST_RUNS:
        yield table_of("validation.runs", rows)


def _open_sentences(predictions: Sequence[Prediction]) -> Iterator[str]:
    """For each run and figure, a sentence with the line of the run and the unstated fact that
    widens its interval most. Empty if there are more than _MOST_RUNS runs."""
    for one in predictions if len(predictions) <= _MOST_RUNS else ():
        for figure, (measured, _) in FIRST_SIGHT.items():
            said = narrowing_sentence(one, figure) if one.measured(measured) else None
            if said is not None:
                yield f"line {one.row.line}, {_FIGURES[figure]}: {said}"


def _errors(
    title: str,
    figure: Figure,
    families: Sequence[FamilyReport],
    totals: Sequence[FamilyReport],
    means: Mapping[str, float | None] | None = None,
) -> TableData:
    """One row for each family, the largest median error first, then the totals. If `means` is
    given, a last row shows the mean over sources."""
    found = _sorted(families, totals, figure, lambda item: -item.median)
    rows = [
        {**asdict(item), "family": family, "coverage": share(item.coverage, 0),
         "rank": _NONE if item.rank_correlation is None else f"{item.rank_correlation:.2f}"}
        for family, item in found
    ]  # fmt: skip
    if rows and means is not None:
        mean = {name: means[f"{figure}_{name}"] for name in ("median", "mean", "width", "score")}
        coverage = share_text(means[f"{figure}_coverage"])
        none = dict.fromkeys(("rows", "p90", "bias"))
        rows.append({"family": _MEAN, "rank": "", **mean, "coverage": coverage, **none})
    return table_of("validation.errors", rows, titled=title)


def _bars(title: str, families: Sequence[FamilyBars]) -> TableData:
    """Width, coverage and score of the 80 % intervals of each family. The table has no rows if
    there are only a few runs, all from one source."""
    total = families[-1].quality if families else None
    few = total is None or (total.sources == 1 and total.runs <= _MOST_RUNS)
    return table_of("validation.bars", () if few else families, titled=title)


def _sorted(
    families: Sequence[FamilyReport],
    totals: Sequence[FamilyReport],
    figure: str,
    key: Callable[[Any], float],
) -> list[tuple[str, Any]]:
    """The summary of one figure for each family, with the name of the family, sorted by `key`; then
    those of the totals. Families without the figure are left out."""
    found = (
        [(one.family, item) for one in some if (item := getattr(one, figure))]
        for some in (families, totals)
    )
    return [*sorted(next(found), key=lambda pair: key(pair[1])), *next(found)]


def share_text(value: float | None) -> str:
    """`12.3 %`, or a dash for nothing."""
    return _NONE if value is None else share(value)


def _picks(
    families: Sequence[FamilyReport],
    totals: Sequence[FamilyReport],
    means: Mapping[str, float | None],
) -> TableData:
    """One row for each family, the worst mean pick first, then the totals and the mean of sources.
    A pick is the measured throughput of the run that is predicted to be the fastest of its group,
    as a share of the best measured one."""
    found = _sorted(families, totals, "picks", lambda item: item.mean)
    rows = [{**asdict(item), "family": family} for family, item in found]
    if rows and (ranks := means["rank_correlation"]) is not None:
        mean = {"mean": means["pick_mean"], "rank_correlation": ranks}
        rows.append({"family": _MEAN, **mean, **dict.fromkeys(("groups", "worst"))})
    return table_of("validation.picks", rows)


def _notes(shown: Summary, parts: Collection[str]) -> Iterator[str]:
    total = shown.total
    yield from notes(
        "validation.notes", shown, both=bool(shown.stated.rows and shown.unstated.rows),
        sure=SURE_TO_FIT, left_out=_VIEWS["left_out"] in parts,
        first_sight=_VIEWS["first_sight"] in parts, doubted=_IN_DOUBT in parts,
        refused_share=total.refused / total.rows if total.rows else 0.0,
    )  # fmt: skip
    if total.refused:
        for reason, count in islice(shown.refusals.items(), _SHOWN_REFUSALS):
            yield f"  {plural(count, 'row')}: {reason}"


@as_report
def calibration_report(
    calibration: Calibration, fits: Sequence[FigureFit], notes: Sequence[str]
) -> Iterator[Block]:
    """Tables of errors before and after, of runs, and of factors with their intervals, then remarks
    on what the runs cannot determine. Tables without rows are left out. `notes`: sentences shown at
    the end."""
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
    """Sentences on a calibration: figures to which only part of the learnt correction is applied,
    factors that the runs cannot determine, unusual runs, and the error bars that were learnt. Empty
    if there is nothing to say."""
    words = described("calibration.remarks")
    told = {factor.name for factor in calibration.factors if factor.determined}
    figures = {fit.figure for fit in fits}
    left = [one.name for one in PARAMETERS if one.figure in figures and one.name not in told]
    remarks = (
        *(said(words["share"], fit, figure=_FIGURES[fit.figure])
          for fit in fits if 0.0 < fit.share < 0.95),
        said(words["left"], None, left=left) if left else None,
        *(said(words["odd"], run) for fit in fits for run in fit.odd),
        *(f"Error bars of {title}: {learnt_text(one.runs, one.width)}."
          for name, title in _FIGURES.items()
          if (one := getattr(calibration, name)) is not None and one.width >= 1.0),
    )  # fmt: skip
    return filter(None, remarks)


@as_report
def study_report(found: Sequence[Learnt], runs: int) -> Iterator[Block]:
    """How much smaller the errors of a cluster's other runs become if `runs` of its runs are learnt
    from: a row for each cluster, then the mean over clusters. If no source has enough runs to hold
    some back, only a note that says so."""
    if not found:
        yield Notes(("No source has enough runs to hold some back.",))
        return
    yield facts("calibration.learnt", None, runs=runs)
    rows = [_means(str(one.cluster), one.runs, [one]) for one in found]
    rows.append(_means("mean of clusters", len(found), found))
    yield table_of("calibration.study", rows)


def _means(name: str, runs: int, found: Sequence[Learnt]) -> dict[str, object]:
    names = ("before", "factor", "after", "chosen", "refused", "covered")
    means = {each: sum(getattr(one, each) for one in found) / len(found) for each in names}
    return {"name": name, "runs": runs, **means}


@as_report
def suggestion_report(found: Sequence[Suggestion], runs: int) -> Iterator[Block]:
    """The runs to make next, in order, with the width of the error bars that each would leave. If
    no short run would add anything, a note says so. `runs`: number of the user's own runs that are
    known already; 0 if only published runs are."""
    if not found:
        yield Notes(("No short run would add to what is known already.",))
        return
    rows = ({"number": number, "run": one} for number, one in enumerate(found, start=1))
    yield table_of("calibration.next", rows)
    known = "published runs alone" if not runs else f"{runs} of your runs"
    yield Notes(tuple(notes("calibration.suggestions", None, known=known)))
