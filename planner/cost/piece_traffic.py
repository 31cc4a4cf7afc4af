"""Seconds of the collectives of one piece on one rank, per micro-batch, and what of them hides."""

from __future__ import annotations

import numpy as np

from planner.cost import fields as f
from planner.cost._jit import jit
from planner.cost.communication import (
    all_gather_time_s,
    all_reduce_time_s,
    all_to_all_time_s,
    deduplicated_exchange_time_s,
    point_to_point_time_s,
    reduce_scatter_time_s,
)
from planner.cost.inputs import LinkInputs
from planner.cost.keys import Key, shard_factor
from planner.cost.placement import Group, place_group
from planner.cost.tables import Array, FrameworkInputs, JobInputs, OpTable


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
def exchange_draws(key: Key, job: JobInputs) -> float:
    """Draws of a rank that stand for a token's k experts: k, or where these are neighbours among E
    the k·ep/E ranks that hold them, at least one."""
    if job.neighbour_share > 0.0:
        return float(max(1.0, min(job.top_k, job.neighbour_share * key.ep)))
    return float(job.top_k)


@jit
def expert_exchange_seconds(
    size_bytes: float, key: Key, job: JobInputs, framework: FrameworkInputs, links: LinkInputs
) -> float:
    """Seconds of an expert exchange; `size_bytes`: of all routed copies of a rank's tokens."""
    if framework.dispatch_deduplicates == 0.0 or job.top_k < 1.0 or key.ep <= 1.0:
        return collective_seconds(f.COMM_ALL_TO_ALL, f.GROUP_EP, size_bytes, key, job, links)
    group = group_of(key.ep, key.etp, job, links)
    return deduplicated_exchange_time_s(
        size_bytes / job.top_k, exchange_draws(key, job), key.ep,
        float(group.members_per_domain), links, float(group.root_groups),
    )  # fmt: skip


@jit
def communication_terms(
    piece: int,
    key: Key,
    table: OpTable,
    job: JobInputs,
    framework: FrameworkInputs,
    links: LinkInputs,
) -> tuple[Array, Array]:
    """Seconds of a piece's collectives, total[3 groups, 3 passes], and the part that may hide.

    Groups: 0 tp, 1 cp, 2 ep (with etp). Passes: 0 forward, 1 backward, 2 recompute.
    """
    total = np.zeros((3, 3))
    hideable = np.zeros((3, 3))
    for index in range(table.collectives.shape[0]):
        row = table.collectives[index]
        if int(row[f.COMM_PIECE]) != piece:
            continue
        if row[f.COMM_SP_ONLY] > 0 and key.sequence_parallel == 0:
            continue
        code = int(row[f.COMM_GROUP])
        size_bytes = collective_bytes(row, key, job)
        if code == f.GROUP_EP:
            seconds = expert_exchange_seconds(size_bytes, key, job, framework, links)
        else:
            kind = int(row[f.COMM_KIND])
            if code == f.GROUP_TP and kind == f.COMM_ALL_GATHER:
                size_bytes *= framework.tensor_gather_share
            seconds = collective_seconds(kind, code, size_bytes, key, job, links)
        if seconds == 0.0:
            continue
        if code == f.GROUP_TP:
            seconds += 0.5 * size_bytes * framework.tensor_copy_s
        if code == f.GROUP_TP and key.tp > links.scale_up_domain:
            seconds += (key.tp - 1.0) * framework.outer_tensor_step_s
        group = min(code, 2)
        forward, backward = seconds * row[f.COMM_FORWARD], seconds * row[f.COMM_BACKWARD]
        total[group, 0] += forward
        total[group, 1] += backward
        hideable[group, 0] += forward * hide_share(int(row[f.COMM_HIDDEN_FORWARD]), framework)
        hideable[group, 1] += backward * hide_share(int(row[f.COMM_HIDDEN_BACKWARD]), framework)
        if int(row[f.COMM_RERUN_WITH]) & key.modules:
            total[group, 2] += forward
            hideable[group, 2] += forward * hide_share(int(row[f.COMM_HIDDEN_FORWARD]), framework)
    return total, hideable


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
def exposed(total: float, hideable: float, room: float, contention: float) -> float:
    """Seconds that a collective adds: what cannot hide, what does not find room, and the
    slow-down it inflicts on the compute it hides behind."""
    hidden = min(hideable, room)
    return total - hidden + contention * hidden
