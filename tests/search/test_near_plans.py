"""Of plans that share nearly all of their error only the fastest counts."""

from __future__ import annotations

import numpy as np
import pytest

from planner.job.request import Request
from planner.predict.uncertainty.differences import Standing, squares, standing_of
from planner.search.limit_results import Effort
from planner.search.near_plans import fastest_of_each, rivals_of
from planner.search.shares import cost_job, cost_shares
from planner.search.trial import try_job

REQUEST = Request(model="llama-3-8b", gpus="16xH100", gbs=128)


def test_the_fastest_of_each_degrees_is_kept() -> None:
    keys = np.array([[1, 2], [2, 1], [1, 2], [2, 1], [4, 1]])
    seconds = np.array([5.0, 3.0, 4.0, 3.5, 9.0])
    assert fastest_of_each(keys, seconds).tolist() == [1, 2, 4]
    assert fastest_of_each(keys[:0], seconds[:0]).tolist() == []


def rivals(**limits: tuple[int, ...]) -> list[Standing]:
    request = REQUEST.model_copy(update={"limits": limits})
    shares = cost_shares(request.resolve(), cost_job, None)
    return rivals_of(shares.explorer(Effort(), None).explorers)


def test_fewer_plans_are_near_where_degrees_are_fixed() -> None:
    assert 1 < len(rivals(tp=(1, 2), pp=(1,))) < len(rivals())


def test_a_shape_stands_where_its_plan_does() -> None:
    trial = try_job(REQUEST.model_copy(update={"limits": {"pp": (1,), "cp": (1,)}}).resolve)
    assert trial is not None
    plan = trial.plan()
    assert plan is not None
    found = standing_of(plan, "", mixture=False)
    near = rivals_of(trial.explorer.explorers)
    (same,) = (one for one in near if (one.degrees, one.tokens) == (found.degrees, found.tokens))
    assert squares(found, same) == pytest.approx((0.0,) * 8, abs=1e-6)
