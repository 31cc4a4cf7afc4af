"""Laws of answers that are proven: limits and less memory never make the fastest plan faster."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
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
# Those of `python -m tests.fuzz`.
ANY_JOB = st.fixed_dictionaries(
    {
        "model": st.sampled_from(
            ("llama-3.2-3b", "gemma-2-9b", "llama-2-13b", "gpt-oss-20b", "olmoe-1b-7b", "qwen3-32b")
        ),
        "gpus": st.sampled_from(("8xH100", "12xA100-80GB", "16xL40S", "32xH200", "64xB200")),
        "gbs": st.sampled_from((24, 64, 256)),
        "seq": st.sampled_from((2048, 8192)),
        "framework": st.sampled_from(
            ("megatron-core", "megatron-bridge", "torchtitan", "deepspeed", "nanotron", "hf-fsdp2")
        ),
    }
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
def seconds_per_sequence(text: str) -> tuple[float, float]:
    """(of the fastest plan, that no plan beats); infinite where nothing fits or is legal."""
    request = Request.model_validate_json(text)
    try:
        found = find_plans(request, fastest_only=True, relaxed=False)
    except (NothingFitsError, UsageError):
        return float("inf"), float("inf")
    sample_s = found.plans[0].step_time_s / found.plans[0].gbs
    return sample_s, sample_s * (1.0 - max(OPTIMAL_WITHIN, found.gap or 0.0))


def fastest(job: dict[str, object], **changes: object) -> tuple[float, float]:
    return seconds_per_sequence(Request(**job, **changes).model_dump_json())


def demand_not_faster(narrow: tuple[float, float], wide: tuple[float, float]) -> None:
    assert narrow[0] >= wide[1] * (1.0 - OPTIMAL_WITHIN)


def more_limits(
    job: dict[str, object], limits: dict[str, tuple[int, ...]], modes: tuple[str, ...] | None
) -> None:
    """They never make the answer faster."""
    demand_not_faster(fastest(job, limits=limits), fastest(job))
    demand_not_faster(fastest(job, limits=limits, recompute=modes), fastest(job, recompute=modes))


def less_memory(job: dict[str, object], modes: tuple[str, ...] | None, chance: float) -> None:
    """It never makes the answer faster."""
    sample_times = [
        fastest(job, recompute=modes, hbm_reserve=reserve, fit_probability=chance)
        for reserve in RESERVES
    ]
    for wide, narrow in pairwise(sample_times):
        demand_not_faster(narrow, wide)


def surer_plans(job: dict[str, object], reserve: str) -> None:
    """They are never faster."""
    sample_times = [fastest(job, hbm_reserve=reserve, fit_probability=chance) for chance in CHANCES]
    for wide, narrow in pairwise(sample_times):
        demand_not_faster(narrow, wide)


_LIMITED = st.lists(st.sampled_from(sorted(LIMITS)), min_size=1, max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: st.sampled_from(LIMITS[name]) for name in names})
)


def laws(
    jobs: st.SearchStrategy[dict[str, object]],
) -> tuple[tuple[Callable[..., None], tuple[st.SearchStrategy[Any], ...], int], ...]:
    """Law, what it is given, and its examples in the default run."""
    modes, reserves, chances = map(st.sampled_from, (MODES, RESERVES, CHANCES))
    return (
        (more_limits, (jobs, _LIMITED, modes), 25),
        (less_memory, (jobs, modes, chances), 10),
        (surer_plans, (jobs, reserves), 10),
    )


@pytest.mark.parametrize(
    ("law", "drawn", "examples"),
    laws(st.sampled_from(JOBS)),
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_law(
    law: Callable[..., None], drawn: tuple[st.SearchStrategy[Any], ...], examples: int
) -> None:
    settings(max_examples=examples)(given(*drawn)(law))()


def test_limits_never_leave_gpus_idle_that_were_used_without() -> None:
    """24 of 32 GPUs would be quicker at a batch of 24: not an answer to a limit alone."""
    job = {"model": "llama-2-13b", "gpus": "32xH200", "framework": "deepspeed", "seq": 2048}
    more_limits({**job, "gbs": 24}, {"tp": (1,)}, None)
    with pytest.raises(UsageError, match=r"largest number of these GPUs that works: 24"):
        find_plans(Request(**job, gbs=24, limits={"tp": (1,)}), fastest_only=True, relaxed=False)


def test_less_than_an_even_chance_is_no_hidden_limit() -> None:
    """Plans predicted beyond the memory count where their chance is as asked; surer is slower."""
    job: dict[str, object] = {"model": "llama-3-8b", "gpus": "4xA100-40GB", "gbs": 16, "seq": 2048}
    sample_times = [fastest(job, fit_probability=chance) for chance in (0.05, 0.3, 0.5, 0.8)]
    for wide, narrow in pairwise(sample_times):
        demand_not_faster(narrow, wide)
    found = find_plans(
        Request(**job, fit_probability=0.05), fastest_only=True, relaxed=False
    ).plans[0]
    assert found.fit_probability >= 0.05
    assert not found.fits
