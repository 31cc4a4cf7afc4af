"""The winner's curse: how long the plan that wins a search is expected to take.

A search picks the fastest of thousands of plans, and therefore one whose predicted time is likely
too short. A parametric bootstrap (Efron and Tibshirani 1993, An introduction to the bootstrap,
sections 6.5 and 10) measures by how much: take the predicted times of the plans that might have won
as true, draw errors for plans of one cluster (`planner.predict.uncertainty.differences`: the more
plans differ, the less they share), choose the fastest again in each draw, and compute how much too
short its prediction is, relative to the mean error of all. Near ties and independent errors make
that large, a clear winner and shared errors small.

Not all of an error affects the choice: if true times scatter about the predictions, choosing the
smallest prediction selects no luck. Over the measured sweeps -cov(ln(true / predicted),
ln(predicted)) is a share of the errors' variance: 1 if predictions scatter about the truth, 0 if
truth scatters about predictions. That share of the variance is drawn (`flattering`).

The rest of the variance, truth about predictions, affects a choice by measurements: a plan that
somebody tuned is lucky in that part.

Ignores that the predictions' near ties are partly made by their errors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from math import exp, log, log2
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hardware.frozen import Frozen
from planner.predict.uncertainty.differences import (
    Ratio,
    Standing,
    half_width,
    ratio_between,
    shipped_scales,
)

Array = NDArray[np.float64]

# Plans that are slower than the fastest by more than this, in ln, could hardly have won: over two
# standard deviations of the difference of most plans of a dense model.
REACH = 0.3
# Largest number of plans for which errors are drawn, the fastest ones.
_MOST_DRAWN = 150
_DRAWS = 200


class Luck(Frozen):
    """The amount by which a search underestimates the time of its winner, because it chose that
    plan for its short prediction. `rivals`: number of plans whose prediction is near the winner's,
    each with other degrees or another micro-batch; `longer`: share by which the winner is expected
    to take longer than predicted, relative to the error that all plans share."""

    rivals: int = Field(ge=0)
    longer: float


def luck_of(winner: Standing, rivals: Sequence[Standing]) -> Luck:
    """The luck of the winner if it was chosen by its prediction among these rivals; rivals that are
    predicted to be much slower do not count."""
    near = _near(winner, rivals)
    drawn = [winner, *near[:_MOST_DRAWN]]
    longer = exp(_flattery(drawn, shipped_scales().flattering)) - 1.0
    return Luck(rivals=len(near), longer=longer)


def expected_ratio(
    winner: Standing, other: Standing, rivals: Sequence[Standing], *, tuned: bool = False
) -> Ratio:
    """The time of a plan that was not chosen by its prediction, over the winner's: as predicted,
    minus the winner's curse, with its 80 % interval. `rivals`: plans among which the winner was
    chosen; `tuned`: the other plan was chosen among them as well, by measuring, so it is as lucky
    in the rest of its error.

    The other plan shares the winner's luck as far as it shares its error: with s² the variance of
    the difference of two errors, the share min(1, s²(winner, other) / mean of s²(winner, rival)) of
    the luck belongs only to the winner.
    """
    known, near = shipped_scales(), _near(winner, rivals)[:_MOST_DRAWN]
    deviation = known.deviation(winner, other)
    among = fmean(known.deviation(winner, one) ** 2 for one in near) if near else 0.0
    alone = min(1.0, deviation**2 / among) if among > 0.0 else 0.0
    half = half_width(deviation)
    share = known.flattering
    flattery = _flattery([winner, *near], share)
    if tuned:
        flattery += _flattery([winner, *near], 1.0 - share)
    flattery *= alone
    return ratio_between(other.pace / winner.pace * exp(-flattery), half, half)


def _near(winner: Standing, rivals: Iterable[Standing]) -> list[Standing]:
    """Rivals whose predicted time is within reach of the winner's, fastest first. Only the fastest
    counts for each combination of degrees and micro-batch, and the winner's own combination is left
    out."""
    place = (winner.degrees, winner.tokens)
    reach = winner.pace * exp(REACH)
    near = [
        rival for rival in rivals if rival.pace <= reach and (rival.degrees, rival.tokens) != place
    ]
    found: dict[Hashable, Standing] = {}
    for one in sorted(near, key=lambda one: one.pace):
        found.setdefault((one.degrees, one.tokens), one)
    return list(found.values())


def _flattery(contest: Sequence[Standing], share: float) -> float:
    """How much too short the prediction of the plan chosen as fastest is on average, in ln,
    relative to the mean error of the plans. `share`: share of the errors' variance that affects the
    choice."""
    errors = share**0.5 * _errors(contest)
    chosen = (np.log([one.pace for one in contest]) + errors).argmin(axis=1)
    beside = errors.mean(axis=1)
    return float((beside - errors[np.arange(len(errors)), chosen]).mean())


def _errors(plans: Sequence[Standing]) -> Array:
    """Draws of ln(predicted / true) of plans, a row per draw. The difference of any two plans has
    the variance that `DifferenceScales` gives."""
    draws = np.random.default_rng(0)
    known = shipped_scales()
    total = np.zeros((_DRAWS, len(plans)))

    def normal(count: int) -> Array:
        return draws.standard_normal((_DRAWS, count))

    for degree in range(len(plans[0].degrees)):
        sizes = [log2(plan.degrees[degree]) for plan in plans]
        total += known.scales["degrees"] * _walk(sizes, normal)
    total += known.scales["micro_batch"] * _walk([log2(plan.tokens) for plan in plans], normal)
    # Only switches in which the plans differ.
    for values in zip(*(plan.switches for plan in plans), strict=True):
        if len(set(values)) > 1:
            total += known.scales["switches"] / 2**0.5 * _of_each(values, normal)
    for name in sorted(frozenset().union(*(plan.techniques for plan in plans))):
        has = np.array([name in plan.techniques for plan in plans])
        total += known.scales["switches"] * normal(1) * has
    places = [(plan.degrees, plan.tokens, plan.switches, plan.techniques) for plan in plans]
    total += known.scales["configuration"] / 2**0.5 * _of_each(places, normal)
    for name, sizes in (
        ("exposed", [plan.exposed for plan in plans]),
        ("pace", [log(plan.pace) for plan in plans]),
    ):
        total += known.scales[name] * normal(1) * np.array(sizes)
    return total * (known.mixture if any(plan.mixture for plan in plans) else 1.0)


_Normal = Callable[[int], Array]


def _of_each(values: Sequence[Hashable], normal: _Normal) -> Array:
    """Draws of an independent error for each distinct value; equal values get the same error."""
    places = {value: index for index, value in enumerate(dict.fromkeys(values))}
    return normal(len(places))[:, [places[value] for value in values]]


def _walk(sizes: Sequence[float], normal: _Normal) -> Array:
    """A random walk along a size: the variance of the difference of two values is their
    distance."""
    distinct, place = np.unique(np.array(sizes), return_inverse=True)
    steps = np.sqrt(np.diff(distinct, prepend=distinct[:1]))
    return np.cumsum(normal(len(distinct)) * steps, axis=1)[:, place]
