"""Constants of whole steps and of their peaks fitted again: on all sources, and without each.

The constants of whole training steps and of their peaks (`planner.evidence.runs.constants`) were
fitted on most of the sources that judge them. Here those of each figure, step time and peak
memory, are fitted again, all at once, on all sources and on all but one. ln(predicted) is taken as
linear in the logs of the constants, around their shipped values; what is minimised is the mean
|ln(measured / predicted)|, where a source weighs as the square root of its runs, plus a small pull
towards the shipped values where runs do not decide. A constant that no other source has a run of
falls back to its prior, or the geometric mean of the same number in other frameworks: what one
would have assumed. The form of the model, what was counted and the constants of single kernels and
collectives stay: they are not refitted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from hardware.files import shipped_toml
from planner.evidence.runs.constants import CONSTANTS, Constant
from planner.evidence.runs.open_facts import leaves_work_open
from planner.evidence.runs.predict import Prediction, cost_predictions
from planner.evidence.runs.report import error_of, predicted
from planner.evidence.runs.rows import FIRST_SIGHT, grouped, spread_out
from planner.predict.cost_model import CostModel
from planner.predict.uncertainty.families import Figure

Array = NDArray[np.float64]

# Sources by those that one author measured on one cluster: they speak with one voice.
_VOICE: dict[str, str] = {
    source: voice
    for voice, sources in shipped_toml("tests.fit", "searches.toml")["voices"].items()
    for source in sources
}
# Toy models whose step is CPU time: `issue_s` and `host_speed` alone were fitted on some of them.
NOT_FITTED_ON = frozenset({"megatron-ci-golden"})
# Below this a peak is mostly what libraries allocate, not the model.
_SMALLEST_PEAK_GIB = 8.0

# Change of a constant's log at which derivatives are taken: far above rounding, near linear.
_STEP = 0.05
# Weight of a squared log change against mean absolute errors: of times 10 % costs as much as 0.05 %
# of error, so that runs decide wherever they say anything. A constant of memory is a smaller part:
# of the runs that it moves, half move by a twentieth of its change or less, steps by a third.
_PULL: dict[Figure, float] = {"time": 0.05, "memory": 0.001}
# A constant moves by at most this factor, up or down: beyond, the linear picture is no guide.
_MOST_LOG = math.log(2.0)
# |x| is minimised as x^2 / max(|x|, this), again and again (iteratively reweighted).
_SMALLEST_ERROR = 1e-3
_ROUNDS = 60
# A run tells of a constant whose change by 1 % moves its figure by 0.01 % or more.
_LEAST_SLOPE = 0.01


def constants_of(figure: Figure) -> tuple[Constant, ...]:
    """The constants that were fitted on a figure."""
    return tuple(one for one in CONSTANTS if one.figure == figure)


def voice_of(source: str) -> str:
    """What a source counts as, and is left out with."""
    return _VOICE.get(source, source)


@dataclass(frozen=True, slots=True)
class ConstantEvidence:
    """What a constant rests on: the value that ships, the one that fits all runs best, what it
    would be without runs, and the sources that have a say in it."""

    value: float
    fitted: float
    prior: float
    sources: tuple[str, ...]

    @property
    def shrunk(self) -> float:
        """The value to ship: of one source's fit half, in logs, towards the prior; two sources that
        agree are believed. Without any, the prior."""
        if len(self.sources) > 1:
            return self.fitted
        return math.sqrt(self.fitted * self.prior) if self.sources else self.prior


@dataclass(frozen=True)
class FittedRuns:
    """Runs for the fit of a figure's constants: ln(measured / predicted), its derivatives by
    constant, their sources (by `voice_of`)."""

    figure: Figure
    residuals: Array
    slopes: Array
    sources: NDArray[np.str_]

    @property
    def constants(self) -> tuple[Constant, ...]:
        """Those that the columns of `slopes` stand for."""
        return constants_of(self.figure)

    @property
    def pull(self) -> float:
        """`_PULL` of the figure."""
        return _PULL[self.figure]


def tells(prediction: Prediction, figure: Figure) -> bool:
    """Whether a run says something of the model: a step of as much work as it states; a large peak
    of a stated mode."""
    if error_of(prediction, figure) is None or not prediction.names_gpu:
        return False
    if figure == "time":
        return not leaves_work_open(prediction)
    row = prediction.row
    peak_gib = row.number("peak_mem_gib") or 0.0
    return peak_gib >= _SMALLEST_PEAK_GIB and row.text("recompute") is not None


def linearised(predictions: Sequence[Prediction], figure: Figure) -> FittedRuns:
    """The runs that the fit sees, of each source at most so many, evenly spread: log residuals and
    their derivatives, by one more prediction for each constant."""
    known = (one for one in predictions if tells(one, figure))
    by_source = grouped(known, lambda prediction: prediction.row.source)
    chosen = [
        run
        for source, runs in by_source.items()
        if figure == "memory" or source not in NOT_FITTED_ON
        for run in spread_out(runs)
    ]
    constants = constants_of(figure)
    base = np.array([_log(prediction, figure) for prediction in chosen])
    errors = [error_of(prediction, figure) or 0.0 for prediction in chosen]
    slopes = np.zeros((len(chosen), len(constants)))
    for place, constant in enumerate(constants):
        at = [index for index, one in enumerate(chosen) if constant.applies(one.job)]
        # Downwards: shares have upper limits.
        trial = dict.fromkeys(constant.fields, math.exp(-_STEP))
        costed = cost_predictions(
            [chosen[index] for index in at],
            lambda job, chosen=trial: CostModel(job, chosen),  # type: ignore[misc]
        )
        moved = np.array([_log(item, figure) for item in costed])
        slopes[at, place] = (base[at] - moved) / _STEP
    sources = np.array([voice_of(prediction.row.source) for prediction in chosen])
    return FittedRuns(figure, -np.log1p(errors), slopes, sources)


def linearised_all(predictions: Sequence[Prediction]) -> tuple[FittedRuns, ...]:
    """The runs of either figure."""
    return tuple(linearised(predictions, figure) for figure in FIRST_SIGHT)


def _told(runs: FittedRuns) -> NDArray[np.bool_]:
    """Which runs have a say in which constant: (runs, constants)."""
    return np.abs(runs.slopes) >= _LEAST_SLOPE


def rests_on(runs: FittedRuns) -> dict[str, list[str]]:
    """Sources of which some run's figure moves by a hundredth of a constant's relative change or
    more: those that have a say in it. And others by whom it was measured."""
    told = _told(runs)
    return {
        constant.name: sorted({*runs.sources[told[:, place]].tolist(), *constant.also})
        for place, constant in enumerate(runs.constants)
    }


def evidence_of(runs: FittedRuns) -> dict[str, ConstantEvidence]:
    """Every constant of the figure by name, as all runs have it; one of a single source as that
    source alone has it, beside the others as all have them: nothing pulls it to what ships."""
    whole, names, found = _changes(runs), rests_on(runs), {}
    for place, one in enumerate(runs.constants):
        sources = tuple(names[one.name])
        seen = len(sources) == 1 and _told(runs)[:, place].any()
        log = _alone(runs, place, whole) if seen else whole[place]
        fitted = one.shipped() * math.exp(log)
        found[one.name] = ConstantEvidence(one.shipped(), fitted, _prior(one), sources)
    return found


def _alone(runs: FittedRuns, place: int, changes: Array) -> float:
    """Log change of one constant that the runs that have a say in it ask for."""
    at = _told(runs)[:, place]
    slopes = runs.slopes[at]
    rest = runs.residuals[at] - slopes @ changes + slopes[:, place] * changes[place]
    weights = np.full(len(rest), 1.0 / len(rest))
    column = slopes[:, place : place + 1]
    return float(least_absolute(rest, column, weights, _limits(runs)[place : place + 1], 0.0)[0])


def fitted_factors(
    predictions: Sequence[Prediction], fits: Iterable[FittedRuns] | None = None
) -> dict[str, dict[str, float]]:
    """What leaving each source out does to each constant: factors by source and name."""
    by_voice: dict[str, dict[str, float]] = defaultdict(dict)
    for runs in linearised_all(predictions) if fits is None else fits:
        whole = _changes(runs)
        for voice in set(runs.sources.tolist()):
            by_voice[voice] |= _without(runs, voice, whole)
    sources = {prediction.row.source for prediction in predictions}
    return {source: by_voice[voice_of(source)] for source in sources}


def _without(runs: FittedRuns, voice: str, whole: Array) -> dict[str, float]:
    """Factors on the constants that a source's runs depend on, of a fit of the others."""
    kept = runs.sources != voice
    exp = np.exp(_changes(runs, kept) - whole)
    used = np.any(runs.slopes[~kept] != 0.0, axis=0)
    decided = np.any(runs.slopes[kept] != 0.0, axis=0)
    return {
        constant.name: _factor(constant, float(exp[place]), decided=bool(decided[place]))
        for place, constant in enumerate(runs.constants)
        if used[place]
    }


