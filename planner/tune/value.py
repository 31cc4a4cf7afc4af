"""Choose the next trial, and when to stop, by the value of information.

The worth of a trial is the expected saving over the rest of the job by the plan recommended after
it, compared with the plan recommended now (the knowledge gradient: Frazier, Powell & Dayanik 2009,
The knowledge-gradient policy for correlated normal beliefs, INFORMS J. Computing 21(4)). For a
trial t,

    worth(t) = P(t fits) · E_y[ step(now) - min over eligible plans and t of step(after y) ] · rest

over quantiles y of its step time. The mixture of beliefs is replaced by a normal with its mean and
covariance, and steps by their medians, so that an uncertain plan is not tried for its uncertainty
alone. The worth includes the effect on similar plans, so the trial need not be a rival of the
recommended plan.

Ignores the effect of a trial on the memory of others, and that a second trial may add to the first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from planner.job.errors import UsageError
from planner.job.quantities import HOUR_S
from planner.tune.belief import Belief
from planner.tune.errors import Array

# Number of quantiles of a trial's outcome, and of draws for the probability that a plan is best.
_OUTCOMES, _DRAWS = 15, 2000
# Variance of ln(measured step) in a trial.
_NOISE = 1e-4
_QUANTILES = np.array(
    [NormalDist().inv_cdf((place + 0.5) / _OUTCOMES) for place in range(_OUTCOMES)]
)
# The plan recommended now would run without any trial, so it is tried first unless another trial is
# worth this many times as much. Without this rule, informative trials sometimes leave the best
# plan, recommended from the start, behind a plan that they happened to measure.
_OF_RECOMMENDED = 2.0


@dataclass(frozen=True)
class Choice:
    """The next trial. `trial`: its key, None if no trial pays. `expected_saved_gpu_s`,
    `cost_gpu_s`: GPU-seconds that it is expected to save over the rest of the job and to cost; if
    no trial pays, those of the best one. `best`: the key of the best plan so far.
    `probability_best`: the probability that this plan is the fastest. `sentence`: all this for
    people."""

    trial: str | None
    expected_saved_gpu_s: float
    cost_gpu_s: float
    best: str
    probability_best: float
    sentence: str


@dataclass(frozen=True)
class Worth:
    """The worth of a trial. `trial`: its key; None if no candidate is left to try. `saved_gpu_s`,
    `cost_gpu_s`: GPU-seconds that it is expected to save over the rest of the job, and to cost."""

    trial: str | None
    saved_gpu_s: float
    cost_gpu_s: float

    @property
    def pays(self) -> bool:
        """Whether it saves more than it costs."""
        return self.saved_gpu_s > self.cost_gpu_s


def best_trial(belief: Belief, costs: Mapping[str, float], rest_s: float) -> Worth:
    """The untried candidate with the highest saving minus cost, whether it pays or not. The saving
    of the recommended plan is multiplied by `_OF_RECOMMENDED`. Arguments as for `choose`.
    UsageError if `rest_s` is negative or infinite."""
    if not 0.0 <= rest_s < math.inf:
        raise UsageError(f"the rest of the job takes {rest_s:g} s; give 0 or more")
    best = belief.recommended
    worth = rest_s * float(belief.gpus[belief.place(best)]) * relative_worth(belief)
    tried = belief.tried
    gains = {
        key: float(worth[belief.place(key)])
        for key in costs
        if key in belief.keys and key not in tried
    }
    if not gains:
        return Worth(None, 0.0, 0.0)
    weight = {best: _OF_RECOMMENDED}
    trial = max(gains, key=lambda key: (weight.get(key, 1.0) * gains[key] - costs[key], gains[key]))
    return Worth(trial, gains[trial], costs[trial])


def choose(
    belief: Belief,
    costs: Mapping[str, float],
    rest_s: float,
    *,
    names: Mapping[str, str] | None = None,
) -> Choice:
    """The trial that pays most. `costs`: GPU-seconds of every possible trial, by key; `rest_s`:
    seconds of the rest of the job under the plan recommended now; `names`: names of the candidates
    for the sentence."""
    found = best_trial(belief, costs, rest_s)
    best, chance = belief.recommended, probability_best(belief)
    known = f"{(names or {}).get(best, best)} is the fastest with {_percent(chance)}"
    if found.trial is None:
        return Choice(None, 0.0, 0.0, best, chance, f"{known}; nothing is left to try")
    saved, cost = found.saved_gpu_s, found.cost_gpu_s
    verdict = _verdict(found.trial, saved, cost, names or {}, pays=found.pays)
    trial = found.trial if found.pays else None
    return Choice(trial, saved, cost, best, chance, f"{known}; {verdict}")


def _verdict(trial: str, saved: float, cost: float, names: Mapping[str, str], *, pays: bool) -> str:
    hours = f"would cost {_hours(cost)} GPU-hours and is expected to save {_hours(saved)}"
    return f"a trial of {names.get(trial, trial)} {hours}" if pays else f"another trial {hours}"


def _hours(gpu_s: float) -> str:
    hours = gpu_s / HOUR_S
    return (
        f"{hours:,.0f}" if hours >= 100.0 else f"{hours:.1f}" if hours >= 0.05 else f"{hours:.2g}"
    )


def _percent(chance: float) -> str:
    """A probability as text; never 100 %, which draws cannot establish."""
    return "over 99 %" if chance > 0.99 else f"{100.0 * chance:.0f} %"


def probability_best(belief: Belief) -> float:
    """Probability that no whole candidate that fits is faster than the recommended one."""
    draws = belief.draws(_DRAWS)
    pace = draws.step_s / belief.sequences
    usable = draws.fits & belief.whole
    usable[:, [belief.place(key) for key in belief.failed]] = False
    place = belief.place(belief.recommended)
    rivals = np.where(usable, pace, np.inf)
    rivals[:, place] = np.inf
    return float((pace[:, place] <= rivals.min(axis=1)).mean())


def relative_worth(belief: Belief) -> Array:
    """Share of the rest of the job that a trial of each candidate is expected to save, (n,); 0 for
    candidates already tried."""
    mean, covariance = belief.moments
    pace = mean - np.log(belief.sequences)
    now = int(np.where(belief.eligible, pace, np.inf).argmin())
    variances, fits = np.diag(covariance), belief.fits
    found = np.zeros(len(mean))
    tried = belief.tried
    for place, key in enumerate(belief.keys):
        if key in tried or variances[place] <= 0.0:
            continue
        moved = covariance[:, place] / math.sqrt(variances[place] + _NOISE)
        after = np.exp(pace - pace[now] + _QUANTILES[:, None] * moved)
        usable = belief.eligible.copy()
        usable[place] = belief.whole[place]
        least = np.where(usable, after, np.inf).min(axis=1)
        found[place] = fits[place] * float((after[:, now] - least).mean())
    return found
