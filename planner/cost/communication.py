"""Time of collectives on two link levels, in the terms of nccl-tests.

Every function takes the *payload* and works out the bytes that cross each link. Conventions, with S
= payload, n = `size`, m = `members_per_domain`, D = n/m domains:

* Time on a link follows Hockney's alpha-beta model (Parallel Computing 20, 1994) with the
  payload cut into the best number of chunks, see `transfer_time_s`.
* Bytes on the link of a ring are those of bus bandwidth (nccl-tests doc/PERFORMANCE.md;
  Thakur, Rabenseifner & Gropp, IJHPCA 19, 2005, sections 4.1-4.5).
* NCCL chains the GPUs of a domain and leaves it by one NIC per member ("rails"), so a group
  with m members in a domain has m NIC shares. The levels work as one pipeline: the slower
  one sets the pace, and the latencies add up.
* All ranks of a node run a group of the same kind at the same time, so a GPU never has more
  than its share of the NICs.

Ignored: congestion inside the fabric. For traffic of other kinds at the same time see
`planner.cost.sharing`.
"""

from __future__ import annotations

import math

from planner.cost._jit import jit
from planner.cost.inputs import LinkInputs


@jit
def transfer_time_s(wire_bytes: float, bytes_per_s: float, half_bytes: float) -> float:
    """Time on a link of a pipeline that chooses its chunk size.

    With p stages of latency a and k chunks T(k) = (p + k)(a + x/(kB)); the best k gives T = x/B + 2
    sqrt(p a x / B) + p a. Here x = `wire_bytes`, B = `bytes_per_s`, the constant is counted
    separately, and the root is written with h = `half_bytes`, the size that reaches B/2: T = (x +
    sqrt(h x)) / B. Source: Hockney 1994 with optimal segmentation as in Pjesivac-Grbovic et al.,
    Cluster Computing 10 (2007), section 3.
    """
    if wire_bytes <= 0.0:
        return 0.0
    return (wire_bytes + math.sqrt(half_bytes * wire_bytes)) / bytes_per_s


@jit
def ring_rate_bytes_per_s(members: float, links: LinkInputs, root_groups: float) -> float:
    """Bus bandwidth of `members` GPUs of one domain, bytes/s per GPU and direction.

    min(B, (m - 1) mesh, root / g): on a full mesh only the links among members count; on a PCIe box
    g = `root_groups` groups share the path between the CPU sockets (at least one if the members do
    not fit below one socket).
    """
    rate = min(links.scale_up_bytes_per_s, (members - 1) * links.scale_up_mesh_bytes_per_s)
    crossing = root_groups
    if 0.0 < links.root_gpus < members:
        crossing = max(crossing, 1.0)
    if crossing > 0.0:
        rate = min(rate, links.root_bytes_per_s / crossing)
    return rate


@jit
def reduction_gain(members: float, links: LinkInputs) -> float:
    """Bus bandwidth of an in-switch all-reduce (NVLink SHARP, "NVLS"), relative to the ring's.

    A GPU moves S (m + 1)/m bytes instead of 2 S (m - 1)/m, hence gain(m) = gain(8) * [(m - 1)/(m +
    1)] / (7/9). Above 8 members it stays at gain(8) (measured on 72: no more), and it is never
    below 1 because NCCL then takes the ring.
    """
    share = 9.0 / 7.0 * (members - 1.0) / (members + 1.0)
    return max(1.0, links.scale_up_reduction_gain * min(1.0, share))


@jit
def chain_latency_s(size: float, members: float, links: LinkInputs) -> float:
    """Latency of one pass around a ring: (D - 1) hops between domains, n - D hops inside them, and
    the start of the pass inside."""
    domains = math.ceil(size / members)
    outer = (domains - 1.0) * links.scale_out_latency_s
    start = links.scale_up_start_s if members > 1.0 else 0.0
    return outer + start + (size - domains) * links.scale_up_latency_s


@jit
def two_level_time_s(
    inner_bytes: float, outer_bytes: float, size: float, members: float, links: LinkInputs,
    root_groups: float,
) -> float:  # fmt: skip
    """Seconds of the slower level: `inner_bytes` on each scale-up link, `outer_bytes` leaving a
    domain by the NICs of its m members."""
    inner = 0.0
    if members > 1.0:
        rate = ring_rate_bytes_per_s(members, links, root_groups)
        inner = transfer_time_s(inner_bytes, rate, links.scale_up_half_bytes)
    if size <= members:
        return inner
    outer = transfer_time_s(
        outer_bytes / members, links.scale_out_bytes_per_s, links.scale_out_half_bytes
    )
    return max(inner, outer)


