"""Errors that a source of runs did not help to shrink: constants refitted without each source.

    python -m planner.evidence.fit.held_out [RUNS.csv|FOLDER ...] >
    planner/evidence/data/held_out.toml

The constants of whole training steps and of their peaks (`planner.evidence.fit.step_fit.CONSTANTS`)
were fitted on most of the sources that judge them. Here those of each figure, step time and peak
memory, are fitted again, all at once, on all sources and on all but one. ln(predicted) is taken as
linear in the logs of the constants, around their shipped values; what is minimised is the mean
|ln(measured / predicted)|, where a source weighs as the square root of its runs, plus a small pull
towards the shipped values where runs do not decide. The runs of a source are then predicted,
exactly, with the shipped constants times what leaving the source out changes:
exp(without it - with all). A constant that no other source has a run of falls back to its prior, or
the geometric mean of the same number in other frameworks: what one would have assumed. The form of
the model, what was counted and the constants of single kernels and collectives stay: they were not
refitted.

`planner.evidence.fit.residual_fit` reads the factors of the file and makes the error bars from such
held-out predictions.

Tables of `planner validate` show rows as somebody predicts them who has not seen their source
(`left_out`). A framework that no other source has measured is predicted as a stranger to it would
be: by what the row says that it does, with no name, so that nothing in a profile that was made from
one source helps to predict that source. Where a row was predicted before anything was changed for
it, that is shown. So these tables leave out mechanisms as well.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from statistics import fmean, median

import numpy as np
import tomli as tomllib
from numpy.typing import NDArray

from planner.evidence.fit.command import measured_rows, run
from planner.evidence.fit.step_fit import (
    CONSTANTS,
    Constant,
    constants_of,
    spread_out,
    voice_of,
)
from planner.evidence.runs.predict import Prediction, cost_predictions, predict_rows
from planner.evidence.runs.report import error_of, predicted
from planner.evidence.runs.rows import FIRST_SIGHT, grouped
from planner.job.job import Job
from planner.job.written import toml_text
from planner.predict.uncertainty.families import UNFAMILIAR, Figure
from planner.predict.uncertainty.residuals import shipped_tables
from planner.search.trial import TrialModel

Array = NDArray[np.float64]
# Factor of each constant by name, for the runs of each source.
SourceFactors = Mapping[str, Mapping[str, float]]

COMMAND = "python -m planner.evidence.fit.held_out"
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


@dataclass(frozen=True, slots=True)
class FigureErrors:
    """Median and mean |predicted / measured - 1| and signed median of one source's runs: with the
    shipped constants, and with those that leave it out."""

    rows: int
    median: float
    mean: float
    bias: float
    held_out_median: float
    held_out_mean: float
    held_out_bias: float


@dataclass(frozen=True, slots=True)
class SourceErrors:
    """Errors of a source's step times and peaks, where it has any, and what leaving it out does to
    constants, as factors on the shipped values."""

    time: FigureErrors | None = None
    memory: FigureErrors | None = None
    factors: dict[str, float] = field(default_factory=dict)


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
class _FittedRuns:
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


def held_out(
    predictions: Sequence[Prediction], fits: Iterable[_FittedRuns] | None = None
) -> dict[str, SourceErrors]:
    """Errors of every source with step times or peaks, with and without its part in the constants;
    `fits`: the runs' linearised form, where it is known already."""
    measured = [
        one
        for one in predictions
        if any(error_of(one, figure) is not None for figure in FIRST_SIGHT)
    ]
    factors = fitted_factors(measured, fits)
    again = predict_held_out(measured, factors)
    errors = {figure: _held_out_errors(measured, again, figure) for figure in FIRST_SIGHT}
    return {
        source: SourceErrors(
            **{figure: found.get(source) for figure, found in errors.items()},
            factors={name: by for name, by in factors.get(source, {}).items() if by != 1.0},
        )
        for source in sorted(set().union(*errors.values()))
    }


def _held_out_errors(
    before: Iterable[Prediction], after: Iterable[Prediction], figure: Figure
) -> dict[str, FigureErrors]:
    first, again = _errors(before, figure), _errors(after, figure)
    return {source: FigureErrors(*found, *again[source][1:]) for source, found in first.items()}


