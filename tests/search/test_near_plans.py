"""Of plans that share nearly all of their error only the fastest counts."""

from __future__ import annotations

import numpy as np

from planner.job.request import Request
from planner.search.limit_results import Effort
from planner.search.near_plans import crowding_of, fastest_of_each
from planner.search.shares import cost_job, cost_shares


def test_the_fastest_of_each_degrees_is_kept() -> None:
    keys = np.array([[1, 2], [2, 1], [1, 2], [2, 1], [4, 1]])
    seconds = np.array([5.0, 3.0, 4.0, 3.5, 9.0])
    assert fastest_of_each(keys, seconds).tolist() == [3.0, 4.0, 9.0]
    assert fastest_of_each(keys[:0], seconds[:0]).tolist() == []


def test_a_search_among_many_plans_is_crowded_and_one_among_few_is_not() -> None:
    def rate(**limits: object) -> float:
        request = Request(model="llama-3-8b", gpus="16xH100", gbs=128, **limits)
        shares = cost_shares(request.resolve(), cost_job, None)
        return crowding_of(shares.explorer(Effort(), None).explorers)

    assert rate() > 1.0
    assert rate(fix={"tp": 2, "pp": 2, "cp": 1}) < rate()
