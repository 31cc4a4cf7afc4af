"""A trace's terms as equations: seconds of kernels, of the update and of exposed communication tell
apart what a step time alone leaves together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from planner.cost import fields as f
from planner.evidence.learn.linear import Equations, Factors, LearningModel, no_equations, tangent
from planner.evidence.runs.predict import Prediction, cost_predictions
from planner.evidence.traces.rank import RankTrace

# A term below this share of the step, traced or predicted, says nothing.
_LEAST_SHARE = 0.05
# Columns of STEP_* that make up a term, with their signs: kernels run without the waits for the
# CPU, which are idle time in a trace.
_TERMS: Mapping[str, Mapping[int, float]] = {
    "compute": {f.STEP_COMPUTE: 1.0, f.STEP_RECOMPUTE: 1.0, f.STEP_ISSUE: -1.0},
    "optimizer": {f.STEP_OPTIMIZER: 1.0},
    "exposed communication": dict.fromkeys(
        (f.STEP_TP, f.STEP_CP, f.STEP_EP, f.STEP_FSDP, f.STEP_PP, f.STEP_DP), 1.0
    ),
}


@dataclass(frozen=True)
class Traced:
    """A predicted run and the seconds of its traced step by term."""

    prediction: Prediction
    seconds: Mapping[str, float]


def traced_terms(rank: RankTrace) -> dict[str, float]:
    """Seconds a step of the terms that equations are made of, those of a fair share of it."""
    update = rank.terms.get("optimizer", 0.0)
    found = {
        "compute": math.fsum(rank.terms.values()) - update,
        "optimizer": update,
        "exposed communication": rank.exposed_s,
    }
    return {
        name: seconds for name, seconds in found.items() if seconds > _LEAST_SHARE * rank.step_s
    }


def traced_equations(runs: Sequence[Traced]) -> Equations:
    """One equation of the step time's parameters for each term of each trace that the model
    predicts a fair share of the step for."""
    parts = [_term_equations(runs, term) for term in _TERMS]
    return reduce(Equations.and_also, parts)


def _term_equations(runs: Sequence[Traced], term: str) -> Equations:
    chosen = [run for run in runs if term in run.seconds and _share(run, term) > _LEAST_SHARE]
    if not chosen:
        return no_equations("time")
    base, slopes = tangent(lambda factors: _logs(chosen, term, factors), "time")
    measured = np.log([run.seconds[term] for run in chosen])
    return Equations("time", measured - base, slopes)


def _share(run: Traced, term: str) -> float:
    step = run.prediction.step
    return 0.0 if step is None else _seconds(run.prediction, term) / float(step[f.STEP_TIME])


def _seconds(prediction: Prediction, term: str) -> float:
    """Predicted seconds of a term in a step of the degrees."""
    if prediction.step is None:
        return math.nan
    return math.fsum(sign * float(prediction.step[at]) for at, sign in _TERMS[term].items())


def _logs(runs: Sequence[Traced], term: str, factors: Factors) -> np.ndarray:
    costed = cost_predictions(
        [run.prediction for run in runs], lambda job: LearningModel(job, factors)
    )
    return np.log(np.maximum([_seconds(one, term) for one in costed], 1e-12))