def _errors(
    predictions: Iterable[Prediction], figure: Figure
) -> dict[str, tuple[int, float, float, float]]:
    """Number of runs, median and mean size of their errors and signed median, by source."""
    found = {}
    for source, runs in grouped(predictions, lambda prediction: prediction.row.source).items():
        errors = [error for run in runs if (error := error_of(run, figure)) is not None]
        if errors:
            sizes = [abs(error) for error in errors]
            found[source] = len(errors), median(sizes), fmean(sizes), median(errors)
    return found


def tells(prediction: Prediction, figure: Figure) -> bool:
    """Whether a run says something of the model: any step; a large peak of a stated mode."""
    if error_of(prediction, figure) is None:
        return False
    row = prediction.row
    peak_gib = row.number("peak_mem_gib") or 0.0
    return figure == "time" or (
        peak_gib >= _SMALLEST_PEAK_GIB and row.text("recompute") is not None
    )


def predict_held_out(predictions: Sequence[Prediction], factors: SourceFactors) -> list[Prediction]:
    """The same rows, each with the constants times its source's factors."""
    results = list(predictions)
    changed = {source for source, some in factors.items() if any(by != 1.0 for by in some.values())}
    chosen = (index for index, one in enumerate(results) if one.row.source in changed)
    for source, indices in grouped(chosen, lambda index: predictions[index].row.source).items():
        costed = cost_predictions(
            [results[index] for index in indices],
            lambda job, by=factors[source]: TrialModel(job, multiplied(job, by)),  # type: ignore[misc]
        )
        for index, prediction in zip(indices, costed, strict=True):
            results[index] = prediction
    return results


def multiplied(job: Job, factors: Mapping[str, float]) -> dict[str, float]:
    """Factors of the core's fields that a job depends on, by those of constants."""
    items = [one for one in CONSTANTS if factors.get(one.name, 1.0) != 1.0 and one.applies(job)]
    return {name: factors[one.name] for one in items for name in one.fields}


def linearised(predictions: Sequence[Prediction], figure: Figure) -> _FittedRuns:
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
            lambda job, chosen=trial: TrialModel(job, chosen),  # type: ignore[misc]
        )
        moved = np.array([_log(item, figure) for item in costed])
        slopes[at, place] = (base[at] - moved) / _STEP
    sources = np.array([voice_of(prediction.row.source) for prediction in chosen])
    return _FittedRuns(figure, -np.log1p(errors), slopes, sources)


def linearised_all(predictions: Sequence[Prediction]) -> tuple[_FittedRuns, ...]:
    """The runs of either figure."""
    return tuple(linearised(predictions, figure) for figure in FIRST_SIGHT)


def _told(runs: _FittedRuns) -> NDArray[np.bool_]:
    """Which runs have a say in which constant: (runs, constants)."""
    return np.abs(runs.slopes) >= _LEAST_SLOPE


def rests_on(runs: _FittedRuns) -> dict[str, list[str]]:
    """Sources of which some run's figure moves by a hundredth of a constant's relative change or
    more: those that have a say in it. And others by whom it was measured."""
    told = _told(runs)
    return {
        constant.name: sorted({*runs.sources[told[:, place]].tolist(), *constant.also})
        for place, constant in enumerate(runs.constants)
    }


def evidence_of(runs: _FittedRuns) -> dict[str, ConstantEvidence]:
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


def _alone(runs: _FittedRuns, place: int, changes: Array) -> float:
    """Log change of one constant that the runs that have a say in it ask for."""
    at = _told(runs)[:, place]
    slopes = runs.slopes[at]
    rest = runs.residuals[at] - slopes @ changes + slopes[:, place] * changes[place]
    weights = np.full(len(rest), 1.0 / len(rest))
    column = slopes[:, place : place + 1]
    return float(least_absolute(rest, column, weights, _limits(runs)[place : place + 1], 0.0)[0])


def fitted_factors(
    predictions: Sequence[Prediction], fits: Iterable[_FittedRuns] | None = None
) -> dict[str, dict[str, float]]:
    """What leaving each source out does to each constant: factors by source and name."""
    by_voice: dict[str, dict[str, float]] = defaultdict(dict)
    for runs in linearised_all(predictions) if fits is None else fits:
        whole = _changes(runs)
        for voice in set(runs.sources.tolist()):
            by_voice[voice] |= _without(runs, voice, whole)
    sources = {prediction.row.source for prediction in predictions}
    return {source: by_voice[voice_of(source)] for source in sources}


