"""Bytes and parameters of one piece on one rank, for one micro-batch."""

from __future__ import annotations

from planner.cost._jit import Row, Rows, jit
from planner.cost.codes import OpKind, ParamShard
from planner.cost.keys import (
    gemm_shape,
    local_tokens,
    on_rank,
    padding_factor,
    returned,
    shard_factor,
    weight_elements,
)
from planner.cost.tables import FrameworkInputs, JobInputs


@jit
def saved_bytes(piece: int, key: Row, modules: int, saved: Rows, job: JobInputs) -> float:
    """Bytes that a rank keeps from forward to backward for one piece and micro-batch. `modules`:
    bit mask of the modules that recompute."""
    tokens = local_tokens(key, job)
    total = 0.0
    for index in range(saved.shape[0]):
        row = saved[index]
        if int(row.piece) != piece or int(row.freed_by) & modules:
            continue
        only_with = int(row.only_with)
        if only_with != 0 and not only_with & modules:
            continue
        total += saved_row_bytes(row, tokens, key, job)
    return total


@jit
def saved_row_bytes(row: Row, tokens: float, key: Row, job: JobInputs) -> float:
    """Bytes that one tensor kept for backward takes on a rank, for `tokens` tokens; 0 for an
    `exchanged` tensor if context parallelism exchanges no heads."""
    if row.exchanged > 0 and key.exchange <= 1.0:
        return 0.0
    size = row.bytes_per_token * shard_factor(int(row.shard), key, job.kv_heads)
    if row.pads_vocabulary > 0:
        size *= padding_factor(job.vocab, job.vocabulary_multiple, key.tp)
    return float(size * tokens + row.fixed_bytes / key.cp)


@jit
def offloaded_bytes(
    piece: int, key: Row, modules: int, saved: Rows, job: JobInputs, framework: FrameworkInputs
) -> tuple[float, float, float]:
    """(bytes that leave the GPU, bytes copied in each direction, number of copies) of one piece and
    micro-batch, when activations are offloaded to the host.

    A tensor is copied even if recomputation frees it or another op keeps a reference to it, so more
    bytes may be copied than leave the GPU. Tensors below the framework's least size are not copied.
    """
    tokens = local_tokens(key, job)
    left = copied = copies = 0.0
    for index in range(saved.shape[0]):
        row = saved[index]
        if int(row.piece) != piece or row.copies == 0.0:
            continue
        only_with = int(row.only_with)
        if only_with != 0 and not only_with & modules:
            continue
        size = saved_row_bytes(row, tokens, key, job)
        if size < framework.least_offload_bytes:
            continue
        if not int(row.freed_by) & modules:
            left += row.leaves * size
        copied += row.copies * size
        copies += row.copies
    return left, copied, copies


@jit
def logits_kept_bytes(piece: int, key: Row, saved: Rows, job: JobInputs) -> float:
    """Bytes that the loss of a piece keeps for backward."""
    total = 0.0
    for index in range(saved.shape[0]):
        row = saved[index]
        if int(row.piece) == piece and row.pads_vocabulary > 0:
            total += saved_row_bytes(row, local_tokens(key, job), key, job)
    return total


@jit
def piece_parameters(
    piece: int, key: Row, parameters: Rows, job: JobInputs, framework: FrameworkInputs, out: Row
) -> None:
    """Fill PIECE_PARAMETERS, sums over them, PIECE_AVERAGED, PIECE_APART and PIECE_TABLE_CLASS for
    one piece on one rank.

    The vocabulary table is the first of the embedding's tensors.
    """
    found = 0
    for index in range(parameters.shape[0]):
        row = parameters[index]
        if int(row.piece) != piece:
            continue
        count = on_rank(row.count, row, key, job)
        out.parameters[int(row.parameter_class)] += count
        made = framework.classes[int(row.parameter_class)].gradients * count
        if int(row.shard) == ParamShard.COPIED:
            out.averaged += made
        out.apart += row.apart * made
        if piece == job.kinds and found == 0:
            out.table_class = row.parameter_class
        found += 1
    for number in range(len(framework.classes)):
        one_class = framework.classes[number]
        out.trained += one_class.gradients * out.parameters[number]
        out.gathered += one_class.gathered * out.parameters[number]


@jit
def table_parameters(key: Row, job: JobInputs) -> float:
    """Parameters of the vocabulary table on one rank, including padding."""
    padding = padding_factor(job.vocab, job.vocabulary_multiple, key.tp)
    return job.vocab * padding * job.hidden / key.tp


@jit
def cast_bytes(piece: int, key: Row, ops: Rows, framework: FrameworkInputs) -> float:
    """Bytes of the copies that autocast makes of a piece's weights."""
    total = 0.0
    for row in range(ops.shape[0]):
        if int(ops[row].piece) == piece and ops[row].autocasts > 0.0:
            total += weight_elements(ops[row], key)
    return framework.weight_cast_bytes * total


