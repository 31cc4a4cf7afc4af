"""Configurations that trials can be of: plans, their neighbours, smaller forms."""

from __future__ import annotations

from functools import cache

import pytest

from planner.job.request import Request
from planner.search.result import SearchResult
from planner.search.search import find_plans
from planner.tune.belief import Belief
from planner.tune.candidates import (
    LEAST_FIT,
    Candidate,
    candidates_of_result,
    planned_candidates,
    smaller_forms,
)
from planner.tune.value import choose


@cache
def _result() -> SearchResult:
    return find_plans(Request(model="1b", gpus="8xH100", gbs=64), fastest_only=True)


@cache
def _candidates() -> tuple[Candidate, ...]:
    return tuple(candidates_of_result(_result(), most=6))


def test_a_plan_is_predicted_as_the_search_has_it() -> None:
    for plan, one in zip(
        _result().plans, planned_candidates(_result().request, _result().plans), strict=True
    ):
        assert one.step_s == pytest.approx(plan.step_time_s)
        assert one.fits == pytest.approx(plan.fit_probability)
        assert one.gpus == plan.degrees.gpus


def test_near_plans_follow_the_fastest_each_once() -> None:
    found = _candidates()
    assert len(found) == 6
    assert len({one.key for one in found}) == 6
    paces = [one.step_s / one.degrees.gbs for one in found]
    assert paces == sorted(paces)
    assert all(one.fits >= LEAST_FIT for one in found)


def test_keys_are_stable_text() -> None:
    again = candidates_of_result(_result(), most=6)
    assert [one.key for one in again] == [one.key for one in _candidates()]
    assert _candidates()[0].key.startswith("tp ")


def test_smaller_forms_take_fewer_gpus_or_micro_batches() -> None:
    whole = _candidates()[0]
    found = smaller_forms(whole)
    assert found
    for one in found:
        assert one.smaller_of == whole.key
        assert one.gpus < whole.gpus or one.degrees.grad_acc < whole.degrees.grad_acc
        assert one.degrees.tp == whole.degrees.tp
        assert one.plan is not None
        assert one.step_s == pytest.approx(one.plan.step_time_s)
        assert smaller_forms(one) == []


def test_a_smaller_form_stands_for_its_whole() -> None:
    whole, other = _candidates()[:2]
    (small, *_) = smaller_forms(whole)
    found = Belief.of([whole, other, small])
    covariance = found.covariance
    assert covariance[0, 2] > covariance[0, 1]
    assert found.recommended in (whole.key, other.key)


def test_a_study_of_plans_names_its_first_trial() -> None:
    found = Belief.of(_candidates())
    costs = {one.key: 60.0 * one.gpus for one in _candidates()}
    choice = choose(found, costs, 10 * 86_400.0)
    assert choice.trial in found.keys
    assert choice.expected_saved_gpu_s > choice.cost_gpu_s