@jit
def ring_all_reduce_time_s(
    payload_bytes: float,
    size: float,
    members: float,
    links: LinkInputs,
    root_groups: float,
) -> float:
    """Seconds of a ring all-reduce: two passes, 2 S (n - 1)/n on every link (Thakur et al. 2005,
    section 4.5)."""
    wire_bytes = 2.0 * payload_bytes * (size - 1.0) / size
    wire_s = two_level_time_s(wire_bytes, wire_bytes, size, members, links, root_groups)
    return 2.0 * chain_latency_s(size, members, links) + wire_s


@jit
def tree_all_reduce_time_s(
    payload_bytes: float,
    size: float,
    members: float,
    links: LinkInputs,
    root_groups: float,
) -> float:
    """Seconds of an all-reduce by a double binary tree of domains, with chains or NVLS inside them.

    In two trees each domain is once an inner node and once a leaf: it sends 2 S in all, but only S
    if there are two domains (NCCL developers in NVIDIA/nccl-tests issue 196). The latency is 2
    ceil(log2 D) hops between domains and 2 (m - 1) inside, or that of the switch if it reduces.
    Source: Sanders, Speck & Traeff, Parallel Computing 35 (2009). Bytes inside: the ring's, divided
    by the NVLS gain.
    """
    domains = math.ceil(size / members)
    gain = reduction_gain(members, links)
    outer_bytes = payload_bytes if domains == 2.0 else 2.0 * payload_bytes
    inner_bytes = 2.0 * payload_bytes * (size - 1.0) / size / gain
    hops_s = 2.0 * math.ceil(math.log2(domains)) * links.scale_out_latency_s
    chain_s = 2.0 * (members - 1.0) * links.scale_up_latency_s
    if members > 1.0:
        chain_s += 2.0 * links.scale_up_start_s
    if gain > 1.0:
        chain_s = min(chain_s, links.scale_up_reduction_latency_s)
    wire_s = two_level_time_s(inner_bytes, outer_bytes, size, members, links, root_groups)
    return hops_s + chain_s + wire_s


@jit
def all_reduce_time_s(
    payload_bytes: float,
    size: float,
    members_per_domain: float,
    links: LinkInputs,
    root_groups: float = 0.0,
) -> float:
    """Seconds of an all-reduce of `payload_bytes` (one rank's buffer): the faster of ring and
    tree."""
    if size <= 1 or payload_bytes <= 0.0:
        return 0.0
    members = min(float(members_per_domain), float(size))
    ring = ring_all_reduce_time_s(payload_bytes, float(size), members, links, root_groups)
    tree = tree_all_reduce_time_s(payload_bytes, float(size), members, links, root_groups)
    return links.collective_launch_s + min(ring, tree)


@jit
def all_gather_time_s(
    payload_bytes: float,
    size: float,
    members_per_domain: float,
    links: LinkInputs,
    root_groups: float = 0.0,
) -> float:
    """Seconds of an all-gather whose result is `payload_bytes` on every rank.

    Also of a reduce-scatter of `payload_bytes` on every rank: it is the same in reverse, and the
    transfer hides its additions.

    Ring: n - 1 steps, S (n - 1)/n on every link (Thakur et al. 2005, sections 4.1 and 4.3).
    """
    if size <= 1 or payload_bytes <= 0.0:
        return 0.0
    members = min(float(members_per_domain), float(size))
    wire_bytes = payload_bytes * (size - 1.0) / size
    wire_s = two_level_time_s(wire_bytes, wire_bytes, float(size), members, links, root_groups)
    return links.collective_launch_s + chain_latency_s(float(size), members, links) + wire_s


