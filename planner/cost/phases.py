"""Bytes of a pipeline stage in each phase of a step, as affine functions of its contents.

This is the only calculation of memory: searches ask for the heaviest phase, and
`planner.predict.memory` shows all of them. The functions are affine, so the layout solver gets its
coefficients from the same functions that cost a finished layout. On a stage with several kinds of
layers or several chunks, a phase inside the layers counts tensors that all of them keep; that
overestimates by less than a chunk.
"""

from __future__ import annotations

from planner.cost._jit import Row, jit
from planner.cost.keys import local_tokens, padding_factor
from planner.cost.memory import divided_gradient_bytes, gradient_bytes
from planner.cost.phase_records import (
    EMBEDDING,
    FORWARD,
    FORWARD_END,
    HEAD,
    LAYER,
    LAYER_AGAIN,
    LAYER_LAST,
    LAYER_SECOND,
    LOSS,
    MTP,
    OPTIMIZER,
    KeptCopies,
    LayerMaxima,
    Pass,
)
from planner.cost.phase_shards import (
    gathered_bytes,
    hands_on_gradients,
    reduction_bytes,
    waiting_bytes,
)
from planner.cost.schedule import copies_of_model, splits_backward
from planner.cost.tables import FrameworkInputs, JobInputs
from planner.cost.terms import MovingTerms, PhaseTerms, RestingTerms, constant_bytes


@jit
def gradient_per_parameter(framework: FrameworkInputs) -> float:
    """Bytes per parameter of an unsharded gradient, including the framework's additional bytes
    (`extra_gradient_bytes`)."""
    return framework.gradient_bytes + framework.extra_gradient_bytes


@jit
def whole_gradient_bytes(grid: Row, framework: FrameworkInputs) -> float:
    """Bytes per parameter of a gradient that is not yet divided among ranks. If gradients wait for
    one reduction after the last micro-batch, they have the type in which they are added up until
    then. 0 if the optimizer updates in backward, because then no gradient waits."""
    if framework.updates_in_backward > 0.0:
        return 0.0
    if hands_on_gradients(grid, framework) and framework.unreduced_gradients > 0.0:
        return framework.unreduced_gradient_bytes + framework.extra_gradient_bytes
    return gradient_per_parameter(framework)


@jit
def reduces_at_once(grid: Row, framework: FrameworkInputs) -> bool:
    """Whether gradients of a micro-batch are divided as soon as a layer has made them. A step's
    only micro-batch is also its last."""
    at_once = framework.unreduced_gradients == 0.0 or grid.grad_acc == 1.0
    return at_once and hands_on_gradients(grid, framework)


@jit
def bucket_bytes(holds: Row, key: Row, grid: Row, framework: FrameworkInputs) -> float:
    """Bytes of DDP's flat copies of the gradients, whose optimizer may be whole or divided over
    ranks (torch's ZeroRedundancyOptimizer); otherwise of the buckets of ZeRO-1 and 2. These are no
    larger than the gradients and weights of an even stage, which pass through them; but a bucket
    that is made whole (`whole_bucket_bytes`) always has its full size, under ZeRO-3 as well."""
    divided = grid.zero == 1 and framework.bucket_bytes <= 0.0
    if (grid.zero == 0 or divided) and grid.shards > 1.0:
        value = framework.gradient_bytes * holds.trained
        return framework.ddp_bucket_copies * value
    passing = (framework.gradient_bytes + framework.weight_bytes) * framework.model_parameters
    buckets = min(framework.bucket_bytes, passing / (key.tp * grid.pp)) if grid.zero < 3 else 0.0
    return max(framework.whole_bucket_bytes, buckets) if grid.zero > 0 else 0.0


@jit
def logits_elements(key: Row, job: JobInputs, framework: FrameworkInputs) -> float:
    """Number of a micro-batch's logits on which the loss of one rank works at a time."""
    padded = job.vocab * padding_factor(job.vocab, job.vocabulary_multiple, key.tp)
    split = key.tp if framework.logits_sharded > 0.0 else 1.0
    width = padded / split
    if framework.linear_loss > 0.0:
        if framework.loss_rows > 0.0:
            return width * local_tokens(key, job) * min(1.0, framework.loss_rows / key.mbs)
        width = min(width, job.hidden)
    return width * local_tokens(key, job)


