"""The usual layout of a model over pipeline stages (even, or greedy), as counts of pieces."""

from __future__ import annotations

from functools import cache

from planner.cost._jit import jit
from planner.cost.schedule import SCHEDULE_DUALPIPE, block_stage, head_stage
from planner.cost.tables import Array, JobInputs


@jit
def even_block_layers(layers: int, blocks: int, block: int) -> int:
    """Layers of one of `blocks` consecutive blocks that are as even as possible.

    If layers do not divide evenly, the blocks with one layer less are taken from the two ends in
    turn (last, first, second last, ...): the last contains the LM head, the first contains the
    embedding and has the most micro-batches in flight. 126 layers on 16 stages: 7, 14 times 8, 7.
    """
    base = layers // blocks
    extra = layers - base * blocks
    if extra == 0:
        return base
    short = blocks - extra
    from_end = (short + 1) // 2
    from_start = short // 2
    if block < from_start or block >= blocks - from_end:
        return base
    return base + 1


@jit
def greedy_block_layers(
    layers: int, blocks: int, block: int, layer_cost: float, head_cost: float
) -> int:
    """Layers of one block if blocks are filled in the model's order, as nanotron does.

    A block is closed once the summed cost exceeds its share of the total: layer n is its last if
    n·c > (L·c + h)·(block + 1)/blocks, with c `layer_cost`, h `head_cost` and L layers. Source:
    nanotron models/base.py, build_model.
    """
    total = layers * layer_cost + head_cost
    stage, item = 0, 0
    for layer in range(1, layers + 1):
        if stage == block:
            item += 1
        if stage + 1 < blocks and layer * layer_cost > total * ((stage + 1) / blocks):
            stage += 1
    return item


@jit
def usual_block_layers(job: JobInputs, blocks: int, block: int) -> int:
    """Layers of one block in the layout with which a shape is costed."""
    if job.greedy_layer_cost > 0.0:
        return greedy_block_layers(
            job.layers, blocks, block, job.greedy_layer_cost, job.greedy_head_cost
        )
    return even_block_layers(job.layers, blocks, block)


def usual_split(
    layers: int, blocks: int, layer_cost: float = 0.0, head_cost: float = 0.0
) -> tuple[int, ...]:
    """Layers of each block: as even as possible or, if layers have a cost, the greedy split."""
    if layer_cost > 0.0:
        return tuple(
            greedy_block_layers(layers, blocks, block, layer_cost, head_cost)
            for block in range(blocks)
        )
    return tuple(even_block_layers(layers, blocks, block) for block in range(blocks))


@cache
def filled_pipelines(layers: int, layer_cost: float, head_cost: float) -> frozenset[int]:
    """Numbers of stages, up to one stage per layer, whose greedy split leaves no stage empty; the
    last stages are the first to be empty."""
    return frozenset(
        pp
        for pp in range(1, layers + 1)
        if greedy_block_layers(layers, pp, pp - 1, layer_cost, head_cost)
    )


@jit
def mtp_stage(pp: int, schedule: int, standalone: float) -> int:
    """Stage of multi-token prediction: the head's, or with `standalone` 1 the one before it. There
    it is in the last chunk (Megatron-Core 0.19.2,
    PipelineParallelLayerLayout.validate_layer_layout)."""
    last = head_stage(schedule, pp)
    return last - 1 if standalone > 0.0 else last


@jit
def place_vocab_layers(
    counts: Array, pp: int, job: JobInputs, schedule: int, mtp_standalone: float = 0.0
) -> None:
    """Fill counts of the embedding, the head, MTP and its losses; their stages do not depend on
    layers."""
    last = head_stage(schedule, pp)
    for piece in range(job.kinds, counts.shape[0]):
        for stage in range(pp):
            counts[piece, stage] = 0.0
    counts[job.kinds, 0] = 1.0
    counts[job.kinds + 1, last] = 1.0
    if job.mtp_layers > 0:
        counts[job.kinds + 2, mtp_stage(pp, schedule, mtp_standalone)] = float(job.mtp_layers)
        counts[job.kinds + 3, last] = float(job.mtp_layers)


@jit
def mirror(counts: Array, pp: int) -> None:
    """Add the second copy of the model, whose first layers are on the last stage (DualPipe)."""
    for stage in range((pp + 1) // 2):
        for piece in range(counts.shape[0]):
            both = counts[piece, stage] + counts[piece, pp - 1 - stage]
            counts[piece, stage] = both
            counts[piece, pp - 1 - stage] = both


@jit
def usual_counts(
    prefix: Array, pp: int, vpp: int, job: JobInputs, schedule: int, counts: Array
) -> None:
    """Fill counts[piece, stage] for the usual layout; under DualPipe both copies of the model
    count.

    `prefix[kind, n]`: number of layers of that kind among the first n.
    """
    for kind in range(job.kinds):
        for stage in range(pp):
            counts[kind, stage] = 0.0
    start = 0
    blocks = pp * vpp
    for block in range(blocks):
        end = start + usual_block_layers(job, blocks, block)
        stage = block_stage(block, pp, schedule)
        for kind in range(job.kinds):
            counts[kind, stage] += prefix[kind, end] - prefix[kind, start]
        start = end
    place_vocab_layers(counts, pp, job, schedule)
    if schedule == SCHEDULE_DUALPIPE and pp > 1:
        mirror(counts, pp)
