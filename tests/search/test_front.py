"""Pareto geometry: truth tables and closed forms."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from planner.search.front import nondominated, thin


def front(sample_s: np.ndarray, peak: np.ndarray) -> np.ndarray:
    """Indices of the points that no other dominates."""
    return nondominated(np.column_stack([sample_s, peak]))


def dominates(sample_s: float, peak: float, other_sample_s: float, other_peak: float) -> bool:
    """Whether the first point is nowhere worse than the other and somewhere better."""
    no_worse = sample_s <= other_sample_s and peak <= other_peak
    return no_worse and (sample_s < other_sample_s or peak < other_peak)


def test_front_of_a_staircase_is_the_staircase() -> None:
    sample_s = np.array([3.0, 1.0, 2.0])
    peak = np.array([1.0, 3.0, 2.0])
    assert front(sample_s, peak).tolist() == [1, 2, 0]


def test_front_of_equal_points_is_the_first() -> None:
    assert front(np.ones(4), np.ones(4)).tolist() == [0]


points = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        arrays(np.float64, n, elements=st.integers(1, 8).map(float)),
        arrays(np.float64, n, elements=st.integers(1, 8).map(float)),
    )
)


@given(points)
def test_front_is_what_nothing_dominates(case: tuple[np.ndarray, np.ndarray]) -> None:
    sample_s, peak = case
    kept = front(sample_s, peak).tolist()
    for index in kept:
        assert not any(
            dominates(sample_s[other], peak[other], sample_s[index], peak[index])
            for other in range(len(sample_s))
        )
    for index in set(range(len(sample_s))) - set(kept):
        assert any(
            dominates(sample_s[kept_one], peak[kept_one], sample_s[index], peak[index])
            or (sample_s[kept_one], peak[kept_one]) == (sample_s[index], peak[index])
            for kept_one in kept
        )


@given(points)
def test_thinned_front_saves_memory_at_every_step(case: tuple[np.ndarray, np.ndarray]) -> None:
    sample_s, peak = case
    order = front(sample_s, peak)
    kept = thin(sample_s, peak, order, 0.01, 0.05)
    assert kept[0] == order[0]
    assert set(kept.tolist()) <= set(order.tolist())
    assert (peak[kept[1:]] <= 0.95 * peak[kept[:-1]]).all()


def test_thin_keeps_the_fastest_and_what_saves_memory() -> None:
    sample_s = np.array([1.00, 1.005, 1.02, 1.10])
    peak = np.array([100.0, 97.0, 90.0, 60.0])
    order = np.arange(4)
    assert thin(sample_s, peak, order, 0.01, 0.05).tolist() == [0, 2, 3]


def test_thin_prefers_the_lighter_of_two_ties() -> None:
    sample_s = np.array([1.0, 1.100, 1.105])
    peak = np.array([100.0, 80.0, 60.0])
    assert thin(sample_s, peak, np.arange(3), 0.01, 0.05).tolist() == [0, 2]
