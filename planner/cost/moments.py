"""What a pipeline stage holds at each moment of a step, as affine functions of its contents.

The compiled counterpart of `planner.memory.moments`, where each moment is explained; a test holds
one against the other. Affine, so that the layout solver reads its coefficients off the very
functions that cost a finished layout. With several kinds of layers on a stage, or several chunks,
a moment inside the layers counts what all of them keep: an upper bound by less than a chunk.
"""

from __future__ import annotations

from planner.cost._jit import jit
from planner.cost.data_parallel import Grid
from planner.cost.keys import Key, local_tokens, padding_factor
from planner.cost.memory import (
    gradient_bytes,
    optimizer_bytes,
    optimizer_temporary_bytes,
    weight_bytes,
)
from planner.cost.moment_records import (
    EMBEDDING,
    FORWARD,
    HEAD,
    LAYER,
    LAYER_AGAIN,
    LAYER_LAST,
    LAYER_SECOND,
    LOSS,
    MTP,
    OPTIMIZER,
    LayerMaxima,
    MomentTerms,
    Pass,
    StageHolds,
)
from planner.cost.schedule import Held, copies_of_model, splits_backward
from planner.cost.tables import FrameworkInputs, JobInputs


@jit
def total_bytes(terms: MomentTerms) -> float:
    """Sum of the terms."""
    return (
        terms.weights
        + terms.gradients
        + terms.optimizer
        + terms.activations
        + terms.working
        + terms.logits
        + terms.gather
        + terms.temporary
    )


@jit
def is_sharded(grid: Grid) -> bool:
    """Gradients (ZeRO-2) or weights too (ZeRO-3) are divided."""
    return grid.zero > 1 and grid.shards > 1.0


@jit
def gradient_per_parameter(framework: FrameworkInputs) -> float:
    """Bytes of an unsharded gradient."""
    return framework.gradient_bytes + framework.extra_gradient_bytes


@jit
def sharded_gradients(dense: float, expert: float, grid: Grid, framework: FrameworkInputs) -> float:
    """Gradients divided by the ZeRO groups."""
    return framework.gradient_bytes * (dense / grid.shards + expert / grid.expert_shards)


@jit
def keeps_weights(grid: Grid, framework: FrameworkInputs) -> bool:
    """Low-precision weights stay between steps; FSDP makes them from fp32 shards."""
    return not is_sharded(grid) or framework.zero3_keeps_weight_shard > 0.0


@jit
def weights_at_rest(
    holds: StageHolds, key: Key, grid: Grid, job: JobInputs, framework: FrameworkInputs
) -> float:
    """Weights, mask buffers, input ids, gradient buckets and library workspaces."""
    total = holds.layers * framework.mask_buffer_bytes + framework.workspace_bytes
    total += 8.0 * local_tokens(key, job)
    total += weight_bytes(
        holds.dense, holds.expert, grid.zero, grid.shards, grid.expert_shards, framework
    )
    if grid.zero == 0 and grid.shards > 1.0:
        own = framework.gradient_bytes * (holds.dense + holds.expert)
        total += framework.ddp_bucket_copies * own
    if is_sharded(grid) and grid.zero == 2:
        total += framework.bucket_bytes
    return total


@jit
def logits_elements(key: Key, job: JobInputs, framework: FrameworkInputs) -> float:
    """Logits of a micro-batch that the loss of one rank works on."""
    padded = job.vocab * padding_factor(job.vocab, job.vocabulary_multiple, key.tp)
    split = key.tp if framework.logits_sharded > 0.0 else 1.0
    return padded / split * local_tokens(key, job)


@jit
def root_gathered(holds: StageHolds, grid: Grid, framework: FrameworkInputs) -> float:
    """Weights gathered for all of forward and backward: ends under ZeRO-3, all under 2."""
    if not is_sharded(grid):
        return 0.0
    if grid.zero < 3:
        if keeps_weights(grid, framework):
            return 0.0
        return framework.weight_bytes * (holds.dense + holds.expert)
    ends = holds.embedding_parameters + holds.head_parameters
    return framework.root_stays_gathered * framework.weight_bytes * ends


