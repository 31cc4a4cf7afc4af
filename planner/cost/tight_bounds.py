"""Tighter lower bounds on the step time of one shape, for the shapes that a search visits first.

`planner.cost.bounds` takes every layer at the cost of the cheapest kind, and lets any number of
layers of a stage recompute. Two more facts about layouts are used here:

* A block contains consecutive layers of the model. Over the whole sequence of kinds their cost per
  layer has a mean c, and no run of n layers costs less than n*c - D, where D is the largest deficit
  of any run. A stage of v blocks costs at least n*c - v*D.
* Under Megatron's block method every block recomputes the same number N of its layers, or all it
  has. So the bound is the least over N, with N the same on all stages. The blocks of a stage differ
  by at most one layer, the head's block by as many as take its time (rule chunks-balanced).
"""

from __future__ import annotations

import math

import numpy as np

from planner.cost._jit import Row, Rows, jit
from planner.cost.bounds import (
    BISECTIONS,
    LAYER_COLUMNS,
    LAYER_GATHER,
    LAYER_OPTIMIZER_BYTES,
    LAYER_PERSISTENT,
    LAYER_RECOMPUTE,
    LAYER_SAVED,
    LAYER_SAVED_RECOMPUTED,
    LAYER_SECONDS,
    LAYER_WEIGHT_SAVED,
    LAYER_WORKING,
    LAYER_WORKING_RECOMPUTED,
    RECOMPUTE_ALL,
    RECOMPUTE_NONE,
    RECOMPUTE_SOME,
    STAGE_BYTES,
    STAGE_DEFERRED,
    STAGE_FLIGHT,
    STAGE_OPTIMIZER_BYTES,
    STAGE_SECONDS,
    STAGE_VOCAB,
    fewest_layers,
    layout_bounds_s,
    live_room,
    model_seconds,
    shape_bubble_share,
    shape_parts,
)
from planner.cost.columns import greatest, greatest_of, least, least_of, weighted
from planner.cost.linear import (
    SCALAR_FIXED_S,
    TERM_OPTIMIZER,
)
from planner.cost.schedule import head_stage
from planner.cost.tables import Array, JobInputs

# A further code besides RECOMPUTE_* of `planner.cost.bounds`: the same number in every block.
RECOMPUTE_SHARED = 3


@jit
def largest_deficit(layers: Array, column: int, prefix: Array, mean: float) -> float:
    """The most by which any run of n consecutive layers costs less than n · `mean`, in a column of
    `layers`; at least 0 (the empty run).

    `prefix[kind, n]`: layers of a kind among the first n. `mean`: the column's mean over all layers
    of the model.
    """
    most = running = 0.0
    for layer in range(prefix.shape[1] - 1):
        item = 0.0
        for kind in range(prefix.shape[0]):
            item += (prefix[kind, layer + 1] - prefix[kind, layer]) * layers[kind, column]
        running = max(0.0, running + mean - item)
        most = max(most, running)
    return most


@jit
def mean_layer(layers: Array, prefix: Array) -> tuple[Array, Array]:
    """([machine, LAYER_*] means over the sequence of layers, [machine, LAYER_*] largest
    deficits)."""
    count, machines = prefix.shape[1] - 1, layers.shape[0]
    mean, deficit = np.zeros((machines, LAYER_COLUMNS)), np.zeros((machines, LAYER_COLUMNS))
    for at in range(machines):
        for column in range(LAYER_COLUMNS):
            for kind in range(prefix.shape[0]):
                mean[at, column] += prefix[kind, count] * layers[at, kind, column] / count
            deficit[at, column] = largest_deficit(layers[at], column, prefix, mean[at, column])
    return mean, deficit


@jit
def most_freed(layers: Array) -> float:
    """Most bytes that recomputing one layer of any kind frees."""
    freed = 0.0
    for kind in range(layers.shape[0]):
        freed = max(freed, layers[kind, LAYER_SAVED] - layers[kind, LAYER_SAVED_RECOMPUTED])
    return float(freed)


@jit
def shared_layers(layers: float, blocks: float, each: float) -> float:
    """Number of layers that recompute if `layers` are divided as evenly as possible into `blocks`,
    and each block recomputes `each` layers or all that it has."""
    base = float(math.floor(layers / blocks))
    larger = layers - base * blocks
    return float(larger * min(each, base + 1.0) + (blocks - larger) * min(each, base))


