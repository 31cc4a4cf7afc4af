"""A printed table looks only for what it prints: it says nothing that the complete front denies."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from planner.cost import fields as f
from planner.job.request import Request
from planner.predict.plan import OPTIMAL_WITHIN, Plan
from planner.predict.uncertainty.likely import likely_limit_bytes
from planner.report.search import search_report
from planner.search.exact_front import MEMORY_BYTES
from planner.search.result import SearchResult
from planner.search.search import find_plans
from planner.search.shares import cost_shares
from tests.search.test_front import dominates

MOST = 8
JOBS = {
    "70b on 64 H100": Request(model="70b", gpus="64xH100", gbs_tokens=4_000_000),
    "8b on 16 L40S": Request(model="8b", gpus="16xL40S", gbs_tokens=1_000_000),
    "mixtral": Request(model="mixtral-8x7b", gpus="16xH100", gbs=64, seq=4096),
    "gpt-oss": Request(model="gpt-oss-20b", gpus="16xH100", gbs=256, limits={"mbs": (1,)}),
    "torchtitan": Request(model="8b", gpus="16xH100", gbs=64, framework="torchtitan"),
    "deepspeed": Request(model="llama-2-13b", gpus="16xA100-80GB", gbs=64, framework="deepspeed"),
}
each_job = pytest.mark.parametrize("name", JOBS)


@cache
def short(name: str) -> SearchResult:
    return find_plans(JOBS[name], short=MOST)


@cache
def complete(name: str) -> SearchResult:
    return find_plans(JOBS[name])


def place(plan: Plan) -> tuple[float, float]:
    """Seconds per sequence and peak bytes."""
    return plan.step_time_s / plan.gbs, plan.peak_bytes


@each_job
def test_the_recommended_plan_is_the_same(name: str) -> None:
    printed, held = short(name), complete(name)
    assert printed.recommended == held.recommended
    number = held.recommended - 1
    assert printed.plans[number] == held.plans[number]
    assert printed.plans[0] == held.plans[0]
    assert printed.riskier == held.riskier


@each_job
@pytest.mark.parametrize("search", [short, complete])
def test_no_costed_plan_beats_one_that_is_shown(
    name: str, search: Callable[[str], SearchResult]
) -> None:
    """In exact numbers, no even layout with any techniques and no plan of the search; to the
    resolution, no plan of the other search."""
    jobs = cost_shares(JOBS[name].resolve()).jobs
    limit = likely_limit_bytes(jobs[0].job, JOBS[name].fit_probability)
    sample_s = np.concatenate(
        [job.costed.steps[:, f.STEP_TIME] / job.candidates.columns["gbs"] for job in jobs]
    )
    peak = np.concatenate([job.costed.steps[:, f.STEP_PEAK_BYTES] for job in jobs])
    found = [place(plan) for plan in search(name).plans]
    others = [place(plan) for plan in (*short(name).plans, *complete(name).plans)]
    for plan_s, plan_peak in found:
        assert plan_peak <= limit
        no_worse = (sample_s <= plan_s) & (peak <= plan_peak)
        assert not (no_worse & ((sample_s < plan_s) | (peak < plan_peak))).any()
        assert not any(dominates(*other, plan_s, plan_peak) for other in found)
        far = plan_s / (1.0 + 2.0 * OPTIMAL_WITHIN), plan_peak - 2.0 * MEMORY_BYTES
        assert not any(other_s < far[0] and held <= plan_peak for other_s, held in others)
        assert not any(other_s <= plan_s and held < far[1] for other_s, held in others)


@each_job
def test_a_short_front_is_short_and_proven_as_far_as_it_goes(name: str) -> None:
    printed, held = short(name), complete(name)
    assert not printed.complete
    assert held.complete
    assert len(printed.shown) <= MOST + 1
    assert len(printed.plans) <= len(held.plans)
    assert len(printed.shown) >= min(MOST, len(held.shown)) - 1
    assert all(plan.status == "optimal" for plan in printed.plans if held.proven)


def test_less_is_solved_for_less() -> None:
    name = "70b on 64 H100"
    assert short(name).counts.solved < complete(name).counts.solved
    assert short(name).plans[-1].peak_bytes > 0.85 * min(
        complete(name).plans[number - 1].peak_bytes for number in complete(name).shown[: MOST + 2]
    )
    assert np.isfinite(short(name).plans[-1].step_time_s)


def test_what_is_chosen_later_may_be_heavier() -> None:
    """Lighter plans found may bring heavier ones among those that are printed."""
    request = Request(model="70b", gpus="32xMI300X", gbs=256, framework="primus")
    assert find_plans(request, short=MOST).proven


def test_the_table_says_what_was_left_out() -> None:
    name = "8b on 16 L40S"
    printed = " ".join(str(search_report(short(name), most=MOST).blocks).split())
    assert "Plans between these were not looked for: --all, --json, --csv and -o do." in printed
    whole = " ".join(str(search_report(complete(name), whole=True).blocks).split())
    assert (
        "No plan that differs by more than 0.1 % of the step time and 0.1 GiB is missing, up to 1.5"
        " times as slow as the fastest." in whole
    )