@jit
def exchange_rate_bytes_per_s(members: float, links: LinkInputs, root_groups: float) -> float:
    """Rate at which a GPU sends to all other members of its domain at once, bytes/s.

    min(exchange, (m - 1) pair, (m - 1) mesh), and on a PCIe box the path between the sockets: in a
    group that needs it each socket sends m/2 * 1/2 of its bytes across, so root / g serves m/4
    GPUs.
    """
    rate = min(links.scale_up_bytes_per_s, links.scale_up_exchange_bytes_per_s)
    pair = min(links.scale_up_pair_bytes_per_s, links.scale_up_mesh_bytes_per_s)
    rate = min(rate, (members - 1.0) * pair)
    crossing = root_groups
    if 0.0 < links.root_gpus < members:
        crossing = max(crossing, 1.0)
    if crossing > 0.0:
        rate = min(rate, links.root_bytes_per_s / crossing / (members / 4.0))
    return rate


@jit
def exchange_bytes(payload_bytes: float, size: float, members: float) -> tuple[float, float]:
    """Bytes that a rank of an all-to-all sends inside its domain and to other domains.

    S (m - 1)/n and S (n - m)/n.
    """
    member = min(members, size)
    return payload_bytes * (member - 1.0) / size, payload_bytes * (size - member) / size


@jit
def all_to_all_time_s(
    payload_bytes: float,
    size: float,
    members_per_domain: float,
    links: LinkInputs,
    root_groups: float = 0.0,
) -> float:
    """Seconds of an all-to-all in which every rank sends `payload_bytes`, 1/n of it to itself.

    S (m - 1)/n stays in the domain. S (n - m)/n leaves by the rank's NIC share, because an
    all-to-all cannot use its neighbours' NICs (NCCL developers in NVIDIA/nccl-tests issues 130 and
    267); it has a rate of its own there. Latency: m - 1 peers inside, D - 1 domains, because NCCL
    bundles the data for one node (PXN). Ignores routing imbalance.
    """
    if size <= 1 or payload_bytes <= 0.0:
        return 0.0
    members = min(float(members_per_domain), float(size))
    inner = 0.0
    inner_bytes, outer_bytes = exchange_bytes(payload_bytes, float(size), members)
    if members > 1.0:
        rate = exchange_rate_bytes_per_s(members, links, root_groups)
        inner = transfer_time_s(inner_bytes, rate, links.scale_up_half_bytes)
    outer_rate = min(links.scale_out_bytes_per_s, links.scale_out_exchange_bytes_per_s)
    half_bytes = max(links.scale_out_half_bytes, links.scale_out_exchange_half_bytes)
    outer = transfer_time_s(outer_bytes, outer_rate, half_bytes)
    domains = math.ceil(size / members)
    peers_s = (members - 1.0) * links.scale_up_latency_s
    hops_s = (domains - 1.0) * links.scale_out_latency_s
    return links.collective_launch_s + peers_s + hops_s + max(inner, outer)


@jit
def distinct_groups(groups: float, draws: float) -> float:
    """Expected number of different groups hit by k = `draws` random draws, each of which hits one
    of n = `groups` groups with equal chances: n (1 - (1 - 1/n)^k)."""
    return float(groups * (1.0 - (1.0 - 1.0 / groups) ** draws))


@jit
def parts_hit(parts: float, draws: float, groups: float, top_groups: float) -> float:
    """Expected number of equal parts of the experts that contain some of a token's k = `draws`
    experts.

    If a token's experts are in T of G groups (DeepSeek-V3, arXiv 2412.19437, section 2.1.2), only
    the parts in these T groups are drawn from. Or, if a part contains q = G/parts groups, a part is
    hit that contains one of u = distinct(T, k) groups: parts·(1 - prod_i (1 - u/(G - i))), i = 0
    ... q - 1.
    """
    if top_groups >= groups or parts <= 1.0:
        return distinct_groups(parts, draws)
    if parts >= groups:
        return distinct_groups(parts * top_groups / groups, draws)
    used = distinct_groups(top_groups, draws)
    missed = 1.0
    for index in range(int(groups / parts)):
        missed *= max(0.0, 1.0 - used / (groups - index))
    return parts * (1.0 - missed)


@jit
def deduplicated_bytes(
    token_bytes: float, ranks_hit: float, domains_hit: float, size: float, members: float
) -> tuple[float, float]:
    """Bytes (inside domains, between domains) if a token is sent once to each rank and each domain
    that has some of its experts: see `deduplicated_exchange_time_s`."""
    member = min(members, size)
    domains = math.ceil(size / member)
    inside = token_bytes * ranks_hit * (member - 1.0) / member
    leaving = token_bytes * domains_hit * (domains - 1.0) / domains
    return inside, leaving


