"""Weights that ZeRO-2 and 3 gather, and gradients that they reduce, in each phase of a step."""

from __future__ import annotations

from planner.cost._jit import Row, jit
from planner.cost.class_sums import fetches_weights, is_sharded, keeps_weights
from planner.cost.phase_records import (
    EMBEDDING,
    FORWARD,
    FORWARD_END,
    HEAD,
    LAYER_LAST,
    LAYER_SECOND,
    LOSS,
    MTP,
    LayerMaxima,
)
from planner.cost.tables import FrameworkInputs


@jit
def hands_on_gradients(grid: Row, framework: FrameworkInputs) -> bool:
    """Whether gradients leave the rank as soon as backward makes them: for the shards of others, or
    for the host, to which offload moves them from ZeRO-2 on, even with one rank.

    Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, reduce_ipg_grads: under ZeRO-2 each
    micro-batch's gradients pass through the bucket to the host; under ZeRO-1 they wait on the GPU
    for the last one.
    """
    return is_sharded(grid) or (grid.zero > 1 and framework.gradients_on_gpu < 1.0)


@jit
def root_gathered(holds: Row, grid: Row, framework: FrameworkInputs) -> float:
    """Bytes of weights gathered for all of forward and backward: the ends under ZeRO-3, all under
    ZeRO-2."""
    if not fetches_weights(grid, framework):
        return 0.0
    if grid.zero < 3:
        if keeps_weights(grid, framework):
            return 0.0
        return framework.weight_bytes * holds.gathered
    return framework.root_stays_gathered * framework.weight_bytes * holds.vocab_gathered


@jit
def gathered_bytes(
    phase: int, holds: Row, most: LayerMaxima, grid: Row, framework: FrameworkInputs
) -> float:
    """Bytes of weights that ZeRO-2 and 3 gather: the root's, and those of layers (FSDP2: this layer
    and the next; DeepSpeed: a fixed number of parameters)."""
    ended = phase == EMBEDDING or (phase == FORWARD_END and grid.zero > 2)
    if ended or not fetches_weights(grid, framework):
        return 0.0
    root = root_gathered(holds, grid, framework)
    layer = framework.weight_bytes * most.largest
    if phase <= HEAD:
        works = phase == FORWARD or (phase == LOSS and grid.zero > 2)
        live = framework.live_gathered_bytes if grid.zero > 2 else 0.0
        return root + max(live, layer if works else 0.0)
    if grid.zero > 2:
        return root + max(framework.gathered_layers * layer, framework.live_gathered_bytes)
    return left_gathered(phase, root, holds, grid, framework)


@jit
def left_gathered(
    phase: int, root: float, holds: Row, grid: Row, framework: FrameworkInputs
) -> float:
    """Bytes of weights that FSDP's ZeRO-2 still has in a phase inside the layers, out of the `root`
    bytes that it gathered for the whole pass: all except those of modules whose backward is done. 0
    if low-precision weights stay between steps anyway (`keeps_weights`)."""
    if keeps_weights(grid, framework):
        return 0.0
    if phase == LAYER_LAST:
        return framework.weight_bytes * holds.vocab_gathered
    gone = 0.0 if phase == MTP else holds.mtp_gathered
    return root - framework.weight_bytes * gone


@jit
def reduced_at_end(holds: Row, framework: FrameworkInputs) -> float:
    """Parameters whose gradients are reduced when backward has reached the embedding."""
    together = framework.root_stays_gathered * holds.head_trained
    return float(holds.embedding_trained + together)


@jit
def waiting_bytes(phase: int, holds: Row, grid: Row, framework: FrameworkInputs) -> float:
    """Bytes of whole (unsharded) gradients of the ends (embedding and head) that wait to be
    reduced. 0 before the head's backward, and if gradients stay on the rank (`hands_on_gradients`).

    FSDP2 reduces the head's with the embedding's; if the ends are modules like others, each is
    reduced by itself.
    """
    if not hands_on_gradients(grid, framework) or phase <= LOSS:
        return 0.0
    if phase == HEAD:
        return framework.weight_bytes * holds.head_made
    if phase == EMBEDDING:
        return framework.weight_bytes * reduced_at_end(holds, framework)
    return framework.root_stays_gathered * framework.weight_bytes * holds.head_made


@jit
def reduction_bytes(
    phase: int, holds: Row, most: LayerMaxima, grid: Row, framework: FrameworkInputs
) -> float:
    """Bytes of buffers for the gradients that are being reduced under ZeRO-2 and 3: those of the
    ends in the phase EMBEDDING, and those of the layer before in LAYER_SECOND and LAYER_LAST. 0 in
    other phases, and if gradients stay on the rank (`hands_on_gradients`)."""
    if not hands_on_gradients(grid, framework):
        return 0.0
    if phase == EMBEDDING:
        return framework.gradient_bytes * reduced_at_end(holds, framework)
    if phase == LAYER_SECOND or (phase == LAYER_LAST and holds.layers > 1.0):
        return framework.reduce_buffer_layers * framework.gradient_bytes * most.reduced
    return 0.0
