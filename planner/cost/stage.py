"""Memory of one pipeline stage: what it holds, phase by phase."""

from __future__ import annotations

from planner.cost import fields as f
from planner.cost._jit import jit
from planner.cost.data_parallel import Grid
from planner.cost.keys import Key, local_tokens, padding_factor
from planner.cost.memory import (
    communicator_bytes,
    gather_bytes,
    gradient_bytes,
    optimizer_bytes,
    optimizer_temporary_bytes,
    weight_bytes,
)
from planner.cost.schedule import Held, deferred_bytes, held_microbatches
from planner.cost.tables import Array, FrameworkInputs, JobInputs


@jit
def logits_elements(key: Key, job: JobInputs, framework: FrameworkInputs) -> float:
    """Logits of a micro-batch that the loss of one rank works on."""
    padded = job.vocab * padding_factor(job.vocab, job.vocabulary_multiple, key.tp)
    split = key.tp if framework.logits_sharded > 0.0 else 1.0
    return padded / split * local_tokens(key, job)


@jit
def logits_bytes(key: Key, job: JobInputs, framework: FrameworkInputs) -> float:
    """Bytes at the loss beyond what is kept: fp32 logits and their gradient in flight, or a little
    later the 16-bit gradient of the logits beside the head's weight gradient."""
    elements = logits_elements(key, job, framework)
    padding = padding_factor(job.vocab, job.vocabulary_multiple, key.tp)
    head = framework.weight_gradient_bytes * job.vocab * padding * job.hidden / key.tp
    later = 2.0 * elements + head if head > 0.0 else 0.0
    return max(framework.logits_transient_bytes * elements, later)


@jit
def stage_parameters(
    stage: int, counts: Array, costs: Array, job: JobInputs, pp: float
) -> tuple[float, float, float]:
    """(dense, expert, largest layer's) parameters of a stage; a tied head copies the embedding."""
    dense = expert = largest = 0.0
    for piece in range(job.pieces):
        count = counts[piece, stage]
        if count == 0.0:
            continue
        own = costs[piece, f.PIECE_DENSE_PARAMETERS]
        routed = costs[piece, f.PIECE_EXPERT_PARAMETERS]
        dense += count * own
        expert += count * routed
        if piece < job.kinds:
            largest = max(largest, own + routed)
    head = job.kinds + 1
    apart = counts[job.kinds, stage] == 0.0 and counts[head, stage] > 0.0
    if job.tied_embeddings > 0 and pp > 1.0 and apart:
        dense += costs[job.kinds, f.PIECE_DENSE_PARAMETERS]
    return dense, expert, largest


@jit
def stage_activations(
    stage: int, counts: Array, recomputed: Array, costs: Array, job: JobInputs
) -> tuple[float, float, float]:
    """Bytes kept per micro-batch in flight, bytes kept once (head), largest working set.

    The working set is what one layer needs on top during its backward: the gradients of its
    largest operation, and under recomputation the tensors that it makes again.
    """
    per_microbatch = once = working = 0.0
    for piece in range(job.pieces):
        count = counts[piece, stage]
        if count == 0.0:
            continue
        saved = costs[piece, f.PIECE_SAVED]
        dropped = saved - costs[piece, f.PIECE_SAVED_RECOMPUTED]
        again = recomputed[piece, stage]
        kept = count * saved - again * dropped
        if piece > job.kinds:
            once += kept
        else:
            per_microbatch += kept
        extra = max(dropped, 0.0) if again > 0.0 else 0.0
        working = max(working, costs[piece, f.PIECE_WORKING] + extra)
    return per_microbatch, once, working


@jit
def stage_deferred(
    stage: int, counts: Array, recomputed: Array, costs: Array, job: JobInputs, held: Held
) -> float:
    """Bytes kept for weight gradients that a zero-bubble schedule makes later."""
    total = 0.0
    for piece in range(job.pieces):
        count, again = counts[piece, stage], recomputed[piece, stage]
        weight = costs[piece, f.PIECE_WEIGHT_SAVED]
        if piece > job.kinds:
            total += count * held.head_deferred * weight
            continue
        total += (count - again) * deferred_bytes(costs[piece, f.PIECE_SAVED], weight, held)
        total += again * deferred_bytes(costs[piece, f.PIECE_SAVED_RECOMPUTED], weight, held)
    return total


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
    """Fill the STAGE_* memory columns of one stage; the peak is the larger of two phases.

    Backward peak: weights + gradients + optimizer state + activations in flight + working set
    (logits on the last stage) + gather buffers. Optimizer peak: state + temporaries.
    """
    dense, expert, largest = stage_parameters(stage, counts, costs, job, grid.pp)
    zero, shards, expert_shards = grid.zero, grid.shards, grid.expert_shards
    held = held_microbatches(float(stage), grid.pp, grid.vpp, grid.grad_acc, framework.schedule)
    per_microbatch, once, working = stage_activations(stage, counts, recomputed, costs, job)
    root = 0.0
    for piece in (job.kinds, job.kinds + 1):
        root += counts[piece, stage] * costs[piece, f.PIECE_DENSE_PARAMETERS]
    head = counts[job.kinds + 1, stage]
    logits = logits_bytes(key, job, framework) if head > 0.0 else 0.0
    out[f.STAGE_WEIGHTS] = weight_bytes(dense, expert, zero, shards, expert_shards, framework)
    out[f.STAGE_GRADIENTS] = gradient_bytes(dense, expert, zero, shards, expert_shards, framework)
    out[f.STAGE_OPTIMIZER] = optimizer_bytes(dense, expert, zero, shards, expert_shards, framework)
    out[f.STAGE_ACTIVATIONS] = per_microbatch * held.full + once * held.head
    out[f.STAGE_ACTIVATIONS] += stage_deferred(stage, counts, recomputed, costs, job, held)
    # Logits live at the loss, a layer's working set deep in backward: never together.
    out[f.STAGE_LOGITS] = logits if logits >= working else 0.0
    out[f.STAGE_WORKING] = 0.0 if logits >= working else working
    out[f.STAGE_GATHER] = gather_bytes(largest, root, zero, framework) if shards > 1.0 else 0.0
    temporary = optimizer_temporary_bytes(dense, expert, zero, shards, expert_shards, framework)
    persistent = out[f.STAGE_WEIGHTS] + out[f.STAGE_GRADIENTS] + out[f.STAGE_OPTIMIZER]
    backward_peak = (
        persistent
        + out[f.STAGE_ACTIVATIONS]
        + out[f.STAGE_LOGITS]
        + out[f.STAGE_WORKING]
        + out[f.STAGE_GATHER]
    )
    optimizer_peak = persistent + temporary
    out[f.STAGE_OPTIMIZER_TEMPORARY] = temporary
    out[f.STAGE_PHASE] = 1.0 if optimizer_peak > backward_peak else 0.0
    allocated = max(backward_peak, optimizer_peak)
    out[f.STAGE_ALLOCATED] = allocated
    out[f.STAGE_FRAGMENTATION] = allocated * framework.fragmentation + framework.workspace_bytes
    out[f.STAGE_CONTEXT] = framework.context_bytes
    out[f.STAGE_COMMUNICATION] = communicator_bytes(
        key.tp, key.cp, grid.dp, grid.pp, key.ep, framework
    )
    out[f.STAGE_PEAK] = (
        allocated + out[f.STAGE_FRAGMENTATION] + out[f.STAGE_CONTEXT] + out[f.STAGE_COMMUNICATION]
    )
    out[f.STAGE_IN_FLIGHT] = held.full
