"""Stages on several machines: equal ones cost what one cluster does, unlike ones what each stage's
GPU does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost import fields as f
from planner.job.job import Job
from planner.job.pool import parse_pool
from planner.predict.cost_model import CostedShapes, CostModel
from tests.configurations import even_counts
from tests.cost.jobs import COLUMNS, make_job

SHAPES = [
    {"tp": 4, "dp": 2, "pp": 4, "grad_acc": 16, "zero": 1},
    {"tp": 8, "dp": 1, "pp": 4, "vpp": 2, "grad_acc": 8},
    {"tp": 2, "cp": 2, "dp": 2, "pp": 4, "grad_acc": 4, "zero": 1, "recompute": 1},
]


def pool_job(gpus: str) -> Job:
    pool = parse_pool(gpus)
    return replace(make_job("llama-3-8b", "8xH100"), cluster=pool.worlds()[0], pool=pool)


def costed(model: CostModel, shape: dict[str, int]) -> CostedShapes:
    """A shape with its stages on each of the places that it may have."""
    pool, pp = model.job.pool, shape["pp"]
    places = (0,) if pool is None else pool.places_of(pp)
    defaults = dict.fromkeys(COLUMNS, 1) | {"zero": 0, "recompute": 0, "shard": 0}
    columns = {name: np.full(len(places), value) for name, value in (defaults | shape).items()}
    return model.cost_shapes(columns | {"place": np.array(places)})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("compiled", [True, False])
def test_equal_machines_cost_what_one_cluster_does(shape: dict[str, int], compiled: bool) -> None:
    """To the last bit: the step, its stages, and the bounds."""
    one = CostModel(make_job("llama-3-8b", "32xH100"), compiled=compiled)
    two = CostModel(pool_job("16xH100+16xH100"), compiled=compiled)
    alone, divided = costed(one, shape), costed(two, shape)
    assert len(two.machines) == 2
    assert len(divided.steps) == 1
    np.testing.assert_array_equal(divided.steps, alone.steps)
    layout = even_counts(one, alone, 0)
    for found, expected in zip(
        two.cost_layout(divided, 0, layout), one.cost_layout(alone, 0, layout), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_stages_cost_what_their_own_gpu_does() -> None:
    model = CostModel(pool_job("16xH100+16xA100"))
    both, alone = costed(model, SHAPES[0]), [costed(one, SHAPES[0]) for one in model.machines]
    assert [model.place(both, row) for row in range(2)] == [[0, 0, 1, 1], [1, 1, 0, 0]]
    layout = even_counts(model, both, 0)
    _, stages = model.cost_layout(both, 0, layout)
    fast, slow = (
        one.cost_layout(shapes, 0, layout)[1]
        for one, shapes in zip(model.machines, alone, strict=True)
    )
    seconds = [f.STAGE_FORWARD_S, f.STAGE_BACKWARD_S]
    np.testing.assert_array_equal(stages[:2, seconds], fast[:2, seconds])
    np.testing.assert_array_equal(stages[2:, seconds], slow[2:, seconds])


def test_a_mixed_pool_lies_between_its_machines() -> None:
    model = CostModel(pool_job("16xH100+16xA100"))
    both, alone = costed(model, SHAPES[0]), [costed(one, SHAPES[0]) for one in model.machines]
    fast, slow = (float(one.steps[0, f.STEP_TIME]) for one in alone)
    for step in both.steps:
        assert fast < step[f.STEP_TIME] < slow * 1.001
        assert step[f.STEP_TIME_BOUND] <= step[f.STEP_TIME]


def test_even_layouts_are_costed_as_given_ones() -> None:
    model = CostModel(pool_job("16xH100+16xA100-40GB"))
    both = costed(model, SHAPES[2])
    for row, step in enumerate(both.steps):
        given, stages = model.cost_layout(both, row, even_counts(model, both, row))
        columns = [f.STEP_TIME, f.STEP_PEAK_BYTES, f.STEP_PEAK_STAGE]
        np.testing.assert_allclose(given[columns], step[columns], rtol=1e-12)
        peaks = stages[:, f.STAGE_PEAK] * np.array(model.memory_scales)[model.place(both, row)]
        assert model.peaks(both)[row] == pytest.approx(peaks.max(), rel=1e-12)
        assert step[f.STEP_PEAK_BOUND] <= peaks.max()


def test_the_peak_is_of_the_stage_with_the_least_room() -> None:
    """40 GB boards run short before 80 GB ones that hold more."""
    model = CostModel(pool_job("16xH100+16xA100-40GB"))
    both = costed(model, SHAPES[0])
    step, stages = model.cost_layout(both, 0, even_counts(model, both, 0))
    limits = [model.machines[at].job.hbm_limit_bytes for at in model.place(both, 0)]
    shares = stages[:, f.STAGE_PEAK] / limits
    assert step[f.STEP_PEAK_STAGE] == np.argmax(shares) >= 2
    assert step[f.STEP_PEAK_BYTES] < stages[:, f.STAGE_PEAK].max()
