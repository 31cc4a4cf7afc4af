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
from planner.cost import fields as f
from planner.job.errors import UsageError
from planner.job.request import Request
from planner.predict.plan import OPTIMAL_WITHIN
from planner.predict.shapes import legal_candidates
from planner.predict.uncertainty.likely import weighed_bytes
from planner.search.bounded_shapes import TIGHTEST
from planner.search.certificate import verify
from planner.search.exact_front import MEMORY_BYTES
from planner.search.explorer import Explorer
from planner.search.infeasibility import DoesNotFitError
from planner.search.limit_results import SLOWEST, Effort, Point
from planner.search.result import LimitBound, Proof, SearchResult
from planner.search.search import find_plans
from planner.search.shares import cost_job
from tests.search.brute import explore

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


def explorer_of(request: Request, effort: Effort | None = None) -> Explorer:
    return cost_job(request.resolve().decided()[0]).explorer(effort or Effort())


def splits(layers: int, blocks: int) -> Iterator[tuple[int, ...]]:
    """All ways to put layers into blocks in order, empty ones too."""
    for cuts in combinations(range(layers + blocks - 1), blocks - 1):
        cut_points = (-1, *cuts, layers + blocks - 1)
        yield tuple(high - low - 1 for low, high in pairwise(cut_points))


def every_point(found: Explorer) -> Iterator[Point]:
    """All legal layouts of all shapes in all orders, costed by the kernel."""
    for row in range(len(found.peak)):
        _, ctx = found.linear(row, 1e15)
        for blocks in splits(found.cost_model.job.model.layers, ctx.blocks):
            plain = Layout(ctx.pp, ctx.vpp, blocks, {}, ctx.placement)
            for again in product(*(range(count + 1) for count in plain.stage_layers)):
                layout = replace(plain, recomputed=dict.fromkeys(ctx.modes, again))
                if all(rule.check(layout, ctx) for rule in LAYOUT_RULES):
                    yield found.cost(row, layout)


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
    found.limit_bytes *= 0.55
    limit_results = explore(found)
    points = list(every_point(found))
    assert len(points) >= 40
    for limit_result in limit_results:
        limit = limit_result.limit_bytes
        best = min((point.sample_s for point in points if point.peak <= limit), default=np.inf)
        if limit_result.point is None:
            assert np.isinf(best)
            continue
        assert best * (1 - 1e-9) <= limit_result.point.sample_s <= best * (1 + 2.0 * OPTIMAL_WITHIN)
        assert limit_result.bound <= best * (1 + 1e-9)
        assert limit_result.gap <= 2.0 * OPTIMAL_WITHIN
    assert limit_results[0].point is not None


