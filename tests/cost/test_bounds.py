"""Capacities of stages and the slowest stage's least time, against counting."""

from __future__ import annotations

import random
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from planner.cost import bounds as b
from planner.cost import fields as f
from planner.cost import tight_bounds as t
from planner.cost._jit import rows
from planner.cost.linear_memory import vocab_counts
from planner.cost.memory import outside_bytes
from planner.cost.phase_records import GROUP_ROW
from planner.cost.stage import fill_stage, stage_memory
from planner.cost.stage_sums import least_together
from planner.cost.step import StepFrame
from planner.cost.step_bounds import peak_bound_bytes
from planner.cost.tables import Array
from planner.predict.cost_model import CostModel
from tests.cost.jobs import cost, grid_of, key_of, make_job
from tests.search.brute import framework_inputs


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


def most_layers(stage: Array, layer: Array, recompute: int, seconds: float, limit: float) -> float:
    """Most layers that one stage can hold within `seconds` and `limit` bytes of live tensors."""
    capacity = np.zeros(b.CAPACITY_COLUMNS)
    b.fill_capacity(stage, layer, recompute, limit, capacity)
    return b.layers_within(capacity, seconds)


@pytest.mark.parametrize("recompute", [b.RECOMPUTE_NONE, b.RECOMPUTE_ALL, b.RECOMPUTE_SOME])
def test_a_stage_holds_as_many_layers_as_counting_finds(recompute: int) -> None:
    rng = random.Random(recompute)
    found = set()
    for _ in range(100):
        stage, layer = drawn(rng)
        seconds, limit = rng.randint(0, 60), rng.randint(20, 120)
        counted = [n for n in range(1, 61) if holds(stage, layer, recompute, n, seconds, limit)]
        capacity = most_layers(stage, layer, recompute, seconds, limit)
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
    b.empty_stages(np.zeros((3, b.TERM_COLUMNS)), costs, *of_shape, np.zeros(4), 0, stages)
    counts = vocab_counts(4, model.job_inputs, model.framework_inputs.schedule, 0.0)
    holds, found = np.zeros(1, GROUP_ROW)[0], rows(np.zeros(f.STAGE_COLUMNS), f.STAGE_ROW)
    for stage, bound in enumerate(stages):
        fill_stage(stage, stage, counts, 0 * counts, costs, *of_shape, holds)
        stage_memory(stage, stage, holds, counts, 0 * counts, costs, *of_shape, found)
        reserved = found.peak - outside_bytes(*of_shape)
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
                stages,
                np.zeros(3),
                layer[None],
                recompute,
                np.array([limit]),
                layers,
                1.0,
                alone,
                low_s,
                wider,
                capacities,
            )
            fit = [
                sum(counts) >= layers and min(counts[0] + alone, counts[1], counts[2] + alone) >= 1
                for seconds in (1e6, found * (1.0 + 1e-9), found * 0.999)
                for counts in [
                    [most_layers(one, layer, recompute, seconds, limit) for one in stages]
                ]
            ]
            assert fit[:2] == 2 * [found < np.inf]
            assert found >= low_s
            assert found in (low_s, np.inf) or not fit[2]
            bound += low_s < found < np.inf
    assert bound > 50


def counted_s(
    stages: Array, layer: Array, each: int, limit: float, total: int, alone: float
) -> float:
    """Least seconds of the slowest stage if each recomputes `each` of its layers or all it has."""
    kept = layer[b.LAYER_SAVED] - layer[b.LAYER_SAVED_RECOMPUTED]
    seconds = np.full((len(stages), total + 1), np.inf)
    for row, stage in enumerate(stages):
        one = layer[b.LAYER_PERSISTENT] + stage[b.STAGE_DEFERRED] * layer[b.LAYER_WEIGHT_SAVED]
        one += stage[b.STAGE_FLIGHT] * layer[b.LAYER_SAVED]
        busy = layer[b.LAYER_WORKING] + layer[b.LAYER_GATHER]
        ends = row in (0, len(stages) - 1)
        for count in range(0 if alone and ends else 1, total + 1):
            again = min(each, count)
            held = stage[b.STAGE_BYTES] + count * one - again * stage[b.STAGE_FLIGHT] * kept
            held += max(stage[b.STAGE_VOCAB], busy if count else 0.0)
            update = stage[b.STAGE_OPTIMIZER_BYTES] + count * layer[b.LAYER_OPTIMIZER_BYTES]
            if max(held, update) <= limit:
                spent = count * layer[b.LAYER_SECONDS] + again * layer[b.LAYER_RECOMPUTE]
                seconds[row, count] = stage[b.STAGE_SECONDS] + spent
    for limit_s in sorted(set(seconds[seconds < np.inf])):
        most = [max(np.flatnonzero(row <= limit_s), default=-np.inf) for row in seconds]
        if sum(most) >= total:
            return float(limit_s)
    return np.inf


