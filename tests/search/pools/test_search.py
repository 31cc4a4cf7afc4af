"""The search of a mixed pool against brute force over all layouts, orders and recompute counts."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from constraints.layout import LAYOUT_RULES
from constraints.rule import Layout
from planner.job.errors import UsageError
from planner.job.request import Request
from planner.predict.plan import OPTIMAL_WITHIN, Plan
from planner.search.certificate import verify
from planner.search.costed import likely_limit_bytes
from planner.search.exact_front import MEMORY_BYTES
from planner.search.infeasibility import DoesNotFitError
from planner.search.limit_results import SLOWEST, Effort
from planner.search.pools.cost import PoolModel
from planner.search.pools.explorer import PoolExplorer, PoolPoint
from planner.search.pools.jobs import pool_jobs
from planner.search.pools.search import pool_shapes
from planner.search.pools.terms import pool_terms
from planner.search.result import LimitBound, Proof, SearchResult
from planner.search.search import find_plans

MODEL = """
source = "made up"
[shape]
family = "llama"
layers = 5
hidden = 4096
heads = 32
kv_heads = 8
head_dim = 128
ffn = 14336
vocab = 32000
max_positions = 8192
pretraining_seq = 4096
activation = "silu"
"""


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "five-layers.toml"
    path.write_text(MODEL)
    return str(path)


def explorer_of(request: Request) -> PoolExplorer:
    pool, jobs = pool_jobs(request)
    model = PoolModel(jobs)
    return PoolExplorer(pool, model, pool_shapes(pool, model)[0], Effort(), None)


def splits(layers: int, blocks: int) -> Iterator[tuple[int, ...]]:
    """All ways to put layers into blocks in order, empty ones too."""
    for cuts in combinations(range(layers + blocks - 1), blocks - 1):
        cut_points = (-1, *cuts, layers + blocks - 1)
        yield tuple(high - low - 1 for low, high in pairwise(cut_points))


def every_point(pool_explorer: PoolExplorer) -> Iterator[PoolPoint]:
    """All legal layouts of all shapes in all orders, costed by the kernel."""
    roomy = [1e15] * len(pool_explorer.limits)
    for row, orders in enumerate(pool_explorer.orders):
        pp, vpp = int(pool_explorer.columns["pp"][row]), int(pool_explorer.columns["vpp"][row])
        for parts in orders:
            _, ctx = pool_terms(pool_explorer.model, pool_explorer.costed, row, parts, roomy)
            for blocks in splits(pool_explorer.model.jobs[0].model.layers, pp * vpp):
                plain = Layout(pp, vpp, blocks, {}, ctx.placement)
                for again in product(*(range(count + 1) for count in plain.stage_layers)):
                    layout = replace(plain, recomputed=dict.fromkeys(ctx.modes, again))
                    if all(rule.check(layout, ctx) for rule in LAYOUT_RULES):
                        yield pool_explorer.cost(row, parts, layout)


@pytest.mark.parametrize(
    ("gpus", "changes"),
    [
        # The second part has half the memory: layers move, and some recompute.
        ("2xH100+2xA100-40GB", {"recompute": ("none", "full")}),
        # Neither is faster at everything: H20 has the memory rate, A100 the FLOP/s.
        ("2xA100+2xH20", {"recompute": ("none",)}),
    ],
)
def test_search_equals_brute_force(model_file: str, gpus: str, changes: dict[str, object]) -> None:
    request = Request(
        model=model_file, gpus=gpus, gbs=8, require=("tp == 1", "cp == 1", "mbs == 2"),
        **changes,
    )  # fmt: skip
    found = explorer_of(request)
    found.search_within([0.55 * job.hbm_limit_bytes for job in found.model.jobs])
    limit_results = found.ladder(found.limit_bytes, np.inf)
    points = list(every_point(found))
    assert len(points) >= 40
    for limit_result in limit_results:
        share = limit_result.limit_bytes / found.limit_bytes
        best = min((point.sample_s for point in points if point.fill <= share), default=np.inf)
        if limit_result.point is None:
            assert np.isinf(best)
            continue
        assert best * (1 - 1e-9) <= limit_result.point.sample_s <= best * (1 + 2.0 * OPTIMAL_WITHIN)
        assert limit_result.bound <= best * (1 + 1e-9)
        assert limit_result.gap <= 2.0 * OPTIMAL_WITHIN
    assert limit_results[0].point is not None
    evenly = [
        found.cost(row, parts, found.even(row))
        for row, orders in enumerate(found.orders)
        for parts in orders
    ]
    assert found.fitting() == len({point.row for point in evenly if point.fill <= 1.0})
    # No bound is above what some layout of its shape and order reaches.
    for share in (1.0, 0.7):
        for row, orders in enumerate(found.orders):
            for parts in orders:
                reached = [
                    point.sample_s
                    for point in points
                    if (point.row, point.parts) == (row, parts) and point.fill <= share
                ]
                bound = found.bound(row, parts, share)
                assert bound <= min(reached, default=np.inf) * (1 + 1e-9)


def proof_limits(result: SearchResult) -> tuple[LimitBound, ...]:
    assert result.proof is not None
    return tuple(one for one in result.proof.limits if one.sample_s < np.inf)


@pytest.mark.parametrize(
    ("gpus", "changes"),
    [
        ("2xH100+2xA100-40GB", {"recompute": ("none", "full")}),
        ("2xA100+2xH20", {"recompute": ("none",)}),
    ],
)
def test_the_front_of_a_pool_is_complete(
    model_file: str, gpus: str, changes: dict[str, object]
) -> None:
    """No layout of any shape in any order is faster, by more than the gap that is stated, and
    lighter than all that are shown; a front is called complete only where the gap is below the
    resolution."""
    request = Request(
        model=model_file, gpus=gpus, gbs=8, require=("tp == 1", "cp == 1", "mbs == 2"),
        hbm_reserve="45%", fit_probability=0.5, **changes,
    )  # fmt: skip
    result = find_plans(request)
    assert verify(result).problems == ()
    slower = [
        one.model_copy(update={"sample_s": 1.1 * one.sample_s}) for one in proof_limits(result)
    ]
    claimed = result.model_copy(update={"proof": Proof(limits=tuple(slower))})
    assert any("nothing shows" in problem for problem in verify(claimed).problems)
    moved = result.plans[0].model_copy(update={"peak_bytes": result.plans[0].peak_bytes - 2**30})
    lighter = result.model_copy(update={"plans": (moved, *result.plans[1:])})
    assert any("bytes at its peak" in problem for problem in verify(lighter).problems)
    assert result.gap is not None
    assert result.gap <= 2.0 * OPTIMAL_WITHIN
    assert result.complete == result.proven == (result.gap <= OPTIMAL_WITHIN)
    found = explorer_of(request)
    found.search_within([likely_limit_bytes(job, 0.5) for job in found.model.jobs])
    shown = [(plan.step_time_s / plan.gbs, _largest_fill(plan, found)) for plan in result.plans]
    assert len(shown) > 1
    fills = [fill for _, fill in sorted(shown)]
    assert fills == sorted(fills, reverse=True)
    slack = MEMORY_BYTES / found.limit_bytes
    slowest = SLOWEST * min(sample_s for sample_s, _ in shown)
    for point in every_point(found):
        if point.fill > 1.0 or point.sample_s > slowest:
            continue
        assert any(
            sample_s * (1 - result.gap - OPTIMAL_WITHIN) <= point.sample_s
            and fill <= point.fill + slack
            for sample_s, fill in shown
        ), point


def test_the_front_of_a_pool_at_a_coarse_resolution(model_file: str) -> None:
    request = Request(
        model=model_file, gpus="2xA100+2xH20", gbs=8, require=("tp == 1", "cp == 1", "mbs == 2"),
        hbm_reserve="45%", fit_probability=0.5, recompute=("none",),
    )  # fmt: skip
    fine = find_plans(request)
    coarse = find_plans(request.model_copy(update={"resolution": "10%,8GiB"}))
    assert verify(coarse).problems == ()
    assert 1 <= len(coarse.plans) < len(fine.plans)


def _largest_fill(plan: Plan, explorer: PoolExplorer) -> float:
    """Largest share of its GPU's limit that a stage of a plan takes."""
    names = [job.cluster.gpu.name for job in explorer.model.jobs]
    limits = dict(zip(names, explorer.limits, strict=True))
    return max(
        stage.peak / limits[gpu] for stage, gpu in zip(plan.stages, plan.stage_gpus, strict=True)
    )