@jit
def gives_back(grid: Row, framework: FrameworkInputs) -> bool:
    """Whether backward frees the tensors of layers one layer after the other: if there is one
    chunk, and weight gradients are made at once."""
    return grid.vpp <= 1.0 and not splits_backward(framework.schedule, grid.pp)


@jit
def kept_copies(phase: int, one_pass: Pass, grid: Row, framework: FrameworkInputs) -> KeptCopies:
    """Number of micro-batches that keep each part of a stage for backward.

    Except under GPipe the head's backward follows its forward at once, so it keeps one micro-batch.
    A stage of one chunk frees layers one after the other, other stages free a chunk at its end. If
    backward is split, a chunk whose input gradients are done still keeps the inputs of its weight
    gradients. If the forward of another chunk runs at the same time as a backward that frees
    nothing before its end (`overlap_keeps_chunk`), both are kept. If frozen units keep inputs of
    checkpoints and their gradients until backward ends (`frozen_units_hold`), both of all other
    layers exist when the last layer runs.
    """
    plain = again = one_pass.in_flight
    chunk = 1.0 / (grid.vpp * copies_of_model(framework.schedule, grid.pp))
    mtp = head = one_pass.head - 1.0
    mtp_done = head_done = 0.0
    weight = one_pass.deferred
    if phase <= HEAD:
        mtp, head = mtp + 1.0, head + 1.0
        head_done = 1.0 if phase == HEAD else 0.0
    elif phase == MTP:
        mtp, mtp_done = mtp + 1.0, 1.0
    elif framework.overlap_keeps_chunk > 0.0:
        further = min(chunk, grid.grad_acc - one_pass.in_flight)
        plain, again = plain + further, again + further
    elif phase == EMBEDDING:
        plain, again = plain - chunk, again - chunk
        if splits_backward(framework.schedule, grid.pp):
            weight += chunk
    elif phase >= LAYER_AGAIN and phase != LAYER_SECOND and gives_back(grid, framework):
        # The layers behind a recomputing one, which keep all tensors, have freed them.
        plain -= 1.0
        if phase == LAYER_LAST:
            again += 1.0 if framework.frozen_units_hold > 0.0 else -1.0
    return KeptCopies(
        plain, again, one_pass.in_flight, mtp, mtp_done, head, head_done, weight,
        one_pass.head_deferred,
    )  # fmt: skip


@jit
def on_their_way(phase: int, holds: Row, one_pass: Pass) -> float:
    """Bytes of offloaded tensors that are on the GPU in a phase: on their way to the host, or
    already back."""
    if phase == LAYER_LAST and one_pass.in_flight <= 1.0:
        return holds.fetched
    if phase == EMBEDDING and one_pass.in_flight <= 1.0:
        return 0.0
    return holds.resident


@jit
def kept_bytes(
    phase: int, holds: Row, one_pass: Pass, grid: Row, framework: FrameworkInputs
) -> float:
    """Bytes kept for backward."""
    copies = kept_copies(phase, one_pass, grid, framework)
    return (
        copies.plain * holds.plain_kept
        + copies.again * (holds.layer_kept - holds.plain_kept)
        + copies.embedding * holds.embedding_kept
        + copies.mtp * holds.mtp_kept
        - copies.mtp_done * holds.mtp_logits
        + copies.head * holds.head_kept
        - copies.head_done * holds.head_logits
        + copies.weight * holds.layer_weight
        + copies.head_weight * holds.head_weight
        + on_their_way(phase, holds, one_pass)
    )


@jit
def left_by_first(phase: int, most: LayerMaxima, one_pass: Pass) -> float:
    """Bytes by which memory has changed after the first layer's backward, when the second layer's
    runs: gradients made minus bytes freed, so often negative. 0 in every other phase."""
    if phase != LAYER_SECOND:
        return 0.0
    return most.done_making if one_pass.accumulates == 0.0 else most.done


@jit
def resident_casts(holds: Row, grid: Row, framework: FrameworkInputs) -> float:
    """Bytes of quantised copies of weights that stay on the GPU besides the weights. 0 if copies do
    not stay (`weight_casts_stay`), and under ZeRO-3, which makes them for each pass."""
    if framework.weight_casts_stay == 0.0 or grid.zero > 2:
        return 0.0
    return float(holds.layer_casts + holds.mtp_casts + holds.head_casts)


