"""Cost of one piece (a layer of one kind, the embedding, the head) on one rank, per micro-batch.

Everything here depends only on a *key* (tp, cp, ep, etp, mbs, recompute mode), so each distinct
key is costed once and gathered by all the shapes that share it.

Symbols: t = tp, e = etp, b = micro-batch size, s = sequence length; tokens on a rank = b·s/cp.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.cost import fields as f
from planner.cost._jit import jit
from planner.cost.communication import (
    all_gather_time_s,
    all_reduce_time_s,
    all_to_all_time_s,
    point_to_point_time_s,
    reduce_scatter_time_s,
)
from planner.cost.compute import (
    attention_backward_time_s,
    attention_forward_time_s,
    eager_attention_backward_time_s,
    eager_attention_forward_time_s,
    gemm_time_s,
    grouped_gemm_time_s,
    grouped_weight_gradient_time_s,
    memory_bound_time_s,
)
from planner.cost.inputs import GpuInputs, LinkInputs
from planner.cost.placement import Group, place_group
from planner.cost.tables import Array, FrameworkInputs, JobInputs, OpTable


class Key(NamedTuple):
    """Degrees that the cost of a layer depends on; `modules` is the recompute mask."""

    tp: float
    cp: float
    ep: float
    etp: float
    mbs: float
    modules: int
    sequence_parallel: float


@jit
def shard_factor(code: int, key: Key, kv_heads: float) -> float:
    """Share of a per-token quantity on one rank (`planner.ops.rows.Shard`)."""
    if code in (f.SHARD_TP, f.SHARD_ROUTED_TP):
        return 1.0 / key.tp
    if code == f.SHARD_SEQUENCE:
        return 1.0 / key.tp if key.sequence_parallel > 0 else 1.0
    if code == f.SHARD_KV:
        return 1.0 / min(key.tp, kv_heads)
    if code == f.SHARD_ROUTED:
        return key.etp / key.tp
    if code == f.SHARD_EXPERT_TP:
        return 1.0 / key.etp
    return 1.0


@jit
def padding_factor(vocab: float, multiple: float, tp: float) -> float:
    """Padded over true vocabulary: the framework rounds up to a multiple of multiple·tp."""
    unit = multiple * tp
    return float(((vocab + unit - 1) // unit) * unit / vocab)


@jit
def local_tokens(key: Key, job: JobInputs) -> float:
    """Tokens of a micro-batch on a context-parallel rank: b·s/cp."""
    return key.mbs * job.seq / key.cp


@jit
def gemm_shape(op: Array, key: Key, job: JobInputs) -> tuple[float, float, float]:
    """(rows, out, in) of a row's product on one rank: tokens × local widths."""
    rows = (
        local_tokens(key, job)
        * op[f.OP_TOKENS_FACTOR]
        * shard_factor(int(op[f.OP_TOKENS_SHARD]), key, job.kv_heads)
    )
    out = op[f.OP_OUT_WIDTH] * shard_factor(int(op[f.OP_OUT_SHARD]), key, job.kv_heads)
    if op[f.OP_PADS_VOCABULARY] > 0:
        out *= padding_factor(job.vocab, job.vocabulary_multiple, key.tp)
    out += op[f.OP_KV_OUT_WIDTH] * shard_factor(f.SHARD_KV, key, job.kv_heads)
    depth = op[f.OP_IN_WIDTH] * shard_factor(int(op[f.OP_IN_SHARD]), key, job.kv_heads)
    return rows, out, depth