@jit
def exchange_bytes_held(
    piece: int, key: Row, ops: Rows, job: JobInputs, framework: FrameworkInputs
) -> float:
    """Bytes of temporary tensors in the backward of attention if context parallelism is not a plain
    ring.

    Gathered keys and values and the gradients of these, besides queries and output and their
    gradients; or, for an all-to-all, a copy of all of these in the order in which they are sent. A
    ring has the next pair besides the present one, which is no more than a product's working set.
    """
    if key.cp <= 1.0 or key.exchange == 1.0:
        return 0.0
    largest = 0.0
    for row in range(ops.shape[0]):
        op = ops[row]
        if int(op.piece) != piece or int(op.kind) != OpKind.ATTENTION:
            continue
        if op.span > 0.0:
            continue
        width = op.qk_head_dim + op.v_head_dim
        value = local_tokens(key, job) * width
        queries = value * op.heads / key.tp
        pair = value * op.kv_heads / min(key.tp, op.kv_heads)
        held = queries + 2.0 * key.cp * pair if key.exchange < 1.0 else 2.0 * (queries + pair)
        largest = max(largest, framework.activation_bytes * held)
    return largest


@jit
def softmax_terms(
    piece: int, key: Row, ops: Rows, parameters: Rows, saved: Rows, job: JobInputs,
    framework: FrameworkInputs,
) -> tuple[float, float]:  # fmt: skip
    """During the backward of an unfused softmax: (bytes besides those that the layer keeps,
    parameters whose gradients the layer has made).

        e = w*a*s^2*b + r*s*b*h - f

    Still alive are the softmax's output, with it the gradients of its output and input (w bytes a
    score), and the gradient of the residual stream; the f bytes that rows behind the core of
    attention keep are freed. Gradients of values take the place of values. Counted on transformers,
    where these are the live tensors to the MB. 0, 0 if the softmax is fused.
    """
    if framework.softmax_bytes == 0.0:
        return 0.0, 0.0
    tokens, scores = local_tokens(key, job), 0.0
    for row in range(ops.shape[0]):
        if int(ops[row].piece) == piece and int(ops[row].kind) == OpKind.ATTENTION:
            length = job.seq if ops[row].span == 0.0 else ops[row].span * ops[row].tokens_factor
            scores = ops[row].heads / key.tp * length * tokens
    if scores == 0.0:
        return 0.0, 0.0
    held = framework.softmax_bytes * scores + framework.residual_bytes * tokens * job.hidden
    for row in range(saved.shape[0]):
        one_saved = saved[row]
        if (
            int(one_saved.piece) == piece
            and one_saved.after_core > 0.0
            and int(one_saved.only_with) == 0
        ):
            held -= saved_row_bytes(one_saved, tokens, key, job)
    made = 0.0
    for row in range(parameters.shape[0]):
        if int(parameters[row].piece) == piece and parameters[row].after_core > 0.0:
            one_class = framework.classes[int(parameters[row].parameter_class)]
            made += one_class.gradients * on_rank(parameters[row].count, parameters[row], key, job)
    return held, made


@jit
def working_bytes(
    piece: int, trained: float, key: Row, ops: Rows, job: JobInputs,
    framework: FrameworkInputs,
) -> tuple[float, float]:  # fmt: skip
    """(bytes of activation gradients, of weight gradients) alive at the widest point of a backward.

    Fused: 16-bit gradients of the largest product's input and output, and the tensors gathered over
    tp; on eight B200 (SimuMax, Megatron-Core without fused accumulation) these and the gradients of
    all weights of one layer explain the readings to a tenth of a GiB. Unfused, inside the
    feed-forward block: gradients of its product, of both factors and of the gate's input (of the
    activation's output and input without a gate), three of the residual's width, and one weight's
    gradient. A recurrence has the tensors that its backward recomputes, experts those for weighing
    their outputs (`weighing_bytes`). Copies of weights (packed ones in 16 bits) are made for one
    product at a time. Logits are counted in the loss.
    """
    largest = widest = one_weight = scanned = weighed = unpacked = 0.0
    for row in range(ops.shape[0]):
        op = ops[row]
        if int(op.piece) == piece and int(op.kind) == OpKind.SCAN:
            scanned = local_tokens(key, job) * op.work_bytes / key.tp
        is_product = int(op.kind) in (OpKind.GEMM, OpKind.GROUPED_GEMM)
        if int(op.piece) != piece or not is_product or op.pads_vocabulary > 0:
            continue
        if op.partial > 0.0:
            if returned(op, key) == 0.0:
                continue
            copy = op.transient * weight_elements(op, key) / op.groups
            unpacked = max(unpacked, copy)
        rows, out, into = gemm_shape(op, key, job)
        largest = max(largest, rows * (out + into))
        if int(op.kind) == OpKind.GROUPED_GEMM:
            weighed = framework.weighing_bytes * rows * job.hidden
        if rows * into > widest:
            widest = rows * into
            one_weight = op.trained * weight_elements(op, key) / op.groups
    if largest == 0.0:
        return 0.0, 0.0
    element, stream = framework.activation_bytes, local_tokens(key, job) * job.hidden
    if framework.unfused_tensors > 0.0:
        wide = max(element * framework.unfused_tensors * widest, scanned)
        wide += unpacked
        return wide + 3.0 * framework.residual_bytes * stream, element * one_weight
    gathered = framework.gathered_tensors * element * stream if key.tp > 1.0 else 0.0
    wide = max(element * largest, scanned) + unpacked
    return wide + weighed + gathered, framework.weight_gradient_bytes * trained
