"""Memory of one pipeline stage in its heaviest phase."""

from __future__ import annotations

import numpy as np

from planner.cost import fields as f
from planner.cost._jit import Row, Rows, jit
from planner.cost.class_sums import (
    is_sharded,
    keeps_weights,
    trained_share,
)
from planner.cost.memory import (
    communication_bytes,
    divided_gradient_bytes,
    outside_bytes,
    paged_state_bytes,
    recorded_bytes,
    set_aside_bytes,
)
from planner.cost.phase_passes import exists, passes
from planner.cost.phase_records import (
    FORWARD,
    LOSS,
    OPTIMIZER,
    PASSES,
    PHASES,
    LayerMaxima,
    LayerParts,
    cached_bytes,
    in_update,
    packed_bytes,
    split_logits_bytes,
    total_bytes,
)
from planner.cost.phase_shards import hands_on_gradients
from planner.cost.phases import (
    at_rest,
    gives_back,
    gradient_per_parameter,
    logits_elements,
    phase_terms,
    reduces_at_once,
    whole_gradient_bytes,
)
from planner.cost.schedule import Held, held_microbatches
from planner.cost.stage_parameters import fill_parameters
from planner.cost.tables import Array, FrameworkInputs, JobInputs
from planner.cost.terms import (
    LIVE_PLACES,
    MOVING_PLACES,
    OPTIMIZER_PLACE,
    RESTING_PLACES,
    PhaseTerms,
)


@jit
def new_gradients(cost: Row, grid: Row, framework: FrameworkInputs) -> float:
    """Bytes of a piece's gradients that one rank has after the first pass that makes them; a rank's
    share if they are divided as soon as a layer has made them (`reduces_at_once`)."""
    if reduces_at_once(grid, framework):
        share = trained_share(cost, grid, framework)
        return divided_gradient_bytes(share, framework)
    return whole_gradient_bytes(grid, framework) * cost.trained


@jit
def layer_parts(
    cost: Row, plain: float, again: float, key: Row, grid: Row, framework: FrameworkInputs
) -> LayerParts:
    """Bytes of one layer of a kind during its backward and after it (`LayerParts`), on a stage with
    `plain` such layers that keep all tensors and `again` that recompute."""
    handed_on = hands_on_gradients(grid, framework)
    gathered = 0.0
    if is_sharded(grid) and grid.zero == 2 and not keeps_weights(grid, framework):
        gathered = framework.weight_bytes * cost.gathered
    remakes_casts = framework.weight_casts_stay > 0.0 or (
        again > 0.0 and int(key.modules) & f.MODULE_FULL
    )
    # The widest point of a layer's backward is in a product or in the softmax of unfused attention.
    product = cost.working + (0.0 if handed_on else cost.weight_gradient)
    made = 0.0 if handed_on else gradient_per_parameter(framework) * cost.after_core
    return LayerParts(
        max(product, cost.softmax),
        max(product, cost.softmax + made),
        # A checkpoint of several layers brings back no more layers than the stage has.
        min(cost.again, (plain + again) * (cost.saved + cost.offloaded)),
        cost.saved,
        cost.saved_recomputed,
        new_gradients(cost, grid, framework),
        gathered,
        0.0 if remakes_casts else cost.casts,
    )


@jit
def layer_maxima(
    cost: Row, plain: float, again: float, key: Row, grid: Row, framework: FrameworkInputs
) -> LayerMaxima:
    """The `LayerMaxima` of a stage with layers of one kind only: `plain` of them keep all tensors,
    `again` of them recompute."""
    parts = layer_parts(cost, plain, again, key, grid, framework)
    # The last layer in backward is the stage's first, which recomputes if any does.
    last = parts.making + (parts.remade if again > 0.0 else 0.0)
    last = last - parts.made + parts.gathered + parts.casts
    done = 0.0
    if gives_back(grid, framework):
        last += parts.light if again > 0.0 else parts.kept
        done = -(parts.kept if plain > 0.0 else parts.light)
    return LayerMaxima(
        cost.gathered, cost.trained, parts.working if plain > 0.0 else 0.0,
        parts.working + parts.remade if again > 0.0 else 0.0, parts.making if plain > 0.0 else 0.0,
        parts.making + parts.remade if again > 0.0 else 0.0, last,
        done + parts.made - parts.gathered, done - parts.gathered,
    )  # fmt: skip