FEW = {"tp": (1, 2), "mbs": (1, 2)}


@pytest.fixture(scope="module")
def mixed() -> SearchResult:
    return find_plans(
        Request(model="llama-3.2-1b", gpus="4xH100+4xA100", gbs=64, limits=FEW), top=2
    )


def test_plans_say_where_stages_live(mixed: SearchResult) -> None:
    for plan in mixed.plans:
        assert len(plan.stage_gpus) == plan.degrees.pp
        assert plan.stage_gpus.count("H100-SXM5-80GB") == plan.degrees.pp // 2
        assert plan.fits
    assert mixed.counts.costing_seconds > 0
    assert mixed.counts.fitting <= mixed.counts.legal
    assert mixed.counts.solved + mixed.counts.skipped == mixed.counts.legal
    assert list(mixed.to_frame()["stage_gpus"]) == [list(p.stage_gpus) for p in mixed.plans]
    alone = [note for note in mixed.notes if "alone" in note]
    assert len(alone) == 2
    assert all("±" in note or "/+" in note for note in alone)


def test_a_time_limit_holds_for_a_large_pool() -> None:
    """Before the first layout is solved an even one is known, and nothing is claimed of it."""
    request = Request(model="llama-3.1-405b", gpus="512xH100+256xH200", gbs=1536)
    started = time.process_time()
    found = find_plans(request, time_limit_s=1e-3)
    assert time.process_time() - started < 30.0
    assert (found.stopped, found.proven, found.complete) == ("time-limit", False, False)
    assert found.plans[0].fits
    assert found.plans[0].status == "feasible"
    assert any("time limit" in note for note in found.notes)


