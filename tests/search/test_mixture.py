"""Stages of which some layers recompute, in one mode or several, costed by the kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from constraints.layout import LAYOUT_RULES
from constraints.rule import Layout
from planner import Degrees, Request, evaluate
from planner.cost import fields as f
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.recomputation import layer_modes
from planner.predict.configuration import Configuration, plain_context
from planner.predict.costed_plan import configured_plan
from planner.predict.mixture import cost_layout
from planner.predict.plan import OPTIMAL_WITHIN
from planner.search.limit_results import Effort
from planner.search.search import find_plans
from planner.search.shares import CostedJob, SharesExplorer, cost_job
from planner.search.terms import layout_context, shape_terms
from planner.search.what_if import what_if
from tests.cost.jobs import with_table
from tests.search.brute import all_bounds, every_layout, explore

FOUNDRY = Request(
    model="mpt-7b", gpus="8xA100-40GB", gbs=64, seq=2048, framework="llm-foundry",
    limits={"mbs": (2,), "zero": (3,), "dp": (8,)},
)  # fmt: skip


def mixing(request: Request, layers: str = "mixed") -> Job:
    """The job under a framework that gives every layer its own mode, or lets any recompute."""
    return with_table(request.resolve(), "parallelism", recompute_layers=layers, layouts="any")


def pipeline(*modes: str, model: str = "llama-3.2-1b") -> CostedJob:
    """Two stages; every mode that is given may be mixed."""
    request = Request(
        model=model, gpus="4xL40S", gbs=16, seq=4096, recompute=modes,
        limits={"tp": (1,), "cp": (1,), "mbs": (1,), "pp": (2,), "vpp": (1,), "dp": (2,)},
    )  # fmt: skip
    return cost_job(mixing(request))


def row_of(costed_job: CostedJob, mode: str, zero: int = 1) -> int:
    columns, job = costed_job.candidates.columns, costed_job.job
    index = [item.name for item in job.recompute].index(mode)
    return int(np.flatnonzero((columns["recompute"] == index) & (columns["zero"] == zero))[0])


@pytest.mark.parametrize("mode", ["layernorm", "mlp"])
def test_all_layers_in_another_mode_cost_as_under_it(mode: str) -> None:
    """The mode's own shape, and the mix in which every layer takes it: the kernel's two ways."""
    costed_job = pipeline("none", mode, "full")
    job, model, costed = costed_job.job, costed_job.cost_model, costed_job.costed
    full, alone = row_of(costed_job, "full"), row_of(costed_job, mode)
    layout = Layout(2, 1, (9, 7), {mode: (9, 7)})
    columns = costed_job.candidates.columns
    in_both, in_one = (Configuration.of_row(job, columns, row, layout) for row in (full, alone))
    assert in_both.context.modes == ("full", mode)
    mixed = cost_layout(model, costed, full, in_both)
    single = cost_layout(model, costed, alone, in_one)
    assert mixed.step[f.STEP_TIME] == pytest.approx(single.step[f.STEP_TIME], rel=1e-12)
    assert mixed.step[f.STEP_RECOMPUTE] == pytest.approx(single.step[f.STEP_RECOMPUTE], rel=1e-12)
    assert mixed.step[f.STEP_PEAK_BYTES] == pytest.approx(single.step[f.STEP_PEAK_BYTES], rel=1e-9)
    assert mixed.stages[:, f.STAGE_PEAK] == pytest.approx(single.stages[:, f.STAGE_PEAK], rel=1e-9)


def test_terms_of_a_mix_add_up_and_lie_between_its_modes() -> None:
    costed_job = pipeline("none", "mlp", "full")
    job, model, costed = costed_job.job, costed_job.cost_model, costed_job.costed
    row, columns = row_of(costed_job, "full"), costed_job.candidates.columns

    def step(again: tuple[int, int], mlp: tuple[int, int]) -> np.ndarray:
        layout = Layout(2, 1, (8, 8), {"full": again, "mlp": mlp})
        configuration = Configuration.of_row(job, columns, row, layout)
        return cost_layout(model, costed, row, configuration).step

    nothing, mixed, everything = step((0, 0), (0, 0)), step((3, 0), (2, 1)), step((8, 8), (0, 0))
    assert mixed[list(f.TIME_COLUMNS.values())].sum() == pytest.approx(mixed[f.STEP_TIME])
    assert nothing[f.STEP_TIME] < mixed[f.STEP_TIME] < everything[f.STEP_TIME]
    peaks = [item[f.STEP_PEAK_BYTES] for item in (everything, mixed, nothing)]
    assert peaks == sorted(peaks)
    assert nothing[f.STEP_RECOMPUTE] == 0.0 < mixed[f.STEP_RECOMPUTE]


@pytest.mark.parametrize(
    ("model", "framework", "pp"), [("gpt-oss-20b", "torchtitan", 2), ("mpt-7b", "llm-foundry", 1)]
)
def test_solver_counts_the_memory_of_sharded_layers(model: str, framework: str, pp: int) -> None:
    """ZeRO-2 and 3: what the first layer in backward gives back hangs on which others the stage
    holds, and on whether there is a second. Every split of five layers, any of which recompute."""
    request = Request(
        model=model, gpus="4xB200", gbs=16, seq=4096, framework=framework,
        limits={"pp": (pp,), "mbs": (1,), "dp": (4 // pp,), "vpp": (1,), "zero": (2, 3)},
    )  # fmt: skip
    costed_job = cost_job(with_layers(mixing(request, "any"), 5))
    job, worst = costed_job.job, 0.0
    full = next(item for item in job.recompute if item.name == "full")
    for zero in (2, 3):
        row = row_of(costed_job, "full", zero)
        terms = shape_terms(costed_job.cost_model, costed_job.costed, row, "free")
        ctx = layout_context(terms, job, full, job.hbm_limit_bytes)
        assert ctx.memory is not None
        for layout in every_layout(ctx):
            again = ctx.recomputed_counts(layout)
            legal = all(rule.check(layout, replace(ctx, memory=None)) for rule in LAYOUT_RULES)
            if not legal or not np.any(again):
                continue
            columns = costed_job.candidates.columns
            configuration = Configuration.of_row(job, columns, row, layout)
            model, costed = costed_job.cost_model, costed_job.costed
            stages = cost_layout(model, costed, row, configuration).stages
            for stage, layers in enumerate(ctx.counts(layout)):
                units = ctx.memory.peak(stage, layers, again[stage])
                held = stages[stage, [f.STAGE_ALLOCATED, f.STAGE_FRAGMENTATION]].sum()
                spare = units * ctx.memory.unit_bytes - held / (1 + terms.framework.fragmentation)
                assert -1.0 <= spare <= 2**20, layout
                worst = max(worst, spare)
    assert worst > 0.0


def with_layers(job: Job, layers: int) -> Job:
    """The job with the first so many layers of its model."""
    spec = job.model.model_dump()
    spec |= {"layers": layers, "layer_kinds": spec["layer_kinds"][:layers]}
    return replace(job, model=type(job.model).model_validate(spec))


@pytest.mark.parametrize(
    ("model", "framework"),
    [
        ("llama-3.2-1b", "any"),
        # Dense layers first, then experts; sliding and full attention in turn.
        ("deepseek-v2-lite", "any"),
        ("gpt-oss-20b", "any"),
        ("deepseek-v2-lite", "primus"),
        ("gpt-oss-20b", "megatron-core"),
    ],
)
def test_six_layers_equal_exhaustion(model: str, framework: str) -> None:
    """Every layout of a model of six layers, costed by the kernel, at every rung."""
    request = Request(
        model=model, gpus="2xB200", gbs=8, seq=8192, recompute=("none", "moe", "full"),
        framework="megatron-core" if framework == "any" else framework,
        limits={"tp": (1,), "cp": (1,), "mbs": (1,), "pp": (2,), "vpp": (1, 2), "ep": (1,)},
    )  # fmt: skip
    if framework == "any":  # far more layouts
        request = request.model_copy(update={"limits": request.limits | {"vpp": (1,)}})
    if model == "llama-3.2-1b":
        request = request.model_copy(update={"recompute": ("none", "mlp", "full")})
    job = mixing(request, "any") if framework == "any" else request.resolve()
    costed_job = cost_job(with_layers(job, 6))
    explorer = costed_job.explorer(Effort(most_work_s=60.0))
    kept = [limit_result for limit_result in explore(explorer) if limit_result.point is not None]
    assert kept
    assert all(limit_result.gap <= OPTIMAL_WITHIN for limit_result in kept)
    checked = 0
    for row in range(len(explorer.sample_s)):
        if explorer.columns["zero"][row] != explorer.columns["zero"].max():
            continue
        index = int(explorer.columns["recompute"][row])
        vpp = int(explorer.columns["vpp"][row])
        ctx = plain_context(costed_job.job, 2, vpp, costed_job.job.recompute[index])
        for layout in every_layout(ctx, 4 if vpp == 1 else 2):
            if not all(rule.check(layout, ctx) for rule in LAYOUT_RULES):
                continue
            point = explorer.cost(row, layout)
            checked += 1
            for limit_result in kept:
                assert limit_result.point is not None
                if point.peak <= limit_result.limit_bytes:
                    near_s = point.sample_s * (1 + OPTIMAL_WITHIN) ** 2
                    assert near_s >= limit_result.point.sample_s, layout
    assert checked > 20


def test_bounds_hold_whichever_layers_recompute() -> None:
    costed_job = pipeline("none", "full")
    explorer = costed_job.explorer(Effort())
    where = {row: position for position, row in enumerate(explorer.rows.tolist())}
    bounds = all_bounds(explorer)
    row = row_of(costed_job, "full")
    rng = np.random.default_rng(1)
    for _ in range(40):
        first = int(rng.integers(5, 12))
        blocks = (first, 16 - first)
        layout = Layout(2, 1, blocks, {"full": tuple(rng.binomial(blocks, 0.5).tolist())})
        point = explorer.cost(row, layout)
        fits = np.flatnonzero(point.peak <= explorer.limits)
        assert (bounds[where[row], fits] <= point.sample_s * (1 + 1e-9)).all()


def test_a_search_mixes_no_modes_and_its_plans_evaluate_alike() -> None:
    result = find_plans(FOUNDRY.model_copy(update={"recompute": ("none", "mlp", "full")}))
    assert result.proven
    assert any(0 < sum(plan.layout.recomputed.get("full", ())) < 32 for plan in result.plans)
    for plan in result.plans:
        assert len(plan.layout.recomputed) <= 1
        again = evaluate(
            FOUNDRY, plan.degrees, plan.recompute, plan.layout.block_layers,
            plan.layout.recomputed,
        )  # fmt: skip
        assert again.step_time_s == pytest.approx(plan.step_time_s, rel=1e-12)
        assert again.peak_bytes == pytest.approx(plan.peak_bytes, rel=1e-12)


def test_flags_name_both_modes() -> None:
    plan = evaluate(FOUNDRY, Degrees(dp=8, zero=3, mbs=2, grad_acc=4), "full",
                    recomputed={"full": (5,), "mlp": (7,)})  # fmt: skip
    assert "mptblock (layers by stage: 5)" in plan.recompute_flags
    assert "mptmlp (layers by stage: 7)" in plan.recompute_flags
    assert plan.layout.recomputed == {"full": (5,), "mlp": (7,)}


def test_what_if_keeps_the_mix_of_a_plan() -> None:
    """More memory changes nothing for a plan that stays as it is, mix and all."""
    plan = evaluate(FOUNDRY, Degrees(dp=8, zero=3, mbs=2, grad_acc=4), "full",
                    recomputed={"full": (5,), "mlp": (7,)})  # fmt: skip
    answer = what_if(FOUNDRY, FOUNDRY.resolve(), plan)
    kept = next(row.kept_effect for row in answer.rows if row.name == "hbm")
    assert kept == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("framework", ["megatron-core", "torchtitan", "fsdp1", "deepspeed"])
def test_other_frameworks_are_offered_no_mix(framework: str) -> None:
    job = Request(model="llama-3-8b", gpus="8xH100", gbs=64, framework=framework).resolve()
    assert all(len(layer_modes(job, mode)) < 2 for mode in job.recompute)


def test_a_mix_that_cannot_be_written_names_the_framework() -> None:
    request = Request(model="llama-3-8b", gpus="8xH100", gbs=64)
    with pytest.raises(UsageError, match="megatron-core takes one mode for all layers"):
        evaluate(request, Degrees(dp=8, grad_acc=8, zero=1), "full",
                 recomputed={"full": (3,), "mlp": (7,)})  # fmt: skip


def test_primus_recomputes_what_each_stage_needs() -> None:
    """The first stages hold most micro-batches: they recompute, the others need not."""
    request = Request(
        model="llama-3-70b", gpus="64xA100-40GB", gbs=128, framework="primus",
        limits={"tp": (8,), "pp": (8,), "vpp": (1,), "cp": (1,), "mbs": (1,)},
        recompute=("full",),
    )  # fmt: skip
    costed_job = cost_job(request.resolve())
    explorer = costed_job.explorer(Effort())
    point = SharesExplorer([explorer]).climb(0).point
    assert point is not None
    (again,) = point.layout.recomputed.values()
    assert sum(again[:3]) > sum(again[3:])
    configuration = explorer.configuration(point.row, point.layout)
    plan = configured_plan(configuration, costed_job.cost_model, "optimal")
    assert "recompute_layer_ids (layers by stage: " in plan.recompute_flags