@jit
def fewest_shared(
    layers: float, blocks: float, each: float, head_layers: float, lone: float
) -> float:
    """Lower bound on `shared_layers` if one block, the head's, may have up to `head_layers` layers
    less than the others; `lone`: 1 if it may have no layers at all."""
    if blocks <= 1.0:
        return float(min(each, layers))
    fewest = shared_layers(layers, blocks, each)
    others = blocks - 1.0
    for last in range(int(max(0.0, 1.0 - lone)), int(layers / blocks) + 1):
        left = layers - last
        if math.ceil(left / others) - last <= max(1.0, head_layers):
            fewest = min(fewest, min(each, float(last)) + shared_layers(left, others, each))
    return float(fewest)


@jit
def fitting_layers(
    stage: Array, layers: Array, mean: Array, deficit: Array, recompute: int, shared: Array,
    blocks: float, limit_bytes: float, fits: Array,
) -> None:  # fmt: skip
    """Fill fits[n]: upper bound on the layers, at most n, that fit in a stage's memory; negative if
    the stage does not fit even without layers.

    `shared[n]`: the most of n layers that recompute, under RECOMPUTE_SHARED.
    """
    flight, deferred = stage[STAGE_FLIGHT], stage[STAGE_DEFERRED]
    some = recompute not in (RECOMPUTE_NONE, RECOMPUTE_ALL)
    saved = LAYER_SAVED_RECOMPUTED if recompute == RECOMPUTE_ALL else LAYER_SAVED
    per_layer = mean[LAYER_PERSISTENT] + deferred * mean[LAYER_WEIGHT_SAVED]
    per_layer += flight * mean[saved]
    short = deficit[LAYER_PERSISTENT] + deferred * deficit[LAYER_WEIGHT_SAVED]
    short += flight * deficit[saved]
    freed = 0.0
    if some:
        freed = flight * most_freed(layers)
    busy = LAYER_WORKING_RECOMPUTED if recompute == RECOMPUTE_ALL else LAYER_WORKING
    work = max(stage[STAGE_VOCAB], least(layers, busy) + least(layers, LAYER_GATHER))
    update = stage[STAGE_OPTIMIZER_BYTES] - blocks * deficit[LAYER_OPTIMIZER_BYTES]
    best = -1.0
    for count in range(fits.shape[0]):
        again = float(count) if some else 0.0
        if recompute == RECOMPUTE_SHARED:
            again = shared[count]
        held = (
            stage[STAGE_BYTES]
            + count * per_layer
            - min(float(count), blocks) * short
            - again * freed
        )
        held += work if count > 0 else stage[STAGE_VOCAB]
        in_update = update + count * mean[LAYER_OPTIMIZER_BYTES]
        if held <= limit_bytes and in_update <= limit_bytes:
            best = float(count)
        fits[count] = best


@jit
def layers_in_time(
    seconds: float, stage: Array, layers: Array, mean: Array, deficit: Array, recompute: int,
    blocks: float, again: Array,
) -> int:  # fmt: skip
    """Upper bound on the number of layers that a stage can run forward and backward in `seconds`;
    -1 if the stage takes longer even without layers.

    `again[n]`: the fewest of n layers that recompute, under RECOMPUTE_SHARED.
    """
    left = seconds - stage[STAGE_SECONDS]
    if left < 0.0:
        return -1
    left += blocks * deficit[LAYER_SECONDS]
    count = min(again.shape[0] - 1, int(left / mean[LAYER_SECONDS] + 1e-9))
    if recompute != RECOMPUTE_SHARED:
        return count
    again_s = least(layers, LAYER_RECOMPUTE)
    while count > 0:
        if count * mean[LAYER_SECONDS] + again[count] * again_s <= left * (1.0 + 1e-12):
            return count
        count -= 1
    return 0


