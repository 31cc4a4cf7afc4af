"""Searches that may place multi-token prediction apart, against all layouts by the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from constraints.layout import LAYOUT_RULES, LayoutContext
from constraints.rule import Layout
from planner.cost import fields as f
from planner.evaluate import evaluate
from planner.request import Request
from planner.search.bounded_shapes import SHARPEST
from planner.search.costed import CostedJob, cost_job
from planner.search.explorer import Effort, Explorer
from planner.search.search import search
from planner.search.terms import layout_context, shape_terms
from tests.search.brute import step_time_s

MODEL = """
source = "made up"
[shape]
family = "llama"
layers = 6
hidden = 2048
heads = 16
kv_heads = 16
head_dim = 128
ffn = 8192
vocab = 64000
max_positions = 8192
pretraining_seq = 8192
activation = "silu"
sliding_window = 128
mtp_layers = {modules}
tied_embeddings = {tied}
[layers]
attention = ["sliding", "full"]
"""


@pytest.fixture(scope="module", params=[(1, "false"), (2, "true")], ids=["one", "two-tied"])
def request_(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Request:
    """Six layers, of which prediction and head take as long as two or three, on four GPUs."""
    modules, tied = request.param
    path = tmp_path_factory.mktemp("model") / "six.toml"
    path.write_text(MODEL.format(modules=modules, tied=tied))
    return Request(
        model=str(path), gpus="4xL40S", gbs=32, seq=4096, recompute=("none", "full"),
        limits={"tp": (1,), "cp": (1,), "mbs": (1,), "pp": (4,), "vpp": (1, 2)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def costed(request_: Request) -> CostedJob:
    return cost_job(request_.resolve())


@pytest.fixture(scope="module")
def explorer(costed: CostedJob) -> Explorer:
    return costed.explorer(Effort())


def context_of(own: Explorer, row: int, limit: float) -> LayoutContext:
    job, mode = own.cost_model.job, int(own.columns["recompute"][row])
    terms = shape_terms(own.cost_model, own.costed, row, own.recomputations[mode])
    return layout_context(terms, job.model, job.framework, job.recompute[mode], limit)


def legal(ctx: LayoutContext, recomputes: str) -> Iterator[Layout]:
    """Layouts that obey every rule, all layers recomputed, none, or the same number a block."""
    for blocks in product(range(4), repeat=ctx.blocks):
        if sum(blocks) != ctx.layers:
            continue
        plain = Layout(ctx.pp, ctx.vpp, blocks, (0,) * ctx.pp)
        counts = {plain.per_stage([min(own, most) for own in blocks]) for most in range(1, 4)}
        for again in [plain.recomputed] if recomputes == "none" else sorted(counts):
            for apart in (False, True):
                layout = replace(plain, recomputed=again, mtp_apart=apart)
                if all(rule.check(layout, ctx) for rule in LAYOUT_RULES):
                    yield layout


def rows_of(own: Explorer) -> list[tuple[int, int, str]]:
    """(position, row, mode) of the shapes."""
    modes = own.cost_model.job.recompute
    return [
        (position, row, modes[int(own.columns["recompute"][row])].name)
        for position, row in enumerate(own.rows.tolist())
    ]


def test_bounds_hold_and_cpsat_finds_the_best(explorer: Explorer) -> None:
    """Plain and sharp bounds below every layout, under two limits; CP-SAT within its gap of the
    best, and no heavier than it promised."""
    parted = checked = 0
    for position, row, mode in rows_of(explorer):
        for index in (0, 6):
            limit = float(explorer.limits[index])
            layouts = list(legal(context_of(explorer, row, limit), mode))
            points = [explorer.cost(row, layout) for layout in layouts]
            assert all(point.peak <= limit * (1 + 1e-9) for point in points)
            best = min((point.pace for point in points), default=np.inf)
            assert explorer.bounds[position, index] <= best * (1 + 1e-9)
            for _ in range(SHARPEST):
                assert explorer._sharpen(position, index, 2.0 * best) <= best * (1 + 1e-9)
            found = explorer.solution(row, limit).layout
            assert (found is None) == (best == np.inf)
            if found is None:
                continue
            point = explorer.cost(row, found)
            assert point.peak <= limit
            assert point.pace <= best * 1.005
            apart = min((own.pace for own in points if own.layout.mtp_apart), default=np.inf)
            beside = min((own.pace for own in points if not own.layout.mtp_apart), default=np.inf)
            if abs(apart / beside - 1.0) > 5e-3:
                assert found.mtp_apart == (apart < beside)
            parted += found.mtp_apart
            checked += 1
    assert checked >= 4
    assert parted >= 1


def test_linear_terms_are_the_kernels_costs(explorer: Explorer) -> None:
    """Objective and memory of the solver against the kernel, with it apart."""
    checked = 0
    for _, row, mode in rows_of(explorer):
        own = explorer.recomputations[int(explorer.columns["recompute"][row])]
        terms = shape_terms(explorer.cost_model, explorer.costed, row, own)
        ctx = context_of(explorer, row, 1e15)
        assert terms.apart is not None
        for layout in list(legal(ctx, mode))[::9]:
            memory = ctx.memory_of(layout.mtp_apart)
            assert memory is not None
            step, stages = explorer.cost_model.cost_layout(
                explorer.costed, row, kernel_counts(explorer, layout, ctx)
            )
            seconds = step_time_s(terms, layout, ctx)
            assert seconds <= step[f.STEP_TIME] * (1 + 1e-9)
            assert seconds == pytest.approx(step[f.STEP_TIME], rel=5e-3)
            layers, again = ctx.counts(layout), ctx.recomputed_counts(layout)
            units = np.array([memory.peak(own, layers[own], again[own]) for own in range(4)])
            allocated = stages[:, f.STAGE_ALLOCATED]
            assert (units * memory.unit_bytes >= allocated * (1 - 1e-12)).all()
            assert units * memory.unit_bytes == pytest.approx(allocated, rel=1e-3)
            checked += layout.mtp_apart
    assert checked > 3


def kernel_counts(own: Explorer, layout: Layout, ctx: LayoutContext) -> object:
    from planner.search.arrays import kernel_layout

    return kernel_layout(own.cost_model, layout, ctx)


def test_the_front_repeats_itself_and_its_plans_are_what_evaluate_says(request_: Request) -> None:
    """Whatever the number of workers; and a plan's own numbers, given by hand, give its figures."""
    first, second = (search(request_, workers=own, top=3) for own in (1, 2))
    assert first.plans == second.plans
    best = first.plans[0]
    again = evaluate(
        request_.for_plan(best), best.degrees, best.recompute, best.layout.block_layers,
        best.layout.recomputed, mtp_apart=best.layout.mtp_apart,
    )  # fmt: skip
    assert again.step_time_s == best.step_time_s
    assert again.layout == best.layout


def test_a_framework_without_it_keeps_it_with_the_head(request_: Request) -> None:
    job = request_.resolve()
    rules = job.framework.parallelism.model_copy(update={"mtp_apart": False})
    framework = job.framework.model_copy(update={"parallelism": rules})
    own = cost_job(replace(job, framework=framework)).explorer(Effort())
    row = int(own.rows[0])
    ctx = context_of(own, row, 1e15)
    assert not ctx.may_part
    found = own.solution(row, 1e15).layout
    assert found is not None
    assert not found.mtp_apart