@jit
def stage_maxima(
    stage: int, counts: Array, recomputed: Array, costs: Rows, key: Row, grid: Row,
    job: JobInputs, framework: FrameworkInputs,
) -> LayerMaxima:  # fmt: skip
    """Maxima over the kinds of layers on a stage; zero without layers.

    If kinds follow each other, the first and the last layer are of the first and last kind.
    """
    largest = reduced = working = working_again = making = making_again = 0.0
    last = done_making = done = -np.inf
    for kind in range(job.kinds):
        count, again = counts[kind, stage], recomputed[kind, stage]
        if count == 0.0:
            continue
        most = layer_maxima(costs[kind], count - again, again, key, grid, framework)
        largest, reduced = max(largest, most.largest), max(reduced, most.reduced)
        working = max(working, most.working)
        working_again = max(working_again, most.working_again)
        making, making_again = max(making, most.making), max(making_again, most.making_again)
        if job.kinds_in_order > 0.0:
            last = most.last if last == -np.inf else last
            done_making, done = most.done_making, most.done
        else:
            last = max(last, most.last)
            done_making, done = max(done_making, most.done_making), max(done, most.done)
    if last == -np.inf:
        last = done_making = done = 0.0
    return LayerMaxima(
        largest, reduced, working, working_again, making, making_again, last, done_making, done
    )


@jit
def layer_sums(
    stage: int, counts: Array, recomputed: Array, costs: Rows, key: Row, job: JobInputs
) -> tuple[float, float, float, float]:
    """Bytes on a stage: (kept by all layers, kept by layers that do not recompute, casts of weights
    that still exist in backward, inputs of weight gradients)."""
    kept = plain_kept = casts_kept = weight = 0.0
    for kind in range(job.kinds):
        count, again = counts[kind, stage], recomputed[kind, stage]
        weight += count * costs[kind].weight_saved
        plain_kept += (count - again) * costs[kind].saved
        kept += again * costs[kind].saved_recomputed
        remakes = again if int(key.modules) & f.MODULE_FULL else 0.0
        casts_kept += (count - remakes) * costs[kind].casts
    return kept + plain_kept, plain_kept, casts_kept, weight


@jit
def resident_bytes(layers: float, costs: Rows, job: JobInputs) -> float:
    """Bytes of offloaded tensors that are on the GPU: those of `layers` layers of the kind with the
    most, which are being copied to the host or back; and the second copies of tensors that one
    layer has twice once they are back.

    Ignores that a stage with fewer layers in flight than `layers` has less on the GPU.
    """
    left = twice = 0.0
    for kind in range(job.kinds):
        left = max(left, costs[kind].offloaded_recomputed)
        twice = max(twice, costs[kind].duplicated)
    return layers * left + twice


@jit
def offloaded_sum(
    stage: int, counts: Array, recomputed: Array, costs: Rows, job: JobInputs
) -> float:
    """Bytes of one micro-batch that the layers of a stage keep on the host."""
    total = 0.0
    for kind in range(job.kinds):
        again = recomputed[kind, stage]
        total += (counts[kind, stage] - again) * costs[kind].offloaded
        total += again * costs[kind].offloaded_recomputed
    return total