@jit
def deduplicated_exchange_time_s(
    token_bytes: float, tokens: float, ranks_hit: float, domains_hit: float, size: float,
    members_per_domain: float, links: LinkInputs, root_groups: float = 0.0,
) -> float:  # fmt: skip
    """Seconds of an exchange of a rank's `tokens`, `token_bytes` in all, that sends each token
    once.

    A token is sent once to each domain that has some of its experts, and there once to each rank:
    with N domains and R ranks hit (`parts_hit`) of D and n, token_bytes·N (D - 1)/D leave by the
    rank's NIC share and token_bytes·R (m - 1)/m pass inside domains, both in chunks of one kernel,
    which reaches its rate at any size. Sources: DeepSeek-V3, arXiv 2412.19437, section 3.2.2;
    DeepEP's README (RDMA and NVLink rates at 8 × 2 and 8 × 4 ranks). The latency is that of
    `all_to_all_time_s`. If the GPU cannot post to the network's NICs itself, a CPU thread does so,
    token by token: then the N (D - 1)/D messages of each token take their time too. Inside one
    domain the warps that copy a token wait for each copy, including the one to their own rank: R
    times s.
    """
    if size <= 1 or token_bytes <= 0.0:
        return 0.0
    members = min(float(members_per_domain), float(size))
    domains = math.ceil(size / members)
    inside, leaving = deduplicated_bytes(token_bytes, ranks_hit, domains_hit, float(size), members)
    inner_rate, outer_rate = dispatch_rates_bytes_per_s(members, links, root_groups)
    peers_s = (members - 1.0) * links.scale_up_latency_s
    hops_s = (domains - 1.0) * links.scale_out_latency_s
    posts_s = tokens * domains_hit * (domains - 1.0) / domains * links.scale_out_message_s
    sends_s = tokens * ranks_hit * links.scale_up_send_s if domains <= 1.0 else 0.0
    wire_s = max(inside / inner_rate + sends_s, leaving / outer_rate, posts_s)
    return links.collective_launch_s + peers_s + hops_s + wire_s


@jit
def dispatch_rates_bytes_per_s(
    members: float, links: LinkInputs, root_groups: float
) -> tuple[float, float]:
    """Rates at which an expert-dispatch kernel sends (inside a domain of m members, by the NIC
    share)."""
    inner = links.scale_up_dispatch_bytes_per_s
    if math.isinf(inner) and members > 1.0:
        inner = exchange_rate_bytes_per_s(members, links, root_groups)
    return inner, min(links.scale_out_bytes_per_s, links.scale_out_dispatch_bytes_per_s)


@jit
def lone_sender_gain(members_inside: float, links: LinkInputs) -> float:
    """Rate at which a GPU sends to another domain, relative to its even share of the NICs, if it is
    the only one of the m members of its group in the domain that does so: min(m, GPUs per NIC), at
    least 1.

    A pipeline of neighbouring stages, or a ring, leaves a node by one member; the other m - 1 leave
    their part of the NIC to it. A sender uses one NIC, so nothing is gained if each GPU has one.
    """
    return max(1.0, min(members_inside, links.nic_sharers))


@jit
def point_to_point_time_s(
    payload_bytes: float, same_domain: bool, links: LinkInputs, members_inside: float = 1.0
) -> float:
    """Seconds to send `payload_bytes` from one GPU to another (pipeline neighbours).

    T = launch + latency + (S + sqrt(h S))/B with the pair's rate inside a domain and the GPU's NIC
    share between domains (Hockney 1994), or the part of the NIC that its neighbours do not use
    (`lone_sender_gain`).
    """
    if payload_bytes <= 0.0:
        return 0.0
    if same_domain:
        pair = min(links.scale_up_pair_bytes_per_s, links.scale_up_mesh_bytes_per_s)
        rate = min(links.scale_up_bytes_per_s, pair)
        wire_s = transfer_time_s(payload_bytes, rate, links.scale_up_half_bytes)
        return links.collective_launch_s + links.scale_up_latency_s + wire_s
    rate = links.scale_out_pair_bytes_per_s
    if math.isinf(rate):
        rate = links.scale_out_bytes_per_s
    rate *= lone_sender_gain(members_inside, links)
    wire_s = transfer_time_s(payload_bytes, rate, links.scale_out_half_bytes)
    return links.collective_launch_s + links.scale_out_latency_s + wire_s
