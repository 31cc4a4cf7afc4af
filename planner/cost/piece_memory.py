"""Bytes and parameters of one piece on one rank, for one micro-batch."""

from __future__ import annotations

from planner.cost import fields as f
from planner.cost._jit import jit
from planner.cost.keys import Key, gemm_shape, local_tokens, padding_factor, shard_factor
from planner.cost.tables import Array, FrameworkInputs, JobInputs, OpTable


@jit
def saved_bytes(piece: int, key: Key, modules: int, table: OpTable, job: JobInputs) -> float:
    """Bytes a rank keeps from forward to backward for one piece and micro-batch under `modules`."""
    tokens = local_tokens(key, job)
    total = 0.0
    for index in range(table.saved.shape[0]):
        row = table.saved[index]
        if int(row[f.SAVED_PIECE]) != piece or int(row[f.SAVED_FREED_BY]) & modules:
            continue
        only_with = int(row[f.SAVED_ONLY_WITH])
        if only_with != 0 and not only_with & modules:
            continue
        total += saved_row_bytes(row, tokens, key, job)
    return total


@jit
def saved_row_bytes(row: Array, tokens: float, key: Key, job: JobInputs) -> float:
    """Bytes of one kept tensor on a rank."""
    size = row[f.SAVED_BYTES] * shard_factor(int(row[f.SAVED_SHARD]), key, job.kv_heads)
    if row[f.SAVED_PADS_VOCABULARY] > 0:
        size *= padding_factor(job.vocab, job.vocabulary_multiple, key.tp)
    return float(size * tokens + row[f.SAVED_FIXED] / key.cp)


@jit
def offloaded_bytes(
    piece: int, key: Key, modules: int, table: OpTable, job: JobInputs, framework: FrameworkInputs
) -> tuple[float, float, float]:
    """(bytes that leave the GPU, bytes copied each way, copies) of one piece and micro-batch.

    A tensor that recomputation frees, or of which another op keeps a reference, is copied all the
    same. Tensors below the framework's least size stay without a copy.
    """
    tokens = local_tokens(key, job)
    left = copied = copies = 0.0
    for index in range(table.saved.shape[0]):
        row = table.saved[index]
        if int(row[f.SAVED_PIECE]) != piece or row[f.SAVED_COPIES] == 0.0:
            continue
        only_with = int(row[f.SAVED_ONLY_WITH])
        if only_with != 0 and not only_with & modules:
            continue
        size = saved_row_bytes(row, tokens, key, job)
        if size < framework.least_offload_bytes:
            continue
        if not int(row[f.SAVED_FREED_BY]) & modules:
            left += row[f.SAVED_LEAVES] * size
        copied += row[f.SAVED_COPIES] * size
        copies += row[f.SAVED_COPIES]
    return left, copied, copies


@jit
def logits_kept_bytes(piece: int, key: Key, table: OpTable, job: JobInputs) -> float:
    """What the loss of a piece keeps for backward."""
    total = 0.0
    for index in range(table.saved.shape[0]):
        row = table.saved[index]
        if int(row[f.SAVED_PIECE]) == piece and row[f.SAVED_PADS_VOCABULARY] > 0:
            total += saved_row_bytes(row, local_tokens(key, job), key, job)
    return total


@jit
def parameters_on_rank(piece: int, key: Key, table: OpTable, job: JobInputs) -> tuple[float, float]:
    """(dense, expert) parameters of one piece on one rank, before ZeRO."""
    dense = expert = 0.0
    for index in range(table.parameters.shape[0]):
        row = table.parameters[index]
        if int(row[f.PARAM_PIECE]) != piece:
            continue
        count = row[f.PARAM_COUNT]
        shard = int(row[f.PARAM_SHARD])
        if row[f.PARAM_PADS_VOCABULARY] > 0 and shard == f.PARAM_SHARD_TP:
            count *= padding_factor(job.vocab, job.vocabulary_multiple, key.tp)
        if shard == f.PARAM_SHARD_EXPERT:
            expert += count / (key.ep * key.etp)
        elif shard == f.PARAM_SHARD_TP:
            dense += count / key.tp
        elif shard == f.PARAM_SHARD_KV:
            dense += count / min(key.tp, job.kv_heads)
        else:
            dense += count
    return dense, expert


