"""Which trial pays, and when none does, on clusters whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.job.errors import UsageError
from planner.tune.belief import Belief, Observation
from planner.tune.errors import Array
from planner.tune.value import best_trial, choose, probability_best, relative_worth
from tests.tune.synthetic import belief, grid, measured, truth

_MONTH_S = 30 * 86_400.0


def _costs(of: Belief, cost: float = 3600.0) -> dict[str, float]:
    return dict.fromkeys(of.keys, cost)


def test_what_is_certain_is_not_tried() -> None:
    known = belief([0.0, 0.3], np.diag([1e-6, 1e-6]))
    choice = choose(known, _costs(known), _MONTH_S)
    assert choice.trial is None
    assert choice.best == "a"
    assert choice.probability_best > 0.99
    assert choice.sentence.startswith("a is the fastest with over 99 %; another trial would cost")
    assert "1.0 GPU-hours and is expected to save 0" in choice.sentence


def test_a_near_and_doubtful_rival_is_tried() -> None:
    near = belief([0.0, 0.02, 1.0], np.diag([1e-4, 0.01, 0.01]))
    choice = choose(near, _costs(near), _MONTH_S, names={"b": "plan 2"})
    assert choice.trial == "b"
    assert choice.expected_saved_gpu_s > choice.cost_gpu_s
    assert "a trial of plan 2 would cost 1.0 GPU-hours" in choice.sentence


def test_nothing_pays_near_the_end_of_the_job() -> None:
    near = belief([0.0, 0.02], np.diag([1e-4, 0.01]))
    assert choose(near, _costs(near), 60.0).trial is None


def test_worth_is_proportional_to_the_rest_of_the_job() -> None:
    near = belief([0.0, 0.02], np.diag([1e-4, 0.01]))
    one, two = (choose(near, _costs(near), rest) for rest in (_MONTH_S, 2 * _MONTH_S))
    assert two.expected_saved_gpu_s == pytest.approx(2.0 * one.expected_saved_gpu_s)


def test_of_equally_telling_trials_the_cheaper_is_made() -> None:
    alike = belief([0.0, 0.0, 0.0], np.diag([1e-6, 0.01, 0.01]))
    assert choose(alike, {"b": 7200.0, "c": 3600.0}, _MONTH_S).trial == "c"


def test_a_smaller_form_is_tried_where_it_tells_as_much_for_less() -> None:
    shared = 0.01 * np.array([[0.01, 0.0, 0.0], [0.0, 1.0, 0.99], [0.0, 0.99, 1.0]])
    three = belief([0.0, 0.02, -0.5], shared, whole=[True, True, False])
    choice = choose(three, {"a": 1e4, "b": 1e4, "c": 1e2}, 86_400.0)
    assert choice.trial == "c"
    after = three.observed([Observation("c", math.exp(-0.7))])
    assert after.recommended == "b"


def test_a_slow_plan_is_worth_a_trial_for_what_it_teaches() -> None:
    covariance = np.diag([1e-6, 0.01, 0.01, 0.01])
    covariance[1, 2] = covariance[2, 1] = 0.0099
    four = belief([0.0, 0.02, 0.5, 0.5], covariance)
    worth = relative_worth(four)
    assert worth[2] > 0.9 * worth[1]
    assert worth[3] < 0.01 * worth[1]


def test_a_trial_that_hardly_fits_is_worth_less() -> None:
    margins = [9.0, 9.0, -0.1]
    risky = belief([0.0, 0.02, 0.02], np.diag([1e-6, 0.01, 0.01]), margins=margins)
    worth = relative_worth(risky)
    assert 0.0 < worth[2] < 0.3 * worth[1]


def test_a_faster_plan_that_may_not_fit_is_worth_a_trial() -> None:
    risky = belief([0.0, -0.2], np.diag([1e-6, 1e-6]), margins=[9.0, 0.0])
    assert risky.recommended == "a"
    worth = relative_worth(risky)
    assert worth[1] == pytest.approx(0.5 * (1.0 - math.exp(-0.2)), rel=0.02)


def test_what_was_tried_is_not_tried_again() -> None:
    prior = belief([0.0, 0.02], np.diag([0.01, 0.01]))
    after = measured(prior, np.array([1.0, 1.0]), "a", "b")
    choice = choose(after, _costs(after), _MONTH_S)
    assert choice.trial is None
    assert choice.sentence.endswith("nothing is left to try")


def test_only_trials_with_a_cost_can_be_made() -> None:
    near = belief([0.0, 0.0, 0.0], np.diag([1e-6, 0.02, 0.01]))
    assert choose(near, {"c": 3600.0, "elsewhere": 1.0}, _MONTH_S).trial == "c"


def test_probability_is_that_of_truth() -> None:
    pair = belief([0.0, 0.1], np.diag([0.0025, 0.0025]))
    generator = np.random.default_rng(1)
    wins = [int(truth(generator, pair).argmin()) == 0 for _ in range(4000)]
    assert probability_best(pair) == pytest.approx(np.mean(wins), abs=0.03)


@pytest.mark.parametrize("rest_s", [-1.0, math.nan, math.inf])
def test_an_impossible_rest_is_refused(rest_s: float) -> None:
    with pytest.raises(UsageError, match="give 0 or more"):
        choose(belief([0.0], np.eye(1)), {}, rest_s)


def _regrets(prior: Belief, seconds: Array, trials: int) -> tuple[float, float]:
    """Of the loop, and of the order of the prediction."""
    after = prior
    for _ in range(trials):
        trial = best_trial(after, _costs(after, 0.0), _MONTH_S).trial
        assert trial is not None
        after = measured(after, seconds, trial)
    best = float(seconds.min())
    order = prior.log_s.argsort()[:trials]
    ours = float(seconds[after.place(after.recommended)])
    return ours / best - 1.0, float(seconds[order].min()) / best - 1.0


def test_learning_halves_the_regret_of_the_prediction_on_clusters_of_its_own_kind() -> None:
    generator = np.random.default_rng(11)
    covariance = grid(20, shared=0.15, alone=0.01, reach=0.1)
    prior = belief(np.linspace(0.0, 0.2, 20).tolist(), covariance)
    errors = generator.multivariate_normal(np.zeros(20), covariance, 40)
    found = np.array([_regrets(prior, np.exp(prior.log_s + one), 5) for one in errors])
    ours, theirs = found.mean(axis=0)
    assert ours < 0.5 * theirs