@jit
def slowest_stage_s(
    stages: Array, place: Array, layers: Array, mean: Array, deficit: Array, recompute: int,
    each: float, blocks: float, head: int, head_layers: float, live_bytes: Array,
    standalone_vocab: float, low_s: float, fits: Array, again: Array,
) -> float:  # fmt: skip
    """Lower bound on the seconds of the slowest stage, at least `low_s`; infinite if the layers do
    not fit the memory.

    `place[stage]`: its machine. `each`: number of layers that every block recomputes, under
    RECOMPUTE_SHARED. `head`: number of the head's stage. Working arrays: `fits[stage, n]`,
    `again[2, n]`.
    """
    total = fits.shape[1] - 1
    if not _in_memory(
        stages, place, layers, mean, deficit, recompute, each, blocks, live_bytes,
        standalone_vocab, fits, again[0],
    ):  # fmt: skip
        return np.inf
    if recompute == RECOMPUTE_SHARED:
        for count in range(total + 1):
            for fewer in range(2):
                again[fewer, count] = fewest_shared(
                    float(count), blocks, each, fewer * head_layers, standalone_vocab
                )
    if _fit(stages, place, fits, again, layers, mean, deficit, recompute, blocks, head,
            standalone_vocab, low_s):  # fmt: skip
        return low_s
    again_s = greatest_of(layers, LAYER_RECOMPUTE)
    high_s = low_s + greatest(stages, STAGE_SECONDS)
    high_s += (greatest_of(layers, LAYER_SECONDS) + again_s) * total
    for _ in range(BISECTIONS):
        middle_s = 0.5 * (low_s + high_s)
        if _fit(stages, place, fits, again, layers, mean, deficit, recompute, blocks, head,
                standalone_vocab, middle_s):  # fmt: skip
            high_s = middle_s
        else:
            low_s = middle_s
    return low_s


@jit
def _in_memory(
    stages: Array, place: Array, layers: Array, mean: Array, deficit: Array, recompute: int,
    each: float, blocks: float, live_bytes: Array, standalone_vocab: float, fits: Array,
    again: Array,
) -> bool:  # fmt: skip
    """Whether all layers together fit in the memory of the stages. Fills `fits[stage, n]`: the most
    layers, out of n, that fit on a stage.

    Working array: `again[n]`.
    """
    pp, total = stages.shape[0], fits.shape[1] - 1
    if recompute == RECOMPUTE_SHARED:
        for count in range(total + 1):
            again[count] = shared_layers(float(count), blocks, each)
    most = 0.0
    for stage in range(pp):
        at = int(place[stage])
        fitting_layers(
            stages[stage], layers[at], mean[at], deficit[at], recompute, again, blocks,
            live_bytes[at], fits[stage],
        )  # fmt: skip
        if fits[stage, total] < fewest_layers(stage, pp, blocks, standalone_vocab):
            return False
        most += fits[stage, total]
    return bool(most >= total)


@jit
def _fit(
    stages: Array, place: Array, fits: Array, again: Array, layers: Array, mean: Array,
    deficit: Array, recompute: int, blocks: float, head: int, standalone_vocab: float,
    seconds: float,
) -> bool:  # fmt: skip
    """Whether all layers can be placed on stages that take at most `seconds` each.

    `again[n]`: fewest of n layers that recompute; if it has two rows the second is for the head's
    stage.
    """
    pp, total = stages.shape[0], fits.shape[1] - 1
    found = 0.0
    for stage in range(pp):
        at = int(place[stage])
        count = layers_in_time(
            seconds, stages[stage], layers[at], mean[at], deficit[at], recompute, blocks,
            again[1 if stage == head else 0],
        )  # fmt: skip
        capacity = fits[stage, count] if count >= 0 else -1.0
        if capacity < fewest_layers(stage, pp, blocks, standalone_vocab):
            return False
        found += capacity
    return bool(found >= total)


@jit
def shared_span_s(
    slowest_s: float, plain_s: float, layers: Array, each: float, blocks: float, count: int,
    grad_acc: float, share: float,
) -> float:  # fmt: skip
    """Lower bound on the seconds of a step's forward and backward passes if every block recomputes
    `each` of its layers, or all that it has.

    `slowest_s`: lower bound on the slowest stage's seconds. `plain_s`: seconds of the whole model
    without recomputation. `layers[machine, kind, LAYER_*]`: costs of a layer. `blocks`: number of
    blocks of one stage. `count`: number of layers of the model. `share`: from `bubble_share`.

    It is the least over c, the number of layers in the largest block. At least the share each/c of
    all layers recomputes. Besides a block of c layers its stage has others of at least c - 1,
    except for the one with the head.
    """
    others = max(0.0, blocks - 2.0)
    again_s, layer_s = least_of(layers, LAYER_RECOMPUTE), least_of(layers, LAYER_SECONDS)
    least_s = np.inf
    for largest in range(1, count + 1):
        beside = others * (largest - 1.0)
        remade = min(each, float(largest)) + others * min(each, largest - 1.0)
        stage_time_s = max(slowest_s, (largest + beside) * layer_s + remade * again_s)
        again = count * min(1.0, each / largest)
        total_s = plain_s + again * again_s
        least_s = min(least_s, grad_acc * stage_time_s + share * max(0.0, total_s - stage_time_s))
    return least_s


