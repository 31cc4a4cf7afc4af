"""Clusters whose truth is known: candidates on two axes, with errors that like ones share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.tune.belief import Belief, Observation
from planner.tune.errors import SCALES, Array, log_odds_of_scales
from planner.tune.fits import Memory


def belief(
    log_s: Sequence[float],
    covariance: Array,
    *,
    whole: Sequence[bool] | None = None,
    margins: Sequence[float] | None = None,
    likeness: Array | None = None,
) -> Belief:
    """Of candidates `a`, `b`, ... on 8 GPUs with 64 sequences a step."""
    count = len(log_s)
    deviation = 0.1
    alike = np.eye(count) if likeness is None else likeness
    memory = Memory(
        np.full(count, 9.0) if margins is None else np.array(margins),
        np.zeros(count),
        deviation**2 * alike,
        {},
    )
    return Belief(
        tuple("abcdefghijklmnopqrstuvwxyz"[:count]) if count <= 26 else _numbers(count),
        np.array(log_s, dtype=np.float64),
        covariance,
        np.full(count, 64.0),
        np.full(count, 8.0),
        np.ones(count, dtype=np.bool_) if whole is None else np.array(whole),
        memory,
    )


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(f"c{place}" for place in range(count))


def grid(count: int, *, shared: float, alone: float, reach: float = 0.3) -> Array:
    """Covariance of candidates on a line: like neighbours share."""
    apart = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    found: Array = shared**2 * np.exp(-reach * apart) + alone**2 * np.eye(count)
    return found


def truth(generator: np.random.Generator, of: Belief) -> Array:
    """Seconds of every candidate's step on a cluster drawn from the prior."""
    scale = generator.choice(SCALES, p=np.exp(log_odds_of_scales()))
    errors = generator.multivariate_normal(np.zeros(len(of.keys)), scale**2 * of.covariance)
    return np.asarray(np.exp(of.log_s + errors))


def measured(of: Belief, seconds: Array, *keys: str) -> Belief:
    """After exact trials of some candidates."""
    return of.observed(Observation(key, float(seconds[of.place(key)])) for key in keys)