@jit
def gives_back(grid: Grid, framework: FrameworkInputs) -> bool:
    """Whether backward frees what layers keep one after the other: in one chunk, with their
    weight gradients made at once."""
    return grid.vpp <= 1.0 and not splits_backward(framework.schedule, grid.pp)


@jit
def kept_bytes(
    moment: int, holds: StageHolds, own: Pass, grid: Grid, framework: FrameworkInputs
) -> float:
    """Bytes kept for backward; but for GPipe the head's follows its forward at once, so it keeps
    one's. Where backward is split, a chunk whose inputs are done still keeps those of its weights.
    """
    kept = own.in_flight * (holds.layer_kept + holds.embedding_kept)
    kept += own.deferred * holds.layer_weight + own.head_deferred * holds.head_weight
    if moment == LAYER_LAST and own.in_flight <= 1.0:
        kept += holds.fetched
    elif moment != EMBEDDING or own.in_flight > 1.0:
        kept += holds.resident
    kept += (own.head - 1.0) * (holds.mtp_kept + holds.head_kept)
    if moment in (FORWARD, LOSS):
        kept += holds.mtp_kept + holds.head_kept
    elif moment == HEAD:
        kept += holds.mtp_kept + holds.head_kept - holds.head_logits
    elif moment == MTP:
        kept += holds.mtp_kept - holds.mtp_logits
    elif moment == EMBEDDING:
        split = splits_backward(framework.schedule, grid.pp)
        left = holds.layer_weight if split else 0.0
        chunks = grid.vpp * copies_of_model(framework.schedule, grid.pp)
        kept -= (holds.layer_kept - left) / chunks
    elif moment == LAYER_AGAIN and gives_back(grid, framework):
        # The layers behind it, which keep all, have given it back.
        kept -= holds.plain_kept
    elif moment == LAYER_LAST and gives_back(grid, framework):
        kept -= holds.layer_kept
    return kept


@jit
def cast_bytes(moment: int, holds: StageHolds) -> float:
    """Low-precision copies of weights (autocast), all of them until forward ends."""
    if moment == FORWARD:
        return holds.layer_casts + holds.mtp_casts + holds.head_casts
    if moment in (LOSS, HEAD):
        return holds.layer_casts_kept + holds.mtp_casts + holds.head_casts
    if moment in (LAYER_LAST, EMBEDDING):
        return 0.0
    return holds.layer_casts_kept + (holds.mtp_casts if moment == MTP else 0.0)


@jit
def made_gradients(moment: int, holds: StageHolds, grid: Grid, framework: FrameworkInputs) -> float:
    """Gradients that exist at a moment of a pass that makes them."""
    if moment in (FORWARD, LOSS, HEAD):
        return 0.0
    dense, expert = holds.head_parameters, 0.0
    if moment in (LAYER_LAST, EMBEDDING):
        dense, expert = holds.dense - holds.embedding_parameters, holds.expert
    elif moment != MTP:
        dense, expert = dense + holds.mtp_dense, holds.mtp_expert
    if is_sharded(grid):
        return sharded_gradients(dense, expert, grid, framework)
    tied = holds.head_made - holds.head_parameters
    return gradient_per_parameter(framework) * (dense + expert + tied)


@jit
def table_gradient_bytes(moment: int, framework: FrameworkInputs) -> float:
    """Bytes per parameter of the vocabulary table's gradient while it is made, unsharded.

    Where gradients have buffers of their own, the head's is made beside them if its product does
    not accumulate; the embedding's always, unless unreduced gradients are kept anyway.
    """
    if framework.persistent_gradients == 0.0:
        return gradient_per_parameter(framework)
    if moment == HEAD:
        return framework.weight_gradient_bytes
    return 0.0 if framework.extra_gradient_bytes > 0.0 else framework.weight_bytes


