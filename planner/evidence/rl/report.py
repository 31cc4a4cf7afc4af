"""Predicted against measured runs of reinforcement learning: errors by figure and source, error
bars, memory fit, and the order of placements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from planner.evidence.rl.pairs import Pair, pairs
from planner.evidence.rl.predict import Compared, RlPrediction, compared
from planner.evidence.rl.rows import FIGURES, Figure
from planner.evidence.runs.report import FitConfusion
from planner.evidence.runs.rows import grouped
from planner.predict.uncertainty.interval_score import interval_scores


@dataclass(frozen=True, slots=True)
class RlErrors:
    """Errors of one figure over some rows, as shares. `median`, `mean`: of |predicted / measured -
    1|; `bias`: the median of predicted / measured - 1; `coverage`: share of rows inside their 80 %
    interval; `width`: mean of ln(upper / lower end); `score`: mean interval score."""

    rows: int
    median: float
    mean: float
    bias: float
    coverage: float
    width: float
    score: float


@dataclass(frozen=True, slots=True)
class RlSource:
    """The result of one source: its number of rows, how many of them were refused, and the errors
    by figure."""

    source: str
    rows: int
    refused: int
    errors: Mapping[Figure, RlErrors]


@dataclass(frozen=True, slots=True)
class RlSummary:
    """All rows. `mean_of_sources`: for each figure, means over sources of each source's median
    error, coverage, width and score; `sources_of`: number of sources with each figure."""

    rows: int
    refused: int
    total: Mapping[Figure, RlErrors]
    mean_of_sources: Mapping[Figure, Mapping[str, float]]
    sources_of: Mapping[Figure, int]
    sources: tuple[RlSource, ...]
    fit: FitConfusion
    pairs: tuple[Pair, ...]
    refusals: Mapping[str, int]

    @property
    def judged(self) -> int:
        """The number of comparisons with predictions for both runs."""
        return sum(one.is_right is not None for one in self.pairs)

    @property
    def right(self) -> int:
        """The number of judged comparisons that are predicted in the measured order."""
        return sum(one.is_right is True for one in self.pairs)


# Rows that their own source calls wrong.
_DOUBTED = "abnormal|probably wrong|one figure for two sizes"


def trusted(predictions: Sequence[RlPrediction]) -> list[RlPrediction]:
    """The predictions without rows that their own source calls wrong."""
    return [one for one in predictions if not one.row.says("doubt", _DOUBTED)]


def open_facts(predictions: Sequence[RlPrediction]) -> list[tuple[str, int, float]]:
    """The facts that rows leave open, each with the number of such rows and a median standard
    deviation, in ln. The deviation of a row is the largest that the fact causes in any of its
    figures. The fact with the largest median comes first."""
    found: dict[str, list[float]] = {}
    for one in predictions:
        of_row: dict[str, float] = {}
        for each in compared(one):
            for fact, deviation in each.open.items():
                of_row[fact] = max(of_row.get(fact, 0.0), deviation)
        for fact, deviation in of_row.items():
            found.setdefault(fact, []).append(deviation)
    listed = [(fact, len(some), median(some)) for fact, some in found.items()]
    return sorted(listed, key=lambda one: -one[2])


def summary_of(predictions: Sequence[RlPrediction]) -> RlSummary:
    """The summary of predicted rows; refusals by their reason, the most frequent first."""
    sources = tuple(
        _source(name, members)
        for name, members in grouped(predictions, lambda one: one.row.source).items()
    )
    found = [each for one in predictions for each in compared(one)]
    by_figure = {figure: [one for one in sources if figure in one.errors] for figure in FIGURES}
    reasons = Counter(one.error for one in predictions if one.error)
    return RlSummary(
        rows=len(predictions),
        refused=sum(one.error is not None for one in predictions),
        total=errors_of(found),
        mean_of_sources={
            figure: {
                name: fmean(getattr(one.errors[figure], name) for one in some)
                for name in ("median", "coverage", "width", "score")
            }
            for figure, some in by_figure.items()
            if some
        },
        sources_of={figure: len(some) for figure, some in by_figure.items() if some},
        sources=sources,
        fit=fit_of(predictions),
        pairs=tuple(pairs(predictions)),
        refusals=dict(reasons.most_common()),
    )


def _source(name: str, members: Sequence[RlPrediction]) -> RlSource:
    found = [each for one in members for each in compared(one)]
    return RlSource(
        name, len(members), sum(one.error is not None for one in members), errors_of(found)
    )


def errors_of(found: Sequence[Compared]) -> dict[Figure, RlErrors]:
    """Errors by figure, in the order of `FIGURES`, for the figures that some row has."""
    return {
        figure: _errors(some)
        for figure in FIGURES
        if (some := [one for one in found if one.figure == figure])
    }


def _errors(some: Sequence[Compared]) -> RlErrors:
    sizes = [abs(one.error) for one in some]
    ends = np.log([(one.low, one.high, one.measured) for one in some])
    return RlErrors(
        rows=len(some),
        median=median(sizes),
        mean=fmean(sizes),
        bias=median(one.error for one in some),
        coverage=fmean(one.covered for one in some),
        width=float((ends[:, 1] - ends[:, 0]).mean()),
        score=float(interval_scores(*ends.T).mean()),
    )


def fit_of(predictions: Sequence[RlPrediction]) -> FitConfusion:
    """How well fitting in memory was predicted: the runs that ran, and of these the ones predicted
    not to fit; the runs that ran out of memory, and of these the ones predicted to fit."""
    known = [(one.row.ran_out, one.costed.fits) for one in predictions if one.costed]
    ran = [fits for out, fits in known if out is False]
    died = [fits for out, fits in known if out is True]
    return FitConfusion(len(ran), sum(not fits for fits in ran), len(died), sum(died))