@jit
def gemm_seconds(op: Array, key: Key, job: JobInputs, gpu: GpuInputs) -> tuple[float, float]:
    """Forward and backward seconds of a dense product.

    Forward (rows, out, in); backward the input gradient (rows, in, out) and the weight gradient
    (out, in, rows), which accumulates into an fp32 buffer.
    """
    rows, out, depth = gemm_shape(op, key, job)
    low = op[f.OP_LOW_PRECISION] > 0
    peak = gpu.matmul_flop_per_s if low else gpu.matmul16_flop_per_s
    share = gpu.gemm_max_efficiency if low else gpu.gemm16_max_efficiency
    forward = gemm_time_s(rows, out, depth, 1.0, peak, share, 2.0, gpu)
    data = gemm_time_s(rows, depth, out, 1.0, peak, share, 2.0, gpu)
    weight = gemm_time_s(out, depth, rows, 1.0, peak, share, 8.0, gpu)
    return forward, data + weight


@jit
def grouped_gemm_seconds(
    op: Array, key: Key, job: JobInputs, gpu: GpuInputs
) -> tuple[float, float]:
    """Forward and backward seconds of the experts' products on one rank."""
    rows, out, depth = gemm_shape(op, key, job)
    groups = op[f.OP_GROUPS] / key.ep
    peak, share = gpu.matmul_flop_per_s, gpu.gemm_max_efficiency
    forward = grouped_gemm_time_s(rows, groups, out, depth, peak, share, 2.0, gpu)
    data = grouped_gemm_time_s(rows, groups, depth, out, peak, share, 2.0, gpu)
    weight = grouped_weight_gradient_time_s(rows, groups, out, depth, peak, share, 8.0, gpu)
    return forward, data + weight


@jit
def attention_seconds(op: Array, key: Key, job: JobInputs, gpu: GpuInputs) -> tuple[float, float]:
    """Forward and backward seconds of core attention on one rank.

    Under context parallelism each rank holds two chunks whose causal work adds up to the same
    share on every rank (zig-zag order), so its queries see the whole length at 1/cp of the work.
    """
    queries = job.seq / key.cp
    heads = op[f.OP_HEADS] / key.tp
    if job.eager_attention > 0:
        forward = eager_attention_forward_time_s(
            key.mbs, queries, job.seq, heads, op[f.OP_QK_HEAD_DIM], op[f.OP_V_HEAD_DIM], gpu
        )
        backward = eager_attention_backward_time_s(
            key.mbs, queries, job.seq, heads, op[f.OP_QK_HEAD_DIM], op[f.OP_V_HEAD_DIM], gpu
        )
        return forward, backward
    window = op[f.OP_WINDOW]
    forward = attention_forward_time_s(
        key.mbs, queries, job.seq, heads, op[f.OP_QK_HEAD_DIM], op[f.OP_V_HEAD_DIM],
        job.causal, window, gpu,
    )  # fmt: skip
    backward = attention_backward_time_s(
        key.mbs, queries, job.seq, heads, op[f.OP_QK_HEAD_DIM], op[f.OP_V_HEAD_DIM],
        job.causal, window, gpu,
    )  # fmt: skip
    return forward, backward


@jit
def memory_seconds(
    op: Array, key: Key, job: JobInputs, framework: FrameworkInputs, gpu: GpuInputs
) -> tuple[float, float]:
    """Forward and backward seconds of a memory-bound row."""
    rows = (
        local_tokens(key, job)
        * op[f.OP_TOKENS_FACTOR]
        * shard_factor(int(op[f.OP_TOKENS_SHARD]), key, job.kv_heads)
        * framework.memory_traffic
    )
    forward = memory_bound_time_s(rows * op[f.OP_FORWARD_BYTES], op[f.OP_FORWARD_KERNELS], gpu)
    backward = memory_bound_time_s(rows * op[f.OP_BACKWARD_BYTES], op[f.OP_BACKWARD_KERNELS], gpu)
    return forward, backward


@jit
def op_seconds(
    op: Array, key: Key, job: JobInputs, framework: FrameworkInputs, gpu: GpuInputs
) -> tuple[float, float]:
    """Forward and backward seconds of any row."""
    kind = int(op[f.OP_KIND])
    if kind == f.KIND_GEMM:
        return gemm_seconds(op, key, job, gpu)
    if kind == f.KIND_GROUPED_GEMM:
        return grouped_gemm_seconds(op, key, job, gpu)
    if kind == f.KIND_ATTENTION:
        return attention_seconds(op, key, job, gpu)
    return memory_seconds(op, key, job, framework, gpu)


