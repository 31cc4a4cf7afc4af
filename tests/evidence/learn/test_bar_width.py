"""How wide bars are after own runs, and what is said of it."""

from __future__ import annotations

import numpy as np
import pytest

from planner.evidence.learn.posterior import bar_width
from planner.predict.uncertainty.intervals import learnt_text
from planner.predict.uncertainty.tails import DEGREES, at_90


@pytest.mark.parametrize("count", [1, 2, 4, 10])
def test_bars_hold_further_runs_after_any_number_of_runs(count: int) -> None:
    """Clusters of the model of `bar_width`: a level and noise of half the variance each, under a
    scale that is the cluster's own. About four of five further runs are in the bar; a single run,
    which narrows nothing, leaves it holding more."""
    random, inside = np.random.default_rng(3), []
    for _ in range(600):
        scale = (DEGREES / random.chisquare(DEGREES)) ** 0.5
        level, noise = scale * random.normal(0.0, 0.5**0.5), scale * 0.5**0.5
        known = level + noise * random.normal(size=count)
        share = 0.5 / (0.5 + count * 0.5)
        rest = 0.5 / (0.5 + max(count - 1, 1) * 0.5)
        others = np.array([np.delete(known, at).sum() for at in range(count)])
        left = known - others * rest
        further = level + noise * random.normal(size=5) - share * known.sum()
        half = np.full(count, at_90(DEGREES))
        inside.append(np.abs(further) <= half[0] * bar_width(left, half, 0.5))
    assert 0.76 <= np.mean(inside) <= (0.92 if count == 1 else 0.84)


def test_runs_that_disagree_widen_bars() -> None:
    half = np.full(2, 0.2)
    agree, disagree = (bar_width(np.array(left), half, 0.5) for left in ([0.0, 0.0], [0.6, -0.6]))
    assert agree < 0.7
    assert disagree > 1.5


def test_why_a_bar_is_no_narrower_is_said() -> None:
    assert learnt_text(4, 0.6) == "4 runs of this cluster, which calibrated it"
    assert learnt_text(1, 1.0) == (
        "1 run of this cluster, which calibrated it, but one run cannot tell its own noise from "
        "what all runs of a cluster share: no narrower than without it"
    )
    assert learnt_text(1, 1.3).endswith("share, and it lies far off: wider than without it")
    assert learnt_text(3, 1.2).endswith("disagree with each other: wider than without them")
