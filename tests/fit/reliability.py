"""Whether runs fit as often as was said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from planner.evidence.runs.predict import Prediction
from planner.evidence.runs.report import states_fit

# Bounds of the bins: narrow where plans are recommended or refused.
_BOUNDS = (0.0, 0.01, 0.1, 0.5, 0.8, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class FitBin:
    """Runs whose stated probability of fitting lies from `low` to `high`: the mean of what was
    stated, and the share that ran."""

    low: float
    high: float
    rows: int
    stated: float
    ran: float


def fit_reliability(predictions: Iterable[Prediction]) -> list[FitBin]:
    """Bins with at least one run, of the rows that say whether they ran out of memory and what
    they recompute. The probability leaves the run's source out."""
    found = list(_stated_and_ran(predictions))
    bins = []
    for low, high in pairwise(_BOUNDS):
        inside = [item for item in found if low <= item[0] and (item[0] < high or high == 1.0)]
        if inside:
            stated, ran = zip(*inside, strict=True)
            bins.append(FitBin(low, high, len(inside), fmean(stated), fmean(ran)))
    return bins


def of_sources_with_failures(predictions: Iterable[Prediction]) -> list[Prediction]:
    """Runs of sources that list any that ran out of memory too. Of the others all ran, whatever
    was stated of them: they were published for that, and say nothing of calibration."""
    found = list(predictions)
    open_sources = {one.row.source for one in found if states_fit(one) is False}
    return [one for one in found if one.row.source in open_sources]


# What a search demands by default.
_SURE = 0.8


@dataclass(frozen=True, slots=True)
class FitErrors:
    """Both errors of the stated probability at what a search demands: `lost` of the runs that ran
    were given less, `wrong` of the `sure` ones ran out."""

    ran: int
    lost: int
    sure: int
    wrong: int


def fit_errors(predictions: Iterable[Prediction]) -> FitErrors:
    """Of the rows that say whether they ran out of memory; each row's source is left out."""
    found = list(_stated_and_ran(predictions))
    return FitErrors(
        ran=sum(ran for _, ran in found),
        lost=sum(ran and stated < _SURE for stated, ran in found),
        sure=sum(stated >= _SURE for stated, _ in found),
        wrong=sum(not ran and stated >= _SURE for stated, ran in found),
    )


def _stated_and_ran(predictions: Iterable[Prediction]) -> Iterator[tuple[float, bool]]:
    for prediction in predictions:
        ran, stated = states_fit(prediction), prediction.fit_probability
        if ran is not None and stated is not None:
            yield stated, ran
