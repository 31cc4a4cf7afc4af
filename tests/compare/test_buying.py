"""Bounds of `buy`: never above what a search finds, so that they change no answer."""

from __future__ import annotations

import pytest

from planner.compare import buying, least
from planner.compare.buying import TrainingRun, buy
from planner.compare.choice import Limits, Objective
from planner.compare.offers import Offer
from planner.compare.ranges import several_clusters
from planner.compare.settings import Settings
from planner.job.request import Request

JOB = Request(model="llama-3.2-1b", gbs_tokens=1_000_000, recompute=("none",))
SIZES = several_clusters(["8..32xH100", "8..32xA100", "8xL40S", "16xMI300X", "8xB200", "16xL4"])
OFFERS = [Offer(gpus=size) for size in SIZES]
PRICES = {"basis": "owned", "capex_usd": 30_000.0}


@pytest.fixture
def unpruned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left out for a better plan elsewhere."""
    monkeypatch.setattr(buying, "better", lambda *_: "")


def bought(objective: Objective, limits: Limits) -> buying.Buying:
    runs = [TrainingRun("one", JOB, 10**11)]
    return buy(runs, OFFERS, limits, Settings(**PRICES), objective=objective)


@pytest.mark.parametrize("objective", ["cost", "energy"])
def test_what_is_left_out_changes_neither_choice_nor_front(
    objective: Objective, request: pytest.FixtureRequest
) -> None:
    limits = Limits(power_kw=60.0) if objective == "energy" else Limits()
    pruned = bought(objective, limits)
    request.getfixturevalue("unpruned")
    whole = bought(objective, limits)
    assert any(row.beyond == "another" for row in pruned.rows) or objective == "energy"
    assert pruned.decision == whole.decision
    for row in whole.rows:
        if row.choice is None:
            continue
        offer = next(one for one in OFFERS if one.label == row.cluster)
        request_there = JOB.model_copy(update={"gpus": offer.gpus})
        assert least.least_days(request_there.resolve(), 10**11) < row.choice.days.low