def _factor(constant: Constant, fitted: float, *, decided: bool) -> float:
    """The fitted factor within the constant's limit; without any run, that of its like."""
    factor = fitted if decided else _prior(constant) / constant.shipped()
    return round(min(factor, constant.most / constant.shipped()), 4)


def _prior(constant: Constant) -> float:
    """Its value without runs: as stated, else the geometric mean of the same number in the other
    files; its own where it is the only one."""
    alike = [one for one in CONSTANTS if one.fields == constant.fields and one is not constant]
    values = [one.shipped() for one in alike or [constant]]
    return constant.prior or math.exp(fmean(map(math.log, values)))


def _changes(runs: FittedRuns, kept: NDArray[np.bool_] | bool = True) -> Array:
    """Log change of each constant that fits the kept runs best."""
    weights = _weights(runs, kept)
    return least_absolute(runs.residuals, runs.slopes, weights, _limits(runs), runs.pull)


def _limits(runs: FittedRuns) -> Array:
    return np.array([min(_MOST_LOG, math.log(one.most / one.shipped())) for one in runs.constants])


def _log(prediction: Prediction, figure: Figure) -> float:
    return math.log(predicted(prediction, figure) or math.nan)


def _weights(runs: FittedRuns, kept: NDArray[np.bool_] | bool) -> Array:
    """Those of a kept source add up to the square root of its runs; all of them to one."""
    _, place, counts = np.unique(runs.sources, return_inverse=True, return_counts=True)
    weights = kept / np.sqrt(counts[place])
    return np.asarray(weights / max(float(weights.sum()), 1e-300), dtype=np.float64)


def least_absolute(
    residuals: Array, slopes: Array, weights: Array, limits: Array, pull: float
) -> Array:
    """Log changes that minimise the weighted mean |residual - slopes @ changes| plus
    `pull` times their squares; each between -`_MOST_LOG` and its limit. Shapes: (runs,),
    (runs, constants), (runs,), (constants,); returns (constants,)."""
    changes = np.zeros(slopes.shape[1])
    for _ in range(_ROUNDS):
        sizes = np.maximum(np.abs(residuals - slopes @ changes), _SMALLEST_ERROR)
        leverage = slopes * (weights / sizes)[:, None]
        matrix = leverage.T @ slopes + 2.0 * pull * np.eye(slopes.shape[1])
        free = np.linalg.solve(matrix, leverage.T @ residuals)
        changes = np.asarray(np.clip(free, -_MOST_LOG, limits), dtype=np.float64)
    return changes