@jit
def table_parameters(key: Key, job: JobInputs) -> float:
    """Parameters of the vocabulary table on one rank, padding included."""
    padding = padding_factor(job.vocab, job.vocabulary_multiple, key.tp)
    return job.vocab * padding * job.hidden / key.tp


@jit
def weight_elements(op: Array, key: Key) -> float:
    """Elements of the matrices of a product on one rank."""
    kind = int(op[f.OP_KIND])
    if kind not in (f.KIND_GEMM, f.KIND_GROUPED_GEMM):
        return 0.0
    split = key.ep * key.etp if kind == f.KIND_GROUPED_GEMM else key.tp
    out = op[f.OP_OUT_WIDTH] + op[f.OP_KV_OUT_WIDTH]
    return float(op[f.OP_GROUPS] * out * op[f.OP_IN_WIDTH] / split)


@jit
def cast_bytes(piece: int, key: Key, table: OpTable, framework: FrameworkInputs) -> float:
    """Copies of a piece's weights that autocast makes."""
    total = 0.0
    for row in range(table.ops.shape[0]):
        if int(table.ops[row, f.OP_PIECE]) == piece:
            total += weight_elements(table.ops[row], key)
    return framework.weight_cast_bytes * total


@jit
def exchange_bytes_held(
    piece: int, key: Key, table: OpTable, job: JobInputs, framework: FrameworkInputs
) -> float:
    """Bytes at work in the backward of attention where context parallelism is no plain ring.

    Gathered keys and values and as many gradients of them, beside queries and output and theirs;
    or all of these once more, in the order in which an all-to-all sends them. What a ring holds,
    the next pair beside the present one, is no more than a product's working set.
    """
    if key.cp <= 1.0 or key.exchange == 1.0:
        return 0.0
    largest = 0.0
    for row in range(table.ops.shape[0]):
        op = table.ops[row]
        if int(op[f.OP_PIECE]) != piece or int(op[f.OP_KIND]) != f.KIND_ATTENTION:
            continue
        width = op[f.OP_QK_HEAD_DIM] + op[f.OP_V_HEAD_DIM]
        own = local_tokens(key, job) * width
        queries = own * op[f.OP_HEADS] / key.tp
        pair = own * op[f.OP_KV_HEADS] / min(key.tp, op[f.OP_KV_HEADS])
        held = queries + 2.0 * key.cp * pair if key.exchange < 1.0 else 2.0 * (queries + pair)
        largest = max(largest, framework.activation_bytes * held)
    return largest


@jit
def working_bytes(
    piece: int, parameters: float, key: Key, table: OpTable, job: JobInputs,
    framework: FrameworkInputs,
) -> tuple[float, float]:  # fmt: skip
    """(gradients of activations, weight gradients) alive at the widest point of a backward.

    Fused: 16-bit gradients of the largest product's input and output, and the tensors gathered
    over tp; on eight B200 (SimuMax, Megatron-Core without fused accumulation) these and the
    gradients of all of one layer's weights are seen to the tenth of a GiB. Unfused: see
    `planner.memory.rank.working_bytes`. Logits are accounted for at the loss.
    """
    largest = widest = one_weight = 0.0
    for row in range(table.ops.shape[0]):
        op = table.ops[row]
        is_product = int(op[f.OP_KIND]) in (f.KIND_GEMM, f.KIND_GROUPED_GEMM)
        if int(op[f.OP_PIECE]) != piece or not is_product or op[f.OP_PADS_VOCABULARY] > 0:
            continue
        rows, out, into = gemm_shape(op, key, job)
        largest = max(largest, rows * (out + into))
        if rows * into > widest:
            widest = rows * into
            one_weight = weight_elements(op, key) / op[f.OP_GROUPS]
    if largest == 0.0:
        return 0.0, 0.0
    element, stream = framework.activation_bytes, local_tokens(key, job) * job.hidden
    if framework.unfused_tensors > 0.0:
        wide = element * framework.unfused_tensors * widest
        return wide + 3.0 * framework.residual_bytes * stream, element * one_weight
    gathered = framework.gathered_tensors * element * stream if key.tp > 1.0 else 0.0
    return element * largest + gathered, framework.weight_gradient_bytes * parameters
