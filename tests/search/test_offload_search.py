"""The share of optimizer offload as a choice of the search."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.request import Request
from planner.launch.plans import launch_of, writer_of
from planner.launch.registry import target_named
from planner.predict.configuration import decided_request
from planner.predict.evaluate import evaluate
from planner.predict.plan import OPTIMAL_WITHIN, Degrees
from planner.report.search import search_report
from planner.search.changes import KINDS, Situation
from planner.search.explanation import job_evaluator
from planner.search.infeasibility import DoesNotFitError
from planner.search.limit_results import TIE, Effort, LimitResult, Until
from planner.search.memory_conflict import memory_rule
from planner.search.plan_file import read_plan_file, to_json
from planner.search.result import SearchResult
from planner.search.search import find_plans
from planner.search.shares import SharesExplorer, cost_job, cost_shares
from planner.search.trial import search_costed, try_job
from planner.search.what_if import _Solver, what_if
from tests.search.brute import explore

UNUSED = ("bf16-gradients", "megatron-fsdp")
# 8 billion parameters on one GPU, 16 bytes each: 119 GiB of 79 that are there.
ALONE = Request(
    model="llama-3-8b", gpus="1xH100", gbs=16, seq=4096, limits={"mbs": (1,)},
    recompute=("none", "full"), optimizer_offload="search", without=UNUSED,
)  # fmt: skip
SMALL = Request(
    model="llama-3-8b", gpus="8xA100-40GB", gbs=16, seq=8192, optimizer_offload="search",
    limits={"tp": (4,), "cp": (1,), "vpp": (1,), "mbs": (1,)}, recompute=("none", "full"),
    without=(*UNUSED, "cuda-graphs"),
)  # fmt: skip


def with_share(request: Request, share: float) -> Request:
    return request.model_copy(update={"optimizer_offload": share})


def decided(result: SearchResult, number: int = 1) -> Job:
    return decided_request(result.request, result.plans[number - 1]).resolve()


@pytest.fixture(scope="module")
def alone() -> SearchResult:
    return find_plans(ALONE)


@pytest.fixture(scope="module")
def together() -> tuple[SharesExplorer, list[LimitResult]]:
    explorer = cost_shares(SMALL.resolve()).explorer(Effort())
    return explorer, explore(explorer)


@pytest.fixture(scope="module")
def one_by_one() -> list[list[LimitResult]]:
    jobs = [with_share(SMALL, share).resolve() for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return [explore(cost_job(job).explorer(Effort())) for job in jobs]


def test_the_search_is_as_good_as_the_best_of_one_search_a_share(
    together: tuple[SharesExplorer, list[LimitResult]], one_by_one: list[list[LimitResult]]
) -> None:
    """On every rung, within the tie that either search allows itself."""
    _, limit_results = together
    assert (
        len(
            {
                limit_result.point.source
                for limit_result in limit_results
                if limit_result.point is not None
            }
        )
        > 1
    )
    for index, limit_result in enumerate(limit_results):
        alone = [item[index] for item in one_by_one if index < len(item)]
        sample_times = [item.point.sample_s for item in alone if item.point is not None]
        assert (limit_result.point is None) == (not sample_times)
        if limit_result.point is not None:
            assert limit_result.point.peak <= limit_result.limit_bytes
            assert (
                min(sample_times) / (1.0 + TIE)
                <= limit_result.point.sample_s
                <= min(sample_times) * (1.0 + TIE)
            )


def test_no_plan_of_any_share_beats_the_bound(
    together: tuple[SharesExplorer, list[LimitResult]], one_by_one: list[list[LimitResult]]
) -> None:
    for limit_result, item in product(
        together[1],
        (limit_result for limit_results in one_by_one for limit_result in limit_results),
    ):
        if item.point is not None and item.point.peak <= limit_result.limit_bytes:
            assert limit_result.bound <= item.point.sample_s * (1.0 + 1e-9)


def test_the_fastest_plans_of_each_rung_are_proven_over_all_shares(
    together: tuple[SharesExplorer, list[LimitResult]],
) -> None:
    explorer, limit_results = together
    assert all(limit_result.gap <= OPTIMAL_WITHIN for limit_result in limit_results)
    shapes = sum(len(item.peak) for item in explorer.explorers)
    assert explorer.solved_shapes() + explorer.unable_to_improve() == shapes


def test_a_job_that_fits_only_with_offload(alone: SearchResult) -> None:
    assert _fastest(0.0) == float("inf")
    assert alone.proven
    assert all(plan.fits and plan.optimizer_offload > 0 for plan in alone.plans)
    assert all("--optimizer-offload-fraction" in plan.optimizer_flags for plan in alone.plans)
    given = [_fastest(share) for share in (0.25, 0.5, 0.75, 1.0)]
    assert alone.plans[0].step_time_s <= min(given) * (1.0 + TIE)


def _fastest(share: float) -> float:
    """Step time of the best plan of ALONE at one share that fits safely, s."""
    trial = try_job(with_share(ALONE, share).resolve)
    plan = None if trial is None else trial.plan()
    return float("inf") if plan is None else plan.step_time_s


def test_where_zero_is_excluded_offload_is_too() -> None:
    """Megatron's offload needs its distributed optimizer: without it only share 0 is left."""
    request = SMALL.model_copy(update={"limits": {**SMALL.limits, "zero": (0,)}, "gpus": "16xH100"})
    result = find_plans(request, top=1)
    assert result.plans[0].optimizer_offload == 0.0
    assert any("no configuration is legal with 0.25, 0.5, 0.75, 1" in note for note in result.notes)


