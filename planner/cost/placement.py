"""Positions of the members of each parallel group, from the degrees and the rank order.

Rank order `tp-cp-ep-dp-pp` (Megatron-Core's default, `parallel_state.RankGenerator`; DeepSpeed and
torchtitan meshes have the same order): a rank is tp + t (cp + c (dp + d pp)) with t, c, d the
degrees, so tensor parallelism has neighbours and pipeline stages are farthest apart. Expert layers
divide the same t*c*d ranks of a stage differently, as etp-ep-edp, first fastest.

Assumption: every rank runs its group of a kind at the same time as the others. Each rank is in
exactly one group of each kind, so a group has as many NIC shares as members in the domain and
contention needs no further factor.
"""

from __future__ import annotations

from typing import NamedTuple

from planner.cost._jit import jit


class PlacedGroup(NamedTuple):
    """One communication group, as the worst-placed group of its kind.

    `members_per_domain`: number of members in a scale-up domain; `domains`: number of domains that
    it touches; `groups_per_domain`: number of groups of its kind that work in a domain at once, and
    `root_groups` the number of these that cross CPU sockets (PCIe boxes; else 0).
    """

    members_per_domain: int
    domains: int
    groups_per_domain: int
    root_groups: int


@jit
def touched_domains(size: int, stride: int, domain: int, world: int) -> int:
    """Number of scale-up domains touched by the worst-placed group of `size` members that are
    `stride` ranks apart; 1 if the job fits into one `domain`. `domain`: GPUs of a domain; `world`:
    GPUs of the job.

    Groups of a kind tile blocks of size·stride ranks. If blocks and domains nest, the count is
    exact: size / min(size, domain/stride). Otherwise some group starts one rank before a boundary,
    and its span of s = (size - 1)·stride + 1 ranks touches floor((s - 2)/domain) + 2 domains, an
    upper bound that is limited to `size`.
    """
    if size <= 1 or world <= domain:
        return 1
    if stride >= domain:
        return size
    block = size * stride
    if domain % block == 0:
        return 1
    if block % domain == 0 and domain % stride == 0:
        return block // domain
    span = (size - 1) * stride + 1
    return min(size, (span - 2) // domain + 2)


@jit
def place_group(size: int, stride: int, domain: int, root_gpus: int, world: int) -> PlacedGroup:
    """The placement of a group on domains of `domain` GPUs.

    Members per domain = max(1, floor(size / domains)): exact if blocks and domains nest, otherwise
    the mean rounded down (so never too many NICs).
    """
    domains = touched_domains(size, stride, domain, world)
    members = max(1, size // domains)
    groups = max(1, min(domain, world) // members)
    measured = (members - 1) * stride + 1
    root_groups = groups if 0 < root_gpus < measured else 0
    return PlacedGroup(members, domains, groups, root_groups)