@jit
def returned_bytes(
    stage: int, position: float, counts: Array, recomputed: Array, costs: Rows, grid: Row,
    job: JobInputs, framework: FrameworkInputs,
) -> float:  # fmt: skip
    """Bytes of a stage's offloaded tensors that are on the GPU (`resident_bytes`).

    If some layers are not offloaded, the end of each layer's backward fetches one offloaded layer:
    of the next micro-batch once all of its own are back. A micro-batch has more layers than layers
    to fetch, so copies back run ahead by the difference in each, until all offloaded layers of the
    next chunk are on the GPU when its backward starts. This does not happen if no other micro-batch
    has done its forward (Megatron-Core 0.19.2, fine_grained_activation_offload.py, `bulk_reload`;
    its class, run through 1F1B and interleaved schedules, has exactly these on the GPU). If chunks
    differ by a layer, the largest has (n + v - 1)/v of a stage's n layers in v chunks.
    """
    layers = framework.resident_layers
    if framework.reloads_ahead == 0.0:
        return resident_bytes(layers, costs, job)
    held = held_microbatches(position, grid.pp, grid.vpp, grid.grad_acc, framework.schedule)
    if held.full <= 1.0:
        return resident_bytes(layers, costs, job)
    one = resident_bytes(1.0, costs, job) - resident_bytes(0.0, costs, job)
    whole = offloaded_sum(stage, counts, recomputed, costs, job) + (grid.vpp - 1.0) * one
    return whole / grid.vpp + resident_bytes(max(0.0, layers - 1.0), costs, job)


@jit
def fill_stage(
    stage: int, position: float, counts: Array, recomputed: Array, costs: Rows, key: Row, grid: Row,
    job: JobInputs, framework: FrameworkInputs, out: Row,
) -> None:  # fmt: skip
    """Fill the contents of one stage."""
    fill_parameters(stage, counts, costs, grid, job, framework, out)
    fill_kept(stage, position, counts, recomputed, costs, key, grid, job, framework, out)


@jit
def fill_kept(
    stage: int, position: float, counts: Array, recomputed: Array, costs: Rows, key: Row, grid: Row,
    job: JobInputs, framework: FrameworkInputs, out: Row,
) -> None:  # fmt: skip
    """Fill the bytes that a stage keeps; its parameters are filled before (`fill_parameters`).

    Multi-token prediction: all modules keep tensors, one works at a time. Tables shared by all
    layers belong to the embedding and follow the recompute mode; the ends themselves are never
    recomputed.
    """
    sums = layer_sums(stage, counts, recomputed, costs, key, job)
    out.layer_kept, out.plain_kept, out.layer_casts_kept, out.layer_weight = sums
    first, last = job.kinds, job.kinds + 1
    mtp, loss = min(last + 1, job.pieces - 1), min(last + 2, job.pieces - 1)
    has_last, modules, losses = out.head, out.mtp_modules, out.mtp_losses
    out.embedding_kept = counts[first, stage] * costs[first].saved_recomputed
    out.embedding_apart = counts[first, stage] * costs[first].apart
    out.embedding_working = counts[first, stage] * (costs[first].working + costs[first].again)
    out.head_kept = has_last * costs[last].saved_recomputed
    out.head_logits = has_last * costs[last].logits
    out.logits = logits_elements(key, job, framework) if has_last > 0.0 else 0.0
    out.mtp_kept = modules * costs[mtp].saved + losses * costs[loss].saved
    alone = 0.0 if hands_on_gradients(grid, framework) else costs[mtp].weight_gradient
    out.mtp_working = min(modules, 1.0) * (costs[mtp].working + alone)
    out.mtp_logits = min(losses, 1.0) * costs[loss].logits
    out.head_weight = (
        has_last * costs[last].weight_saved
        + modules * costs[mtp].weight_saved
        + losses * costs[loss].weight_saved
    )
    out.resident = returned_bytes(stage, position, counts, recomputed, costs, grid, job, framework)
    out.fetched = resident_bytes(min(1.0, framework.resident_layers), costs, job)


