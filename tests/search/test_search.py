"""The search end to end on the real catalogue, and the certificate of its front."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import planner
from constraints.layout import LAYOUT_RULES
from planner.cost import fields as f
from planner.job.errors import UsageError
from planner.job.recomputation import recomputation
from planner.job.request import Request
from planner.predict.configuration import kernel_layout, plain_context
from planner.predict.plan import OPTIMAL_WITHIN
from planner.predict.uncertainty.likely import likely_limit_bytes
from planner.report.search import search_report
from planner.search.exact_front import MEMORY_BYTES, TIME
from planner.search.explanation import explain, job_evaluator
from planner.search.front import SAVING
from planner.search.layout_model import SolverOptions
from planner.search.limit_results import TIE, Effort
from planner.search.result import SearchResult
from planner.search.search import find_plans
from planner.search.shares import cost_job
from planner.search.terms import layout_context, shape_terms
from tests.search.brute import all_bounds, every_layout, explore, step_time_s

MAIN = Request(model="70b", gpus="64xH100", gbs_tokens=4_000_000)
SMALL = Request(
    model="llama-3.2-1b",
    gpus="4xL40S",
    gbs=16,
    seq=4096,
    limits={"tp": (1,), "cp": (1,), "mbs": (1,), "pp": (2, 4)},
)


@pytest.fixture(scope="module")
def main_result() -> SearchResult:
    return find_plans(MAIN)


def test_main_request_is_proven(main_result: SearchResult) -> None:
    assert main_result.proven
    assert main_result.complete
    assert 4 <= len(main_result.shown) <= 14
    assert {plan.status for plan in main_result.plans} == {"optimal"}
    assert main_result.counts.solved + main_result.counts.skipped == main_result.counts.legal


def test_main_plans_use_every_gpu_and_fit(main_result: SearchResult) -> None:
    for plan in main_result.plans:
        assert plan.degrees.gpus == 64
        assert plan.fits
        assert plan.fit_probability >= 0.5
        assert sum(plan.layout.block_layers) == 80
        assert abs(plan.gbs_tokens - 4_000_000) <= 0.05 * 4_000_000


def test_main_front_is_sorted_and_undominated(main_result: SearchResult) -> None:
    sample_s = [plan.step_time_s / plan.gbs for plan in main_result.plans]
    peak = [plan.peak_bytes for plan in main_result.plans]
    assert sample_s == sorted(sample_s)
    assert peak == sorted(set(peak), reverse=True)


def test_time_and_memory_terms_add_up(main_result: SearchResult) -> None:
    for plan in main_result.plans:
        assert plan.time.total_s == pytest.approx(plan.step_time_s, rel=1e-9)
        heaviest = plan.stages[plan.heaviest_stage]
        assert heaviest.peak == plan.peak_bytes == max(stage.peak for stage in plan.stages)


def test_no_even_layout_beats_the_front(main_result: SearchResult) -> None:
    """Exhaustive over even layouts: none is faster by more than a tie at no more memory."""
    costed_job = cost_job(MAIN.resolve())
    steps = costed_job.costed.steps
    sample_s = steps[:, f.STEP_TIME] / costed_job.candidates.columns["gbs"]
    peak = steps[:, f.STEP_PEAK_BYTES]
    for plan in main_result.plans:
        inside = peak <= plan.peak_bytes
        best = sample_s[inside].min(initial=np.inf)
        assert best * (1 + TIE) >= plan.step_time_s / plan.gbs


def test_search_repeats_itself(main_result: SearchResult) -> None:
    assert find_plans(MAIN).plans == main_result.plans


def test_top_and_sort(main_result: SearchResult) -> None:
    light = find_plans(MAIN, top=3, sort="peak_bytes").plans
    peaks = [plan.peak_bytes for plan in light]
    assert len(light) == 3
    assert peaks == sorted(peaks)
    assert peaks[0] <= min(plan.peak_bytes for plan in main_result.plans)


def test_unknown_sort_key_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="tokens_per_s"):
        find_plans(MAIN, sort="tokens")


def test_library_call_whatever_was_imported_first() -> None:
    result = planner.find_plans(SMALL, top=1)
    assert isinstance(result, planner.SearchResult)


def test_the_fastest_alone_is_that_of_the_front(main_result: SearchResult) -> None:
    """Less is solved when only the fastest plan is asked for, and it is the same."""
    fastest = find_plans(MAIN, top=1, fastest_only=True)
    assert fastest.plans[0] == main_result.plans[0]
    assert fastest.counts.solved < main_result.counts.solved


def test_the_one_to_take_is_the_same_however_few_are_wanted() -> None:
    """A plan that is hardly slower and fits more surely than the fastest."""
    given = {"model": "llama-2-7b", "gpus": "16xA100-40GB", "gbs": 128, "seq": 1024}
    job = Request(**given, fit_probability=0.2)
    whole = find_plans(job)
    taken = whole.plans[whole.recommended - 1]
    assert taken.fit_probability > whole.plans[0].fit_probability + 0.05
    for few in (find_plans(job, top=1), find_plans(job, top=1, fastest_only=True)):
        assert (few.plans, few.recommended) == ((taken,), 1)
    lightest = find_plans(job, top=2, sort="peak_bytes")
    assert lightest.plans == (min(whole.plans, key=lambda plan: plan.peak_bytes), taken)
    assert lightest.recommended == 2


def test_small_job_equals_exhaustion_over_all_layouts() -> None:
    """Every layout of every shape, costed by the kernel: nothing beats the rungs by a tie."""
    costed_job = cost_job(SMALL.resolve())
    columns, job = costed_job.candidates.columns, costed_job.job
    explorer = costed_job.explorer(Effort())
    limit_results = explore(explorer)
    kept = [limit_result for limit_result in limit_results if limit_result.point is not None]
    assert kept
    # The solver's objective takes collectives as lines below their time.
    assert all(limit_result.gap <= 2.0 * OPTIMAL_WITHIN for limit_result in limit_results)
    result = find_plans(SMALL)
    assert result.complete
    front = [(plan.step_time_s / plan.gbs, plan.peak_bytes) for plan in result.plans]
    slowest, heaviest = front[-1][0], likely_limit_bytes(job, SMALL.fit_probability)
    checked = 0
    for row in range(len(columns["tp"])):
        if columns["pp"][row] > 2 or columns["vpp"][row] > 1:
            continue
        mode = job.recompute[int(columns["recompute"][row])]
        ctx = plain_context(job, int(columns["pp"][row]), 1, mode)
        for layout in every_layout(ctx):
            if not all(rule.check(layout, ctx) for rule in LAYOUT_RULES):
                continue
            counts = kernel_layout(costed_job.cost_model, layout, ctx)
            step, _ = costed_job.cost_model.cost_layout(costed_job.costed, row, counts)
            sample_s, peak = step[f.STEP_TIME] / columns["gbs"][row], step[f.STEP_PEAK_BYTES]
            checked += 1
            for limit_result in kept:
                assert limit_result.point is not None
                if peak <= limit_result.limit_bytes:
                    assert sample_s * (1 + TIE) ** 2 >= limit_result.point.sample_s, (
                        mode.name,
                        layout,
                    )
            # No plan is missing from the complete front, and none on it is dominated.
            if peak <= heaviest and sample_s <= slowest:
                near = (1.0 + 2.0 * OPTIMAL_WITHIN, MEMORY_BYTES)
                assert any(
                    item <= sample_s * near[0] and held <= peak + near[1] for item, held in front
                ), (mode.name, layout, sample_s, peak)
    assert checked > 200


@pytest.mark.parametrize(
    ("mode", "optimizer"),
    [("none", "adamw"), ("layernorm", "adamw"), ("full", "adamw"), ("full", "muon")],
)
def test_linear_terms_are_the_kernels_costs(mode: str, optimizer: str) -> None:
    """Objective and memory of the solver against the kernel, for uneven layouts."""
    job = SMALL.model_copy(
        update={
            "recompute": (mode,),
            "optimizer": optimizer,
            "limits": SMALL.limits | {"pp": (2,), "dp": (2,)},
        }
    )
    costed_job = cost_job(job.resolve())
    columns, resolved = costed_job.candidates.columns, costed_job.job
    model, costed = costed_job.cost_model, costed_job.costed
    limit = resolved.hbm_limit_bytes
    for row in np.flatnonzero(columns["vpp"] == 1)[:2].tolist():
        mode_spec = resolved.recompute[0]
        kind = recomputation(mode_spec, resolved.framework)
        terms = shape_terms(model, costed, row, kind)
        ctx = layout_context(terms, resolved, mode_spec, limit)
        assert ctx.memory is not None
        legal = [
            layout
            for layout in every_layout(ctx)
            if all(rule.check(layout, ctx) for rule in LAYOUT_RULES if rule.name != "stage-memory")
        ]
        for layout in legal[::7]:
            step, stages = model.cost_layout(costed, row, kernel_layout(model, layout, ctx))
            # Collectives enter by a line that never lies above them.
            linear_s = step_time_s(terms, layout, ctx)
            assert linear_s <= step[f.STEP_TIME] * (1 + 1e-9)
            assert linear_s == pytest.approx(step[f.STEP_TIME], rel=5e-3)
            units = [
                ctx.memory.peak(stage, count, ctx.recomputed_counts(layout)[stage])
                for stage, count in enumerate(ctx.counts(layout))
            ]
            reserved = stages[:, f.STAGE_ALLOCATED] + stages[:, f.STAGE_FRAGMENTATION]
            weighed = reserved / (1.0 + terms.framework.fragmentation)
            rounded_up = np.array(units) * ctx.memory.unit_bytes
            assert (rounded_up >= weighed * (1 - 1e-12)).all()
            assert rounded_up == pytest.approx(weighed, rel=1e-3)


def test_bounds_hold_for_every_even_layout() -> None:
    costed_job = cost_job(MAIN.resolve())
    explorer = costed_job.explorer(Effort())
    sample_s, peak = explorer.sample_s[explorer.rows], explorer.peak[explorer.rows]
    bounds = all_bounds(explorer)
    for index, limit in enumerate(explorer.limits):
        fits = peak <= limit
        assert (bounds[fits, index] <= sample_s[fits] * (1 + 1e-9)).all()


def test_bounds_hold_where_issuing_kernels_takes_about_as_long_as_these() -> None:
    """Uneven layouts, tensor-parallel exchanges beside products; the search finds the fastest."""
    request = Request(
        model="llama-3.2-1b", gpus="8xH100", gbs=16, seq=4096, use=("tp-overlap",),
        without=("bf16-gradients", "cuda-graphs", "megatron-fsdp"), recompute=("none",),
        limits={"tp": (2, 4), "cp": (1,), "mbs": (1,), "pp": (2,), "vpp": (1,)},
    )  # fmt: skip
    costed_job = cost_job(request.resolve())
    explorer, columns = costed_job.explorer(Effort()), costed_job.candidates.columns
    bounds, found = all_bounds(explorer), []
    for position, row in enumerate(explorer.rows.tolist()):
        mode = costed_job.job.recompute[int(columns["recompute"][row])]
        ctx = plain_context(costed_job.job, 2, 1, mode)
        for layout in every_layout(ctx):
            if all(rule.check(layout, ctx) for rule in LAYOUT_RULES):
                point = explorer.cost(row, layout)
                fits = point.peak <= explorer.limits
                assert (bounds[position, fits] <= point.sample_s * (1 + 1e-9)).all()
                found.append(point.sample_s)
    plan = find_plans(request).plans[0]
    assert len(found) > 20
    steps = costed_job.costed.steps
    waiting = steps[:, f.STEP_ISSUE] / steps[:, f.STEP_TIME]
    assert waiting.max() > waiting.min() + 0.2
    assert plan.step_time_s / plan.gbs == pytest.approx(min(found), rel=OPTIMAL_WITHIN)


def test_bounds_hold_for_solved_layouts() -> None:
    """CP-SAT's layout is never faster than the compiled bound; two kinds of layers."""
    request = Request(model="gemma-3-1b", gpus="8xH100", gbs=64, limits={"tp": (1,), "pp": (2, 4)})
    costed_job = cost_job(request.resolve())
    explorer = costed_job.explorer(Effort(SolverOptions(deterministic_time_s=0.05)))
    bounds = all_bounds(explorer)
    for position in range(0, len(explorer.rows), max(1, len(explorer.rows) // 12)):
        row = int(explorer.rows[position])
        if explorer.only_even[row]:
            continue
        solution = explorer.solution(row, float(explorer.limits[0]))
        if solution.layout is not None:
            point = explorer.cost(row, solution.layout)
            assert bounds[position, 0] <= point.sample_s * (1 + 1e-9)


def test_65_gpus_use_64(main_result: SearchResult) -> None:
    result = find_plans(MAIN.model_copy(update={"gpus": "65xH100"}), top=1)
    assert result.job.num_gpus == 65
    assert result.job.used_gpus == 64
    assert any("64 of the 65 GPUs" in note for note in result.notes)
    assert result.plans[0] == main_result.plans[0]


def test_thinned_front_saves_memory_at_each_step(main_result: SearchResult) -> None:
    shown = set(main_result.shown) - {main_result.recommended}
    peaks = [main_result.plans[number - 1].peak_bytes for number in sorted(shown)]
    assert all(low <= (1 - SAVING) * high for high, low in pairwise(peaks))


def test_no_plan_is_near_another_and_none_dominates(main_result: SearchResult) -> None:
    """Faster plans are heavier, by more than the resolution of one of the two."""
    for fast, slow in pairwise(main_result.plans):
        assert slow.peak_bytes < fast.peak_bytes
        slower_by = slow.step_time_s / slow.gbs / (fast.step_time_s / fast.gbs) - 1.0
        assert slower_by > TIME or fast.peak_bytes - slow.peak_bytes >= MEMORY_BYTES


def test_neighbours_of_shown_plans_do_not_beat_the_front(main_result: SearchResult) -> None:
    """What `explain` says of a plan's neighbours agrees with the front that it is on."""
    job = MAIN.resolve()
    sure = [
        neighbour
        for neighbour in explain(
            main_result, 1, job, job_evaluator(job, main_result.plans[0])
        ).neighbours
        if neighbour.fit_probability is not None
        and neighbour.fit_probability >= MAIN.fit_probability
    ]
    assert len(sure) >= 3
    for item in sure:
        assert item.tokens_per_s is not None
        assert item.peak_bytes is not None
        assert any(
            plan.tokens_per_s >= item.tokens_per_s * (1.0 - OPTIMAL_WITHIN)
            and plan.peak_bytes <= item.peak_bytes + MEMORY_BYTES
            for plan in main_result.plans
        ), item.change


def test_memory_slows_no_neighbour_that_does_not_fit(main_result: SearchResult) -> None:
    """ZeRO-0 holds more and computes the same: its layers are split for speed, not to come near a
    limit that it misses all the same."""
    job, plan = MAIN.resolve(), main_result.plans[0]
    unsharded = plan.degrees.model_copy(update={"zero": 0})
    heavier = job_evaluator(job, plan)(unsharded, plan.recompute)
    assert not heavier.fits
    assert heavier.step_time_s == pytest.approx(plan.step_time_s, rel=0.02)


def test_a_front_with_gaps_only_elsewhere_says_so(main_result: SearchResult) -> None:
    proven = main_result.plans[:1]
    assert all(plan.status == "optimal" for plan in proven)
    partly = main_result.model_copy(
        update={"plans": proven, "shown": (), "recommended": 1, "proven": False, "gap": 0.043}
    )
    flat = " ".join(str(search_report(partly).blocks).split())
    assert "1 plan. Each proven optimal to 0.1 %" in flat
    assert "may be missing that is faster by up to 4.3 %" in flat
