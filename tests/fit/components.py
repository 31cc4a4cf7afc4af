"""What shares the errors: variance components of measured runs.

    ln(measured / predicted) / half width = mean + Σ effects of the run's framework, GPU
    architecture,
        scale and kind of model + effect of its source + noise of the run,

effects normal, noise Student's t. Expectation maximisation (Dempster, Laird and Rubin 1977, section
4.4; weights of the tails as Lange, Little and Taylor 1989, J. Am. Stat. Assoc. 84). A family's
effect is what its sources have in common, and so is pooled over families the more the fewer sources
each has. Of every source some runs are taken, evenly, or a large one would say what noise is.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist, fmean

import numpy as np

from planner.evidence.runs.rows import grouped, spread_out
from planner.predict.uncertainty.residuals import (
    COVERAGE,
    Array,
)
from planner.predict.uncertainty.tails import DEGREES
from tests.fit.judging import Judged, Residual

LEVELS = ("framework", "architecture", "scale", "model", "source")
_Z = NormalDist().inv_cdf(0.5 + COVERAGE / 2)
_MOST_RUNS = 12
_ROUNDS = 50
_START, _SMALLEST = 0.2, 1e-6


def variance_shares(judged: Judged, found: Sequence[Residual]) -> dict[str, float]:
    """Shares of the variance by level, and of a `run`: mean of today's errors and of those at first
    sight. `found`: the runs that were judged, in order."""
    low, high = judged.bounds()
    logs = _Z * judged.values / np.where(judged.values > 0.0, high, -low)
    each = []
    for of in (~judged.met, judged.met):
        at = [
            index
            for some in grouped(
                np.flatnonzero(of).tolist(), lambda index: found[index].source
            ).values()
            for index in spread_out(some, _MOST_RUNS)
        ]
        if at:
            each.append(_shares(logs[at], [found[index] for index in at]))
    return {level: fmean(one[level] for one in each) for level in (*LEVELS, "run")}


def _shares(logs: Array, found: Sequence[Residual]) -> dict[str, float]:
    """Shares of the variance of these logs, (runs,)."""
    places = [_places([_label(one, level) for one in found]) for level in LEVELS]
    design = np.concatenate(places, axis=1)
    level_of = np.repeat(np.arange(len(LEVELS)), [one.shape[1] for one in places])
    variances, noise, mean = np.full(len(LEVELS), _START), _START, 0.0
    weights = np.ones(len(logs))
    for _ in range(_ROUNDS):
        precise = (design.T * weights / noise) @ design + np.diag(1.0 / variances[level_of])
        covariance = np.linalg.inv(precise)
        effects = covariance @ (design.T @ (weights * (logs - mean))) / noise
        rest = logs - design @ effects
        mean = float(np.average(rest, weights=weights))
        squares = (rest - mean) ** 2 + ((design @ covariance) * design).sum(axis=1)
        weights = (DEGREES + 1.0) / (DEGREES + squares / noise)
        noise = max(_SMALLEST, float((weights * squares).mean()))
        sizes = effects**2 + np.diag(covariance)
        counts = np.bincount(level_of)
        variances = np.maximum(_SMALLEST, np.bincount(level_of, sizes) / counts)
    # Variance of Student's t over the square of its scale.
    found_all = np.append(variances, noise * DEGREES / (DEGREES - 2.0))
    return dict(zip((*LEVELS, "run"), (found_all / found_all.sum()).tolist(), strict=True))


def _label(one: Residual, level: str) -> str:
    return one.source if level == "source" else str(getattr(one.family, level))


def _places(labels: Sequence[str]) -> Array:
    """1 where a run (row) is of a label (column)."""
    distinct, place = np.unique(labels, return_inverse=True)
    return np.eye(len(distinct))[place]
