"""Half widths of error bars: what of the parts of a prediction gives the best interval score.

    min  mean of [half + 2/alpha · max(0, |y| - half)] + pull · Σ (ln factor)²

over the errors of the parts and the factors of the kinds (`planner.predict.uncertainty.residuals`),
of each side by itself, for the interval score is the sum of both sides' (Gneiting and Raftery
2007). y: ln(measured / predicted), of today's errors and of those at first sight, which weigh
alike, with the sources as `weights_of` has them. The corner of max is rounded over `_CORNER`. The
least is found by trying steps of each number in turn: a dozen numbers and a convex form need no
more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from planner.predict.uncertainty.families import Figure
from planner.predict.uncertainty.interval_score import ALPHA
from planner.predict.uncertainty.residuals import (
    KINDS,
    PARTS,
    Array,
    Ends,
    HalfWidths,
    kinds_of,
    part_shares,
)
from tests.fit.judging import Residual, weights_of

_CORNER = 0.01
# Pulls the factors of kinds with few runs to 1.
_PULL = 0.01
# Errors of the parts to start from, the least that is told from none, and steps of logarithms.
_START, _LEAST = 0.15, 1e-3
# And the most: a part that runs have little of would else be given whatever they err by, as if it
# took hundreds of times as long, and a job that is nearly all of that part a bar without meaning.
_MOST = math.log(4.0)
_FIRST_STEP, _LAST_STEP = 0.5, 0.01
_BETTER = 1e-7


def fitted_errors(figure: Figure, found: Sequence[Residual]) -> HalfWidths:
    """Half widths of the runs that count, as today and at first sight (`both_ways`)."""
    counted = [one for one in found if one.counts] or list(found)
    shares, kinds, values, weights = _arrays(figure, counted)
    count = shares.shape[1]
    start = np.concatenate([np.full(count, math.log(_START)), np.zeros(kinds.shape[1])])
    start[:count] = np.where(shares.any(axis=0), start[:count], math.log(_LEAST))
    ends = [
        _least(_loss(shares, kinds, sign * values, weights), start, parts=count)
        for sign in (-1.0, 1.0)
    ]
    parts = [
        Ends(*each) for each in zip(*(np.exp(end[:count]).tolist() for end in ends), strict=True)
    ]
    factors = [Ends(*each) for each in zip(*(end[count:].tolist() for end in ends), strict=True)]
    return HalfWidths(
        dict(zip(PARTS[figure], parts, strict=True)),
        dict(zip(KINDS, factors, strict=True)),
    )


def _arrays(figure: Figure, found: Sequence[Residual]) -> tuple[Array, Array, Array, Array]:
    """Shares of parts (runs, parts), which kinds (runs, kinds), values and weights (runs,)."""
    shares = np.array(
        [[part_shares(figure, one.at)[part] for part in PARTS[figure]] for one in found]
    )
    each = [kinds_of(one.family) for one in found]
    kinds = np.array([[float(kind in some) for kind in KINDS] for some in each])
    values = np.array([one.value for one in found])
    weights = weights_of(
        np.array([one.group for one in found]), np.array([one.first is not None for one in found])
    )
    return shares, kinds, values, weights / weights.sum()


def _loss(shares: Array, kinds: Array, over: Array, weights: Array) -> Callable[[Array], float]:
    """One side's part of the score by the logarithms of parts, then of kinds; `over`: how far
    values lie on that side, (runs,)."""
    count = shares.shape[1]

    def loss(at: Array) -> float:
        half = (shares @ np.exp(at[:count])) * np.exp(kinds @ at[count:])
        outside = _CORNER * np.logaddexp(0.0, (over - half) / _CORNER)
        pull = _PULL * float((at[count:] ** 2).sum())
        return float(weights @ (half + 2.0 / ALPHA * outside)) + pull

    return loss


def _least(loss: Callable[[Array], float], start: Array, parts: int) -> Array:
    """Where a loss is least: steps of each number in turn, half as long once none helps. The first
    `parts` numbers are logarithms of errors, which lie between `_LEAST` and `_MOST`."""
    floor, ceiling = np.full(len(start), -np.inf), np.full(len(start), np.inf)
    floor[:parts], ceiling[:parts] = math.log(_LEAST), math.log(_MOST)
    at, best, step = start, loss(start), _FIRST_STEP
    while step >= _LAST_STEP:
        helped = False
        for place in range(len(start)):
            for by in (step, -step):
                trial = at.copy()
                trial[place] = min(max(floor[place], trial[place] + by), ceiling[place])
                if (found := loss(trial)) < best - _BETTER:
                    at, best, helped = trial, found, True
                    break
        step = step if helped else 0.5 * step
    return at
