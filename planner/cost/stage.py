"""Memory of one pipeline stage: what it holds, moment by moment, and the heaviest of them."""

from __future__ import annotations

import numpy as np

from planner.cost import fields as f
from planner.cost._jit import jit
from planner.cost.data_parallel import Grid
from planner.cost.keys import Key
from planner.cost.memory import communicator_bytes
from planner.cost.moment_records import (
    FORWARD,
    MOMENTS,
    OPTIMIZER,
    PASSES,
    LayerMaxima,
    MomentTerms,
    StageHolds,
)
from planner.cost.moments import (
    at_rest,
    exists,
    gives_back,
    gradient_per_parameter,
    is_sharded,
    keeps_weights,
    moment_terms,
    passes,
    sharded_gradients,
    total_bytes,
)
from planner.cost.schedule import Held, held_microbatches
from planner.cost.tables import Array, FrameworkInputs, JobInputs
from planner.cost.update import copies_table, largest_update_bytes, stage_extra_state


@jit
def table_copy(stage: int, counts: Array, costs: Array, job: JobInputs) -> float:
    """Parameters of the copy of the vocabulary table on a stage (`copies_table`)."""
    return float(costs[job.kinds, f.PIECE_TABLE]) if copies_table(stage, counts, job) else 0.0


@jit
def stage_parameters(
    stage: int, counts: Array, costs: Array, job: JobInputs
) -> tuple[float, float]:
    """(dense, expert) parameters of a stage, with its copy of the vocabulary table."""
    dense, expert = table_copy(stage, counts, costs, job), 0.0
    for piece in range(job.pieces):
        dense += counts[piece, stage] * costs[piece, f.PIECE_DENSE_PARAMETERS]
        expert += counts[piece, stage] * costs[piece, f.PIECE_EXPERT_PARAMETERS]
    return dense, expert


@jit
def new_gradients(dense: float, expert: float, grid: Grid, framework: FrameworkInputs) -> float:
    """Gradients that a piece leaves behind in a pass that makes them."""
    if is_sharded(grid):
        return sharded_gradients(dense, expert, grid, framework)
    return gradient_per_parameter(framework) * (dense + expert)


@jit
def layer_maxima(
    cost: Array, plain: float, again: float, key: Key, grid: Grid, framework: FrameworkInputs
) -> LayerMaxima:
    """Maxima of one kind with `plain` layers and `again` that recompute."""
    dense, expert = cost[f.PIECE_DENSE_PARAMETERS], cost[f.PIECE_EXPERT_PARAMETERS]
    kept, light = cost[f.PIECE_SAVED], cost[f.PIECE_SAVED_RECOMPUTED]
    sharded = is_sharded(grid)
    working = cost[f.PIECE_WORKING] + (0.0 if sharded else cost[f.PIECE_WEIGHT_GRADIENT])
    # A checkpoint of several layers brings back no more than the stage has.
    whole = kept + cost[f.PIECE_OFFLOADED]
    remade = working + min(cost[f.PIECE_AGAIN], (plain + again) * whole)
    gathered = 0.0
    if sharded and grid.zero == 2 and not keeps_weights(grid, framework):
        gathered = framework.weight_bytes * (dense + expert)
    made = new_gradients(dense, expert, grid, framework)
    # The last layer in backward is the stage's first, which recomputes if any does.
    last = (remade if again > 0.0 else working) - made + gathered
    if again == 0.0 or not key.modules & f.MODULE_FULL:
        last += cost[f.PIECE_CASTS]
    done = 0.0
    if gives_back(grid, framework):
        last += light if again > 0.0 else kept
        done = -(kept if plain > 0.0 else light)
    return LayerMaxima(
        dense + expert,
        working if plain > 0.0 else 0.0,
        remade if again > 0.0 else 0.0,
        last,
        done + made - gathered,
        done - gathered,
    )


@jit
def stage_maxima(
    stage: int, counts: Array, recomputed: Array, costs: Array, key: Key, grid: Grid,
    job: JobInputs, framework: FrameworkInputs,
) -> LayerMaxima:  # fmt: skip
    """Maxima over the kinds of layers on a stage; zero without layers.

    Where kinds follow each other, the first and the last layer are of the first and last kind.
    """
    largest = working = working_again = 0.0
    last = making = done = -np.inf
    for kind in range(job.kinds):
        count, again = counts[kind, stage], recomputed[kind, stage]
        if count == 0.0:
            continue
        own = layer_maxima(costs[kind], count - again, again, key, grid, framework)
        largest, working = max(largest, own.largest), max(working, own.working)
        working_again = max(working_again, own.working_again)
        if job.kinds_in_order > 0.0:
            last = own.last if last == -np.inf else last
            making, done = own.done_making, own.done
        else:
            last = max(last, own.last)
            making, done = max(making, own.done_making), max(done, own.done)
    if largest == 0.0:
        last = making = done = 0.0
    return LayerMaxima(largest, working, working_again, last, making, done)


