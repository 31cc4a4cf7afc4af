"""Cost of one piece (a layer of one kind, the embedding, the head) on one rank, per micro-batch.

Everything here depends only on a *key* (tp, cp, ep, etp, mbs, recompute mode), so each distinct
key is costed once and gathered by all the shapes that share it.
"""

from __future__ import annotations

from planner.cost import fields as f
from planner.cost._jit import jit
from planner.cost.inputs import GpuInputs, LinkInputs
from planner.cost.keys import Key, local_tokens, padding_factor, shard_factor
from planner.cost.piece_compute import backward_buffers_bytes, compute_terms
from planner.cost.piece_traffic import communication_terms, exposed
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
    out[f.PIECE_WEIGHT] = terms.weight
    out[f.PIECE_WEIGHT_SAVED] = terms.weight_bytes
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
