"""Seconds of the collectives of one piece on one rank and micro-batch, hidden and exposed."""

from __future__ import annotations

import math

from planner.cost import fields as f
from planner.cost._jit import Row, Rows, jit
from planner.cost.codes import GROUP_CP, GROUP_EP, GROUP_TP, CollectiveKind, Hidden
from planner.cost.communication import (
    all_gather_time_s,
    all_reduce_time_s,
    all_to_all_time_s,
    deduplicated_bytes,
    deduplicated_exchange_time_s,
    exchange_bytes,
    lone_sender_gain,
    parts_hit,
    point_to_point_time_s,
    reduction_gain,
)
from planner.cost.inputs import LinkInputs
from planner.cost.keys import shard_factor
from planner.cost.leaf import group_links
from planner.cost.piece_compute import ComputeTerms
from planner.cost.placement import PlacedGroup, place_group
from planner.cost.sharing import Stream, exchange_stream, no_stream, on_links, ring_stream
from planner.cost.tables import Array, FrameworkInputs, JobInputs


@jit
def group_of(size: float, stride: float, links: LinkInputs) -> PlacedGroup:
    """Placement of a group of `size` ranks that are `stride` apart."""
    return place_group(
        int(size), int(max(1.0, stride)), int(max(1.0, links.scale_up_domain)),
        int(links.root_gpus), int(links.job_gpus),
    )  # fmt: skip


@jit
def collective_stream(
    kind: int, size: float, stride: float, size_bytes: float, network: Rows
) -> Stream:
    """One collective of a layer over `size` ranks that are `stride` apart."""
    if size <= 1.0:
        return no_stream()
    links = group_links(size, stride, network)
    group = group_of(size, stride, links)
    inside, roots = float(group.members_per_domain), float(group.root_groups)
    wire = size_bytes * (size - 1.0) / size
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        seconds = all_gather_time_s(size_bytes, size, inside, links, roots)
        return ring_stream(seconds, wire, size, inside, links, roots)
    if kind == CollectiveKind.ALL_TO_ALL:
        seconds = all_to_all_time_s(size_bytes, size, inside, links, roots)
        inner, outer = exchange_bytes(size_bytes, size, inside)
        return exchange_stream(seconds, inner, outer, inside, links, roots)
    if kind == CollectiveKind.RING_EXCHANGE:
        return ring_exchange_stream(size_bytes, size, inside, links)
    seconds = all_reduce_time_s(size_bytes, size, inside, links, roots)
    wire *= 2.0 / reduction_gain(min(inside, size), links)
    return ring_stream(seconds, wire, size, inside, links, roots)


@jit
def ring_exchange_stream(
    size_bytes: float, size: float, inside: float, links: LinkInputs
) -> Stream:
    """size - 1 steps, each of which passes one rank's share of `size_bytes`. A ring with `inside`
    members in a domain, if it leaves the domain, waits for the step that does."""
    value, same_domain = size_bytes / size, inside >= size
    seconds = (size - 1.0) * point_to_point_time_s(value, same_domain, links, inside)
    wire = (size - 1.0) * value
    if same_domain:
        return on_links(seconds, wire / links.scale_up_bytes_per_s, 0.0, wire, links)
    rate = links.scale_out_bytes_per_s * lone_sender_gain(inside, links)
    return on_links(seconds, 0.0, wire / rate, wire, links)


@jit
def collective_bytes(row: Row, key: Row, job: JobInputs) -> float:
    """Bytes of a collective as its cost function counts them: the whole, ungathered tensor.

    Per-token bytes times the tokens of the whole group; for an all-to-all the bytes that one rank
    sends; for a cp ring those of the whole sequence.
    """
    tokens = key.mbs * job.seq
    if int(row.group) != GROUP_CP:
        tokens /= key.cp
    return float(row.bytes_per_token * tokens * shard_factor(int(row.shard), key, job.kv_heads))


@jit
def exchange_draws(key: Row, job: JobInputs) -> float:
    """Number of independent random choices of ranks by which a token's k experts are found. It is
    k. But if the k experts are neighbours among all E, each choice brings those of a whole rank:
    then it is k·ep/E, at least 1 and at most k."""
    if job.neighbour_share > 0.0:
        return float(max(1.0, min(job.top_k, job.neighbour_share * key.ep)))
    return float(job.top_k)