class ComputeTerms(NamedTuple):
    """Sums over a piece's rows, for one micro-batch on one rank.

    Seconds of all kernels by pass, of GEMMs in backward and of attention (what collectives may
    hide behind), kernels to issue by pass, and bytes of the gradients of the largest operation.
    """

    forward: float
    backward: float
    recompute: float
    gemm_backward: float
    attention_forward: float
    attention_backward: float
    kernels_forward: float
    kernels_backward: float
    kernels_recompute: float
    working_bytes: float


@jit
def compute_terms(
    piece: int,
    key: Key,
    table: OpTable,
    job: JobInputs,
    framework: FrameworkInputs,
    gpu: GpuInputs,
) -> ComputeTerms:
    """Sum the rows of one piece."""
    forward = backward = recompute = 0.0
    gemm_backward = attention_forward = attention_backward = working = 0.0
    kernels_forward = kernels_backward = kernels_recompute = 0.0
    for row in range(table.ops.shape[0]):
        op = table.ops[row]
        if int(op[f.OP_PIECE]) != piece:
            continue
        seconds_forward, seconds_backward = op_seconds(op, key, job, framework, gpu)
        forward += seconds_forward
        backward += seconds_backward
        kernels_forward += op[f.OP_FORWARD_KERNELS]
        kernels_backward += op[f.OP_BACKWARD_KERNELS]
        if int(op[f.OP_RERUN_WITH]) & key.modules:
            recompute += seconds_forward
            kernels_recompute += op[f.OP_FORWARD_KERNELS]
        kind = int(op[f.OP_KIND])
        if kind == f.KIND_ATTENTION:
            attention_forward += seconds_forward
            attention_backward += seconds_backward
        if kind in (f.KIND_GEMM, f.KIND_GROUPED_GEMM):
            gemm_backward += seconds_backward
            working = max(working, gradients_in_flight_bytes(op, key, job))
    return ComputeTerms(
        forward,
        backward,
        recompute,
        gemm_backward,
        attention_forward,
        attention_backward,
        kernels_forward,
        kernels_backward,
        kernels_recompute,
        working,
    )


@jit
def gradients_in_flight_bytes(op: Array, key: Key, job: JobInputs) -> float:
    """16-bit gradients of a product's input and output; logits are accounted for at the loss."""
    if op[f.OP_PADS_VOCABULARY] > 0:
        return 0.0
    rows, out, depth = gemm_shape(op, key, job)
    return 2.0 * rows * (out + depth)


@jit
def backward_buffers_bytes(
    parameters: float, key: Key, job: JobInputs, framework: FrameworkInputs
) -> float:
    """A layer's weight gradients before they are accumulated, and what is gathered over tp.

    On eight B200 (SimuMax, Megatron-Core without fused accumulation) both are seen to the tenth
    of a GiB: one layer's 16-bit gradients, three tensors of full width.
    """
    gathered = 0.0
    if key.tp > 1.0:
        gathered = framework.gathered_tensors * 2.0 * job.hidden * local_tokens(key, job)
    return framework.weight_gradient_bytes * parameters + gathered


@jit
def group_of(size: float, stride: float, job: JobInputs, links: LinkInputs) -> Group:
    """Placement of a group of `size` ranks that lie `stride` apart."""
    return place_group(
        int(size),
        int(max(1.0, stride)),
        int(max(1.0, links.scale_up_domain)),
        int(links.root_gpus),
        int(job.world),
    )


