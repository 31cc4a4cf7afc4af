"""Distances of a group's members by rank order, against the ranks counted one by one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from planner.cost.placement import place_group
from planner.cost.rank_order import (
    dense_stride,
    expert_stride,
    stage_domains,
    stage_stride,
    stages_share_domain,
)

DOMAIN = 8


def told(tp: int, cp: int, dp: int, pp: int, first: bool) -> tuple[Any, Any, Any]:
    """Key, shape and network of degrees whose experts lie as the rest."""
    key = SimpleNamespace(cp=cp, inner_ranks=tp * cp, expert_ranks=tp * cp, stride=[1, tp])
    links = SimpleNamespace(
        scale_up_domain=float(DOMAIN), oversubscription=1.0, pipeline_before_data=float(first)
    )
    return key, SimpleNamespace(dp=dp, pp=pp), [links]


def ranks(tp: int, cp: int, dp: int, pp: int, first: bool) -> dict[tuple[int, int, int, int], int]:
    """Rank of each (t, c, d, p): tp-cp-dp-pp, or tp-cp-pp-dp."""
    return {
        (t, c, d, p): t + tp * (c + cp * ((p + pp * d) if first else (d + dp * p)))
        for t in range(tp) for c in range(cp) for d in range(dp) for p in range(pp)
    }  # fmt: skip


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize("dp", [2, 4, 8])
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_members_of_a_domain_are_those_counted(
    first: bool, tp: int, cp: int, dp: int, pp: int
) -> None:
    key, grid, network = told(tp, cp, dp, pp, first)
    world, of = tp * cp * dp * pp, ranks(tp, cp, dp, pp, first)
    homes = [of[0, c, d, 0] // DOMAIN for c in range(cp) for d in range(dp)]
    group = place_group(cp * dp, int(dense_stride(key, grid, network)), DOMAIN, 0, world)
    assert group.domains == len(set(homes))
    assert group.members_per_domain == cp * dp // len(set(homes))
    experts = [of[0, 0, d, 0] // DOMAIN for d in range(dp)]
    expert_group = place_group(dp, int(expert_stride(key, grid, network)), DOMAIN, 0, world)
    assert expert_group.domains == len(set(experts))
    stages = [of[0, 0, 0, p] for p in range(pp)]
    assert all(rank == int(stage_stride(key, grid, network)) * p for p, rank in enumerate(stages))
    together = all(len({of[0, 0, d, p] // DOMAIN for p in range(pp)}) == 1 for d in range(dp))
    # A stage's own ranks share the domain with the pipeline: no boundary is crossed.
    assert bool(stages_share_domain(key, grid, network)) <= together
    spread = {of[t, c, d, 0] // DOMAIN for t in range(tp) for c in range(cp) for d in range(dp)}
    assert stage_domains(key, grid, network) == pytest.approx(len(spread))
