"""Capacities of stages and the slowest stage's least time, against counting."""

from __future__ import annotations

import random

import numpy as np
import pytest

from planner.cost import bounds as b
from planner.cost import fields as f
from planner.cost._jit import rows
from planner.cost.linear_memory import vocab_counts
from planner.cost.phase_records import GROUP_ROW
from planner.cost.stage import fill_stage, stage_memory
from planner.cost.tables import Array
from planner.predict.cost_model import CostModel
from tests.cost.jobs import cost, grid_of, key_of, make_job


def drawn(rng: random.Random) -> tuple[Array, Array]:
    """A stage without layers and a layer, in small whole numbers."""
    stage, layer = np.zeros(b.STAGE_BOUND_COLUMNS), np.zeros(b.LAYER_COLUMNS)
    for column in range(b.STAGE_BOUND_COLUMNS):
        stage[column] = rng.randint(0, 6)
    for column in range(b.LAYER_COLUMNS):
        layer[column] = rng.randint(0, 3)
    layer[b.LAYER_SECONDS], layer[b.LAYER_PERSISTENT] = rng.randint(1, 5), rng.randint(1, 4)
    layer[b.LAYER_SAVED] += layer[b.LAYER_SAVED_RECOMPUTED]
    return stage, layer


def holds(
    stage: Array, layer: Array, recompute: int, count: int, seconds: float, limit: float
) -> bool:
    """Whether so many layers fit, some of them recomputed, in hundredths of a layer."""
    all_again = recompute == b.RECOMPUTE_ALL
    busy = layer[b.LAYER_WORKING_RECOMPUTED if all_again else b.LAYER_WORKING]
    work = max(stage[b.STAGE_VOCAB], busy + layer[b.LAYER_GATHER])
    each = layer[b.LAYER_PERSISTENT] + stage[b.STAGE_DEFERRED] * layer[b.LAYER_WEIGHT_SAVED]
    saved, light = layer[b.LAYER_SAVED], layer[b.LAYER_SAVED_RECOMPUTED]
    updates = stage[b.STAGE_OPTIMIZER_BYTES] + count * layer[b.LAYER_OPTIMIZER_BYTES]
    parts = {b.RECOMPUTE_NONE: [0], b.RECOMPUTE_ALL: [100], b.RECOMPUTE_SOME: range(101)}
    return updates <= limit and any(
        stage[b.STAGE_SECONDS]
        + count * layer[b.LAYER_SECONDS]
        + (0.0 if all_again else count * part / 100 * layer[b.LAYER_RECOMPUTE])
        <= seconds + 1e-9
        and stage[b.STAGE_BYTES]
        + work
        + count * each
        + stage[b.STAGE_FLIGHT] * count * (saved - part / 100 * (saved - light))
        <= limit + 1e-9
        for part in parts[recompute]
    )


@pytest.mark.parametrize("recompute", [b.RECOMPUTE_NONE, b.RECOMPUTE_ALL, b.RECOMPUTE_SOME])
def test_a_stage_holds_as_many_layers_as_counting_finds(recompute: int) -> None:
    rng = random.Random(recompute)
    found = set()
    for _ in range(100):
        stage, layer = drawn(rng)
        seconds, limit = rng.randint(0, 60), rng.randint(20, 120)
        counted = [n for n in range(1, 61) if holds(stage, layer, recompute, n, seconds, limit)]
        capacity = b.stage_capacity(stage, layer, recompute, seconds, limit)
        # A share of layers recomputed finer than hundredths may fit one more.
        more = 1 if recompute == b.RECOMPUTE_SOME else 0
        most = max(counted, default=0)
        assert most <= max(0, capacity) <= most + more, (stage, layer, seconds, limit)
        found.add(most)
    assert len(found) > 8


@pytest.mark.parametrize("framework", ["megatron-core", "torchtitan", "deepspeed"])
@pytest.mark.parametrize("zero", [1, 2])
def test_a_stage_without_layers_holds_what_the_account_of_a_step_says(
    framework: str, zero: int
) -> None:
    """The last of four, all its phases; the first leaves out the embedding's."""
    model = CostModel(make_job("llama-3-8b", "16xH100", framework))
    costed, _ = cost(model, pp=4, dp=4, zero=zero, grad_acc=8)
    inputs = (model.job_inputs, model.framework_inputs)
    costs = rows(costed.piece_costs(0), f.PIECE_ROW)
    of_shape = (key_of(costed), grid_of(costed), *inputs)
    stages = np.zeros((4, b.STAGE_BOUND_COLUMNS))
    b.empty_stages(np.zeros((3, b.TERM_COLUMNS)), costs, *of_shape, stages)
    counts = vocab_counts(4, model.job_inputs, model.framework_inputs.schedule, 0.0)
    holds, found = np.zeros(1, GROUP_ROW)[0], rows(np.zeros(f.STAGE_COLUMNS), f.STAGE_ROW)
    for stage, bound in enumerate(stages):
        fill_stage(stage, stage, counts, 0 * counts, costs, *of_shape, holds)
        stage_memory(stage, stage, holds, counts, 0 * counts, costs, *of_shape, found)
        reserved = found.allocated + found.fragmentation
        weighed = reserved / (1.0 + model.framework_inputs.fragmentation)
        held = max(bound[b.STAGE_BYTES] + bound[b.STAGE_VOCAB], bound[b.STAGE_OPTIMIZER_BYTES])
        assert held <= weighed * (1.0 + 1e-12)
        assert held == pytest.approx(weighed) or stage == 0


def test_the_slowest_stage_is_no_quicker_than_the_layers_allow() -> None:
    """All layers fit at the bound, and not in a thousandth less, under each limit in turn."""
    rng, bound = random.Random(3), 0
    for _ in range(100):
        layer = drawn(rng)[1]
        stages = np.array([drawn(rng)[0] for _ in range(3)])
        capacities, wider = np.zeros((3, b.CAPACITY_COLUMNS)), np.zeros(2)
        recompute, layers = rng.choice([b.RECOMPUTE_NONE, b.RECOMPUTE_SOME]), rng.randint(3, 20)
        alone, low_s = float(rng.randint(0, 1)), float(rng.randint(0, 4))
        for limit in sorted((rng.uniform(30.0, 400.0) for _ in range(3)), reverse=True):
            found = b.slowest_stage_bound_s(
                stages, layer, recompute, limit, layers, 1.0, alone, low_s, wider, capacities
            )
            fit = [
                sum(counts) >= layers and min(counts[0] + alone, counts[1], counts[2] + alone) >= 1
                for seconds in (1e6, found * (1.0 + 1e-9), found * 0.999)
                for counts in [
                    [b.stage_capacity(one, layer, recompute, seconds, limit) for one in stages]
                ]
            ]
            assert fit[:2] == 2 * [found < np.inf]
            assert found >= low_s
            assert found in (low_s, np.inf) or not fit[2]
            bound += low_s < found < np.inf
    assert bound > 50