@jit
def cast_bytes(phase: int, holds: Row, framework: FrameworkInputs) -> float:
    """Bytes of low-precision copies of weights (autocast), all of which exist until forward
    ends."""
    if framework.weight_casts_stay > 0.0:
        return 0.0
    if phase == FORWARD:
        return holds.layer_casts + holds.mtp_casts + holds.head_casts
    if phase <= HEAD:
        return holds.layer_casts_kept + holds.mtp_casts + holds.head_casts
    if LAYER_LAST <= phase <= EMBEDDING:
        return 0.0
    return holds.layer_casts_kept + (holds.mtp_casts if phase == MTP else 0.0)


@jit
def made_gradients(phase: int, holds: Row, grid: Row, framework: FrameworkInputs) -> float:
    """Bytes of gradients that exist in a phase of a pass that makes them."""
    if phase <= HEAD:
        return 0.0
    made = holds.made_by_head if phase == MTP else holds.made_by_mtp
    if LAYER_LAST <= phase <= EMBEDDING:
        made = holds.made_by_layers
    if reduces_at_once(grid, framework):
        return divided_gradient_bytes(made, framework)
    return whole_gradient_bytes(grid, framework) * made


@jit
def held_gradients(
    phase: int, settled: float, holds: Row, one_pass: Pass, grid: Row, framework: FrameworkInputs
) -> float:
    """Bytes of gradients on the rank in a phase of a pass. In a pass that makes them: those made so
    far. In a pass that accumulates: `settled`, the bytes of the gradients that the optimizer reads;
    or the bytes of whole gradients if these wait for one reduction at the end of the step; 0 until
    the end of forward if gradients do not exist before backward."""
    if one_pass.accumulates == 0.0:
        return made_gradients(phase, holds, grid, framework)
    if one_pass.before == 0.0 and phase <= FORWARD:
        return 0.0
    if hands_on_gradients(grid, framework) and framework.unreduced_gradients > 0.0:
        return whole_gradient_bytes(grid, framework) * holds.trained
    return settled


@jit
def table_gradient_bytes(phase: int, framework: FrameworkInputs) -> float:
    """Bytes per parameter of the vocabulary table's gradient while it is made, unsharded.

    If gradients have separate buffers, the head's gradient is made besides them if its product does
    not accumulate. The embedding's always is, unless unreduced gradients are kept anyway.
    """
    if framework.persistent_gradients == 0.0:
        return gradient_per_parameter(framework)
    if phase == HEAD:
        return framework.weight_gradient_bytes
    return 0.0 if framework.extra_gradient_bytes > 0.0 else framework.weight_bytes


@jit
def mtp_working_bytes(holds: Row, grid: Row, framework: FrameworkInputs) -> float:
    """Bytes of the working set of multi-token prediction's backward, which ends in the backward of
    a lookup: the table's gradient comes after the module's tensors (by then no more than these are
    kept). Gradients of several modules wait for each other."""
    table = 0.0
    if not hands_on_gradients(grid, framework) and framework.persistent_gradients > 0.0:
        table = table_gradient_bytes(EMBEDDING, framework) * holds.mtp_table
    if holds.mtp_modules > 1.0:
        return holds.mtp_working + table
    return max(holds.mtp_working, table)


@jit
def working_bytes(
    phase: int, holds: Row, most: LayerMaxima, one_pass: Pass, key: Row, grid: Row,
    job: JobInputs, framework: FrameworkInputs,
) -> float:  # fmt: skip
    """Bytes of gradients in flight and of recomputed tensors."""
    if phase <= LOSS:
        return 0.0
    handed_on = hands_on_gradients(grid, framework)
    if phase <= HEAD or phase == EMBEDDING:
        stream = framework.residual_bytes * local_tokens(key, job) * job.hidden
        made = holds.embedding_trained - holds.embedding_apart
        made = holds.head_made if phase == HEAD else made
        table = 0.0 if handed_on else table_gradient_bytes(phase, framework) * made
        # A vision tower's backward is done before that of the table.
        return stream + (max(table, holds.embedding_working) if phase == EMBEDDING else table)
    size = 0.0 if handed_on else framework.weight_gradient_bytes * holds.head_made
    if phase != MTP and not handed_on and framework.persistent_gradients > 0.0:
        # Autograd adds the table's gradients of all lookups before it accumulates their sum.
        size += table_gradient_bytes(EMBEDDING, framework) * holds.mtp_table_waits
    if phase == MTP:
        size += mtp_working_bytes(holds, grid, framework)
    elif phase == LAYER:
        size += most.making if one_pass.accumulates == 0.0 else most.working
    elif phase == LAYER_AGAIN:
        size += most.making_again if one_pass.accumulates == 0.0 else most.working_again
    elif phase == LAYER_LAST:
        size += most.last
    else:
        size += max(most.working, most.working_again)
    return size


