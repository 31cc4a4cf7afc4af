"""Calibrate a cluster from its runs: factors on the model's parameters, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from hardware.calibration import (
    LEAST_FACTOR,
    MOST_FACTOR,
    Calibration,
    Figure,
    LearntFactor,
    LearntFigure,
    LearntRun,
    parameters_of,
)
from planner._version import __version__
from planner.evidence.learn.linear import (
    Equations,
    Factors,
    LearningModel,
    equations,
    likeness,
    measured_log,
    measured_logs,
    no_equations,
    predicted_logs,
    run_configurations,
)
from planner.evidence.learn.posterior import (
    WIDTH,
    Array,
    Posterior,
    bar_width,
    best_posterior,
    explain,
    trust,
)
from planner.evidence.learn.priors import FIGURES, shipped_prior
from planner.evidence.runs.predict import Prediction
from planner.job.errors import CannotTellError, UsageError
from planner.predict.calibrated import NUMBERS, WORDS
from planner.predict.uncertainty.intervals import conditions_of, family_of
from planner.predict.uncertainty.measured_range import ranges
from planner.predict.uncertainty.shipped import shipped_tables

# The first round is linear across the prior's spreads, the others about the last result: the model
# is so linear that the third is the last.
_ROUNDS = 3
# A factor nearer to 1 than this counts as no change.
_CHANGE = 1e-3
# Runs determine a parameter if its posterior is narrower than this share of its prior.
DETERMINED = 0.8
# A run that weighs less than this is an outlier: the fit leaves most of it aside, and says so.
ODD = 0.3
# A limit, because each run is compared with every other.
MOST_RUNS = 1_000
# A measurement further from its prediction is a mistake (such as milliseconds for seconds) or
# belongs to another run.
MOST_TIMES, _BEYOND = 100, 10.0


@dataclass(frozen=True)
class FigureFit:
    """The fit of one figure (step time or memory) to its runs. `posterior` is used for predictions;
    `factors` is used to report the likely value of each factor.

    `before`, `after` and `left_out` hold ln(measured / predicted) of the `runs`, (runs,): before
    the calibration, after it, and with each run corrected by a calibration on the other runs only
    (`left_out`, empty for a single run). `share`: the share of the correction, 0 to 1, that the
    runs support. At 0 the calibration is refused; the other fields then describe the whole
    correction, for users who insist on it.
    """

    figure: Figure
    runs: tuple[Prediction, ...]
    posterior: Posterior
    factors: Posterior
    before: Array
    after: Array
    left_out: Array
    share: float

    @property
    def is_refused(self) -> bool:
        """Whether the calibration is refused (`share` is 0): the runs, each corrected by the
        others, are predicted no better than without a correction."""
        return self.share == 0.0

    @property
    def odd(self) -> tuple[Prediction, ...]:
        """The runs whose weight in the fit is below `ODD`, because they disagree with the
        others."""
        return tuple(
            run for run, weight in zip(self.runs, self.posterior.weights, strict=False)
            if weight < ODD
        )  # fmt: skip


def fit_figure(
    predictions: Sequence[Prediction], figure: Figure, benches: Equations | None = None
) -> FigureFit | None:
    """Fit the factors of a figure to its runs and benchmarks; None if there are neither."""
    runs = tuple(one for one in predictions if measured_log(one, figure) is not None)
    more = benches if benches is not None and benches.figure == figure else no_equations(figure)
    if not runs and not len(more.residuals):
        return None
    measured = measured_logs(runs, figure)
    before = measured - predicted_logs(runs, figure, {}, LearningModel)
    for run, times in zip(runs, np.exp(np.abs(before.clip(-_BEYOND, _BEYOND))), strict=True):
        if times > MOST_TIMES:
            raise UsageError(
                f"{run.row.place}: its measured {figure} is over {MOST_TIMES:,} times off "
                "what is predicted: correct its unit or its configuration, or leave it out"
            )
    prior = shipped_prior(figure)
    like = np.zeros((len(runs) + len(more.residuals),) * 2)
    like[: len(runs), : len(runs)] = likeness(runs, figure)
    about: Factors = {}
    for turn in range(_ROUNDS):
        widths = prior.spreads if turn == 0 else None
        found = equations(runs, figure, at=about, widths=widths).and_also(more)
        posterior = best_posterior(found.slopes, found.residuals, prior, like)
        about = _factors(found, posterior)
    factors = explain(found.slopes, found.residuals, prior, like)
    # Benchmarks are not steps: only runs can tell whether a correction improves steps.
    share = trust(before, posterior.left_out[: len(runs)])
    # A refused correction is shown in full, and also used in full if the user insists.
    taken = 1.0 if share == 0.0 else share
    posterior = posterior.shrunk(taken, np.concatenate([before, more.residuals]))
    after = measured - predicted_logs(runs, figure, _factors(found, posterior), LearningModel)
    after -= (like @ posterior.pull)[: len(runs)]
    rest = posterior.left_out[: len(runs)] if len(found.residuals) > 1 else np.zeros(0)
    return FigureFit(figure, runs, posterior, factors, before, after, rest, share)


def _factors(found: Equations, posterior: Posterior) -> dict[str, float]:
    values = np.exp(posterior.mean).clip(LEAST_FACTOR, MOST_FACTOR)
    names = (parameter.name for parameter in parameters_of(found.figure))
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def calibrate(
    predictions: Sequence[Prediction], sources: Sequence[str], benches: Equations | None = None
) -> list[FigureFit]:
    """Fit each figure to runs and benchmarks of one cluster. `sources`: names of their files.
    CannotTellError if no run can be predicted, UsageError if they ran on several kinds of GPU."""
    mapped = [one for one in predictions if one.mapped]
    if predictions and not mapped and benches is None:
        why = predictions[0].error
        raise CannotTellError(f"no run of {', '.join(sources)} can be predicted: {why}")
    if len(mapped) > MOST_RUNS:
        raise UsageError(
            f"{len(mapped):,} runs: a calibration takes at most {MOST_RUNS:,}; give those that are "
            "most like your jobs"
        )
    gpus = sorted({one.job.cluster.gpu.name for one in mapped})
    if len(gpus) > 1:
        raise UsageError(
            f"runs on {' and '.join(gpus)}: a calibration covers one cluster; give each GPU's runs "
            "in a file and to a command of their own"
        )
    fits = [fit for figure in FIGURES if (fit := fit_figure(mapped, figure, benches)) is not None]
    if not fits:
        raise CannotTellError(
            f"no run of {', '.join(sources)} states a step time or a peak memory: fill the columns "
            "step_time_s and peak_mem_gib, or give its log"
        )
    return fits


def calibration_of(
    fits: Sequence[FigureFit], sources: Sequence[str], date: datetime | None = None
) -> Calibration:
    """The calibration as a cluster file stores it."""
    by_figure = {fit.figure: learnt_figure(fit) for fit in fits if fit.runs}
    runs = [run for fit in fits for run in fit.runs]
    return Calibration(
        date=f"{date or datetime.now(UTC):%Y-%m-%d}",
        planner=__version__,
        sources=tuple(sources),
        frameworks=tuple(sorted({family_of(run.job).framework for run in runs})),
        time=by_figure.get("time"),
        memory=by_figure.get("memory"),
        factors=tuple(factor for fit in fits for factor in learnt_factors(fit)),
        runs=tuple(run for fit in fits if fit.figure == "time" for run in learnt_runs(fit)),
    )


def learnt_runs(fit: FigureFit) -> list[LearntRun]:
    """The configuration of each run, with its `pull`: how much it corrects the predictions of
    similar configurations, in addition to the factors. Empty if the fit has no runs."""
    if not fit.runs:
        return []
    found = run_configurations(fit.runs)
    return [
        LearntRun(
            **{name: round(2.0**value) for name, value in zip(NUMBERS, numbers, strict=True)},
            **dict(zip(WORDS, map(str, words), strict=True)),
            pull=round(float(pull), 4),
        )
        for numbers, words, pull in zip(*found, fit.posterior.pull, strict=False)
    ]


def learnt_figure(fit: FigureFit) -> LearntFigure:
    """How well a figure was predicted, and how widely a further run will scatter."""
    conditions = [run.conditions for run in fit.runs if run.conditions]
    left = fit.posterior.left_out[: len(fit.runs)]
    ends = bar_ends(fit.runs, fit.figure)
    width = bar_width(
        left, np.where(left > 0.0, ends[1], ends[0]), shipped_tables()[fit.figure].shared
    )
    return LearntFigure(
        runs=len(fit.runs),
        error_before=_mean_error(fit.before),
        error_after=_mean_error(fit.after),
        error_left_out=_mean_error(fit.left_out) if len(fit.left_out) else None,
        spread=round(width * float(ends.mean()) / WIDTH, 4),
        width=round(width, 4),
        measured=tuple((axis, *pair) for axis, pair in ranges(conditions).items()),
    )


def bar_ends(runs: Sequence[Prediction], figure: Figure, without: str = "") -> Array:
    """Half widths of the runs' error bars before any calibration, in ln, (2, runs): the first row
    downwards, the second upwards. `without`: use the bars that were fitted without this source."""
    table = shipped_tables()[figure].without(without)
    each = [
        table.half_widths(family_of(run.job), run.conditions or conditions_of(run.job))
        for run in runs
    ]
    return np.array(each).reshape(-1, 2).T


def _mean_error(logs: Array) -> float:
    """Mean |predicted / measured - 1|, rounded; `logs`: ln(measured / predicted)."""
    return round(float(np.abs(np.expm1(-logs)).mean()), 4)


def learnt_factors(fit: FigureFit) -> list[LearntFactor]:
    """The factors that the runs change clearly, or whose uncertainty they reduce, each with its 80
    % interval."""
    means = fit.posterior.mean, fit.factors.mean
    deviations = np.sqrt(np.diag(fit.factors.covariance)), shipped_prior(fit.figure).spreads
    found = []
    for parameter, mean, centre, deviation, before in zip(
        parameters_of(fit.figure), *means, *deviations, strict=True
    ):
        if deviation > 0.999 * before and abs(mean) < _CHANGE:
            continue
        low, value, high = (
            round(float(np.clip(math.exp(log), LEAST_FACTOR, MOST_FACTOR)), 4)
            for log in (centre - WIDTH * deviation, mean, centre + WIDTH * deviation)
        )
        found.append(
            LearntFactor(
                name=parameter.name,
                value=value,
                low=min(low, value),
                high=max(high, value),
                determined=bool(deviation < DETERMINED * before),
                meaning=parameter.meaning,
            )
        )
    return found