@jit
def layer_sums(
    stage: int, counts: Array, recomputed: Array, costs: Array, key: Key, job: JobInputs
) -> tuple[float, float, float, float, float, float]:
    """(layers, bytes they keep, those of them that do not recompute keep, weight casts, casts that
    backward finds, bytes that their weight gradients read) of a stage."""
    layers = kept = plain_kept = casts = casts_kept = weight = 0.0
    for kind in range(job.kinds):
        count, again = counts[kind, stage], recomputed[kind, stage]
        layers += count
        weight += count * costs[kind, f.PIECE_WEIGHT_SAVED]
        plain_kept += (count - again) * costs[kind, f.PIECE_SAVED]
        kept += again * costs[kind, f.PIECE_SAVED_RECOMPUTED]
        casts += count * costs[kind, f.PIECE_CASTS]
        remakes = again if key.modules & f.MODULE_FULL else 0.0
        casts_kept += (count - remakes) * costs[kind, f.PIECE_CASTS]
    return layers, kept + plain_kept, plain_kept, casts, casts_kept, weight


@jit
def resident_bytes(layers: float, costs: Array, job: JobInputs) -> float:
    """Offloaded tensors that are on the GPU all the same: those of `layers` layers, on their way or
    back, of the kind with most; and what a layer that is back holds twice.

    Ignores that a stage with fewer layers in flight has fewer.
    """
    left = twice = 0.0
    for kind in range(job.kinds):
        left = max(left, costs[kind, f.PIECE_OFFLOADED_RECOMPUTED])
        twice = max(twice, costs[kind, f.PIECE_DUPLICATED])
    return layers * left + twice


@jit
def offloaded_sum(
    stage: int, counts: Array, recomputed: Array, costs: Array, job: JobInputs
) -> float:
    """Bytes of a micro-batch that the layers of a stage have on the host."""
    total = 0.0
    for kind in range(job.kinds):
        again = recomputed[kind, stage]
        total += (counts[kind, stage] - again) * costs[kind, f.PIECE_OFFLOADED]
        total += again * costs[kind, f.PIECE_OFFLOADED_RECOMPUTED]
    return total


@jit
def returned_bytes(
    stage: int, counts: Array, recomputed: Array, costs: Array, grid: Grid, job: JobInputs,
    framework: FrameworkInputs,
) -> float:  # fmt: skip
    """Offloaded tensors of a stage that are on the GPU all the same (`resident_bytes`).

    Where some layers stay, the end of each layer's backward fetches one offloaded layer, of the
    next micro-batch once all of its own are back. A micro-batch has more layers than layers to
    fetch, so copies back run ahead by as many in each, until all offloaded layers of the next
    chunk are on the GPU as its backward starts. Not so where no other micro-batch has done its
    forward (Megatron-Core 0.19.2, fine_grained_activation_offload.py, `bulk_reload`; its class,
    run through 1F1B and interleaved schedules, holds just that). Of chunks that differ by a layer
    the largest has (n + v - 1)/v of a stage's n layers in v chunks.
    """
    layers = framework.resident_layers
    held = held_microbatches(float(stage), grid.pp, grid.vpp, grid.grad_acc, framework.schedule)
    if framework.reloads_ahead == 0.0 or held.full <= 1.0:
        return resident_bytes(layers, costs, job)
    one = resident_bytes(1.0, costs, job) - resident_bytes(0.0, costs, job)
    whole = offloaded_sum(stage, counts, recomputed, costs, job) + (grid.vpp - 1.0) * one
    return whole / grid.vpp + resident_bytes(max(0.0, layers - 1.0), costs, job)


