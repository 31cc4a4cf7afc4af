"""Width, coverage and interval score of error bars, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from planner.predict.uncertainty.interval_score import bar_quality, interval_scores


def test_a_bar_pays_its_width_and_ten_times_what_sticks_out() -> None:
    low, high = np.array([-0.1, -0.1, -0.1, -0.1]), np.array([0.2, 0.2, 0.2, 0.2])
    scores = interval_scores(low, high, np.array([0.0, 0.2, 0.25, -0.3]))
    assert scores == pytest.approx([0.3, 0.3, 0.3 + 10 * 0.05, 0.3 + 10 * 0.2])


def test_the_quantiles_of_a_distribution_score_best() -> None:
    """80 % of a normal distribution lie within 1.2816 standard deviations."""
    values = np.random.default_rng(1).normal(size=20_000)
    halves = (0.9, 1.1, 1.2816, 1.5, 1.9)
    ends = [np.full_like(values, half) for half in halves]
    means = [float(interval_scores(-end, end, values).mean()) for end in ends]
    assert min(means) == means[2]
    # 2 z + 20 (phi(z) - 0.1 z)
    assert means[2] == pytest.approx(20 * 0.17550, rel=0.01)


def test_runs_weigh_the_same_and_so_do_sources() -> None:
    low, high = np.full(4, -0.1), np.array([0.1, 0.1, 0.1, 0.3])
    found = bar_quality(low, high, np.array([0.0, 0.0, 0.2, 0.0]), ["many"] * 3 + ["one"])
    assert (found.runs, found.sources) == (4, 2)
    assert found.of_runs.width == pytest.approx(0.25)
    assert found.of_sources.width == pytest.approx(0.3)
    assert found.of_runs.coverage == pytest.approx(0.75)
    assert found.of_sources.coverage == pytest.approx((2 / 3 + 1) / 2)
    assert found.of_runs.score == pytest.approx(0.25 + 10 * 0.1 / 4)
    assert found.of_sources.score == pytest.approx((0.2 + 10 * 0.1 / 3 + 0.4) / 2)
