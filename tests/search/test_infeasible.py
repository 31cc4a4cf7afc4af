"""What is said when no plan exists: conflicts with numbers, and changes that were searched."""

from __future__ import annotations

import pytest

from planner.errors import NothingFitsError, UsageError
from planner.request import Request
from planner.search.infeasible import DoesNotFitError
from planner.search.search import search

TIGHT = Request(model="8b", gpus="2xH100", gbs=16, recompute=("none",))


def test_explains_and_offers_verified_changes() -> None:
    with pytest.raises(DoesNotFitError) as caught:
        search(TIGHT)
    error = caught.value
    assert isinstance(error, NothingFitsError)
    text = str(error)
    assert "GiB may be used" in text
    assert "the memory limit of stage" in text
    assert error.relaxations
    times = [own.step_time_s for own in error.relaxations]
    assert times == sorted(times)
    assert any("GPUs" in own.change for own in error.relaxations)


def test_an_offered_change_does_fit() -> None:
    with pytest.raises(DoesNotFitError) as caught:
        search(TIGHT)
    doubled = [own for own in caught.value.relaxations if own.change.endswith(" GPUs")]
    count = doubled[0].change.split()[0]
    result = search(TIGHT.model_copy(update={"gpus": f"{count}xH100"}), top=1)
    assert result.plans[0].fits


def test_batch_that_no_replica_count_divides() -> None:
    request = Request(model="8b", gpus="64xH100", gbs=7, limits={"dp": (2, 4)})
    with pytest.raises(UsageError, match=r"6 or 8 sequences") as caught:
        search(request)
    assert "batch-size" in str(caught.value)
    assert "dp = 2,4" in str(caught.value)


def test_contradicting_limits_are_named() -> None:
    request = Request(model="8b", gpus="8xH100", gbs=64, limits={"tp": (3,)})
    with pytest.raises(UsageError, match="tp must divide 32 heads"):
        search(request)


def test_reserve_beyond_the_memory() -> None:
    request = Request(model="8b", gpus="8xH100", gbs=64, hbm_reserve="90GiB")
    with pytest.raises(UsageError, match="reserve leaves no memory"):
        search(request)