@jit
def stage_holds(
    stage: int, counts: Array, recomputed: Array, costs: Array, key: Key, grid: Grid,
    job: JobInputs, framework: FrameworkInputs,
) -> StageHolds:  # fmt: skip
    """Contents of one stage. Multi-token prediction: all modules keep, one works at a time.

    Tables shared by all layers belong to the embedding and follow the recompute mode; the ends
    themselves never run again.
    """
    dense, expert = stage_parameters(stage, counts, costs, job)
    layers, kept, plain_kept, casts, casts_kept, weight = layer_sums(
        stage, counts, recomputed, costs, key, job
    )
    first, last = job.kinds, job.kinds + 1
    mtp, loss = min(last + 1, job.pieces - 1), min(last + 2, job.pieces - 1)
    has_first, has_last = counts[first, stage], counts[last, stage]
    modules = counts[mtp, stage] if mtp > last else 0.0
    losses = counts[loss, stage] if mtp > last else 0.0
    copy = table_copy(stage, counts, costs, job)
    # The head makes the gradient of a tied copy; of any other, multi-token prediction does.
    tied = copy if job.tied_embeddings > 0.0 and has_last > 0.0 else 0.0
    head = has_last * costs[last, f.PIECE_DENSE_PARAMETERS] + tied
    shared = 0.0
    if job.tied_embeddings > 0.0 and has_first > 0.0 and has_last > 0.0:
        shared = costs[first, f.PIECE_TABLE]
    looked_up = min(modules, 1.0) * costs[first, f.PIECE_TABLE]
    largest = 0.0
    for piece in range(job.pieces):
        largest = max(largest, largest_update_bytes(costs[piece], grid, framework))
    one = min(modules, 1.0)
    alone = 0.0 if is_sharded(grid) else costs[mtp, f.PIECE_WEIGHT_GRADIENT]
    return StageHolds(
        dense,
        expert,
        layers,
        kept,
        plain_kept,
        casts,
        casts_kept,
        has_first * costs[first, f.PIECE_DENSE_PARAMETERS],
        has_first * costs[first, f.PIECE_SAVED_RECOMPUTED],
        has_last,
        head,
        head + shared,
        has_last * costs[last, f.PIECE_SAVED_RECOMPUTED],
        has_last * costs[last, f.PIECE_LOGITS],
        has_last * costs[last, f.PIECE_CASTS],
        modules * costs[mtp, f.PIECE_DENSE_PARAMETERS] + copy - tied,
        modules * costs[mtp, f.PIECE_EXPERT_PARAMETERS],
        modules * costs[mtp, f.PIECE_SAVED] + losses * costs[loss, f.PIECE_SAVED],
        modules * costs[mtp, f.PIECE_CASTS] + losses * costs[loss, f.PIECE_CASTS],
        one * (costs[mtp, f.PIECE_WORKING] + alone),
        min(losses, 1.0) * costs[loss, f.PIECE_LOGITS],
        stage_extra_state(stage, counts, costs, grid, job),
        largest,
        weight,
        has_last * costs[last, f.PIECE_WEIGHT_SAVED]
        + modules * costs[mtp, f.PIECE_WEIGHT_SAVED]
        + losses * costs[loss, f.PIECE_WEIGHT_SAVED],
        returned_bytes(stage, counts, recomputed, costs, grid, job, framework),
        resident_bytes(min(1.0, framework.resident_layers), costs, job),
        modules,
        looked_up,
        has_first * looked_up,
    )


@jit
def heaviest_moment(
    holds: StageHolds, most: LayerMaxima, held: Held, key: Key, grid: Grid, job: JobInputs,
    framework: FrameworkInputs,
) -> tuple[int, MomentTerms]:  # fmt: skip
    """The moment at which a stage holds most, and its terms."""
    own = passes(held, grid.grad_acc, framework)
    rest = at_rest(holds, key, grid, job, framework)
    best, peak, where = rest, total_bytes(rest), OPTIMIZER
    for index in range(PASSES):
        if own[index].counts == 0.0:
            continue
        for moment in range(MOMENTS - 1):
            if not exists(moment, holds, own[index], grid):
                continue
            terms = moment_terms(moment, rest, holds, most, own[index], key, grid, job, framework)
            size = total_bytes(terms)
            if size > peak:
                best, peak, where = terms, size, moment
    return where, best


@jit
def stage_memory(
    stage: int,
    counts: Array,
    recomputed: Array,
    costs: Array,
    key: Key,
    grid: Grid,
    job: JobInputs,
    framework: FrameworkInputs,
    out: Array,
) -> None:
    """Fill the STAGE_* memory columns of one stage: terms of its heaviest moment, and around them
    what lies outside tensors."""
    held = held_microbatches(float(stage), grid.pp, grid.vpp, grid.grad_acc, framework.schedule)
    holds = stage_holds(stage, counts, recomputed, costs, key, grid, job, framework)
    most = stage_maxima(stage, counts, recomputed, costs, key, grid, job, framework)
    moment, terms = heaviest_moment(holds, most, held, key, grid, job, framework)
    out[f.STAGE_WEIGHTS] = terms.weights
    out[f.STAGE_GRADIENTS] = terms.gradients
    out[f.STAGE_OPTIMIZER] = terms.optimizer
    out[f.STAGE_ACTIVATIONS] = terms.activations
    out[f.STAGE_WORKING] = terms.working
    out[f.STAGE_LOGITS] = terms.logits
    out[f.STAGE_GATHER] = terms.gather
    out[f.STAGE_OPTIMIZER_TEMPORARY] = terms.temporary
    out[f.STAGE_PHASE] = 1.0 if moment == OPTIMIZER else 2.0 if moment == FORWARD else 0.0
    allocated = total_bytes(terms)
    out[f.STAGE_ALLOCATED] = allocated
    out[f.STAGE_FRAGMENTATION] = allocated * framework.fragmentation
    out[f.STAGE_CONTEXT] = framework.context_bytes
    out[f.STAGE_COMMUNICATION] = communicator_bytes(
        key.tp, key.cp, grid.dp, grid.pp, key.ep, framework
    )
    out[f.STAGE_PEAK] = (
        allocated + out[f.STAGE_FRAGMENTATION] + out[f.STAGE_CONTEXT] + out[f.STAGE_COMMUNICATION]
    )
    out[f.STAGE_IN_FLIGHT] = held.full
    out[f.STAGE_OFFLOADED] = held.full * offloaded_sum(stage, counts, recomputed, costs, job)
