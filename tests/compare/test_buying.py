"""Bounds of `buy`: never above what a search finds, so that they change no answer."""

from __future__ import annotations

import pytest

from hardware.load import parse_gpus
from planner.compare import buying
from planner.compare.buying import TrainingRun, buy
from planner.compare.offers import Offer, several_clusters
from planner.compare.results import ChoiceLimits, Objective
from planner.compare.run import PlacedRun, racks_of, run_at
from planner.compare.settings import Settings
from planner.job.request import Request
from planner.search.search import find_plans

JOB = Request(model="llama-3.2-1b", gbs_tokens=1_000_000, recompute=("none",))
SIZES = several_clusters(["8..32xH100", "8..32xA100", "8xL40S", "16xMI300X", "8xB200", "16xL4"])
OFFERS = [Offer(gpus=size) for size in SIZES]
PRICES = {"basis": "owned", "capex_usd": 30_000.0}


@pytest.fixture
def unpruned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left out for a better plan elsewhere."""
    monkeypatch.setattr(buying, "better", lambda *_: "")


def bought(objective: Objective, limits: ChoiceLimits) -> buying.Buying:
    runs = [TrainingRun("one", JOB, 10**11)]
    return buy(runs, OFFERS, limits, Settings(**PRICES), objective=objective)


@pytest.mark.parametrize("objective", ["cost", "energy"])
def test_what_is_left_out_changes_neither_choice_nor_front(
    objective: Objective, request: pytest.FixtureRequest
) -> None:
    limits = ChoiceLimits(power_kw=60.0) if objective == "energy" else ChoiceLimits()
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
        assert buying.least_days(request_there.resolve(), 10**11) < row.choice.days.low


def test_racks_by_power_by_height_and_by_domain() -> None:
    """Four DGX H100 of 10.2 kW fill 40.8 kW; nodes of L4 draw less, and fill 42 U."""
    settings = Settings()
    colder = Settings(
        figures={"rack_power": settings.figure("rack_power").model_copy(update={"value": 15.0})}
    )
    for gpus, racks, with_less in (("128xH100", 4, 16), ("136xH100", 5, 17), ("64xL4", 2, 2)):
        cluster = parse_gpus(gpus)
        assert racks_of(cluster, cluster.num_gpus, settings) == racks
        assert racks_of(cluster, cluster.num_gpus, colder) == with_less
    assert racks_of(parse_gpus("80xGB200"), 80, colder) == 2


def test_whole_domains_are_bought_and_terms_are_paid() -> None:
    offer = Offer(gpus="8xGB200", reserved=2.0, term_days=100.0, capex_per_gpu=50_000)
    request = JOB.model_copy(update={"gpus": "8xGB200"})
    result = find_plans(request, top=1)
    placed = PlacedRun(offer, request.resolve(), 10**11, Settings())
    run = run_at(placed, result.job, result.plans[0])
    assert run is not None and run.owning is not None
    assert (run.billed_gpus, run.owning.billed_gpus, run.racks) == (8, 72, 1)
    reserved = run.cost("reserved")
    assert reserved is not None and run.days.high < 100.0
    assert reserved.value == reserved.high == pytest.approx(100.0 * 24 * 8 * 2.0)
