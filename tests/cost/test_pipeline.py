"""Pipeline span against the closed forms of Narayanan et al. 2021 (arXiv 2104.04473)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.pipeline import (
    exchange_wait_s,
    exchanges,
    exposed_transfer_s,
    pipeline_bound_s,
    pipeline_time_s,
)

seconds = st.floats(1e-4, 10.0)


@pytest.mark.parametrize(("pp", "grad_acc", "vpp"), [(1, 8, 1), (4, 16, 1), (8, 8, 1), (4, 16, 5)])
def test_even_stages_have_the_bubble_of_the_paper(pp: int, grad_acc: int, vpp: int) -> None:
    """Section 2.2: ideal time m·t, bubble (p-1)·t/v."""
    stage_s = 0.25
    expected = grad_acc * stage_s + (pp - 1) * stage_s / vpp
    assert pipeline_time_s(stage_s, pp * stage_s, grad_acc, 1 / vpp) == pytest.approx(expected)


def test_the_slowest_stage_sets_the_pace() -> None:
    stages = [1.0, 1.0, 2.0, 1.0]
    assert pipeline_time_s(max(stages), sum(stages), 10, 1) == pytest.approx(10 * 2.0 + 3.0)


@given(st.lists(seconds, min_size=1, max_size=8), st.integers(1, 64), st.integers(1, 4))
def test_no_split_beats_the_bound(stages: list[float], grad_acc: int, vpp: int) -> None:
    bound = pipeline_bound_s(sum(stages), min(stages), len(stages), grad_acc, 1 / vpp)
    assert bound <= pipeline_time_s(max(stages), sum(stages), grad_acc, 1 / vpp) * (1 + 1e-12)


def test_transfers_hide_only_when_interleaved() -> None:
    plain = exposed_transfer_s(0.01, 4, 1, 16, 1.0)
    interleaved = exposed_transfer_s(0.01, 4, 2, 16, 1.0)
    assert plain == pytest.approx(2 * 16 * 0.01 + 2 * 3 * 0.01)
    assert interleaved == pytest.approx(2 * 3 * 0.01)
    assert exposed_transfer_s(0.01, 1, 1, 16, 0.0) == 0.0


@pytest.mark.parametrize(("pp", "expected"), [(1, 0.0), (2, 2.0), (3, 4.0), (16, 4.0)])
def test_a_stage_exchanges_with_each_neighbour_twice(pp: int, expected: float) -> None:
    assert exchanges(float(pp)) == expected
    assert exchange_wait_s(0.25, float(pp), 8.0) == 8.0 * expected * 0.25
