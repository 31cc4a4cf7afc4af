"""Five clusters end to end, searched once; then prices, fronts and figures on their plans."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from datetime import date

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware.errors import HardwareError
from hardware.facts import Figure
from hardware.load import load_gpu, parse_gpus
from hardware.prices import Price
from hardware.units import ASSUMPTION
from planner.compare.comparison import compare_clusters
from planner.compare.offers import Offer, choose
from planner.compare.results import Comparison, Run
from planner.compare.run import PlacedRun, run_at
from planner.compare.searches import Task, run_searches
from planner.compare.settings import Settings
from planner.job.errors import UsageError
from planner.job.request import Request
from planner.report.comparison import comparison_report, trace

BASE = Request(model="llama-3.2-1b", gbs=64)
OFFERS = ("8xH100", "8xB200", "8xMI300X", "8xA100", "1xV100")
TOKENS = 10**12
TODAY = date(2026, 11, 21)
SETTINGS = Settings(today=TODAY, carbon_g_per_kwh=400.0)


@pytest.fixture(scope="module")
def five() -> Comparison:
    """Five clusters, one of which has no bf16."""
    return compare_clusters(BASE, OFFERS, TOKENS, SETTINGS)


def _placed(name: str, item: Settings, offer: Offer | None = None) -> PlacedRun:
    job = BASE.model_copy(update={"gpus": name}).resolve()
    return PlacedRun(offer or Offer(gpus=name), job, TOKENS, item)


def _on(five: Comparison, name: str) -> Run:
    row = five.row(name)
    assert row is not None and row.run is not None
    return row.run


def _run(five: Comparison, name: str, item: Settings, offer: Offer | None = None) -> Run:
    """The run of a searched plan under other settings, without another search."""
    run = _on(five, name)
    found = run_at(_placed(name, item, offer), run.job, run.plan)
    assert found is not None
    return found


def test_each_cluster_has_its_own_plan_or_a_reason(five: Comparison) -> None:
    assert {row.name for row in five.rows} == set(OFFERS)
    assert five.rows[-1].name == "1xV100"
    assert "has no bf16 matrix arithmetic" in five.rows[-1].reason
    ran = [row for row in five.rows if row.run is not None]
    assert [row.run.days.value for row in ran if row.run] == sorted(
        row.run.days.value for row in ran if row.run
    )
    for row in ran:
        assert row.run is not None
        assert row.run.plan.degrees.gpus == row.num_gpus


def test_the_plan_is_that_of_a_search(five: Comparison) -> None:
    from planner.search.search import find_plans

    run = _on(five, "8xH100")
    plans = find_plans(BASE.model_copy(update={"gpus": "8xH100"}), top=1).plans[0]
    assert run.plan.degrees == plans.degrees
    assert run.plan.step_time_s == plans.step_time_s


def test_figures_follow_from_each_other(five: Comparison) -> None:
    run = _on(five, "8xH100")
    assert run.ideal_days.value == pytest.approx(TOKENS / run.plan.tokens_per_s / 86400)
    assert run.days.value == pytest.approx(run.ideal_days.value / run.goodput.share)
    assert run.gpu_hours.value == pytest.approx(run.days.value * 24 * 8)
    rental = run.rental("on_demand")
    assert rental is not None and run.owning is not None
    assert rental.cost.value == pytest.approx(run.gpu_hours.value * rental.per_gpu_hour)
    assert rental.per_trillion_tokens == pytest.approx(rental.cost.value)  # of one trillion
    # 10.2 kW for 8 GPUs, 76 % drawn, PUE 1.54; 400 g a kWh.
    assert run.energy.mwh.value == pytest.approx(run.days.value * 24 * 10.2e-3 * 0.76 * 1.54)
    assert run.energy.co2_t is not None
    assert run.energy.co2_t.value == pytest.approx(run.energy.mwh.value * 0.4)


def test_intervals_hold_the_step_time_and_the_failures(five: Comparison) -> None:
    for row in five.rows:
        if row.run is None:
            continue
        run = row.run
        for day in (run.days, run.gpu_hours, run.energy.mwh, run.ideal_days):
            assert day.low <= day.value <= day.high
        assert run.days.high / run.days.value >= run.ideal_days.high / run.ideal_days.value
        power = run.energy.mwh.high / run.energy.mwh.value
        assert power > run.days.high / run.days.value


def test_shares_of_a_step_add_up(five: Comparison) -> None:
    for row in five.rows:
        if row.run is not None:
            assert sum(share.share for share in row.run.shares) == pytest.approx(1.0)


def test_the_frame_has_a_row_a_cluster(five: Comparison) -> None:
    frame = five.to_frame()
    assert list(frame["name"]) == [row.name for row in five.rows]
    assert frame.set_index("name").loc["8xB200", "days"] > 0
    assert np.isnan(frame.set_index("name").loc["1xV100", "days"])
    assert json.loads(five.model_dump_json())["rows"][0]["run"]["days"]["value"] > 0


def test_a_missing_price_says_so_and_time_stays(five: Comparison) -> None:
    run = _on(five, "8xA100")
    assert "no spot price for A100-SXM4-80GB" in run.missing
    assert run.cost("spot") is None
    assert run.days.value > 0


def test_the_front_is_not_dominated(five: Comparison) -> None:
    known = {
        row.name: (row.run.days.value, cost.value)
        for row in five.rows
        if row.run is not None and (cost := row.run.cost("on_demand")) is not None
    }
    front = {row.name for row in five.rows if row.on_front}
    for name, (days, cost) in known.items():
        beaten = any(d <= days and c <= cost and (d, c) != (days, cost) for d, c in known.values())
        assert (name in front) == (not beaten)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 100.0), st.floats(0.0, 1.0))
def test_a_cheaper_price_never_makes_a_cluster_dearer(
    five: Comparison, price: float, factor: float
) -> None:
    cheaper = max(price * factor, 1e-6)
    costs = []
    for amount in (price, cheaper):
        run = _run(five, "8xH100", SETTINGS, Offer(gpus="8xH100", on_demand=amount))
        cost = run.cost("on_demand")
        assert cost is not None
        costs.append(cost)
    assert costs[1].value <= costs[0].value
    assert costs[1].low <= costs[0].low
    assert costs[1].high <= costs[0].high


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6), st.integers(0, 5))
def test_another_price_of_the_same_kind_never_raises_the_choice(
    amounts: list[float], index: int
) -> None:
    cluster = parse_gpus("8xH100")
    prices = tuple(
        Price(gpu=cluster.gpu.name, provider=f"p{n}", kind="spot", price_per_gpu_hour=amount)
        for n, amount in enumerate(amounts)
    )
    some, more = prices[: max(1, index)], prices
    choices = [
        choose(Offer(gpus="8xH100"), cluster, "spot", Settings(prices=item, today=TODAY))
        for item in (some, more)
    ]
    assert choices[0] is not None and choices[1] is not None
    assert choices[1].per_gpu_hour <= choices[0].per_gpu_hour


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["electricity", "hosting", "interest", "amortisation_years", "pue"]))
def test_dearer_ownership_is_dearer(five: Comparison, name: str) -> None:
    figure = SETTINGS.figure(name)
    factor = 0.5 if name == "amortisation_years" else 1.5
    dearer = figure.model_copy(update={"value": figure.value * factor})
    plain = _run(five, "8xH100", SETTINGS).owning
    changed = _run(five, "8xH100", SETTINGS.model_copy(update={"figures": {name: dearer}})).owning
    assert plain is not None and changed is not None
    assert changed.cost.value > plain.cost.value


def test_spares_are_paid_for(five: Comparison) -> None:
    plain = _run(five, "8xH100", SETTINGS)
    ready = _run(five, "8xH100", SETTINGS.model_copy(update={"spares": 1}))
    assert (plain.billed_gpus, ready.billed_gpus) == (8, 16)
    assert ready.gpu_hours.value > 1.9 * plain.gpu_hours.value
    assert ready.energy.mwh.value == pytest.approx(plain.energy.mwh.value, rel=0.01)


def test_prices_of_whole_nodes_and_recent_ones_come_first() -> None:
    cluster = parse_gpus("16xH100")
    fields = {"gpu": cluster.gpu.name, "kind": "on_demand"}
    single = Price(provider="single", price_per_gpu_hour=1.0, instance_gpus=1,
                   date="2026-11-01", **fields)  # fmt: skip
    undated = Price(provider="undated", price_per_gpu_hour=2.0, instance_gpus=8, **fields)
    recent = Price(provider="recent", price_per_gpu_hour=3.0, date="2026-11-01", **fields)
    offer = Offer(gpus="16xH100")

    def chosen(*prices: Price) -> str:
        choice = choose(offer, cluster, "on_demand", Settings(prices=prices, today=TODAY))
        assert choice is not None
        return choice.price.provider

    assert chosen(single, undated, recent) == "recent"
    assert chosen(single, undated) == "undated"
    assert chosen(single) == "single"


def test_own_quotes_and_providers_come_before_the_list() -> None:
    cluster = parse_gpus("8xH100")
    found = choose(Offer(gpus="8xH100", spot=9.0, provider="me"), cluster, "spot", SETTINGS)
    assert found is not None and (found.per_gpu_hour, found.price.provider) == (9.0, "me")
    aws = choose(
        Offer(gpus="8xH100"), cluster, "on_demand",
        SETTINGS.model_copy(update={"providers": ("aws",)}),
    )  # fmt: skip
    assert aws is not None and aws.per_gpu_hour == pytest.approx(6.88)
    assert choose(Offer(gpus="8xH100", provider="vultr"), cluster, "spot", SETTINGS) is None


def test_precision_falls_back_where_a_gpu_lacks_it() -> None:
    from planner.compare.comparison import enter

    base = BASE.model_copy(update={"precision": "fp8"})
    asked = enter(Offer(gpus="8xH100"), base, "bf16", None)
    fallen = enter(Offer(gpus="8xA100"), base, "bf16", None)
    refused = enter(Offer(gpus="8xA100"), base, None, None)
    assert asked.request.precision == "fp8"
    assert fallen.request.precision == "bf16" and fallen.job is not None
    assert refused.job is None and isinstance(refused.problem, HardwareError)


def test_the_chain_names_every_figure_and_its_source(five: Comparison) -> None:
    found = SETTINGS.model_copy(
        update={"figures": {"pue": Figure(value=1.2, unit="1", source="--pue")}}
    )
    run = _run(five, "8xH100", found)
    chapters = trace(run, five, found)
    by_name = {step.name: step for steps in chapters.values() for step in steps}
    assert by_name["PUE"].source == "--pue"
    assert by_name["MTBF of a GPU"].source.startswith("llama-3")
    assert by_name["interest"].source == "assumption"
    assert by_name["tokens"].source == "--tokens"
    titles = list(chapters)
    assert titles[:2] == ["Pace", "Time, with interruptions"]
    assert {"Owning", "Energy", "Renting, on demand"} <= set(titles)


def test_the_report_tells_what_is_missing_and_unsure(five: Comparison) -> None:
    blocks = comparison_report(five).blocks
    text = "\n".join(str(block) for block in blocks)
    assert "no spot price for A100-SXM4-80GB" in text
    assert "1xV100: V100-SXM2-32GB has no bf16" in text
    assert "if restarts are automatic" in text


def test_wrong_input_is_told_before_any_search() -> None:
    with pytest.raises(UsageError, match="two offers are called '8xH100'"):
        compare_clusters(BASE, ["8xH100", "8xH100"], TOKENS)
    with pytest.raises(UsageError, match="mixed currencies: EUR and USD"):
        compare_clusters(BASE, [Offer(gpus="8xH100", spot=1.0, currency="EUR")], TOKENS)
    with pytest.raises(UsageError, match="GPUs of several types"):
        compare_clusters(BASE, ["8xH100+8xA100"], TOKENS)
    with pytest.raises(HardwareError, match="no bf16"):
        compare_clusters(BASE, ["8xV100"], TOKENS)
    with pytest.raises(UsageError, match="unknown model"):
        compare_clusters(Request(model="lama"), ["8xH100"], TOKENS)


def test_a_job_that_fits_nowhere_says_what_it_needs() -> None:
    base = Request(model="gpt2-xl", gbs=8, recompute=("none",))
    found = compare_clusters(base, ["1xA10"], TOKENS, SETTINGS)
    row = found.rows[0]
    assert row.run is None and row.reason.startswith("nothing fits: stage 0")
    assert any("--gpus 2xA10" in need for need in row.needs)
    assert not any("e+" in need for need in row.needs)


def test_equal_tasks_are_searched_once() -> None:
    told: list[tuple[str, int, int]] = []
    request = BASE.model_copy(update={"gpus": "1xH100", "gbs": 4})
    outcomes = run_searches(
        [Task(request), Task(request)],
        ["a", "b"],
        progress=lambda what, done, total: told.append((what, done, total)),
    )
    assert len(outcomes) == 2 and outcomes[0] is outcomes[1]
    assert told[-1][1:] == (1, 1)


def test_the_core_is_compiled_once_for_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any starts; each then loads what was written."""
    compiled: list[int] = []
    monkeypatch.setattr("planner.compare.searches.warm_up", lambda: compiled.append(os.getpid()))
    requests = [
        BASE.model_copy(update={"gpus": "1xH100", "model": "none", "gbs": n}) for n in (1, 2)
    ]
    outcomes = run_searches([Task(request) for request in requests], ["a", "b"], jobs=2)
    assert compiled == [os.getpid()]
    assert all("unknown model 'none'" in outcome.reason for outcome in outcomes)


def test_unpowered_gpus_take_their_tdp(five: Comparison) -> None:
    run = _on(five, "8xMI300X")
    assert run.energy.rated_w == pytest.approx(1.8 * load_gpu("mi300x").tdp_w)
    assert run.energy.rated_source.source == ASSUMPTION


def test_no_useful_time_is_a_reason(five: Comparison) -> None:
    run = _on(five, "8xH100")
    often = Figure(value=1e-3, unit="h", source="--mtbf-gpu")
    found = SETTINGS.model_copy(update={"figures": {"gpu_mtbf": often}})
    placed = replace(_placed("8xH100", SETTINGS), settings=found)
    assert run_at(placed, run.job, run.plan) is None
    assert math.isfinite(run.days.high)