@jit
def degree_and_stride(group: int, key: Key) -> tuple[float, float]:
    """Size of a layer's group and rank distance of its members (rank order tp-cp-ep-dp-pp).

    tp ranks are neighbours; cp ranks lie tp apart; in the expert grid etp is innermost and ep
    next to it.
    """
    if group == f.GROUP_CP:
        return key.cp, key.tp
    if group == f.GROUP_EP:
        return key.ep, key.etp
    if group == f.GROUP_ETP:
        return key.etp, 1.0
    return key.tp, 1.0


@jit
def collective_seconds(
    kind: int, code: int, size_bytes: float, key: Key, job: JobInputs, links: LinkInputs
) -> float:
    """Seconds of one collective of a layer."""
    degree, stride = degree_and_stride(code, key)
    if degree <= 1.0:
        return 0.0
    group = group_of(degree, stride, job, links)
    inside, roots = float(group.members_per_domain), float(group.root_groups)
    if kind == f.COMM_ALL_GATHER:
        return all_gather_time_s(size_bytes, degree, inside, links, roots)
    if kind == f.COMM_REDUCE_SCATTER:
        return reduce_scatter_time_s(size_bytes, degree, inside, links, roots)
    if kind == f.COMM_ALL_TO_ALL:
        return all_to_all_time_s(size_bytes, degree, inside, links, roots)
    if kind == f.COMM_RING_EXCHANGE:
        # cp-1 steps, each passes one rank's share; a ring that leaves the domain waits for it.
        return (degree - 1.0) * point_to_point_time_s(size_bytes / degree, inside >= degree, links)
    return all_reduce_time_s(size_bytes, degree, inside, links, roots)


@jit
def collective_bytes(row: Array, key: Key, job: JobInputs) -> float:
    """Bytes of a collective as its cost function counts them: the whole, ungathered tensor.

    Per-token bytes times the tokens that the group holds together; for an all-to-all the bytes
    that one rank sends; for a cp ring those of the whole sequence.
    """
    tokens = key.mbs * job.seq
    if int(row[f.COMM_GROUP]) != f.GROUP_CP:
        tokens /= key.cp
    return float(
        row[f.COMM_BYTES] * tokens * shard_factor(int(row[f.COMM_SHARD]), key, job.kv_heads)
    )


@jit
def communication_terms(
    piece: int,
    key: Key,
    table: OpTable,
    job: JobInputs,
    framework: FrameworkInputs,
    links: LinkInputs,
) -> tuple[Array, Array, Array]:
    """Seconds of a piece's collectives, total[3 groups, 3 passes], the part of them that may
    hide, and how many are issued in each pass.

    Groups: 0 tp, 1 cp, 2 ep (with etp). Passes: 0 forward, 1 backward, 2 recompute.
    """
    total = np.zeros((3, 3))
    hideable = np.zeros((3, 3))
    issued = np.zeros(3)
    for index in range(table.collectives.shape[0]):
        row = table.collectives[index]
        if int(row[f.COMM_PIECE]) != piece:
            continue
        if row[f.COMM_SP_ONLY] > 0 and key.sequence_parallel == 0:
            continue
        code = int(row[f.COMM_GROUP])
        seconds = collective_seconds(
            int(row[f.COMM_KIND]), code, collective_bytes(row, key, job), key, job, links
        )
        if seconds == 0.0:
            continue
        group = min(code, 2)
        forward, backward = seconds * row[f.COMM_FORWARD], seconds * row[f.COMM_BACKWARD]
        total[group, 0] += forward
        total[group, 1] += backward
        issued[0] += row[f.COMM_FORWARD]
        issued[1] += row[f.COMM_BACKWARD]
        hideable[group, 0] += forward * hide_share(int(row[f.COMM_HIDDEN_FORWARD]), framework)
        hideable[group, 1] += backward * hide_share(int(row[f.COMM_HIDDEN_BACKWARD]), framework)
        if int(row[f.COMM_RERUN_WITH]) & key.modules:
            total[group, 2] += forward
            issued[2] += row[f.COMM_FORWARD]
            hideable[group, 2] += forward * hide_share(int(row[f.COMM_HIDDEN_FORWARD]), framework)
    return total, hideable, issued