@jit
def heaviest_phase(
    holds: Row, most: LayerMaxima, held: Held, updates: bool, key: Row, grid: Row, job: JobInputs,
    framework: FrameworkInputs,
) -> tuple[int, int, PhaseTerms]:  # fmt: skip
    """(phase, pass, terms in bytes) for the phase in which a stage has the most live bytes. `pass`:
    its index in `passes`; 0 for the optimizer's phase.

    Without `updates` the optimizer's phase does not compete, and gradients are left out of the
    comparison, though they remain in the terms.
    """
    passes_of_stage = passes(held, grid.grad_acc, framework)
    rest = at_rest(holds, key, grid, job, framework)
    best, where, within = rest, OPTIMIZER, 0
    peak = sum(rest.moving) if updates else -1.0
    for index in range(PASSES):
        if passes_of_stage[index].counts == 0.0:
            continue
        for phase in range(PHASES - 1):
            if not exists(phase, holds, passes_of_stage[index], grid, framework):
                continue
            terms = phase_terms(
                phase, rest, holds, most, passes_of_stage[index], key, grid, job, framework
            )
            size = sum(terms.moving) - (0.0 if updates else terms.moving.gradients)
            if size > peak:
                best, peak, where, within = terms, size, phase, index
    return where, within, best


@jit
def fill_terms(terms: PhaseTerms, out: Row) -> None:
    """Fill the STAGE_* columns for live tensors from the terms of one phase, in bytes; several
    terms may be added up in one column."""
    for column in LIVE_PLACES:
        out.terms[column] = 0.0
    for place in range(len(RESTING_PLACES)):
        out.terms[RESTING_PLACES[place]] += terms.resting[place]
    for place in range(len(MOVING_PLACES)):
        out.terms[MOVING_PLACES[place]] += terms.moving[place]


@jit
def stage_memory(
    stage: int, position: float, holds: Row, counts: Array, recomputed: Array, costs: Rows,
    key: Row, grid: Row, job: JobInputs, framework: FrameworkInputs, out: Row,
) -> None:  # fmt: skip
    """Fill the STAGE_* memory columns of a stage: terms of its heaviest phase, and memory outside
    tensors. `stage`: its column in the counts; `position`: its number in the pipeline; `holds`: its
    contents."""
    held = held_microbatches(position, grid.pp, grid.vpp, grid.grad_acc, framework.schedule)
    most = stage_maxima(stage, counts, recomputed, costs, key, grid, job, framework)
    phase, _, terms = heaviest_phase(holds, most, held, True, key, grid, job, framework)
    rest, aside = at_rest(holds, key, grid, job, framework), set_aside_bytes(key, grid, framework)
    most_live = total_bytes(terms)
    gaps = framework.fragmentation * (most_live - packed_bytes(rest, framework))
    if total_bytes(rest) + aside > most_live:
        phase, terms = OPTIMIZER, in_update(rest, aside)
    fill_terms(terms, out)
    out.phase = 1.0 if phase == OPTIMIZER else 2.0 if phase == FORWARD else 0.0
    out.allocated = total_bytes(terms)
    out.terms[f.STAGE_FRAGMENTATION] = most_live + gaps + aside - out.allocated
    out.terms[f.STAGE_CONTEXT] = framework.context_bytes
    out.terms[OPTIMIZER_PLACE] += paged_state_bytes(key, grid, framework)
    out.terms[f.STAGE_COMMUNICATION] = communication_bytes(key, grid, job, framework)
    out.peak = most_live + gaps + outside_bytes(key, grid, job, framework)
    out.in_flight = held.full
    out.offloaded = held.full * offloaded_sum(stage, counts, recomputed, costs, job)
    out.cached = recorded_bytes(holds.layers, key, grid, job, framework)
    if framework.persistent_gradients == 0.0:
        reduces = grid.dp > 1.0
        if phase == LOSS and not reduces:
            out.cached += split_logits_bytes(rest, terms, holds, most_live)
        _, _, busiest = heaviest_phase(holds, most, held, False, key, grid, job, framework)
        out.cached += cached_bytes(rest, busiest, most_live, reduces)