@jit
def loss_bytes(phase: int, holds: Row, framework: FrameworkInputs) -> float:
    """Bytes of logits in flight, besides those kept for backward."""
    if holds.head == 0.0 or phase == FORWARD_END or phase > MTP:
        return 0.0
    elements = holds.logits
    if phase == FORWARD:
        return framework.logits_forward_bytes * elements
    if phase == HEAD and framework.linear_loss == 0.0:
        return framework.activation_bytes * elements
    return framework.logits_transient_bytes * elements


@jit
def at_rest(
    holds: Row, key: Row, grid: Row, job: JobInputs, framework: FrameworkInputs
) -> PhaseTerms:
    """Bytes in the optimizer's phase: everything that always stays (weights, optimizer state,
    buffers), all gradients, and temporaries of the update."""
    resting = RestingTerms(
        framework.weight_bytes * holds.weights + resident_casts(holds, grid, framework),
        framework.master_bytes * holds.states,
        holds.extra_state + framework.optimizer_bytes * holds.states,
        bucket_bytes(holds, key, grid, framework), holds.layers * framework.mask_buffer_bytes,
        framework.input_bytes * local_tokens(key, job), *constant_bytes(framework),
    )  # fmt: skip
    gradients = gradient_bytes(holds.trained, holds.trained_share, grid, framework)
    temporaries = framework.optimizer_temporary_bytes * holds.states
    moving = MovingTerms(
        gradients, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, holds.update_bytes + temporaries
    )
    return PhaseTerms(resting, moving)


@jit
def phase_terms(
    phase: int, rest: PhaseTerms, holds: Row, most: LayerMaxima, one_pass: Pass, key: Row,
    grid: Row, job: JobInputs, framework: FrameworkInputs,
) -> PhaseTerms:  # fmt: skip
    """Bytes in one phase of a pass. `rest`: `at_rest` for the same contents.

    Inside the layers the maximum over their kinds is one number: `working` includes the tensors
    that layers recompute and, for the last layer, all bytes that it adds to those that all leave
    behind. The bytes that the first layer has freed when the second one runs are subtracted from
    `activations` (`layer_maxima`).
    """
    if phase == OPTIMIZER:
        return rest
    kept = kept_bytes(phase, holds, one_pass, grid, framework) + left_by_first(
        phase, most, one_pass
    )
    moving = MovingTerms(
        held_gradients(phase, rest.moving.gradients, holds, one_pass, grid, framework), kept,
        cast_bytes(phase, holds, framework), 0.0, loss_bytes(phase, holds, framework),
        working_bytes(phase, holds, most, one_pass, key, grid, job, framework),
        gathered_bytes(phase, holds, most, grid, framework),
        waiting_bytes(phase, holds, grid, framework),
        reduction_bytes(phase, holds, most, grid, framework), 0.0,
    )  # fmt: skip
    return PhaseTerms(rest.resting, moving)


@jit
def bytes_of_parameters(
    phase: int, settled: float, holds: Row, most: LayerMaxima, one_pass: Pass, grid: Row,
    framework: FrameworkInputs,
) -> float:  # fmt: skip
    """Sum of the terms of a phase (except the optimizer's) that depend only on parameters, without
    resting ones: gradients, and gathered or reduced shards."""
    return (
        held_gradients(phase, settled, holds, one_pass, grid, framework)
        + gathered_bytes(phase, holds, most, grid, framework)
        + waiting_bytes(phase, holds, grid, framework)
        + reduction_bytes(phase, holds, most, grid, framework)
    )


@jit
def bytes_of_activations(
    phase: int, holds: Row, most: LayerMaxima, one_pass: Pass, key: Row, grid: Row,
    job: JobInputs, framework: FrameworkInputs,
) -> float:  # fmt: skip
    """Sum of the terms of a phase that are neither resting nor counted by `bytes_of_parameters`:
    kept tensors, casts of weights, logits and working set."""
    return (
        kept_bytes(phase, holds, one_pass, grid, framework)
        + left_by_first(phase, most, one_pass)
        + cast_bytes(phase, holds, framework)
        + loss_bytes(phase, holds, framework)
        + working_bytes(phase, holds, most, one_pass, key, grid, job, framework)
    )
