"""Collectives of data parallelism that the switches between domains reduce (SHARP).

Conventions of `planner.cost.communication`: S = payload, n = `size`, m = members per domain, D =
n/m domains. The members of a domain reduce among themselves (NVLS, or a chain). Each sends its S/m
into the tree of switches of its rail, which adds up the domains' parts and multicasts the sum: S/m
up and S/m down a NIC, half of a ring's 2 (n - 1)/n S/m. Reduce-scatters send S/m up and gathers
receive S/m, as much as in a ring, so there the tree saves only latency.

Latency: one reduction for any D, and two hops for every further tier of switches. Leaf switches
reduce before they send on, so oversubscription of the spine costs nothing. NCCL takes the algorithm
that it expects to be fastest: here the faster one. Sources: Graham et al., SHARP
Streaming-Aggregation, ISC 2020 (doi 10.1007/978-3-030-50743-5_3); NCCL 2.21, src/graph/tuning.cc.
None of this has been measured by us or compared with a run of ours.
"""

from __future__ import annotations

import math

from planner.cost._jit import Rows, jit
from planner.cost.codes import CollectiveKind
from planner.cost.communication import reduction_gain, ring_rate_bytes_per_s, transfer_time_s
from planner.cost.inputs import LinkInputs
from planner.cost.piece_traffic import collective_stream, group_of
from planner.cost.sharing import Stream, on_links


@jit
def switch_tiers(domains: float, links: LinkInputs) -> float:
    """Tiers of a fat tree over `domains` nodes: ceil(log D / log p), p nodes below a leaf."""
    if domains <= links.in_network_leaf_ports:
        return 1.0
    return float(math.ceil(math.log(domains) / math.log(links.in_network_leaf_ports) - 1e-9))


@jit
def tree_latency_s(domains: float, links: LinkInputs) -> float:
    """Latency between domains: a reduction below one leaf switch, plus the way up and down each
    further tier."""
    further = switch_tiers(domains, links) - 1.0
    return links.in_network_latency_s + 2.0 * further * links.in_network_tier_s


@jit
def serves(kind: int, size: float, members: float, groups: float, links: LinkInputs) -> bool:
    """Whether the switches take part in a collective: the group leaves its domain, each of the
    `groups` groups of its kind gets a tree, and NCCL supports the collective."""
    if links.in_network_bytes_per_s <= 0.0 or size <= members:
        return False
    if groups > links.in_network_groups:
        return False
    return kind == CollectiveKind.ALL_REDUCE or links.in_network_gathers > 0.0


@jit
def inner_latency_s(members: float, links: LinkInputs) -> float:
    """Latency of one pass inside a domain: a chain's, or the switch's if it reduces."""
    if members <= 1.0:
        return 0.0
    chain_s = links.scale_up_start_s + (members - 1.0) * links.scale_up_latency_s
    if reduction_gain(members, links) > 1.0:
        return min(chain_s, 0.5 * links.scale_up_reduction_latency_s)
    return chain_s


@jit
def inner_wire_bytes(kind: int, payload_bytes: float, members: float, links: LinkInputs) -> float:
    """Bytes on each link of a domain: 2 S up and down a chain, less if the switch reduces
    (`reduction_gain`); half of the chain's for a scatter or gather."""
    if members <= 1.0:
        return 0.0
    if kind != CollectiveKind.ALL_REDUCE:
        return payload_bytes
    gain = reduction_gain(members, links)
    if gain > 1.0:
        return 2.0 * payload_bytes * (members - 1.0) / members / gain
    return 2.0 * payload_bytes


@jit
def in_network_stream(
    kind: int, payload_bytes: float, size: float, members: float, links: LinkInputs,
    root_groups: float = 0.0,
) -> Stream:  # fmt: skip
    """A collective through the tree of switches, and the time for which it keeps the links busy.

    launch + passes · inner latency + tree latency + max(inner, outer), with two passes inside for
    an all-reduce, one for a reduce-scatter or all-gather of `payload_bytes` in all.
    """
    passes = 2.0 if kind == CollectiveKind.ALL_REDUCE else 1.0
    latency_s = passes * inner_latency_s(members, links)
    latency_s += tree_latency_s(math.ceil(size / members), links)
    inner_bytes = inner_wire_bytes(kind, payload_bytes, members, links)
    inside = inner = 0.0
    if members > 1.0:
        rate = ring_rate_bytes_per_s(members, links, root_groups)
        inside = inner_bytes / rate
        inner = transfer_time_s(inner_bytes, rate, links.scale_up_half_bytes)
    value = payload_bytes / members
    between = value / links.in_network_bytes_per_s
    outer = transfer_time_s(value, links.in_network_bytes_per_s, links.scale_out_half_bytes)
    seconds = links.collective_launch_s + latency_s + max(inner, outer)
    return on_links(seconds, inside, between, max(inner_bytes, value), links)


@jit
def parameter_stream(
    kind: int, size: float, stride: float, size_bytes: float, network: Rows
) -> Stream:
    """A collective over gradients or weights among `size` ranks that are `stride` apart: through
    the hosts, or through the switches if they take part and are faster."""
    links = network[0]
    stream = collective_stream(kind, size, stride, size_bytes, network)
    if stream.seconds <= 0.0 or links.in_network_bytes_per_s <= 0.0:
        return stream
    group = group_of(size, stride, links)
    members, roots = float(group.members_per_domain), float(group.root_groups)
    if not serves(kind, size, members, links.job_gpus / size, links):
        return stream
    switched = in_network_stream(kind, size_bytes, size, members, links, roots)
    return switched if switched.seconds < stream.seconds else stream