def test_plan_files_keep_the_share_of_each_plan(alone: SearchResult, tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    path.write_text(to_json(alone), encoding="utf-8")
    read = read_plan_file(path)
    assert read == alone
    assert read.request.optimizer_offload == "search"
    assert decided(read).optimizer_offload == read.plans[0].optimizer_offload
    assert set(read.to_frame()["optimizer_offload"]) <= {0.25, 0.5, 0.75, 1.0}


def test_a_plan_evaluated_at_its_share_is_the_plan(alone: SearchResult) -> None:
    plan = alone.plans[0]
    found = evaluate(decided_request(alone.request, plan), plan.degrees, plan.recompute,
                   plan.layout.block_layers, plan.layout.recomputed)  # fmt: skip
    assert found.step_time_s == pytest.approx(plan.step_time_s, rel=1e-12)
    assert found.peak_bytes == pytest.approx(plan.peak_bytes, rel=1e-12)


def test_neighbours_are_costed_at_the_share_of_the_plan(alone: SearchResult) -> None:
    plan = alone.plans[0]
    near = job_evaluator(decided(alone), plan)(plan.degrees, plan.recompute)
    assert near.optimizer_offload == plan.optimizer_offload
    assert near.step_time_s == pytest.approx(plan.step_time_s, rel=TIE)


def test_launch_files_have_the_share_of_the_plan(alone: SearchResult) -> None:
    plan = alone.plans[0]
    target = target_named("megatron-core")
    launch = launch_of(plan, alone.request, target, "torchrun")
    assert launch.job.optimizer_offload == plan.optimizer_offload
    flags = writer_of(target).command(launch).argv
    assert f"--optimizer-offload-fraction {plan.optimizer_offload:g}" in " ".join(flags)


def test_every_deepspeed_plan_of_a_search_can_be_launched() -> None:
    request = Request(model="llama-3-8b", gpus="4xA100-40GB", gbs=8, framework="deepspeed",
                      seq=4096, limits={"tp": (1,), "mbs": (1,)}, recompute=("full",),
                      optimizer_offload="search")  # fmt: skip
    result = find_plans(request)
    shares = {plan.optimizer_offload for plan in result.plans}
    assert shares - {0.0}
    for plan in result.plans:
        launch = launch_of(plan, request, target_named("deepspeed"), "torchrun")
        assert launch.job.optimizer_offload == plan.optimizer_offload


def test_more_memory_may_need_less_offload(alone: SearchResult) -> None:
    """`--what-if` solves over the shares again; the plan itself keeps its own."""
    plan = alone.plans[0]
    found = what_if(alone.request, alone.request.resolve(), plan)
    memory = next(row for row in found.rows if row.name == "hbm")
    assert found.best_is_this
    assert memory.kept_effect == pytest.approx(0.0, abs=1e-9)
    assert memory.optimizer_offload <= plan.optimizer_offload


def test_nothing_fits_at_any_share() -> None:
    request = ALONE.model_copy(update={"model": "llama-3-70b"})
    shares = cost_shares(request.resolve())
    explorer = shares.explorer(Effort())
    limit_result = explorer.climb(0)
    assert limit_result.point is None
    assert limit_result.bound == float("inf")
    rule = memory_rule(explorer.explorers[-1])
    assert "100 % of the optimizer on the CPU" in rule.text
    assert not list(KINDS["offload"](Situation(request, request.resolve(), 1)))


def test_the_fastest_alone_is_that_of_the_front(alone: SearchResult) -> None:
    fastest = find_plans(ALONE, fastest_only=True).plans[0]
    assert fastest.step_time_s == pytest.approx(alone.plans[0].step_time_s, rel=1e-12)
    assert fastest.optimizer_offload == alone.plans[0].optimizer_offload


def test_a_search_starts_from_known_plans_at_their_own_share(alone: SearchResult) -> None:
    plan = alone.plans[0]
    shares = cost_shares(ALONE.resolve())
    known = list(
        _Solver(ALONE, ALONE.resolve(), plan, lambda _what, _done, _total: None, Until()).known(
            shares
        )
    )
    assert known
    assert {shares.jobs[source].job.optimizer_offload for source, _, _ in known} == {
        plan.optimizer_offload
    }
    trial = search_costed(shares, effort=Effort(most_solves=0), known=known)
    assert trial.limit_result.point is not None
    assert trial.limit_result.point.sample_s <= plan.step_time_s / plan.gbs * (1.0 + 1e-9)


def test_the_time_limit_holds_for_what_would_fit() -> None:
    request = ALONE.model_copy(update={"model": "llama-3-70b"})
    with pytest.raises(DoesNotFitError) as caught:
        find_plans(request, time_limit_s=1e-3)
    assert caught.value.why.stopped == "time-limit"
    assert "gpus" in caught.value.why.untried
    assert "choices of the offload" in caught.value.why.untried
    assert not caught.value.why.proven


def test_the_table_shows_the_share(alone: SearchResult) -> None:
    text = str(search_report(alone).blocks)
    assert f"optimizer {alone.plans[0].optimizer_offload:.0%}".replace("%", " %") in text
    assert "optimizer offload: the best of the shares 0, 0.25, 0.5, 0.75, 1" in text
    assert "no measured run offloads" in text


def test_only_a_search_takes_an_open_share() -> None:
    job = SMALL.resolve()
    assert [item.optimizer_offload for item in job.decided()] == [0.0, 0.25, 0.5, 0.75, 1.0]
    with pytest.raises(UsageError, match="only a search decides the share"):
        evaluate(SMALL, Degrees(tp=4, pp=2, grad_acc=16))


@pytest.mark.parametrize("name", ["nanotron", "nanogpt"])
def test_frameworks_without_offload_refuse_it(name: str) -> None:
    request = SMALL.model_copy(update={"framework": name, "without": ()})
    with pytest.raises(UsageError, match=rf"{name} keeps optimizer states .*optimizer-offload"):
        request.resolve()


def test_frameworks_that_offload_all_or_nothing() -> None:
    assert Request(
        model="llama-3-8b", gpus="8xH100", gbs=8, framework="torchtitan", optimizer_offload="search"
    ).resolve().offload_shares == (0.0, 1.0)


def test_deepspeed_offloads_a_part_with_zero_3_only() -> None:
    request = Request(model="llama-3-8b", gpus="8xH100", gbs=8, framework="deepspeed")
    least = [with_share(request, share).resolve().least_zero for share in (0.0, 0.5, 1.0)]
    assert least == [0, 3, 1]
    with pytest.raises(UsageError, match="zero of at least 3"):
        evaluate(with_share(request, 0.5), Degrees(dp=8, zero=2))
