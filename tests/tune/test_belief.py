"""What is believed of candidates after trials, on clusters whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.job.errors import UsageError
from planner.tune.belief import Belief, Observation
from tests.tune.synthetic import belief, grid, measured, truth


def test_intervals_hold_as_often_as_they_say() -> None:
    generator = np.random.default_rng(5)
    prior = belief([0.0] * 8, grid(8, shared=0.1, alone=0.05))
    held: list[bool] = []
    for _ in range(250):
        seconds = truth(generator, prior)
        after = measured(prior, seconds, "a", "d")
        for key in ("b", "f", "h"):
            low, high = after.interval(key)
            held.append(low <= seconds[after.place(key)] <= high)
    # Three of a cluster go together: 250 independent ones alone scatter by 2.5 points.
    assert abs(np.mean(held) - 0.8) < 0.06


def test_draws_agree_with_intervals() -> None:
    after = belief([0.0, 0.1, 0.2], grid(3, shared=0.1, alone=0.05)).observed(
        [Observation("a", 1.2)]
    )
    drawn = after.draws(40_000).step_s[:, 1]
    low, high = after.interval("b")
    assert np.mean(drawn < low) == pytest.approx(0.1, abs=0.01)
    assert np.mean(drawn > high) == pytest.approx(0.1, abs=0.01)


def test_equal_seeds_draw_equally() -> None:
    prior = belief([0.0, 0.1], grid(2, shared=0.1, alone=0.05))
    assert np.array_equal(prior.draws(50, 3).step_s, prior.draws(50, 3).step_s)
    assert not np.array_equal(prior.draws(50, 3).step_s, prior.draws(50, 4).step_s)


def test_a_measured_step_is_known_as_well_as_it_was_measured() -> None:
    prior = belief([0.0, 0.1], grid(2, shared=0.1, alone=0.05))
    exact, rough = (
        prior.observed([Observation("a", 1.3, relative_sd=sd)]).interval("a") for sd in (0.01, 0.1)
    )
    assert exact[0] > 1.25
    assert exact[1] < 1.35
    assert rough[1] - rough[0] > 2.0 * (exact[1] - exact[0])


def test_like_candidates_follow_and_others_hardly_do() -> None:
    prior = belief([0.0] * 12, grid(12, shared=0.1, alone=0.02))
    after = measured(prior, np.full(12, 1.15), "a")
    moved = after.moments[0]
    assert moved[1] > 0.06
    assert moved[11] < 0.03
    assert np.all(np.diff(moved[1:]) < 0.0)


def test_a_surprise_widens_what_was_not_tried() -> None:
    prior = belief([0.0] * 12, grid(12, shared=0.1, alone=0.05))
    expected, surprised = (measured(prior, np.full(12, s), "a") for s in (1.0, 1.8))
    widths = [
        math.log(high / low) for low, high in (b.interval("l") for b in (expected, surprised))
    ]
    assert widths[1] > 2.0 * widths[0]


def test_the_order_of_trials_does_not_matter() -> None:
    prior = belief([0.0, 0.1, 0.2], grid(3, shared=0.1, alone=0.05))
    seconds = np.array([1.1, 1.0, 1.3])
    one, other = measured(prior, seconds, "a", "c"), measured(prior, seconds, "c", "a")
    assert one.moments[0] == pytest.approx(other.moments[0])


def test_a_fast_plan_that_was_tried_is_recommended_before_a_doubtful_one() -> None:
    prior = belief([0.0, 0.0], np.diag([0.0001, 0.09]))
    assert prior.observed([Observation("a", 1.0)]).recommended == "a"


def test_a_plan_that_was_not_tried_may_be_recommended() -> None:
    prior = belief([0.0, 0.05], np.diag([0.01, 0.0004]))
    assert measured(prior, np.array([1.3, 1.05]), "a").recommended == "b"


class TestMemory:
    """Runs that fit and runs that do not."""

    def prior(self) -> Belief:
        alike = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
        return belief([0.0, 0.1, 0.2], np.diag([0.01] * 3), margins=[0.1, 0.1, 0.1], likeness=alike)

    def test_out_of_memory_makes_like_plans_doubtful(self) -> None:
        before = self.prior()
        after = before.observed([Observation("a", out_of_memory=True)])
        assert after.fits[0] == 0.0
        assert after.fits[1] < 0.5 * before.fits[1]
        assert after.fits[2] == pytest.approx(before.fits[2])
        assert after.recommended == "c"

    def test_a_run_that_fits_makes_like_plans_surer(self) -> None:
        before = self.prior()
        after = before.observed([Observation("a", 1.0)])
        assert after.fits[0] == 1.0
        assert after.fits[1] > before.fits[1] + 0.05
        assert after.fits[2] == pytest.approx(before.fits[2])

    def test_it_says_no_time(self) -> None:
        before = self.prior()
        after = before.observed([Observation("a", out_of_memory=True)])
        assert after.moments[0] == pytest.approx(before.moments[0])

    def test_a_measured_peak_tells_more_than_that_it_fits(self) -> None:
        known = self.prior()
        known = Belief(
            known.keys, known.log_s, known.covariance, known.sequences, known.gpus, known.whole,
            known.memory, (10e9, 10e9, 10e9),
        )  # fmt: skip
        roomy = known.observed([Observation("a", 1.0, peak_bytes=8e9)])
        tight = known.observed([Observation("a", 1.0, peak_bytes=10.9e9)])
        assert tight.fits[1] < known.fits[1] < roomy.fits[1]

    def test_draws_keep_what_runs_have_shown(self) -> None:
        after = self.prior().observed([Observation("a", out_of_memory=True), Observation("c", 1.0)])
        fits = after.draws(500).fits
        assert not fits[:, 0].any()
        assert fits[:, 2].all()
        assert fits[:, 1].mean() == pytest.approx(after.fits[1], abs=0.06)

    def test_the_truncated_normal_has_the_moments_of_draws(self) -> None:
        after = self.prior().observed([Observation("a", out_of_memory=True)])
        drawn = np.random.default_rng(0).multivariate_normal(
            np.zeros(2), 0.01 * np.array([[1.0, 0.9], [0.9, 1.0]]), 200_000
        )
        gone = drawn[drawn[:, 0] > 0.1]
        assert after.memory.mean[:2] == pytest.approx(gone.mean(axis=0), abs=0.002)
        assert np.diag(after.memory.covariance)[:2] == pytest.approx(gone.var(axis=0), abs=2e-4)


def test_a_failed_plan_is_not_recommended_and_teaches_nothing() -> None:
    prior = belief([0.0, 0.1], grid(2, shared=0.1, alone=0.05))
    after = prior.observed([Observation("a", failed=True)])
    assert after.recommended == "b"
    assert after.moments[0] == pytest.approx(prior.moments[0])
    assert after.fits == pytest.approx(prior.fits)


def test_a_plan_that_failed_and_then_ran_may_be_recommended() -> None:
    prior = belief([0.0, 0.1], grid(2, shared=0.1, alone=0.05))
    after = prior.observed([Observation("a", failed=True), Observation("a", 0.9)])
    assert after.recommended == "a"


def test_where_all_failed_one_is_recommended_all_the_same() -> None:
    prior = belief([0.0, 0.1], grid(2, shared=0.1, alone=0.05))
    assert prior.observed([Observation(key, failed=True) for key in "ab"]).recommended in "ab"


def test_smaller_forms_are_never_recommended() -> None:
    prior = belief([0.0, -1.0], grid(2, shared=0.1, alone=0.05), whole=[True, False])
    assert prior.recommended == "a"


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_time_is_refused(seconds: float) -> None:
    prior = belief([0.0], np.eye(1))
    with pytest.raises(UsageError, match="more than 0 s"):
        prior.observed([Observation("a", seconds)])


def test_an_unknown_candidate_is_refused() -> None:
    with pytest.raises(UsageError, match="'z' is not a candidate"):
        belief([0.0], np.eye(1)).observed([Observation("z", 1.0)])


def test_a_belief_needs_candidates() -> None:
    with pytest.raises(UsageError, match="at least one candidate"):
        Belief.of([])


def test_once_a_plan_has_run_one_that_may_not_fit_must_be_much_faster() -> None:
    for gain, best in ((0.03, "a"), (0.3, "b")):
        prior = belief([0.0, -gain], np.diag([1e-6, 1e-6]), margins=[9.0, 0.1])
        assert prior.recommended == "b"
        assert prior.observed([Observation("a", 1.0)]).recommended == best
