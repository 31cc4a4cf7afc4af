"""Laws of answers that are proven: limits and less memory never make the fastest plan faster."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.job.errors import NothingFitsError, UsageError
from planner.job.request import Request
from planner.predict.plan import OPTIMAL_WITHIN
from planner.search.search import find_plans

JOBS = (
    {"model": "llama-3.2-1b", "gpus": "8xH100", "gbs": 64},
    {"model": "llama-3-8b", "gpus": "16xA100-80GB", "gbs": 64, "seq": 4096},
    {"model": "mixtral-8x7b", "gpus": "16xH100", "gbs": 64, "seq": 4096},
    {"model": "llama-3-8b", "gpus": "8xH100", "gbs": 32, "framework": "torchtitan"},
    {"model": "llama-3-8b", "gpus": "8xH100", "gbs": 32, "framework": "hf-fsdp2"},
    {"model": "qwen3-30b-a3b", "gpus": "16xH100", "gbs": 64, "framework": "megatron-bridge"},
)
# What narrows a search, each a list of options of which one is drawn.
LIMITS = {
    "tp": ((1,), (2,), (1, 2, 4)),
    "pp": ((1,), (2,), (1, 2)),
    "ep": ((1,), (8,)),
    "zero": ((0,), (1,)),
    "mbs": ((1,), (1, 2)),
}
MODES = (None, ("none",), ("full",), ("none", "full"))
RESERVES = ("0", "5%", "10%", "20%")
CHANCES = (0.5, 0.8, 0.9)


@cache
def seconds_per_sequence(text: str) -> float:
    """Of the fastest plan; infinite where nothing fits or nothing is legal."""
    request = Request.model_validate_json(text)
    try:
        plan = find_plans(request, top=1, fastest_only=True, relaxed=False).plans[0]
    except (NothingFitsError, UsageError):
        return float("inf")
    return plan.step_time_s / plan.gbs


def fastest(job: dict[str, object], **changes: object) -> float:
    return seconds_per_sequence(Request(**job, **changes).model_dump_json())


def demand_not_faster(narrow: float, wide: float) -> None:
    assert narrow >= wide * (1.0 - 2.0 * OPTIMAL_WITHIN)


@settings(max_examples=25)
@given(
    st.sampled_from(JOBS),
    st.lists(st.sampled_from(sorted(LIMITS)), min_size=1, max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: st.sampled_from(LIMITS[name]) for name in names})
    ),
    st.sampled_from(MODES),
)
def test_more_limits_never_make_the_answer_faster(
    job: dict[str, object], limits: dict[str, tuple[int, ...]], modes: tuple[str, ...] | None
) -> None:
    demand_not_faster(fastest(job, limits=limits), fastest(job))
    demand_not_faster(fastest(job, limits=limits, recompute=modes), fastest(job, recompute=modes))


@settings(max_examples=15)
@given(st.sampled_from(JOBS), st.sampled_from(MODES), st.sampled_from(CHANCES))
def test_less_memory_never_makes_the_answer_faster(
    job: dict[str, object], modes: tuple[str, ...] | None, chance: float
) -> None:
    sample_times = [
        fastest(job, recompute=modes, hbm_reserve=reserve, fit_probability=chance)
        for reserve in RESERVES
    ]
    for wide, narrow in pairwise(sample_times):
        demand_not_faster(narrow, wide)


@settings(max_examples=10)
@given(st.sampled_from(JOBS), st.sampled_from(RESERVES))
def test_surer_plans_are_never_faster(job: dict[str, object], reserve: str) -> None:
    sample_times = [fastest(job, hbm_reserve=reserve, fit_probability=chance) for chance in CHANCES]
    for wide, narrow in pairwise(sample_times):
        demand_not_faster(narrow, wide)