@jit
def hide_share(hidden: int, framework: FrameworkInputs) -> float:
    """Share of a collective that the framework runs beside compute."""
    if hidden == f.HIDDEN_BEHIND_GEMM:
        return framework.hide_tensor_backward
    if hidden == f.HIDDEN_BEHIND_ATTENTION:
        return framework.hide_context
    if hidden == f.HIDDEN_TP_OVERLAP:
        return framework.hide_tensor
    if hidden == f.HIDDEN_EP_OVERLAP:
        return framework.hide_expert
    return 0.0


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
        size = row[f.SAVED_BYTES] * shard_factor(int(row[f.SAVED_SHARD]), key, job.kv_heads)
        if row[f.SAVED_PADS_VOCABULARY] > 0:
            size *= padding_factor(job.vocab, job.vocabulary_multiple, key.tp)
        total += size * tokens
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
def exposed(total: float, hideable: float, room: float, contention: float) -> float:
    """Seconds that a collective adds: what cannot hide, what does not find room, and the
    slow-down it inflicts on the compute it hides behind."""
    hidden = min(hideable, room)
    return total - hidden + contention * hidden


@jit
def piece_cost(
    piece: int,
    key: Key,
    table: OpTable,
    job: JobInputs,
    framework: FrameworkInputs,
    gpu: GpuInputs,
    links: LinkInputs,
    out: Array,
) -> None:
    """Fill one row of piece costs (columns PIECE_* in `planner.cost.fields`)."""
    terms = compute_terms(piece, key, table, job, framework, gpu)
    total, hideable, issued = communication_terms(piece, key, table, job, framework, links)
    contention = framework.contention
    out[f.PIECE_FORWARD] = terms.forward
    out[f.PIECE_BACKWARD] = terms.backward
    out[f.PIECE_RECOMPUTE] = terms.recompute
    # Room: forward overlap of tp and ep splits the GEMM it feeds; backward has an independent
    # GEMM beside each; a cp step hides behind the attention of the previous one.
    for group, room_forward, room_backward in (
        (0, terms.forward, terms.gemm_backward),
        (1, terms.attention_forward, terms.attention_backward),
        (2, terms.forward, terms.backward),
    ):
        out[f.PIECE_FORWARD_TP + group] = exposed(
            total[group, 0], hideable[group, 0], room_forward, contention
        )
        out[f.PIECE_BACKWARD_TP + group] = exposed(
            total[group, 1], hideable[group, 1], room_backward, contention
        )
        out[f.PIECE_RECOMPUTE_TP + group] = exposed(
            total[group, 2], hideable[group, 2], room_forward, contention
        )
    # One CPU thread issues kernels and collectives: a pass takes at least the time to do so.
    for column, kernels in (
        (f.PIECE_FORWARD, terms.kernels_forward + issued[0]),
        (f.PIECE_BACKWARD, terms.kernels_backward + issued[1]),
        (f.PIECE_RECOMPUTE, terms.kernels_recompute + issued[2]),
    ):
        device = out[column] + out[column + 1] + out[column + 2] + out[column + 3]
        out[column] += max(0.0, kernels * framework.issue_s - device)
    out[f.PIECE_SAVED] = saved_bytes(piece, key, 0, table, job)
    out[f.PIECE_SAVED_RECOMPUTED] = saved_bytes(piece, key, key.modules, table, job)
    dense, expert = parameters_on_rank(piece, key, table, job)
    out[f.PIECE_WORKING] = terms.working_bytes
    if piece < job.kinds:
        out[f.PIECE_WORKING] += backward_buffers_bytes(dense + expert, key, job, framework)
    out[f.PIECE_DENSE_PARAMETERS], out[f.PIECE_EXPERT_PARAMETERS] = dense, expert