@jit
def mtp_working_bytes(holds: StageHolds, grid: Grid, framework: FrameworkInputs) -> float:
    """Working set of multi-token prediction's backward, which ends in a lookup's: the table's
    gradient follows the module's own tensors (no more than these are still kept then). Those of
    several modules wait for each other."""
    table = 0.0
    if not is_sharded(grid) and framework.persistent_gradients > 0.0:
        table = table_gradient_bytes(EMBEDDING, framework) * holds.mtp_table
    if holds.mtp_modules > 1.0:
        return holds.mtp_working + table
    return max(holds.mtp_working, table)


@jit
def working_bytes(
    moment: int, holds: StageHolds, most: LayerMaxima, key: Key, grid: Grid, job: JobInputs,
    framework: FrameworkInputs,
) -> float:  # fmt: skip
    """Gradients in flight and tensors made again."""
    if moment in (FORWARD, LOSS):
        return 0.0
    sharded = is_sharded(grid)
    if moment in (HEAD, EMBEDDING):
        stream = framework.residual_bytes * local_tokens(key, job) * job.hidden
        made = holds.head_made if moment == HEAD else holds.embedding_parameters
        return stream if sharded else stream + table_gradient_bytes(moment, framework) * made
    size = 0.0 if sharded else framework.weight_gradient_bytes * holds.head_made
    if moment != MTP and not sharded and framework.persistent_gradients > 0.0:
        # Autograd adds the table's gradients of all lookups before it accumulates their sum.
        size += table_gradient_bytes(EMBEDDING, framework) * holds.mtp_table_waits
    if moment == MTP:
        size += mtp_working_bytes(holds, grid, framework)
    elif moment == LAYER:
        size += most.working
    elif moment == LAYER_AGAIN:
        size += most.working_again
    elif moment == LAYER_LAST:
        size += most.last
    else:
        size += max(most.working, most.working_again)
    return size


@jit
def loss_bytes(
    moment: int, holds: StageHolds, key: Key, job: JobInputs, framework: FrameworkInputs
) -> float:
    """Logits in flight beside those kept."""
    if holds.head == 0.0 or moment not in (FORWARD, LOSS, HEAD, MTP):
        return 0.0
    elements = logits_elements(key, job, framework)
    if moment == FORWARD:
        return framework.logits_forward_bytes * elements
    if moment == HEAD:
        return framework.activation_bytes * elements
    return framework.logits_transient_bytes * elements


@jit
def gather_bytes(
    moment: int, holds: StageHolds, most: LayerMaxima, grid: Grid, framework: FrameworkInputs
) -> float:
    """Buffers of ZeRO-2/3: gathered weights, gradients that wait, and those being reduced."""
    if not is_sharded(grid):
        return 0.0
    root = root_gathered(holds, grid, framework)
    layer = framework.weight_bytes * most.largest
    if moment == FORWARD:
        return root + layer
    if moment == LOSS:
        return root + (layer if grid.zero > 2 else 0.0)
    if moment == HEAD:
        return root + framework.weight_bytes * holds.head_made
    ends = holds.embedding_parameters + holds.head_parameters
    if moment == EMBEDDING:
        return (framework.weight_bytes + framework.gradient_bytes) * ends
    held = framework.root_stays_gathered * framework.weight_bytes * holds.head_made
    if grid.zero > 2:
        held += root + framework.gathered_layers * layer
    elif not keeps_weights(grid, framework):
        gone = 0.0 if moment == MTP else holds.mtp_dense + holds.mtp_expert
        held += framework.weight_bytes * ends if moment == LAYER_LAST else root
        held -= 0.0 if moment == LAYER_LAST else framework.weight_bytes * gone
    if moment == LAYER_SECOND or (moment == LAYER_LAST and holds.layers > 1.0):
        held += framework.reduce_buffer_layers * framework.gradient_bytes * most.largest
    return held


