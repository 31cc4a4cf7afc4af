"""Cost of one piece (a layer of one kind, the embedding, the head) on one rank, per micro-batch.

Everything here depends only on a *key* (tp, cp, ep, etp, mbs, recompute mode), so each distinct
key is costed once and gathered by all the shapes that share it.
"""

from __future__ import annotations

from planner.cost import fields as f
from planner.cost._jit import jit
from planner.cost.inputs import GpuInputs, LinkInputs
from planner.cost.keys import Key
from planner.cost.piece_compute import compute_terms, parameter_traffic_s
from planner.cost.piece_memory import (
    cast_bytes,
    exchange_bytes_held,
    logits_kept_bytes,
    offloaded_bytes,
    parameters_on_rank,
    saved_bytes,
    table_parameters,
    working_bytes,
)
from planner.cost.piece_traffic import Rooms, communication_terms, exposed_traffic
from planner.cost.tables import Array, FrameworkInputs, JobInputs, OpTable
from planner.cost.update import update_costs


@jit
def recompute_costs(kept: float, key: Key, out: Array) -> None:
    """Fill the columns that depend on how many layers recompute, and scale the time of doing so.

    `kept`: bytes of a layer that recomputes. A checkpoint of n layers keeps the input of its
    first one and brings all of their tensors back at once; where every k-th layer recomputes,
    layers are costed as their average.
    """
    saved = out[f.PIECE_SAVED]
    out[f.PIECE_SAVED_RECOMPUTED] = (1.0 - key.share) * saved + key.share * kept / key.span
    out[f.PIECE_AGAIN] = max(0.0, key.span * saved - kept)
    for column in range(f.PIECE_RECOMPUTE, f.PIECE_RECOMPUTE_EP + 1):
        out[column] *= key.share
    again = f.PIECE_LINKS + 2 * f.LINK_PASS
    for column in range(again, again + f.LINK_PASS):
        out[column] *= key.share


@jit
def exposed_copies(copied: float, room_s: float, gpu: GpuInputs, links: LinkInputs) -> float:
    """Seconds that copying activations over the host link adds to a pass of `room_s` seconds.

        t = max(0, c/B - room) + c/W

    Each layer's copies run beside the compute of a layer, on copy engines, in a direction of their
    own (to the host in forward, back in backward); they take their bytes of the HBM's rate.
    Symbols: c = bytes, B = host link, W = HBM bandwidth. Ignores that the first and the last layer
    of a stage have less to copy, and compute of other micro-batches that copies may run into.
    """
    late_s = max(0.0, copied / links.host_bytes_per_s - room_s)
    return late_s + copied / gpu.hbm_bytes_per_s


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
    traffic = communication_terms(piece, key, table, job, framework, links)
    out[f.PIECE_FORWARD] = terms.forward
    out[f.PIECE_BACKWARD] = terms.backward
    out[f.PIECE_RECOMPUTE] = terms.recompute
    out[f.PIECE_WEIGHT] = terms.weight
    out[f.PIECE_WEIGHT_SAVED] = terms.weight_bytes
    rooms = Rooms(
        terms.forward,
        terms.backward,
        terms.gemm_backward,
        terms.attention_forward,
        terms.attention_backward,
    )
    exposed_traffic(traffic, rooms, framework.contention, out)
    dense, expert = parameters_on_rank(piece, key, table, job)
    out[f.PIECE_BACKWARD] += parameter_traffic_s(
        dense + expert, framework.accumulation_traffic_bytes, gpu
    )
    left, copied, copies = offloaded_bytes(piece, key, key.modules, table, job, framework)
    # One CPU thread issues kernels: a pass takes at least the time to do so, or that and the
    # kernels' own where it waits for each. Collectives cost it next to nothing (vTrain's
    # single-node rows take as long at tp 2 and 4 as at tp 1).
    for column, kernels, chunks in (
        (f.PIECE_FORWARD, terms.kernels_forward + copies, terms.products),
        (f.PIECE_BACKWARD, terms.kernels_backward + copies, 2.0 * terms.products),
        (f.PIECE_RECOMPUTE, terms.kernels_recompute, 0.0),
    ):
        device = out[column] + out[column + 1] + out[column + 2] + out[column + 3]
        issue = kernels * framework.issue_s
        if key.pipelined > 0.0 and key.tp > 1.0:
            issue += chunks * key.tp * framework.pipeline_exchange_s
            if key.tp > links.scale_up_domain:
                issue += chunks * (key.tp - 1.0) * framework.outer_tensor_step_s
        if framework.blocking_launches > 0.0:
            device = 0.0
        waited = max(0.0, issue - device)
        out[column] += waited
        out[f.PIECE_ISSUE_AGAIN if column == f.PIECE_RECOMPUTE else f.PIECE_ISSUE] += waited
    if copied > 0.0:
        forward_s = out[f.PIECE_FORWARD : f.PIECE_FORWARD_EP + 1].sum()
        backward_s = out[f.PIECE_BACKWARD : f.PIECE_RECOMPUTE_EP + 1].sum()
        out[f.PIECE_FORWARD_OFFLOAD] = exposed_copies(copied, forward_s, gpu, links)
        out[f.PIECE_BACKWARD_OFFLOAD] = exposed_copies(copied, backward_s, gpu, links)
    out[f.PIECE_SAVED] = saved_bytes(piece, key, 0, table, job)
    recompute_costs(saved_bytes(piece, key, key.modules, table, job), key, out)
    out[f.PIECE_OFFLOADED] = offloaded_bytes(piece, key, 0, table, job, framework)[0]
    out[f.PIECE_OFFLOADED_RECOMPUTED] = left
    out[f.PIECE_DUPLICATED] = copied - left
    out[f.PIECE_SAVED] -= out[f.PIECE_OFFLOADED]
    out[f.PIECE_SAVED_RECOMPUTED] -= left
    out[f.PIECE_DENSE_PARAMETERS], out[f.PIECE_EXPERT_PARAMETERS] = dense, expert
    out[f.PIECE_WORKING], out[f.PIECE_WEIGHT_GRADIENT] = working_bytes(
        piece, dense + expert, key, table, job, framework
    )
    out[f.PIECE_WORKING] = max(
        out[f.PIECE_WORKING], exchange_bytes_held(piece, key, table, job, framework)
    )
    out[f.PIECE_CASTS] = cast_bytes(piece, key, table, framework)
    out[f.PIECE_LOGITS] = logits_kept_bytes(piece, key, table, job)
    out[f.PIECE_TABLE] = table_parameters(key, job)
    update_costs(piece, key, table, job, out)
