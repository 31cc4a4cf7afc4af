"""Predicted against measured: errors, interval coverage, memory fit and picks, by family."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import numpy as np

from planner.evidence.runs.predict import Prediction
from planner.evidence.runs.ranking import GroupRanking, rank_groups, spearman
from planner.evidence.runs.rows import FIRST_SIGHT, grouped
from planner.predict.plan import Interval
from planner.predict.uncertainty.families import Figure
from planner.predict.uncertainty.full_memory import with_full_memory
from planner.predict.uncertainty.interval_score import Array, interval_scores
from planner.predict.uncertainty.intervals import peak_interval, step_time_interval

_UNIT: dict[Figure, float] = {"time": 1.0, "memory": 2.0**30}
# With fewer runs, a rank correlation says nothing.
_FEWEST_RANKED = 3


@dataclass(frozen=True, slots=True)
class RunComparison:
    """One figure of one run: predicted, measured, and the 80 % interval; SI units.

    The interval leaves out the run's source: it is the one that would have been given before
    measuring.
    """

    predicted: float
    measured: float
    interval: Interval

    @property
    def error(self) -> float:
        """Signed error relative to the measured value."""
        return self.predicted / self.measured - 1.0

    @property
    def covered(self) -> bool:
        """Whether the interval contains the measured value."""
        return self.interval.low <= self.measured <= self.interval.high

    @property
    def log_bar(self) -> tuple[float, float, float]:
        """ln of the interval's ends and of the measured value."""
        low, high = self.interval.low, self.interval.high
        return math.log(low), math.log(high), math.log(self.measured)


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of one figure over one family, as shares; `bias` is the median signed error.

    `rank_correlation`: Spearman's, over all rows of the family (None for fewer than three);
    `coverage`: share of rows inside their 80 % interval; `width`: mean of ln(upper / lower end);
    `score`: mean interval score (`planner.predict.uncertainty.interval_score`).
    """

    rows: int
    median: float
    mean: float
    p90: float
    worst: float
    bias: float
    rank_correlation: float | None
    coverage: float
    width: float
    score: float


@dataclass(frozen=True, slots=True)
class FitConfusion:
    """How well fitting in memory was predicted: the number of rows that ran, and of these the ones
    predicted not to fit; the number of rows that ran out of memory, and of these the ones predicted
    to fit."""

    ran: int
    ran_predicted_not_to_fit: int
    out_of_memory: int
    out_of_memory_predicted_to_fit: int


@dataclass(frozen=True, slots=True)
class PickSummary:
    """Quality of first picks over groups of comparable runs (`planner.evidence.runs.ranking`)."""

    groups: int
    mean: float
    worst: float
    rank_correlation: float


@dataclass(frozen=True, slots=True)
class FamilyReport:
    """All errors of one family of rows."""

    family: str
    rows: int
    refused: int
    time: ErrorSummary | None
    memory: ErrorSummary | None
    fit: FitConfusion
    picks: PickSummary | None


# Means over sources with equal weights, by name: the figure and its field.
_MEANS = {
    **{
        f"{figure}_{name}": (figure, name)
        for figure in FIRST_SIGHT
        for name in ("median", "mean", "coverage", "width", "score")
    },
    "pick_mean": ("picks", "mean"),
    "rank_correlation": ("picks", "rank_correlation"),
}


@dataclass(frozen=True, slots=True)
class Summary:
    """The report on all rows: in total, by family, with equal weights for all sources, and
    separately for rows that do and do not state recompute and attention kernel. `in_doubt`: doubted
    figures, which the others leave out."""

    total: FamilyReport
    stated: FamilyReport
    unstated: FamilyReport
    families: list[FamilyReport]
    in_doubt: list[FamilyReport]
    mean_of_sources: dict[str, float | None]
    refusals: dict[str, int]
    withdrawn_times: int


def summary_of(predictions: Sequence[Prediction], family: Callable[[Prediction], str]) -> Summary:
    """The summary of predicted rows, with the most frequent reasons for refusals first."""
    reasons = Counter(one.error for one in predictions if one.error is not None)
    stated = [one for one in predictions if is_stated(one)]
    unstated = [one for one in predictions if not is_stated(one)]
    return Summary(
        total=family_report("all rows", predictions),
        stated=family_report("recompute and kernel stated", stated),
        unstated=family_report("recompute or kernel unstated", unstated),
        families=family_reports(predictions, family),
        in_doubt=family_reports(in_doubt(predictions), family),
        mean_of_sources=mean_of_sources(predictions),
        refusals=dict(reasons.most_common()),
        withdrawn_times=sum(one.row.withdraws_time for one in predictions),
    )


def predicted(prediction: Prediction, figure: Figure) -> float | None:
    """Predicted seconds of a step, or bytes of the kind and stage that the row measured."""
    if prediction.as_met:
        said = prediction.row.number(FIRST_SIGHT[figure][1])
        return None if said is None else said * _UNIT[figure]
    if figure == "time":
        return prediction.step_time_s
    row = prediction.row
    return prediction.memory_bytes(row.text("mem_kind"), row.text("mem_scope"))


def known(prediction: Prediction, figure: Figure) -> tuple[float, float] | None:
    """(predicted, measured) of a figure; None if either is unknown or in doubt."""
    said, value = predicted(prediction, figure), prediction.measured(FIRST_SIGHT[figure][0])
    if said is None or not value:
        return None
    return said, value * _UNIT[figure]


def error_of(prediction: Prediction, figure: Figure) -> float | None:
    """Signed relative error of a figure; None if it is not measured or predicted."""
    found = known(prediction, figure)
    return None if found is None else found[0] / found[1] - 1.0


def at_first_sight(predictions: Iterable[Prediction]) -> list[Prediction]:
    """Rows as they were predicted before anything was changed because of them (`first_sight_*`
    replaces today's prediction), if that was kept."""
    return [
        replace(one, as_met=True)
        for one in predictions
        if one.error is None
        and any(one.row.number(column) is not None for _, column in FIRST_SIGHT.values())
    ]


def comparison(
    prediction: Prediction, figure: Figure, *, with_its_source: bool = False
) -> RunComparison | None:
    """A figure as predicted and measured, with its interval; None if it is not measured or not
    predicted. The interval leaves out the row's own source unless `with_its_source`."""
    found = known(prediction, figure)
    if found is None:
        return None
    interval = time_interval if figure == "time" else memory_interval
    return RunComparison(*found, interval(prediction, found[0], with_its_source=with_its_source))


def time_interval(
    prediction: Prediction, seconds: float, *, with_its_source: bool = False
) -> Interval:
    """The interval of a predicted step time, leaving out the row's source unless requested."""
    without = "" if with_its_source else prediction.row.source
    at, full_s = prediction.conditions, prediction.full_step_time_s
    doubt = prediction.doubt_of("time")
    interval = step_time_interval(prediction.job, seconds, without, at, doubt)
    # The prediction at first sight may be a different step time.
    times = seconds / (prediction.step_time_s or seconds)
    full_s = None if full_s is None else full_s * times
    return with_full_memory(interval, seconds, full_s, prediction.full_chance)


def memory_interval(
    prediction: Prediction, peak_bytes: float, *, with_its_source: bool = False
) -> Interval:
    """The interval of a predicted peak memory, leaving out the row's source unless requested."""
    without = "" if with_its_source else prediction.row.source
    return peak_interval(prediction.job, peak_bytes, without, prediction.doubt_of("memory"))


def is_stated(prediction: Prediction) -> bool:
    """Whether the row states its recomputation and its attention kernel."""
    row = prediction.row
    kernel = row.text("kernel") or row.text("flash")
    return row.text("recompute") is not None and kernel is not None


def summarise(comparisons: Sequence[RunComparison]) -> ErrorSummary | None:
    """Summary of one figure; None without any row."""
    if not comparisons:
        return None
    errors = [comparison.error for comparison in comparisons]
    sizes = sorted(abs(error) for error in errors)
    rank = None
    if len(errors) >= _FEWEST_RANKED:
        rank = spearman(
            [comparison.predicted for comparison in comparisons],
            [comparison.measured for comparison in comparisons],
        )
    low, high, measured = log_bars(comparisons)
    return ErrorSummary(
        rows=len(sizes),
        median=median(sizes),
        mean=fmean(sizes),
        p90=sizes[math.ceil(0.9 * len(sizes)) - 1],
        worst=sizes[-1],
        bias=median(errors),
        rank_correlation=rank,
        coverage=fmean(comparison.covered for comparison in comparisons),
        width=float((high - low).mean()),
        score=float(interval_scores(low, high, measured).mean()),
    )


def log_bars(comparisons: Sequence[RunComparison]) -> tuple[Array, Array, Array]:
    """ln of lower ends, upper ends and measured values, one element a run."""
    low, high, measured = np.array([one.log_bar for one in comparisons]).T
    return low, high, measured


def states_fit(prediction: Prediction) -> bool | None:
    """Whether a row ran (True) or ran out of memory (False). None if it does not say, or does not
    state its recomputation or its micro-batch (a micro-batch chosen because it fits proves
    nothing)."""
    row = prediction.row
    if row.ran_out is None or row.text("recompute") is None or prediction.fits_by_choice:
        return None
    return not row.ran_out


def fit_confusion(predictions: Iterable[Prediction]) -> FitConfusion:
    """How often the fit was predicted wrongly, each way, for rows that state it (`states_fit`)."""
    counts = Counter((states_fit(one), one.fits) for one in predictions)
    lost, wrong = counts[True, False], counts[False, True]
    return FitConfusion(counts[True, True] + lost, lost, counts[False, False] + wrong, wrong)


def summarise_picks(groups: Sequence[GroupRanking]) -> PickSummary | None:
    """Mean and worst pick, and the mean rank correlation; None without groups."""
    if not groups:
        return None
    picks = [group.pick for group in groups]
    ranks = fmean(group.rank_correlation for group in groups)
    return PickSummary(len(groups), fmean(picks), min(picks), ranks)


def family_reports(
    predictions: Iterable[Prediction], family: Callable[[Prediction], str]
) -> list[FamilyReport]:
    """One report for each family, in order of first appearance."""
    groups = grouped(predictions, family)
    return [family_report(name, members) for name, members in groups.items()]


def family_report(name: str, members: Sequence[Prediction]) -> FamilyReport:
    """The report of the rows of one family."""
    times, memories = ([comparison(one, figure) for one in members] for figure in FIRST_SIGHT)
    return FamilyReport(
        family=name,
        rows=len(members),
        refused=sum(member.error is not None for member in members),
        time=summarise([one for one in times if one is not None]),
        memory=summarise([one for one in memories if one is not None]),
        fit=fit_confusion(members),
        picks=summarise_picks(rank_groups(members)),
    )


def in_doubt(predictions: Iterable[Prediction]) -> list[Prediction]:
    """The predictions of rows whose source contradicts some of their figures. Each row then has
    only these figures."""
    return [prediction.at_its_word for prediction in predictions if prediction.row.doubted]


def mean_of_sources(predictions: Sequence[Prediction]) -> dict[str, float | None]:
    """Each source's figures averaged over sources (None if no source has the figure), and the
    number of sources."""
    sources = family_reports(predictions, lambda prediction: prediction.row.source)

    def mean(figure: str, name: str) -> float | None:
        summaries = [getattr(source, figure) for source in sources]
        known = [getattr(one, name) for one in summaries if one is not None]
        return fmean(known) if known else None

    return {"sources": len(sources)} | {key: mean(*figure) for key, figure in _MEANS.items()}
