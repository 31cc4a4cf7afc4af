"""Cost of one piece (a layer of one kind, the embedding, the head) on one rank, per micro-batch.

Everything here depends only on a *key* (tp, cp, ep, etp, mbs, recompute mode), so each distinct
key is costed once and gathered by all the shapes that share it.
"""

from __future__ import annotations

from planner.cost import fields as f
from planner.cost._jit import jit
from planner.cost.inputs import GpuInputs, LinkInputs
from planner.cost.keys import Key
from planner.cost.piece_compute import compute_terms
from planner.cost.piece_memory import (
    cast_bytes,
    logits_kept_bytes,
    parameters_on_rank,
    saved_bytes,
    table_parameters,
    working_bytes,
)
from planner.cost.piece_traffic import communication_terms, exposed
from planner.cost.tables import Array, FrameworkInputs, JobInputs, OpTable


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
    out[f.PIECE_DENSE_PARAMETERS], out[f.PIECE_EXPERT_PARAMETERS] = dense, expert
    out[f.PIECE_WORKING], out[f.PIECE_WEIGHT_GRADIENT] = working_bytes(
        piece, dense + expert, key, table, job, framework
    )
    out[f.PIECE_CASTS] = cast_bytes(piece, key, table, framework)
    out[f.PIECE_LOGITS] = logits_kept_bytes(piece, key, table, job)
    out[f.PIECE_TABLE] = table_parameters(key, job)
