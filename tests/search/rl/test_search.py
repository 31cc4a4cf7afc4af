"""A search of reinforcement learning against every way there is, costed one by one."""

from __future__ import annotations

from math import inf

import pytest

from planner.job.errors import UsageError
from planner.job.request import Request
from planner.job.rl.request import RlRequest
from planner.predict.rl.step import RlStep
from planner.search.limit_results import TIE, Ending
from planner.search.rl.costs import Costs
from planner.search.rl.engines import EngineLimits, engine_layouts
from planner.search.rl.explorer import RlExplorer
from planner.search.rl.search import find_rl_plans
from planner.search.rl.sides import groups_of, joined, memory_share
from planner.search.rl.trainers import jobs_of
from planner.search.rl.why import RlDoesNotFitError
from tests.search.rl.conftest import small


def every_step(explorer: RlExplorer) -> list[tuple[float, float, RlStep]]:
    """(seconds, share of memory, step) of every trainer with every engine that fits."""
    found = []
    for options in explorer.options:
        for row in range(len(options.side.row)):
            trainer = options.side.trainer(row, explorer.costs)
            if trainer is None:
                continue
            for layout in options.layouts:
                step = joined(
                    trainer.job, options.group, trainer, layout, explorer.costs,
                    leaves=options.leaves,
                )  # fmt: skip
                sure = trainer.job.trainer.fit_probability
                if step.fits and step.fit_probability >= sure:
                    found.append((step.step_s, memory_share(step), step))
    return found


def explored(request) -> RlExplorer:
    return RlExplorer(jobs_of(request), Costs(), Ending(None))


@pytest.mark.parametrize(("framework", "staleness"), [("slime", "0"), ("verl", "search")])
def test_the_front_is_that_of_every_way_costed_one_by_one(framework: str, staleness: str) -> None:
    request = small(framework=framework, staleness=staleness)
    explorer = explored(request)
    every = every_step(explorer)
    assert {step.layout.placement for _, _, step in every} == {"colocated", "separate"}
    for share in (1.0, 0.8, 0.6, 0.5, 0.4, 0.3):
        best_s = min((one for one, held, _ in every if held <= share), default=inf)
        within = explorer.within(share)
        assert not explorer.broken
        if within.pair is None:
            assert best_s == inf
            continue
        assert within.bound_s <= best_s * (1.0 + 1e-9)
        assert within.pair.step.step_s <= best_s / (1.0 - TIE) * (1.0 + 1e-9)
        assert within.pair.share <= share + 1e-6


def test_plans_of_a_front_are_ever_slower_and_lighter() -> None:
    result = find_rl_plans(small())
    steps = [plan.step_s for plan in result.plans]
    shares = [plan.peak_share for plan in result.plans]
    assert result.proven and result.gap < 0.001
    assert steps == sorted(steps)
    assert shares == sorted(shares, reverse=True)
    assert all(plan.status == "optimal" and plan.fits for plan in result.plans)
    assert all(plan.low_s < plan.step_s < plan.high_s for plan in result.plans)


def test_given_degrees_of_engines_are_kept() -> None:
    result = find_rl_plans(
        small(placement="colocated", kv_share=0.4), limits=EngineLimits(tp=2), fastest_only=True
    )
    engine = result.plans[0].engine
    assert (engine.tp, engine.replicas, engine.kv_share) == (2, 2, 0.4)


def test_one_plan_is_enough_where_only_the_fastest_is_asked_for() -> None:
    fastest = find_rl_plans(small(), fastest_only=True)
    assert len(fastest.plans) == 1
    assert fastest.plans[0].step_s == pytest.approx(find_rl_plans(small()).plans[0].step_s)


def test_engines_have_degrees_that_model_and_framework_allow() -> None:
    job = small({"gpus": "8xH100"}).resolve()
    layouts = engine_layouts(job, 8, "colocated")
    assert {layout.tp for layout in layouts} == {1, 2, 4, 8}
    assert {layout.pp for layout in layouts} == {1}
    assert all(layout.gpus == 8 for layout in layouts)


def test_what_does_not_fit_says_what_is_missing_and_what_would_do() -> None:
    request = small({"model": "qwen3-32b", "gpus": "2xH100"}, token_limit=None)
    with pytest.raises(RlDoesNotFitError) as error:
        find_rl_plans(request)
    assert error.value.why.proven
    assert "qwen3-32b" in str(error.value)


def test_engines_apart_are_behind_where_the_framework_has_them_so() -> None:
    job = small().resolve()
    assert {group.placement for group in groups_of(job)} == {"colocated"}
    with pytest.raises(UsageError, match="give --staleness 1"):
        find_rl_plans(small(placement="separate"))


def test_samples_that_no_group_divides_are_refused() -> None:
    request = small({"limits": {"dp": (3,)}, "gpus": "3xH100"}, prompts=64, samples_per_prompt=8)
    with pytest.raises(UsageError, match="divide"):
        find_rl_plans(request)


def test_engines_that_just_have_room_by_their_bound_do_not_hide_those_that_fit() -> None:
    lengths = "prompt=512..1024,response=lognormal:median=1200,p95=4000,max=8192"
    trainer = Request(
        model="qwen3-30b-a3b", gpus="64xH100", framework="megatron-core", lengths=lengths
    )
    request = RlRequest(trainer=trainer, algorithm="grpo", prompts=128, samples_per_prompt=8)
    explorer = explored(request)
    within = explorer.within(1.0)
    assert within.pair is not None and within.gap < 0.01
    assert explorer.costed < 100