@pytest.mark.parametrize("each", [0, 1, 3])
def test_with_one_kind_of_layer_the_sharp_bound_is_what_counting_finds(each: int) -> None:
    """None recompute, or so many of every stage's one block."""
    rng, found, pp, total = random.Random(each), [], 3, 11
    recompute = t.RECOMPUTE_SHARED if each else b.RECOMPUTE_NONE
    prefix = np.arange(total + 1.0)[None]
    for _ in range(60):
        layers = drawn(rng)[1][None]
        stages = np.array([drawn(rng)[0] for _ in range(pp)])
        limit, alone = rng.uniform(30.0, 200.0), float(rng.randint(0, 1))
        mean, deficit = t.mean_layer(layers[None], prefix)
        assert mean[0] == pytest.approx(layers[0])
        bound = t.slowest_stage_s(
            stages, np.zeros(pp), layers[None], mean, deficit, recompute, float(each), 1.0,
            pp - 1, 0.0, np.array([limit]), alone, 0.5, np.zeros((pp, total + 1)),
            np.zeros((2, total + 1)),
        )  # fmt: skip
        expected = counted_s(stages, layers[0], each, limit, total, alone)
        assert bound == pytest.approx(expected, rel=1e-6)
        found.append(bound)
    assert 10 < sum(np.isfinite(found)) < 60


def test_a_step_in_which_every_block_recomputes_some_of_its_layers() -> None:
    """Against all sizes of the largest of two blocks a stage: two seconds a layer, one again."""
    layers = np.zeros((1, b.LAYER_COLUMNS))
    layers[0, b.LAYER_SECONDS], layers[0, b.LAYER_RECOMPUTE] = 2.0, 1.0
    # Three of at most c layers of a block, 12 in all; five micro-batches, half a bubble.
    least = min(
        5.0 * stage + 0.5 * (24.0 + 12.0 * min(1.0, 3.0 / c) - stage)
        for c in range(1, 13)
        for stage in [max(7.0, 2.0 * c + min(3.0, c))]
    )
    assert t.shared_span_s(7.0, 24.0, layers[None], 3.0, 2.0, 12, 5.0, 0.5) == pytest.approx(least)


def test_the_heads_stage_may_recompute_fewer() -> None:
    """Four seconds, one a layer and one more if it runs again: two layers, and four beside the
    head, where none does."""
    stages, layers = np.zeros((2, b.STAGE_BOUND_COLUMNS)), np.zeros((1, b.LAYER_COLUMNS))
    layers[0, [b.LAYER_SECONDS, b.LAYER_RECOMPUTE]] = 1.0
    again = np.array([np.arange(8.0), np.zeros(8)])
    for total, fit in ((6, True), (7, False)):
        fits = np.array([[0, 1, 2, 2, 2, 2, 2, 2], range(8)], dtype=float)[:, : total + 1]
        found = t._fit(
            stages, np.zeros(2), fits, again[:, : total + 1], layers[None], layers, 0.0 * layers,
            t.RECOMPUTE_SHARED, 1.0, 1, 0.0, 4.0,
        )  # fmt: skip
        assert found is fit


def test_the_mean_stage_keeps_as_little_as_the_last() -> None:
    """Four stages of which the last has one micro-batch in flight: 1F1B, gradients in buffers."""
    framework = framework_inputs(persistent_gradients=1.0, workspace_bytes=7.0, fragmentation=0.5)
    frame = StepFrame(1.0, 0.0, 0.0, 800.0, 400.0, 4.0)
    grid = SimpleNamespace(pp=4.0, vpp=1.0, grad_acc=8.0)
    assert peak_bound_bytes(frame, 80.0, 7.0, grid, framework) == (1280.0 + 0.5 * 80.0) / 4.0 + 7.0


def test_stages_take_least_together_as_all_choices_show() -> None:
    """Places that add up to six, on three stages of two to four options each."""
    rng = random.Random(5)
    for _ in range(50):
        counts = [rng.randint(2, 4) for _ in range(3)]
        ends = np.cumsum([0, *counts])
        options = np.column_stack([ends[:-1], ends[1:]])
        places = np.array([rng.randint(0, 3) for _ in range(ends[-1])])
        seconds = np.array([rng.choice([1.0, 2.0, 5.0, 7.0, np.inf]) for _ in places])
        reached, chosen = np.zeros((4, 7)), np.zeros(3, dtype=np.int64)
        least_together(options, places, seconds, False, reached, chosen)
        choices = [
            seconds[list(choice)].sum()
            for choice in product(*(range(*pair) for pair in options))
            if places[list(choice)].sum() == 6
        ]
        assert reached[-1, -1] == min(choices, default=np.inf)
        if reached[-1, -1] < np.inf:
            assert (places[chosen].sum(), seconds[chosen].sum()) == (6, reached[-1, -1])


def test_stages_on_two_parts_hold_what_each_part_holds() -> None:
    """All layers fit at the bound, each stage by its own part, and not in a thousandth less."""
    rng, bound = random.Random(5), 0
    for _ in range(60):
        layers = np.array([drawn(rng)[1] for _ in range(2)])
        stages = np.array([drawn(rng)[0] for _ in range(3)])
        parts, live = np.array([0, 1, 1]), np.array([rng.uniform(30.0, 400.0) for _ in range(2)])
        total = float(rng.randint(3, 20))
        found = b.slowest_stage_bound_s(
            stages, parts, layers, b.RECOMPUTE_SOME, live, total, 1.0, 0.0, 0.0, np.zeros(2),
            np.zeros((3, b.CAPACITY_COLUMNS)),
        )  # fmt: skip
        counts = [
            [
                most_layers(stages[stage], layers[part], b.RECOMPUTE_SOME, seconds, live[part])
                for stage, part in enumerate(parts)
            ]
            for seconds in (1e6, found * (1.0 + 1e-9), found * 0.999)
        ]
        fit = [sum(each) >= total and min(each) >= 1 for each in counts]
        assert fit[:2] == 2 * [found < np.inf]
        assert found in (0.0, np.inf) or not fit[2]
        bound += 0.0 < found < np.inf
    assert bound > 20