@pytest.mark.parametrize(
    ("gpus", "changes"),
    [
        ("2xH100+2xA100-40GB", {"recompute": ("none", "full")}),
        ("2xA100+2xH20", {"recompute": ("none",)}),
        (
            "2xH100+2xA100",
            {"framework": "torchtitan", "schedule": "zb-h1", "recompute": ("none",)},
        ),
    ],
)
def test_no_bound_is_above_what_a_layout_reaches(
    model_file: str, gpus: str, changes: dict[str, object]
) -> None:
    """Of a shape in an order of the clusters, within falling limits, each kind of bound in turn."""
    request = Request(
        model=model_file, gpus=gpus, gbs=8, require=("tp == 1", "cp == 1", "mbs == 2"),
        **changes,
    )  # fmt: skip
    found = explorer_of(request)
    points = list(every_point(found))
    steps = found.costed.steps
    heaviest = max(point.peak for point in points)
    found.limit_bytes = heaviest
    for index, limit in enumerate(found.limits[:12]):
        for position, row in enumerate(found.rows.tolist()):
            reached = [
                point.sample_s for point in points if point.row == row and point.peak <= limit
            ]
            best = min(reached, default=np.inf) * (1 + 1e-9)
            gbs = float(found.columns["gbs"][row])
            assert steps[row, f.STEP_TIME_BOUND] / gbs <= best
            assert found.least_bound(index, np.inf) <= min(
                (point.sample_s for point in points if point.peak <= limit), default=np.inf
            ) * (1 + 1e-9)
            assert found.bounds[position, index] <= best
            for _ in range(TIGHTEST):
                assert found._tighten(position, index, np.inf) <= best
    lightest = {row: min(p.peak for p in points if p.row == row) for row in {p.row for p in points}}
    assert all(steps[row, f.STEP_PEAK_BOUND] <= peak for row, peak in lightest.items())


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
    found, job = explorer_of(request), request.resolve()
    shown = [(plan.step_time_s / plan.gbs, weighed_bytes(job, plan)) for plan in result.plans]
    assert len(shown) > 1
    peaks = [peak for _, peak in sorted(shown)]
    assert peaks == sorted(peaks, reverse=True)
    slowest = SLOWEST * min(sample_s for sample_s, _ in shown)
    for point in every_point(found):
        if point.peak > found.limit_bytes or point.sample_s > slowest:
            continue
        assert any(
            sample_s * (1 - result.gap - OPTIMAL_WITHIN) <= point.sample_s
            and peak <= point.peak + MEMORY_BYTES
            for sample_s, peak in shown
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


def test_no_more_configurations_are_legal_than_were_considered() -> None:
    job = Request(model="8b", gpus="8xH100+8xA100", gbs=128).resolve()
    report = legal_candidates(job).report
    assert 0 < report.legal <= report.considered


def test_a_time_limit_holds_for_a_large_pool() -> None:
    """Before the first layout is solved an even one is known, and nothing is claimed of it."""
    request = Request(model="llama-3-70b", gpus="128xH100+64xH200", gbs=384)
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
    assert any("GiB on A100" in rule.text for rule in why.conflict)
    assert {relaxation.kind for relaxation in why.relaxations} >= {"recompute", "gpus"}
    for item in why.relaxations:
        assert item.plan.fits
    doubled = next(relaxation for relaxation in why.relaxations if relaxation.kind == "gpus")
    gpus = doubled.change.removeprefix("--gpus ")
    assert find_plans(request.model_copy(update={"gpus": gpus}), top=1).plans[0].fits


def test_ctrl_c_keeps_what_is_known(mixed: SearchResult) -> None:
    """Also before anything is known: then it is an interrupt like any other."""

    told: list[str] = []

    def interrupt(what: str, _done: int, _total: int) -> None:
        if what.startswith("looking for lighter plans") and not told:
            told.append(what)
            os.kill(os.getpid(), signal.SIGINT)

    found = find_plans(mixed.request, progress=interrupt)
    assert found.stopped == "interrupted"
    assert found.plans[0].fits


def test_rules_that_leave_nothing_are_named() -> None:
    request = Request(model="llama-3.2-1b", gpus="4xH100+4xA100", gbs=64, require=("tp == 3",))
    with pytest.raises(UsageError, match="tp == 3"):
        find_plans(request)
    narrow = request.model_copy(update={"require": ("pp == 1",)})
    with pytest.raises(UsageError, match="pp is at least 2"):
        find_plans(narrow)


EVEN_PARTS = {"gbs": 32, "limits": {"tp": (1, 2), "mbs": (1, 2)}, "recompute": ("none", "full")}


def test_a_pool_of_equal_gpus_has_the_plans_of_one_cluster() -> None:
    """To the last bit, among plans whose stages fill both halves."""
    pool = find_plans(Request(model="llama-3.2-1b", gpus="8xH100+8xH100", **EVEN_PARTS))
    one = find_plans(
        Request(model="llama-3.2-1b", gpus="16xH100", require=("pp % 2 == 0",), **EVEN_PARTS)
    )
    divided = [plan.model_copy(update={"stage_gpus": ()}) for plan in pool.plans]
    assert divided == list(one.plans)
    assert (pool.recommended, pool.gap, pool.proof) == (
        one.recommended,
        one.gap,
        one.proof
        and one.proof.model_copy(
            update={
                "by_solver": tuple(
                    claim.model_copy(update={"parts": other.parts})
                    for claim, other in zip(
                        one.proof.by_solver, pool.proof.by_solver if pool.proof else (), strict=True
                    )
                )
            }
        ),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer_offload": "search"},
        {"activation_offload": "core_attn"},
        {"framework": "zero-bubble", "schedule": "zb-h1"},
        {"batch_ramp": "16 16 1000"},
        {"sharp": True},
    ],
)
def test_a_pool_has_the_choices_of_one_cluster(changes: dict[str, object]) -> None:
    plain = {"gbs": 64, "limits": {"tp": (2,), "mbs": (1,), "pp": (2, 4)}, "recompute": ("none",)}
    request = Request(model="llama-3.2-1b", gpus="8xH100+8xA100", **(plain | changes))
    result = find_plans(request, fastest_only=True)
    assert result.plans[0].fits
    assert verify(result).problems == ()
