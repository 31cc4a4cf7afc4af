"""Errors that a source of runs did not help to shrink: constants refitted without each source.

    python -m planner.evidence.fit.held_out [RUNS.csv|FOLDER ...] >
    planner/evidence/data/held_out.toml

The constants of whole training steps (`planner.evidence.fit.step_fit.CONSTANTS`) were fitted on
most of the sources that judge them. Here they are fitted again, all at once, on all sources and on
all but one. ln(predicted) is taken as linear in the logs of the constants, around their shipped
values; what is minimised is the mean |ln(measured / predicted)|, where a source weighs as the
square root of its runs, plus a small pull towards the shipped values where runs do not decide. The
runs of a source are then predicted, exactly, with the shipped constants times what leaving the
source out changes: exp(without it - with all). A constant that no other source has a run of falls
back to the geometric mean of the same number in other frameworks: what one would have assumed. The
form of the model and the constants of single kernels and collectives stay: they were not refitted.

`planner.evidence.fit.residual_fit` reads the factors of the file and makes the error bars from such
held-out predictions.

Tables of `planner validate` show rows as somebody predicts them who has not seen their source
(`left_out`). A framework that no other source has measured is predicted as a stranger to it would
be: by what the row says that it does, with no name, so that nothing in a profile that was made from
one source helps to predict that source. Where a row was predicted before anything was changed for
it, that is shown. So these tables leave out mechanisms and memory as well.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from statistics import fmean, median

import numpy as np
import tomli as tomllib
from numpy.typing import NDArray

from planner.evidence.fit.command import measured_rows, run
from planner.evidence.fit.step_fit import CONSTANTS, Constant, spread_out
from planner.evidence.runs.predict import Prediction, cost_predictions, predict_rows
from planner.evidence.runs.report import error_of
from planner.evidence.runs.rows import grouped
from planner.job.job import Job
from planner.job.written import toml_text
from planner.predict.uncertainty.families import UNFAMILIAR
from planner.predict.uncertainty.residuals import shipped_tables
from planner.search.trial import TrialModel

Array = NDArray[np.float64]
# Factor of each constant by name, for the runs of each source.
SourceFactors = Mapping[str, Mapping[str, float]]

COMMAND = "python -m planner.evidence.fit.held_out"
# Toy models whose step is CPU time: `issue_s` and `host_speed` alone were fitted on some of them.
NOT_FITTED_ON = frozenset({"megatron-ci-golden"})

# Change of a constant's log at which derivatives are taken: far above rounding, near linear.
_STEP = 0.05
# Weight of a squared log change against mean absolute errors: 10 % costs as much as 0.05 % of
# error, so that runs decide wherever they say anything.
_PULL = 0.05
# A constant moves by at most this factor, up or down: beyond, the linear picture is no guide.
_MOST_LOG = math.log(2.0)
# |x| is minimised as x^2 / max(|x|, this), again and again (iteratively reweighted).
_SMALLEST_ERROR = 1e-3
_ROUNDS = 60
# A run tells of a constant whose change by 1 % moves its time by 0.01 % or more.
_LEAST_SLOPE = 0.01


@dataclass(frozen=True, slots=True)
class SourceErrors:
    """Median and mean |predicted / measured - 1| and signed median of one source's step times:
    with the shipped constants, and with those that leave it out, whose factors are given."""

    rows: int
    median: float
    mean: float
    bias: float
    held_out_median: float
    held_out_mean: float
    held_out_bias: float
    factors: dict[str, float]


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
    """Runs for the fit: ln(measured / predicted), its derivatives by constant, their sources."""

    residuals: Array
    slopes: Array
    sources: NDArray[np.str_]


def held_out(
    predictions: Sequence[Prediction], runs: _FittedRuns | None = None
) -> dict[str, SourceErrors]:
    """Errors of every source with step times, with and without its part in the constants; `runs`:
    their linearised form, where it is known already."""
    timed = [prediction for prediction in predictions if error_of(prediction, "time") is not None]
    factors = fitted_factors(timed, runs)
    again = predict_held_out(timed, factors)
    before, after = _errors(timed), _errors(again)
    return {
        source: SourceErrors(
            *errors,
            *after[source][1:],
            {name: by for name, by in factors.get(source, {}).items() if by != 1.0},
        )
        for source, errors in sorted(before.items())
    }


def _errors(predictions: Iterable[Prediction]) -> dict[str, tuple[int, float, float, float]]:
    """Number of runs, median and mean size of their errors and signed median, by source."""
    found = {}
    for source, runs in grouped(predictions, lambda prediction: prediction.row.source).items():
        errors = [error for run in runs if (error := error_of(run, "time")) is not None]
        sizes = [abs(error) for error in errors]
        found[source] = len(errors), median(sizes), fmean(sizes), median(errors)
    return found


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


def linearised(predictions: Sequence[Prediction]) -> _FittedRuns:
    """The runs that the fit sees, of each source at most so many, evenly spread: log residuals and
    their derivatives, by one more prediction for each constant."""
    known = (one for one in predictions if error_of(one, "time") is not None)
    by_source = grouped(known, lambda prediction: prediction.row.source)
    chosen = [
        run
        for source, runs in by_source.items()
        if source not in NOT_FITTED_ON
        for run in spread_out(runs)
    ]
    base = np.array([_log_time(prediction) for prediction in chosen])
    measured = [math.log(one.measured("step_time_s") or math.nan) for one in chosen]
    slopes = np.zeros((len(chosen), len(CONSTANTS)))
    for place, constant in enumerate(CONSTANTS):
        at = [index for index, one in enumerate(chosen) if constant.applies(one.job)]
        # Downwards: shares have upper limits.
        trial = dict.fromkeys(constant.fields, math.exp(-_STEP))
        costed = cost_predictions(
            [chosen[index] for index in at],
            lambda job, chosen=trial: TrialModel(job, chosen),  # type: ignore[misc]
        )
        moved = np.array([_log_time(item) for item in costed])
        slopes[at, place] = (base[at] - moved) / _STEP
    sources = np.array([prediction.row.source for prediction in chosen])
    return _FittedRuns(np.array(measured) - base, slopes, sources)


def rests_on(runs: _FittedRuns) -> dict[str, list[str]]:
    """Sources of which some run's time moves by a hundredth of a constant's relative change or
    more: those that have a say in it."""
    told = np.abs(runs.slopes) >= _LEAST_SLOPE
    return {
        constant.name: sorted(set(runs.sources[told[:, place]].tolist()))
        for place, constant in enumerate(CONSTANTS)
    }


def evidence_of(runs: _FittedRuns) -> dict[str, ConstantEvidence]:
    """Every constant by name, as all runs have it."""
    whole = np.exp(_changes(runs)).tolist()
    return {
        one.name: ConstantEvidence(one.shipped(), one.shipped() * factor, _prior(one), tuple(names))
        for one, factor, names in zip(CONSTANTS, whole, rests_on(runs).values(), strict=True)
    }


def fitted_factors(
    predictions: Sequence[Prediction], runs: _FittedRuns | None = None
) -> dict[str, dict[str, float]]:
    """What leaving each source out does to each constant: factors by source and name."""
    runs = linearised(predictions) if runs is None else runs
    whole = _changes(runs)
    factors = {}
    for source in sorted(set(runs.sources.tolist())):
        kept = runs.sources != source
        exp = np.exp(_changes(runs, kept) - whole)
        used = np.any(runs.slopes[~kept] != 0.0, axis=0)
        decided = np.any(runs.slopes[kept] != 0.0, axis=0)
        factors[source] = {
            constant.name: _factor(constant, float(exp[place]), decided=bool(decided[place]))
            for place, constant in enumerate(CONSTANTS)
            if used[place]
        }
    return factors


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
    limits = [min(_MOST_LOG, math.log(one.most / one.shipped())) for one in CONSTANTS]
    return least_absolute(runs.residuals, runs.slopes, _weights(runs, kept), np.array(limits))


def _log_time(prediction: Prediction) -> float:
    return math.log(prediction.step_time_s or math.nan)


def _weights(runs: _FittedRuns, kept: NDArray[np.bool_] | bool) -> Array:
    """Those of a kept source add up to the square root of its runs; all of them to one."""
    _, place, counts = np.unique(runs.sources, return_inverse=True, return_counts=True)
    weights = kept / np.sqrt(counts[place])
    return np.asarray(weights / max(float(weights.sum()), 1e-300), dtype=np.float64)


def least_absolute(residuals: Array, slopes: Array, weights: Array, limits: Array) -> Array:
    """Log changes that minimise the weighted mean |residual - slopes @ changes| plus
    `_PULL` times their squares; each between -`_MOST_LOG` and its limit. Shapes: (runs,),
    (runs, constants), (runs,), (constants,); returns (constants,)."""
    changes = np.zeros(slopes.shape[1])
    for _ in range(_ROUNDS):
        sizes = np.maximum(np.abs(residuals - slopes @ changes), _SMALLEST_ERROR)
        leverage = slopes * (weights / sizes)[:, None]
        matrix = leverage.T @ slopes + 2.0 * _PULL * np.eye(slopes.shape[1])
        free = np.linalg.solve(matrix, leverage.T @ residuals)
        changes = np.asarray(np.clip(free, -_MOST_LOG, limits), dtype=np.float64)
    return changes


_ABOUT = """\
# Errors of predicted step times by source, with the shipped constants, which saw most
# sources, and with constants fitted on all others (planner/evidence/fit/held_out.py).
# |predicted / measured - 1|; bias is its signed median. `factors`: on the shipped value.
# `constant`: the value that ships, the best fit of all runs, what it would be without
# runs, and what to ship by `ConstantEvidence.shrunk`: one source's fit half way back.
"""


def render(
    found: Mapping[str, SourceErrors], constants: Mapping[str, ConstantEvidence] | None = None
) -> str:
    """The TOML file; `constants`: what each rests on."""
    files_of = {constant.name: constant.file for constant in CONSTANTS}
    content = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": COMMAND,
        "source": {source: asdict(item) for source, item in found.items()},
        "constant": {
            name: {"file": files_of[name], **asdict(one), "shrunk": one.shrunk}
            for name, one in (constants or {}).items()
        },
    }
    return _ABOUT + toml_text(content)


def parse(text: str) -> dict[str, SourceErrors]:
    """What `render` wrote, by source."""
    return {
        source: SourceErrors(**item)
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
    runs = linearised(predictions)
    sys.stdout.write(render(held_out(predictions, runs), evidence_of(runs)))


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