@jit
def fill_tight_bounds(
    grid: Row, recompute: int, limit_bytes: float, key: Row, costs: Rows, prefix: Array,
    totals: Array, job: JobInputs, frameworks: Rows, gpus: Rows, networks: Rows, place: Array,
    out: Array,
) -> None:  # fmt: skip
    """Fill out[n - 1], s: no layout of a shape within `limit_bytes` (reserved, context included) in
    which every block recomputes n of its layers, or all it has, has a shorter step.

    `recompute`: a RECOMPUTE_* code; all but RECOMPUTE_SHARED have one bound. Not for schedules with
    two copies of the model.
    """
    framework, machines = frameworks[0], frameworks.shape[0]
    terms, scalars, stages, layers = shape_parts(
        grid, recompute, key, costs, job, frameworks, gpus, networks, place
    )
    pp, blocks, grad_acc = grid.pp, grid.vpp, grid.grad_acc
    plain_s = model_seconds(terms, totals, recompute, job)
    code = RECOMPUTE_SOME if recompute == RECOMPUTE_SHARED else recompute
    share = shape_bubble_share(grid, terms, totals, plain_s, code, framework, machines)
    # No less than `LayoutContext.head_layers`.
    head_layers = float(math.ceil(stages[-1, STAGE_SECONDS] / least_of(layers, LAYER_SECONDS)))
    live_bytes = np.zeros(machines)
    live_room(limit_bytes, scalars, frameworks, gpus, live_bytes)
    update_s = weighted(totals, terms, TERM_OPTIMIZER) / pp
    head = head_stage(framework.schedule, int(pp))
    rest_s = update_s + greatest(scalars, SCALAR_FIXED_S)
    mean, deficit = mean_layer(layers, prefix)
    fits, again = np.zeros((int(pp), prefix.shape[1])), np.zeros((2, prefix.shape[1]))
    least_s = np.inf
    for each in range(1, out.shape[0] + 1):
        if recompute == RECOMPUTE_SHARED and least_s < np.inf:
            # The slowest stage is not faster than the mean one, so this count cannot be the best.
            out[each - 1] = rest_s + shared_span_s(
                plain_s / pp, plain_s, layers, float(each), blocks, job.layers, grad_acc, share
            )
            if out[each - 1] >= least_s:
                continue
        slowest_s = slowest_stage_s(
            stages, place, layers, mean, deficit, recompute, float(each), blocks, head,
            head_layers, live_bytes, job.standalone_vocab, plain_s / pp, fits, again,
        )  # fmt: skip
        span_s = grad_acc * slowest_s + share * (plain_s - slowest_s)
        if recompute == RECOMPUTE_SHARED and slowest_s < np.inf:
            span_s = shared_span_s(
                slowest_s, plain_s, layers, float(each), blocks, job.layers, grad_acc, share
            )
        out[each - 1] = span_s + rest_s if slowest_s < np.inf else np.inf
        least_s = min(least_s, out[each - 1])


@jit
def bound_shapes(
    shapes: Rows, recompute: Array, limits_bytes: Array, tight: bool, keys: Rows, costs: Rows,
    prefix: Array, totals: Array, job: JobInputs, frameworks: Rows, gpus: Rows, networks: Rows,
    places: Array, out: Array,
) -> None:  # fmt: skip
    """Fill lower bounds on the step time, s: out[shapes, limits]; infinite if nothing can fit.

    `recompute[shape]`: RECOMPUTE_* code. `tight`: fill out[shapes, n - 1] with `fill_tight_bounds`
    within the first limit instead.
    """
    for index in range(shapes.shape[0]):
        grid, code = shapes[index], int(recompute[index])
        key, cost, place = keys[int(grid.key)], costs[int(grid.key)], places[int(grid.place)]
        if tight:
            fill_tight_bounds(
                grid, code, limits_bytes[0], key, cost, prefix, totals, job, frameworks, gpus,
                networks, place, out[index],
            )  # fmt: skip
        else:
            layout_bounds_s(
                grid, code, limits_bytes, key, cost, totals, job, frameworks, gpus, networks,
                place, out[index],
            )  # fmt: skip
