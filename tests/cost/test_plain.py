"""The cost core as plain Python gives what it gives compiled, to the last digit."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from constraints.axes import ContextKind
from planner.cost.tables import Array
from planner.predict.configuration import degree_columns, even_layout, kernel_layout, plain_context
from planner.predict.cost_model import CostModel
from planner.predict.plan import Degrees
from tests.cost.jobs import make_job
from tests.predict.memory.cases import SCHEDULES, Case, random_case, schedule_case
from tests.predict.memory.test_activation_offload import offload_case
from tests.predict.memory.test_table_copies import deepseek


def costed(case: Case, *, compiled: bool) -> tuple[Array, ...]:
    """(costs of the pieces, steps of even layouts, step and stages of the case's layout)."""
    model, degrees = CostModel(case.job, compiled=compiled), case.degrees
    shapes = model.cost_shapes(degree_columns([degrees]))
    ctx = plain_context(case.job, degrees.pp, degrees.vpp, case.job.recompute[0])
    layout = kernel_layout(model, case.layout, ctx)
    return shapes.costs, shapes.steps, *model.cost_layout(shapes, 0, layout)


def demand_same(case: Case) -> None:
    pairs = zip(costed(case, compiled=True), costed(case, compiled=False), strict=True)
    for compiled, plain in pairs:
        np.testing.assert_allclose(plain, compiled, rtol=1e-12, err_msg=str(case))


@pytest.mark.parametrize("block", range(4))
def test_frameworks_models_and_degrees(block: int) -> None:
    for seed in range(1000 + 25 * block, 1025 + 25 * block):
        demand_same(random_case(seed))


@pytest.mark.parametrize("index", range(len(SCHEDULES)))
def test_schedules(index: int) -> None:
    rng = random.Random(index)
    for _ in range(6):
        demand_same(schedule_case(index, rng))


def test_activations_on_the_host() -> None:
    for seed in range(20):
        demand_same(offload_case(seed))


@pytest.mark.parametrize("modules", [1, 2])
def test_multi_token_prediction(modules: int) -> None:
    job = deepseek(mtp_layers=modules)
    for degrees in (Degrees(pp=4, tp=2, ep=8, dp=8, grad_acc=8), Degrees(dp=8, ep=8, zero=1)):
        demand_same(Case(job, degrees, even_layout(job, degrees.pp, 1)))


@pytest.mark.parametrize("kind", ["p2p", "all_gather", "a2a", "a2a+p2p"])
def test_exchanges_of_context_parallelism(kind: ContextKind) -> None:
    job = replace(make_job("llama-3-8b", "512xH100"), context_kinds=(kind,), seq=32768)
    job = replace(job, recompute=job.recompute[:1])
    for tp, cp, pp in ((1, 2, 1), (2, 4, 2), (1, 8, 4)):
        degrees = Degrees(tp=tp, etp=tp, cp=cp, pp=pp, dp=2, zero=1, grad_acc=4)
        demand_same(Case(job, degrees, even_layout(job, pp, 1, job.recompute[0])))


@pytest.mark.parametrize("zero", [2, 3])
def test_hybrid_sharding(zero: int) -> None:
    job = make_job("llama-3-8b", "64xH100", "torchtitan")
    job = replace(job, recompute=(job.framework.recompute_mode("none"),))
    degrees = Degrees(dp=64, zero=zero, shard=8, grad_acc=2)
    demand_same(Case(job, degrees, even_layout(job, 1, 1)))