@jit
def expert_exchange_stream(
    size_bytes: float, tokens: float, key: Row, job: JobInputs, framework: FrameworkInputs,
    network: Rows,
) -> Stream:  # fmt: skip
    """An expert exchange. `size_bytes`: of all routed copies of a rank's `tokens`.

    HybridEP sends a token with fp32 weights of all experts of a domain, and their gradients back.
    This happens with one of the two exchanges of a pass, so half is counted with each (DeepEP,
    branch hybrid-ep, hybrid_ep_backend.cuh, `expert_output_prob`).
    """
    stride = key.stride[GROUP_EP]
    if framework.dispatch_deduplicates == 0.0 or job.top_k < 1.0 or key.ep <= 1.0:
        return collective_stream(CollectiveKind.ALL_TO_ALL, key.ep, stride, size_bytes, network)
    links = group_links(key.ep, stride, network)
    group = group_of(key.ep, stride, links)
    inside, roots = float(group.members_per_domain), float(group.root_groups)
    weights_bytes = 2.0 * job.weighed_experts * min(1.0, inside / key.ep)
    token_bytes = size_bytes / job.top_k + weights_bytes * tokens
    draws = exchange_draws(key, job)
    ranks = parts_hit(key.ep, draws, job.expert_groups, job.top_groups)
    domains = parts_hit(math.ceil(key.ep / inside), draws, job.expert_groups, job.top_groups)
    seconds = deduplicated_exchange_time_s(
        token_bytes, tokens, ranks, domains, key.ep, inside, links, roots
    )
    inner, outer = deduplicated_bytes(token_bytes, ranks, domains, key.ep, inside)
    return exchange_stream(seconds, inner, outer, inside, links, roots)


# A piece's collectives of one group (0 tp, 1 cp, 2 ep with etp) in one pass (0 forward, 1 backward,
# 2 recompute): seconds, the part that may be hidden, link time inside and between domains. At index
# 3·group + pass of TRAFFICS.
TRAFFICS = 9
TRAFFIC_ROW = f.record_of("total", "hideable", "inside", "between")


@jit
def row_stream(
    row: Row, key: Row, job: JobInputs, framework: FrameworkInputs, network: Rows
) -> Stream:
    """One collective of a row, including the copies that it needs."""
    code, kind = int(row.group), int(row.kind)
    size_bytes = collective_bytes(row, key, job)
    if code == GROUP_EP and kind == CollectiveKind.ALL_GATHER:
        return collective_stream(kind, key.ep, key.stride[GROUP_EP], size_bytes * key.ep, network)
    if code == GROUP_EP:
        tokens = size_bytes / row.bytes_per_token
        return expert_exchange_stream(size_bytes, tokens, key, job, framework, network)
    if code == GROUP_TP and kind == CollectiveKind.ALL_GATHER:
        size_bytes *= framework.tensor_gather_share
    if code == GROUP_CP:
        return context_stream(kind, size_bytes, key, network)
    stream = collective_stream(kind, key.ranks[code], key.stride[code], size_bytes, network)
    if code != GROUP_TP or stream.seconds == 0.0:
        return stream
    seconds = stream.seconds + 0.5 * size_bytes * framework.tensor_copy_s
    if key.tp > network[0].scale_up_domain:
        seconds += (key.tp - 1.0) * framework.outer_tensor_step_s
    return Stream(seconds, stream.inside, stream.between, stream.engaged)


@jit
def communication_terms(
    piece: int, key: Row, collectives: Rows, job: JobInputs, framework: FrameworkInputs,
    network: Rows, out: Rows,
) -> None:  # fmt: skip
    """Fill out[3·group + pass] for one piece: seconds and link time of all collectives of each
    group in each pass, summed, and the seconds that the framework can overlap. Rows without
    collectives are zero."""
    for index in range(TRAFFICS):
        one_out = out[index]
        one_out.total = one_out.hideable = one_out.inside = one_out.between = 0.0
    for index in range(collectives.shape[0]):
        row = collectives[index]
        if int(row.piece) != piece:
            continue
        if row.sequence_parallel_only > 0 and key.sequence_parallel == 0:
            continue
        stream = row_stream(row, key, job, framework, network)
        if stream.seconds > 0.0:
            again = row.forward if int(row.rerun_with) & int(key.modules) else 0.0
            counts = (row.forward, row.backward, again)
            add_traffic(out, row, counts, stream, key, framework)


@jit
def context_stream(kind: int, size_bytes: float, key: Row, network: Rows) -> Stream:
    """One exchange of context parallelism, if the key has it. `size_bytes`: of the whole sequence.

    Keys and values are gathered if `exchange` is 0. Otherwise groups of `exchange` neighbours
    exchange heads, each rank its 1/cp of the sequence; the cp/exchange groups then each have that
    part of the heads, and pass keys and values around a ring (USP, arXiv 2405.07719, section 3).
    State-space layers exchange heads over all ranks, independently of attention.
    """
    stride = key.stride[GROUP_CP]
    if kind == CollectiveKind.HEAD_EXCHANGE:
        value = size_bytes / key.cp
        return collective_stream(CollectiveKind.ALL_TO_ALL, key.cp, stride, value, network)
    if kind == CollectiveKind.ALL_GATHER:
        if key.exchange > 0.0:
            return no_stream()
        return collective_stream(kind, key.cp, stride, size_bytes, network)
    if key.exchange < 1.0:
        return no_stream()
    if kind == CollectiveKind.ALL_TO_ALL:
        value = size_bytes / key.cp
        return collective_stream(kind, key.exchange, stride, value, network)
    groups, apart = key.cp / key.exchange, stride * key.exchange
    return collective_stream(kind, groups, apart, size_bytes / key.exchange, network)


