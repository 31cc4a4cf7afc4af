"""Placement against brute-force enumeration of every rank's group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.placement import place_group, touched_domains


def all_groups(size: int, stride: int, world: int) -> list[list[int]]:
    """Ranks of every group of a kind: rank = low + stride (member + size high)."""
    block = size * stride
    return [
        [high * block + low + stride * member for member in range(size)]
        for high in range(world // block)
        for low in range(stride)
    ]


def worst_counts(size: int, stride: int, domain: int, world: int) -> tuple[int, int]:
    """(most domains that a group touches, fewest members of a group in a touched domain)."""
    domains, members = 0, size
    for ranks in all_groups(size, stride, world):
        homes = [rank // domain for rank in ranks]
        domains = max(domains, len(set(homes)))
        members = min([members, *(homes.count(home) for home in set(homes))])
    return domains, members


@pytest.mark.parametrize("domain", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16])
def test_powers_of_two_are_exact(domain: int, size: int, stride: int) -> None:
    world = 256
    group = place_group(size, stride, domain, 0, world)
    domains, members = worst_counts(size, stride, domain, world)
    assert (group.domains, group.members_per_domain) == (domains, members)
    assert group.groups_per_domain * group.members_per_domain == domain


@given(
    size=st.integers(1, 12),
    stride=st.integers(1, 12),
    domain=st.sampled_from([1, 2, 3, 4, 6, 8, 18, 72]),
    blocks=st.integers(1, 4),
)
def test_any_layout_touches_no_more_domains_than_predicted(
    size: int, stride: int, domain: int, blocks: int
) -> None:
    world = size * stride * blocks
    domains, _ = worst_counts(size, stride, domain, world)
    assert domains <= touched_domains(size, stride, domain, world) <= size


def test_uneven_tensor_groups_get_the_mean_members() -> None:
    # tp=6 on 8 GPUs: ranks 6..11 lie 2 + 4 over two nodes.
    group = place_group(6, 1, 8, 0, 48)
    assert (group.domains, group.members_per_domain) == (2, 3)


def test_world_within_one_domain_is_never_split() -> None:
    group = place_group(3, 1, 8, 0, 6)
    assert (group.domains, group.members_per_domain) == (1, 3)


@pytest.mark.parametrize(
    ("size", "stride", "root_groups"),
    [(4, 1, 0), (2, 1, 0), (8, 1, 1), (4, 2, 2), (2, 4, 4)],
)
def test_groups_that_cross_the_sockets_of_a_pcie_box(
    size: int, stride: int, root_groups: int
) -> None:
    assert place_group(size, stride, 8, 4, 8).root_groups == root_groups
