"""How errors inside a sweep go together, and the fit of that."""

from __future__ import annotations

import numpy as np
import pytest

from planner.tune.errors import (
    AXES,
    SCALES,
    SIZES,
    ErrorScales,
    log_odds_of_scales,
    shipped_scales,
)
from tests.fit.sweep_fit import Sweep, fitted

_WEIGHTS = dict.fromkeys(AXES, 0.2)


def _scales(**changed: float) -> ErrorScales:
    numbers = {"physics": 1.0, "likeness": 0.5, "alone": 0.1} | changed
    return ErrorScales(weights=_WEIGHTS, spreads=np.array([0.1]), **numbers)


def _distances(count: int) -> dict[str, np.ndarray]:
    apart = np.abs(np.subtract.outer(np.arange(count), np.arange(count))).astype(np.float64)
    return {name: apart if name == "tensor" else np.zeros_like(apart) for name in (*AXES, *SIZES)}


def test_the_covariance_is_the_sum_of_its_parts() -> None:
    slopes = np.array([[-1.0], [-0.5]])
    found = _scales().covariance(slopes, _distances(2))
    physics = 0.01 * np.array([[1.0, 0.5], [0.5, 0.25]])
    like = 0.25 * np.array([[1.0, np.exp(-0.2)], [np.exp(-0.2), 1.0]])
    assert found == pytest.approx(physics + like + 0.01 * np.eye(2))


def test_odds_of_scales_add_up_and_most_clusters_are_usual() -> None:
    odds = np.exp(log_odds_of_scales())
    assert odds.sum() == pytest.approx(1.0)
    assert 0.5 <= SCALES[int(odds.argmax())] <= 1.0
    assert odds[SCALES >= 4.0].sum() < 0.15


def test_the_log_density_is_that_of_the_mixture() -> None:
    sweep = Sweep("a", np.array([0.3, -0.2]), np.array([[-1.0], [-0.5]]), _distances(2))
    scales = _scales()
    covariance = scales.covariance(sweep.slopes, sweep.distances)
    densities = [
        np.exp(-0.5 * sweep.residuals @ np.linalg.solve(t**2 * covariance, sweep.residuals))
        / np.sqrt(np.linalg.det(2.0 * np.pi * t**2 * covariance))
        for t in SCALES
    ]
    whole = np.log(np.exp(log_odds_of_scales()) @ densities)
    assert sweep.log_density(scales) == pytest.approx(whole / 2.0)


def test_the_fit_finds_errors_that_like_runs_share_and_those_that_they_do_not() -> None:
    generator = np.random.default_rng(2)

    def sweeps(shared: float, alone: float) -> list[Sweep]:
        found = []
        for place in range(25):
            like = shared**2 * np.exp(-0.1 * _distances(8)["tensor"]) + alone**2 * np.eye(8)
            errors = generator.multivariate_normal(np.zeros(8), like)
            found.append(Sweep(f"s{place}", errors, np.zeros((8, 1)), _distances(8)))
        return found

    def shared_with_neighbour(found: ErrorScales) -> float:
        like = found.likeness**2 * np.exp(-found.weights["tensor"])
        return float(like / (found.likeness**2 + found.alone**2))

    spreads = np.array([0.1])
    assert shared_with_neighbour(fitted(sweeps(0.6, 0.05), spreads)) > 0.7
    assert shared_with_neighbour(fitted(sweeps(0.05, 0.6), spreads)) < 0.2


def test_a_source_is_left_out_of_what_ships() -> None:
    everything = shipped_scales()
    assert shipped_scales("a source that nobody published").weights == everything.weights
    left = shipped_scales("vtrain-single")
    assert left.weights != everything.weights
    assert set(left.weights) == set(AXES)