def test_a_time_limit_that_ends_before_any_plan_is_said() -> None:
    request = Request(
        model="llama-3-8b", gpus="1xH100+1xA100", gbs=16, recompute=("none",), fit_probability=0.5
    )
    with pytest.raises(DoesNotFitError) as caught:
        find_plans(request, time_limit_s=1e-3)
    why = caught.value.why
    assert why.stopped == "time-limit"
    assert not why.proven
    assert "time limit" in why.cut


def test_nothing_fits_names_changes_that_were_searched() -> None:
    request = Request(
        model="qwen3-4b",
        gpus="1xH100+1xA100",
        gbs=4,
        seq=32768,
        recompute=("none",),
        require=("tp == 1",),
        fit_probability=0.5,
    )
    with pytest.raises(DoesNotFitError) as caught:
        find_plans(request)
    why = caught.value.why
    assert why.proven
    assert "GiB on A100" in why.conflict[0].text
    assert {relaxation.kind for relaxation in why.relaxations} >= {"condition", "gpus"}
    for item in why.relaxations:
        assert item.plan.fits
    doubled = next(relaxation for relaxation in why.relaxations if relaxation.kind == "gpus")
    gpus = doubled.change.removeprefix("--gpus ")
    assert find_plans(request.model_copy(update={"gpus": gpus}), top=1).plans[0].fits


def test_ctrl_c_keeps_what_is_known(mixed: SearchResult) -> None:
    """Also before anything is known: then it is an interrupt like any other."""
    found = explorer_of(mixed.request)
    limits = [job.hbm_limit_bytes for job in found.model.jobs]

    def interrupt(_what: str, done: int, _total: int) -> None:
        if done == 1:
            os.kill(os.getpid(), signal.SIGINT)

    found.progress = interrupt
    found.search_within(limits)
    limit_results = found.ladder(found.limit_bytes, np.inf)
    assert found.stopped == "interrupted"
    assert limit_results[0].point is not None


def test_rules_that_leave_nothing_are_named() -> None:
    request = Request(model="llama-3.2-1b", gpus="4xH100+4xA100", gbs=64, require=("tp == 3",))
    with pytest.raises(UsageError, match="tp == 3"):
        find_plans(request)
    narrow = request.model_copy(update={"require": ("pp == 1",)})
    with pytest.raises(UsageError, match="pp is at least 2"):
        find_plans(narrow)
