"""The winner's curse: what the plan that wins a search is expected to take.

A search takes the fastest of thousands of plans, and so one whose error flatters it. If a predicted
ln(time) is the true one less a normal error of variance σ², and f is the density of the plans'
predicted ln(time), a plan predicted at p is expected to take

    σ² · d ln f / dp

longer, in ln: Tweedie's formula (Efron 2011, Tweedie's formula and selection bias, Journal of the
American Statistical Association 106, section 2). It holds for the winner, too, as for every plan
chosen by its prediction alone. Near the fastest plan, f grows at a rate that the search itself
shows: the `crowding` of its plans. Where another plan shares part of the winner's error, only what
they do not share counts. With s² the variance of the difference of their errors
(`planner.predict.uncertainty.differences`) that is s²/2, and the winner's lead over a plan that
nobody chose by its prediction is expected to be ½ · crowding · s² smaller than predicted.

Ignores that the other plan was chosen, too, where somebody tuned it by measuring: its own lead over
its neighbours is then partly luck of its measurements.
"""

from __future__ import annotations

from math import exp

import numpy as np
from numpy.typing import ArrayLike

from planner.predict.uncertainty.differences import (
    Ratio,
    Standing,
    half_width,
    ratio_between,
    shipped_scales,
)

# So many plans next to the fastest show how fast their number grows. Simulated searches of 300 to
# 30,000 plans, with errors of 3 to 10 %, find the curse to 0.7 to 1.4 times with it, without bias;
# with 40 plans they find 0.4 to 1.1 times of it.
NEAREST = 10
# Fewer say nothing of a rate.
_FEWEST = 5
# In units of the span that the plans take.
_MOST_RATE = 30.0
_HALVINGS = 60


def crowding(seconds: ArrayLike) -> float:
    """How fast the number of plans grows near the fastest: the rate of ln(number) with ln(time).

    `seconds`: predicted times of the plans that might have won, of those that share nearly all of
    their error the fastest. The rate of an exponential density over the span of the `NEAREST`, by
    maximum likelihood; 0 where the number does not grow, or plans are few.
    """
    times = np.asarray(seconds, dtype=np.float64)
    times = times[np.isfinite(times)]
    if len(times) <= _FEWEST:
        return 0.0
    excess = np.sort(np.log(times / times.min()))[1 : NEAREST + 1]
    span = float(excess[-1])
    return _rate(float(excess.mean()) / span) / span if span > 0.0 else 0.0


def _rate(mean: float) -> float:
    """The rate λ of a density exp(λ·x) on 0 to 1 with this mean (bisection): 0 up to an even one's.

    mean = 1 / (1 - exp(-λ)) - 1 / λ.
    """
    if mean <= 0.5:
        return 0.0
    low, high = 1e-9, _MOST_RATE
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        expected = 1.0 / -np.expm1(-middle) - 1.0 / middle
        low, high = (middle, high) if expected < mean else (low, middle)
    return low


def expected_ratio(winner: Standing, other: Standing, predicted: float, rate: float) -> Ratio:
    """The time of a plan that nobody chose by its prediction over the winner's: as `predicted`,
    less the winner's curse, with its 80 % interval. `rate`: the crowding of the plans that the
    winner was chosen from."""
    deviation = shipped_scales().deviation(winner, other)
    half = half_width(deviation)
    return ratio_between(predicted * exp(-0.5 * rate * deviation**2), half, half)