@jit
def at_rest(
    holds: StageHolds, key: Key, grid: Grid, job: JobInputs, framework: FrameworkInputs
) -> MomentTerms:
    """The optimizer's moment: state, all gradients, temporaries of the update."""
    dense, expert = holds.dense, holds.expert
    zero, shards, expert_shards = grid.zero, grid.shards, grid.expert_shards
    return MomentTerms(
        weights_at_rest(holds, key, grid, job, framework),
        gradient_bytes(dense, expert, zero, shards, expert_shards, framework),
        holds.extra_state + optimizer_bytes(dense, expert, zero, shards, expert_shards, framework),
        0.0,
        0.0,
        0.0,
        0.0,
        holds.update_bytes
        + optimizer_temporary_bytes(dense, expert, zero, shards, expert_shards, framework),
    )


@jit
def moment_terms(
    moment: int, rest: MomentTerms, holds: StageHolds, most: LayerMaxima, own: Pass, key: Key,
    grid: Grid, job: JobInputs, framework: FrameworkInputs,
) -> MomentTerms:  # fmt: skip
    """Bytes at one moment of a pass; `rest` is `at_rest` of the same contents."""
    if moment == OPTIMIZER:
        return rest
    gradients = rest.gradients
    kept = kept_bytes(moment, holds, own, grid, framework)
    if own.accumulates == 0.0:
        gradients = made_gradients(moment, holds, grid, framework)
    if moment == LAYER_SECOND:
        kept += most.done_making if own.accumulates == 0.0 else most.done
    return MomentTerms(
        rest.weights,
        gradients,
        rest.optimizer,
        kept + cast_bytes(moment, holds),
        working_bytes(moment, holds, most, key, grid, job, framework),
        loss_bytes(moment, holds, key, job, framework),
        gather_bytes(moment, holds, most, grid, framework),
        0.0,
    )


@jit
def exists(moment: int, holds: StageHolds, own: Pass, grid: Grid) -> bool:
    """Whether a stage with these contents has the moment, and no other always exceeds it."""
    inside = moment in (LAYER, LAYER_AGAIN, LAYER_SECOND, LAYER_LAST)
    if moment in (FORWARD, LAYER, LAYER_AGAIN) or (own.ends == 0.0 and not inside):
        return inside or own.ends > 0.0
    if moment in (LOSS, HEAD):
        return holds.head > 0.0
    if moment == MTP:
        return holds.mtp_kept > 0.0
    if moment == EMBEDDING:
        return holds.embedding_parameters > 0.0
    if moment == LAYER_SECOND:
        return is_sharded(grid) and holds.layers > 1.0
    return own.accumulates == 0.0


@jit
def passes(held: Held, grad_acc: float, framework: FrameworkInputs) -> tuple[Pass, Pass, Pass]:
    """Passes of the first micro-batch, of the second, and of the one with most weight gradients
    deferred; `counts` says which can be the heaviest.

    As many micro-batches as there are are in flight at the first backward, one less at the second
    (Narayanan et al. 2021, arXiv 2104.04473, section 2.2). With as many in flight the second
    holds all that the first does and the gradients.
    """
    buffers = framework.persistent_gradients > 0.0
    after = grad_acc - 1.0
    later, head = min(held.full, after), max(1.0, min(held.head, after))
    full, weights = held.full, (held.deferred, held.head_deferred)
    alone = buffers or grad_acc <= 1.0
    own = 1.0 if alone or later < full else 0.0
    late = 1.0 if held.late_deferred > held.deferred else 0.0
    return (
        Pass(full, 1.0 if buffers else 0.0, weights[0], held.head, weights[1], 1.0, own),
        Pass(later, 1.0, weights[0], head, weights[1], 1.0, 0.0 if alone else 1.0),
        Pass(held.late_full, 1.0, held.late_deferred, 1.0, held.head_deferred, 0.0, late),
    )


@jit
def fullest_pass(held: Held, grad_acc: float, framework: FrameworkInputs) -> Pass:
    """The pass with most gradients: the second micro-batch's if there is one."""
    first, second, _ = passes(held, grad_acc, framework)
    return second if second.counts > 0.0 else first