@jit
def add_traffic(
    out: Rows, row: Row, counts: tuple[float, float, float], stream: Stream, key: Row,
    framework: FrameworkInputs,
) -> None:  # fmt: skip
    """Add a collective that runs `counts` times, given for each pass."""
    group = min(int(row.group), 2)
    for index in range(3):
        hidden = row.hidden_backward if index == 1 else row.hidden_forward
        one_out = out[3 * group + index]
        seconds = counts[index] * stream.seconds
        one_out.total += seconds
        one_out.hideable += seconds * hide_share(int(hidden), key, framework)
        one_out.inside += counts[index] * stream.inside
        one_out.between += counts[index] * stream.between


@jit
def hide_share(hidden: int, key: Row, framework: FrameworkInputs) -> float:
    """Share of a collective that the framework runs at the same time as compute.

    If an exchange and the product that makes or uses it are cut into tp pieces, one piece, the
    first or the last, has no compute to hide behind: 1/tp (Transformer Engine's userbuffers,
    torch's micro_pipeline_tp.py).
    """
    if hidden == Hidden.BEHIND_GEMM:
        return framework.hide_tensor_backward
    if hidden == Hidden.BEHIND_ATTENTION:
        return framework.hide_context
    if hidden == Hidden.TP_OVERLAP:
        return float(framework.hide_tensor * (1.0 - 1.0 / key.tp))
    if hidden == Hidden.EP_OVERLAP:
        return framework.hide_expert
    return 0.0


@jit
def group_window(group: int, index: int, terms: ComputeTerms) -> float:
    """Seconds of compute that run at the same time as a group's collectives in a pass.

    In forward, the overlap of tp and ep splits the product that the collective feeds; in backward
    an independent product runs with each collective. A cp step hides behind the attention of the
    previous one.
    """
    if group == 1:
        return terms.attention_backward if index == 1 else terms.attention_forward
    if index != 1:
        return terms.forward
    return terms.gemm_backward if group == 0 else terms.backward


@jit
def free_share(free: float, busy: float) -> float:
    """Share (0 to 1) of `busy` seconds of link time that fits into `free` seconds: free/busy, at
    most 1."""
    return 1.0 if busy <= free else max(0.0, free) / busy


@jit
def group_traffic(
    row: Row, window_s: float, compute_s: float, slow_down: float, links: Array, first: int
) -> float:
    """Seconds that the collectives of one group add to a pass. Their link time is added to `links`,
    from `first` on (LINK_*).

    Hidden: the part that may be hidden, as far as there is compute (`window_s`) that no other
    group's hidden traffic on the same links has taken. Added: the rest, and `slow_down` for each
    hidden second.
    """
    inside, between = row.inside, row.between
    share = min(row.hideable, window_s) / row.total
    share = min(share, free_share(compute_s - links[first + f.LINK_HIDDEN_INSIDE], inside))
    share = min(share, free_share(compute_s - links[first + f.LINK_HIDDEN_BETWEEN], between))
    hidden = share * row.total
    links[first + f.LINK_EXPOSED_INSIDE] += (1.0 - share) * inside
    links[first + f.LINK_EXPOSED_BETWEEN] += (1.0 - share) * between
    links[first + f.LINK_HIDDEN_INSIDE] += share * inside
    links[first + f.LINK_HIDDEN_BETWEEN] += share * between
    return float(row.total - hidden + slow_down * hidden)


@jit
def exposed_traffic(traffic: Rows, terms: ComputeTerms, contention: float, out: Row) -> None:
    """Fill the seconds that a piece's collectives add, by group and pass, and their link time;
    `total` of its `traffic` is set to the seconds that they add.

    Context parallelism comes first, because it has the fewest choices of compute to hide behind,
    expert parallelism last. A ring's slowdown of the attention that runs with it is part of its
    measured steps (`RING_STEP_PASSES`); other hidden traffic slows the compute that it hides
    behind.
    """
    for index in range(3):
        compute_s = terms.backward if index == 1 else terms.forward
        for group in (1, 0, 2):
            one_traffic = traffic[3 * group + index]
            if one_traffic.total > 0.0:
                window_s = group_window(group, index, terms)
                slow_down = 0.0 if group == 1 else contention
                first = index * f.LINK_PASS
                one_traffic.total = group_traffic(
                    one_traffic, window_s, compute_s, slow_down, out.links, first
                )
    out.forward_tp, out.forward_cp, out.forward_ep = (
        traffic[0].total, traffic[3].total, traffic[6].total
    )  # fmt: skip
    out.backward_tp, out.backward_cp, out.backward_ep = (
        traffic[1].total, traffic[4].total, traffic[7].total
    )  # fmt: skip
    out.recompute_tp, out.recompute_cp, out.recompute_ep = (
        traffic[2].total, traffic[5].total, traffic[8].total
    )  # fmt: skip
