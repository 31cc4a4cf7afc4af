"""A pool of equal parts costs what one cluster does; unequal parts what each stage's GPU does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hardware.load import parse_gpus
from planner.cost import fields as f
from planner.cost.tables import Array
from planner.job.pool import Pool
from planner.predict.cost_model import CostModel, KernelLayout
from planner.search.pools.cost import PoolModel
from tests.cost.jobs import COLUMNS, make_job

SHAPES = [
    {"tp": 4, "dp": 2, "pp": 4, "grad_acc": 16, "zero": 1},
    {"tp": 8, "dp": 1, "pp": 4, "vpp": 2, "grad_acc": 8},
    {"tp": 2, "cp": 2, "dp": 2, "pp": 4, "grad_acc": 4, "zero": 1, "recompute": 1},
]


def columns_of(shape: dict[str, int]) -> dict[str, np.ndarray]:
    defaults = dict.fromkeys(COLUMNS, 1) | {"zero": 0, "recompute": 0, "shard": 0}
    return {name: np.array([value]) for name, value in (defaults | shape).items()}


def pool_model(*gpus: str) -> tuple[Pool, PoolModel]:
    """Both ways round: a pool that `parse_pool` would refuse is fine here."""
    pool = Pool(tuple(parse_gpus(text) for text in gpus))
    job = make_job("llama-3-8b", f"{pool.num_gpus}xH100")
    return pool, PoolModel([replace(job, cluster=world) for world in pool.worlds()])


def even(model: CostModel, columns: dict[str, np.ndarray]) -> tuple[KernelLayout, Array, Array]:
    costed = model.cost_shapes(columns)
    layout = model.even_layout(costed, 0)
    return layout, *model.cost_layout(costed, 0, layout)


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_parts_cost_what_one_cluster_does(shape: dict[str, int]) -> None:
    columns = columns_of(shape)
    layout, step, stages = even(CostModel(make_job("llama-3-8b", "32xH100")), columns)
    _, model = pool_model("16xH100", "16xH100")
    cost_layout, rows = model.cost_layout(model.cost_shapes(columns), 0, layout, (0, 0, 1, 1))
    np.testing.assert_allclose(rows, stages, rtol=1e-12)
    for column in (
        f.STEP_TIME, f.STEP_BUBBLE, f.STEP_PP, f.STEP_DP, f.STEP_OPTIMIZER, f.STEP_COMPUTE,
        f.STEP_TP, f.STEP_CP, f.STEP_RECOMPUTE, f.STEP_PEAK_BYTES, f.STEP_ALLOCATED_BYTES,
    ):  # fmt: skip
        assert cost_layout[column] == pytest.approx(step[column], rel=1e-9, abs=1e-12)


def test_stages_cost_what_their_own_gpu_does() -> None:
    columns = columns_of(SHAPES[0])
    _, model = pool_model("16xH100", "16xA100")
    costed = model.cost_shapes(columns)
    layout, _, fast = even(model.models[0], columns)
    _, _, slow = even(model.models[1], columns)
    _, stages = model.cost_layout(costed, 0, layout, (0, 0, 1, 1))
    np.testing.assert_array_equal(stages[:2, f.STAGE_FORWARD_S], fast[:2, f.STAGE_FORWARD_S])
    np.testing.assert_array_equal(stages[2:, f.STAGE_FORWARD_S], slow[2:, f.STAGE_FORWARD_S])


def test_a_mixed_pool_lies_between_its_parts() -> None:
    columns = columns_of(SHAPES[0])
    _, mixed = pool_model("16xH100", "16xA100")
    costed = mixed.cost_shapes(columns)
    layout, fast, _ = even(mixed.models[0], columns)
    _, slow, _ = even(mixed.models[1], columns)
    for parts in ((0, 0, 1, 1), (1, 1, 0, 0)):
        step, _ = mixed.cost_layout(costed, 0, layout, parts)
        assert fast[f.STEP_TIME] < step[f.STEP_TIME] < slow[f.STEP_TIME] * 1.001
        terms = step[list(f.TIME_COLUMNS.values())]
        assert step[f.STEP_TIME] == pytest.approx(terms.sum()), terms


def test_the_peak_is_of_the_stage_with_the_least_room() -> None:
    """40 GB boards run short before 80 GB ones that hold more."""
    columns = columns_of(SHAPES[0])
    _, model = pool_model("16xH100", "16xA100-40GB")
    costed = model.cost_shapes(columns)
    layout = model.models[0].even_layout(costed.parts[0], 0)
    step, stages = model.cost_layout(costed, 0, layout, (0, 0, 1, 1))
    limits = [model.jobs[part].hbm_limit_bytes for part in (0, 0, 1, 1)]
    shares = stages[:, f.STAGE_PEAK] / limits
    assert step[f.STEP_PEAK_STAGE] == np.argmax(shares) >= 2
