"""Seconds of the collectives of one piece on one rank, per micro-batch, and what of them hides."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.cost import fields as f
from planner.cost._jit import jit
from planner.cost.communication import (
    all_gather_time_s,
    all_reduce_time_s,
    all_to_all_time_s,
    deduplicated_bytes,
    deduplicated_exchange_time_s,
    exchange_bytes,
    point_to_point_time_s,
    reduce_scatter_time_s,
    reduction_gain,
)
from planner.cost.inputs import LinkInputs
from planner.cost.keys import Key, shard_factor
from planner.cost.leaf import group_links
from planner.cost.placement import Group, place_group
from planner.cost.sharing import Stream, exchange_stream, no_stream, ring_stream
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
def collective_stream(
    kind: int, size: float, stride: float, size_bytes: float, job: JobInputs, network: LinkInputs
) -> Stream:
    """One collective of a layer over `size` ranks that lie `stride` apart."""
    if size <= 1.0:
        return no_stream()
    links = group_links(size, stride, job.world, network)
    group = group_of(size, stride, job, links)
    inside, roots = float(group.members_per_domain), float(group.root_groups)
    wire = size_bytes * (size - 1.0) / size
    if kind == f.COMM_ALL_GATHER:
        seconds = all_gather_time_s(size_bytes, size, inside, links, roots)
        return ring_stream(seconds, wire, size, inside, links, roots)
    if kind == f.COMM_REDUCE_SCATTER:
        seconds = reduce_scatter_time_s(size_bytes, size, inside, links, roots)
        return ring_stream(seconds, wire, size, inside, links, roots)
    if kind == f.COMM_ALL_TO_ALL:
        seconds = all_to_all_time_s(size_bytes, size, inside, links, roots)
        inner, outer = exchange_bytes(size_bytes, size, inside)
        return exchange_stream(seconds, inner, outer, inside, links, roots)
    if kind == f.COMM_RING_EXCHANGE:
        return ring_exchange_stream(size_bytes, size, inside >= size, links)
    seconds = all_reduce_time_s(size_bytes, size, inside, links, roots)
    wire *= 2.0 / reduction_gain(min(inside, size), links)
    return ring_stream(seconds, wire, size, inside, links, roots)


@jit
def ring_exchange_stream(
    size_bytes: float, size: float, same_domain: bool, links: LinkInputs
) -> Stream:
    """size - 1 steps, each of which passes one rank's share of `size_bytes`; a ring that leaves
    the domain waits for the step that does."""
    own = size_bytes / size
    seconds = (size - 1.0) * point_to_point_time_s(own, same_domain, links)
    if same_domain:
        busy = (size - 1.0) * own / links.scale_up_bytes_per_s
        return Stream(seconds, min(busy, seconds), 0.0)
    busy = (size - 1.0) * own / links.scale_out_bytes_per_s
    return Stream(seconds, 0.0, min(busy, seconds))


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
def expert_exchange_stream(
    size_bytes: float, key: Key, job: JobInputs, framework: FrameworkInputs, network: LinkInputs
) -> Stream:
    """An expert exchange; `size_bytes`: of all routed copies of a rank's tokens."""
    if framework.dispatch_deduplicates == 0.0 or job.top_k < 1.0 or key.ep <= 1.0:
        return collective_stream(f.COMM_ALL_TO_ALL, key.ep, key.etp, size_bytes, job, network)
    links = group_links(key.ep, key.etp, job.world, network)
    group = group_of(key.ep, key.etp, job, links)
    inside, roots = float(group.members_per_domain), float(group.root_groups)
    token_bytes, draws = size_bytes / job.top_k, exchange_draws(key, job)
    seconds = deduplicated_exchange_time_s(token_bytes, draws, key.ep, inside, links, roots)
    inner, outer = deduplicated_bytes(token_bytes, draws, key.ep, inside)
    return exchange_stream(seconds, inner, outer, inside, links, roots)


class Traffic(NamedTuple):
    """A piece's collectives by group (0 tp, 1 cp, 2 ep with etp) and pass (0 forward, 1 backward,
    2 recompute): seconds, the part that may hide, and link time inside and between domains."""

    total: Array
    hideable: Array
    inside: Array
    between: Array


@jit
def row_stream(
    row: Array, key: Key, job: JobInputs, framework: FrameworkInputs, links: LinkInputs
) -> Stream:
    """One collective of a row, with the copies that come with it."""
    code, kind = int(row[f.COMM_GROUP]), int(row[f.COMM_KIND])
    size_bytes = collective_bytes(row, key, job)
    if code == f.GROUP_EP:
        return expert_exchange_stream(size_bytes, key, job, framework, links)
    if code == f.GROUP_TP and kind == f.COMM_ALL_GATHER:
        size_bytes *= framework.tensor_gather_share
    if code == f.GROUP_CP:
        return context_stream(kind, size_bytes, key, job, links)
    size, stride = degree_and_stride(code, key)
    own = collective_stream(kind, size, stride, size_bytes, job, links)
    if code != f.GROUP_TP or own.seconds == 0.0:
        return own
    seconds = own.seconds + 0.5 * size_bytes * framework.tensor_copy_s
    if key.tp > links.scale_up_domain:
        seconds += (key.tp - 1.0) * framework.outer_tensor_step_s
    return Stream(seconds, own.inside, own.between)