def _without(runs: _FittedRuns, voice: str, whole: Array) -> dict[str, float]:
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


def _changes(runs: _FittedRuns, kept: NDArray[np.bool_] | bool = True) -> Array:
    """Log change of each constant that fits the kept runs best."""
    weights = _weights(runs, kept)
    return least_absolute(runs.residuals, runs.slopes, weights, _limits(runs), runs.pull)


def _limits(runs: _FittedRuns) -> Array:
    return np.array([min(_MOST_LOG, math.log(one.most / one.shipped())) for one in runs.constants])


def _log(prediction: Prediction, figure: Figure) -> float:
    return math.log(predicted(prediction, figure) or math.nan)


def _weights(runs: _FittedRuns, kept: NDArray[np.bool_] | bool) -> Array:
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


_ABOUT = """\
# Errors of predicted step times and peaks by source, with the shipped constants, which saw
# most sources, and with constants fitted on all others (planner/evidence/fit/held_out.py).
# |predicted / measured - 1|; bias is its signed median. `factors`: on the shipped value.
# `constant`: the value that ships, the best fit of all runs, what it would be without
# runs, and what to ship by `ConstantEvidence.shrunk`: one source's fit half way back.
"""


def render(
    found: Mapping[str, SourceErrors], constants: Mapping[str, ConstantEvidence] | None = None
) -> str:
    """The TOML file; `constants`: what each rests on."""
    listed = {constant.name: constant for constant in CONSTANTS}
    content = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": COMMAND,
        "source": {
            source: {name: part for name, part in asdict(item).items() if part is not None}
            for source, item in found.items()
        },
        "constant": {
            name: {
                "figure": listed[name].figure,
                "file": listed[name].file,
                **asdict(one),
                "shrunk": one.shrunk,
            }
            for name, one in (constants or {}).items()
        },
    }
    return _ABOUT + toml_text(content)


def parse(text: str) -> dict[str, SourceErrors]:
    """What `render` wrote, by source."""
    return {
        source: SourceErrors(
            **{figure: FigureErrors(**item[figure]) for figure in FIRST_SIGHT if figure in item},
            factors=item.get("factors", {}),
        )
        for source, item in tomllib.loads(text).get("source", {}).items()
    }


@cache
def shipped() -> dict[str, SourceErrors]:
    """`planner/evidence/data/held_out.toml`; empty before it was made."""
    path = files("planner.evidence").joinpath("data/held_out.toml")
    return parse(path.read_text(encoding="utf-8")) if path.is_file() else {}


def main(paths: Sequence[str]) -> None:
    """Write the file to standard output."""
    predictions = predict_rows(measured_rows(paths))
    fits = linearised_all(predictions)
    constants = {name: one for runs in fits for name, one in evidence_of(runs).items()}
    sys.stdout.write(render(held_out(predictions, fits), constants))


def measured_by() -> dict[str, frozenset[str]]:
    """Sources of the shipped runs of each framework."""
    found: dict[str, set[str]] = defaultdict(set)
    for table in shipped_tables().values():
        for entry in table.entries:
            if entry.framework != UNFAMILIAR:
                found[entry.framework].add(entry.source)
    return {framework: frozenset(sources) for framework, sources in found.items()}


def left_out(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Rows of the shipped sources, each predicted without its own, as it was at first sight where
    that was kept; refused ones are left away."""
    factors = {source: item.factors for source, item in shipped().items()}
    sources = measured_by()
    everyone = frozenset(factors).union(*sources.values())
    known = [item for item in predictions if item.row.source in everyone and not item.error]
    # Those whose source is the only one that has measured their framework.
    alone = [
        index
        for index, item in enumerate(known)
        if sources.get(item.job.framework.family or item.job.framework.name)
        == frozenset((item.row.source,))
    ]
    strange = predict_rows(known[index].row.unnamed for index in alone)
    for index, item in zip(alone, strange, strict=True):
        known[index] = item
    return [replace(item, as_met=True) for item in predict_held_out(known, factors)]


if __name__ == "__main__":
    run(main, sys.argv[1:])