@jit
def communication_terms(
    piece: int,
    key: Key,
    table: OpTable,
    job: JobInputs,
    framework: FrameworkInputs,
    links: LinkInputs,
) -> Traffic:
    """Sum the collectives of one piece."""
    out = Traffic(np.zeros((3, 3)), np.zeros((3, 3)), np.zeros((3, 3)), np.zeros((3, 3)))
    for index in range(table.collectives.shape[0]):
        row = table.collectives[index]
        if int(row[f.COMM_PIECE]) != piece:
            continue
        if row[f.COMM_SP_ONLY] > 0 and key.sequence_parallel == 0:
            continue
        own = row_stream(row, key, job, framework, links)
        if own.seconds > 0.0:
            again = row[f.COMM_FORWARD] if int(row[f.COMM_RERUN_WITH]) & key.modules else 0.0
            counts = (row[f.COMM_FORWARD], row[f.COMM_BACKWARD], again)
            add_traffic(out, row, counts, own, framework)
    return out


@jit
def context_stream(
    kind: int, size_bytes: float, key: Key, job: JobInputs, links: LinkInputs
) -> Stream:
    """One exchange of context parallelism, if the key has it; `size_bytes`: whole sequence.

    Keys and values are gathered where `exchange` is 0. Otherwise neighbours, `exchange` of them,
    exchange heads, each its 1/cp of the sequence; the cp/exchange groups then hold that part of
    the heads each and pass keys and values round a ring (USP, arXiv 2405.07719, section 3).
    """
    if kind == f.COMM_ALL_GATHER:
        if key.exchange > 0.0:
            return no_stream()
        return collective_stream(kind, key.cp, key.tp, size_bytes, job, links)
    if key.exchange < 1.0:
        return no_stream()
    if kind == f.COMM_ALL_TO_ALL:
        own = size_bytes / key.cp
        return collective_stream(kind, key.exchange, key.tp, own, job, links)
    groups, stride = key.cp / key.exchange, key.tp * key.exchange
    return collective_stream(kind, groups, stride, size_bytes / key.exchange, job, links)


@jit
def add_traffic(
    out: Traffic, row: Array, counts: tuple[float, float, float], own: Stream,
    framework: FrameworkInputs,
) -> None:  # fmt: skip
    """Add a collective that happens `counts` times in each pass."""
    group = min(int(row[f.COMM_GROUP]), 2)
    for index in range(3):
        column = f.COMM_HIDDEN_BACKWARD if index == 1 else f.COMM_HIDDEN_FORWARD
        seconds = counts[index] * own.seconds
        out.total[group, index] += seconds
        out.hideable[group, index] += seconds * hide_share(int(row[column]), framework)
        out.inside[group, index] += counts[index] * own.inside
        out.between[group, index] += counts[index] * own.between


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


class Rooms(NamedTuple):
    """Seconds of compute in forward (or when it runs again) and backward: all of it, of products
    in backward, and of attention: what each group's collectives may hide behind."""

    forward: float
    backward: float
    products_backward: float
    attention_forward: float
    attention_backward: float


@jit
def group_room(group: int, index: int, rooms: Rooms) -> float:
    """Compute beside a group's collectives in a pass.

    Forward overlap of tp and ep splits the product it feeds; backward has an independent product
    beside each; a cp step hides behind the attention of the previous one.
    """
    if group == 1:
        return rooms.attention_backward if index == 1 else rooms.attention_forward
    if index != 1:
        return rooms.forward
    return rooms.products_backward if group == 0 else rooms.backward


@jit
def free_share(free: float, busy: float) -> float:
    """Share of `busy` seconds of link time for which `free` seconds have room."""
    return 1.0 if busy <= free else max(0.0, free) / busy


@jit
def exposed_traffic(traffic: Traffic, rooms: Rooms, contention: float, out: Array) -> None:
    """Fill the seconds that a piece's collectives add, by group and pass, and its link time.

    Hidden: what may hide and finds compute beside it that no other group's hidden traffic on the
    same links has taken; context parallelism comes first, which has the narrowest choice, expert
    parallelism last. Added: the rest, and the slow-down of the compute that it hides behind.
    """
    firsts = (f.PIECE_FORWARD_TP, f.PIECE_BACKWARD_TP, f.PIECE_RECOMPUTE_TP)
    for index in range(3):
        compute = rooms.backward if index == 1 else rooms.forward
        links = f.PIECE_LINKS + index * f.LINK_PASS
        for group in (1, 0, 2):
            total = traffic.total[group, index]
            if total == 0.0:
                continue
            inside, between = traffic.inside[group, index], traffic.between[group, index]
            share = min(traffic.hideable[group, index], group_room(group, index, rooms)) / total
            share = min(share, free_share(compute - out[links + f.LINK_HIDDEN_INSIDE], inside))
            share = min(share, free_share(compute - out[links + f.LINK_HIDDEN_BETWEEN], between))
            hidden = share * total
            # What a ring costs attention beside it is in its measured steps (`RING_STEP_PASSES`).
            slow_down = 0.0 if group == 1 else contention * hidden
            out[firsts[index] + group] = total - hidden + slow_down
            out[links + f.LINK_EXPOSED_INSIDE] += (1.0 - share) * inside
            out[links + f.LINK_EXPOSED_BETWEEN] += (1.0 - share) * between
            out[links + f.LINK_HIDDEN_INSIDE] += share * inside
            out[links + f.LINK_HIDDEN_BETWEEN] += share * between
