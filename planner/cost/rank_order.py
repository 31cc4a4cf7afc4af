"""Distance between the members of a group, from the order in which ranks are numbered.

`tp-cp-ep-dp-pp` (usual) or `tp-cp-ep-pp-dp` (Megatron's --use-tp-pp-dp-mapping): in the second the
stages of a pipeline are neighbours, and the replicas of a stage are pp times as far apart. So
stages may talk inside a domain, and gradients leave it with fewer members of a group to share the
NICs. Source: Megatron-LM, megatron/core/parallel_state.py, RankGenerator.
"""

from __future__ import annotations

from planner.cost._jit import Row, Rows, jit
from planner.cost.codes import GROUP_CP


@jit
def dense_stride(key: Row, grid: Row, network: Rows) -> float:
    """Distance in ranks between neighbours among the dp·cp ranks that reduce dense gradients.

    tp, or tp·pp if pipelines come first: exact without context parallelism. With it the cp ranks
    stay together, so a domain of U contains cp of them, or U/tp if that is less: the stride of an
    even group with as many members in a domain is max(tp, U/cp). Below an oversubscribed spine it
    is tp·pp again, which is never too near.
    """
    if network[0].pipeline_before_data == 0.0:
        return float(key.stride[GROUP_CP])
    apart = key.stride[GROUP_CP]
    distance = apart * grid.pp
    if key.cp <= 1.0 or network[0].oversubscription > 1.0:
        return float(distance)
    return float(min(distance, max(apart, network[0].scale_up_domain / key.cp)))


@jit
def expert_stride(key: Row, grid: Row, network: Rows) -> float:
    """Distance in ranks between neighbours among the edp ranks that reduce the gradients of the
    same experts."""
    distance = key.expert_ranks
    return float(distance * grid.pp if network[0].pipeline_before_data > 0.0 else distance)


@jit
def stage_stride(key: Row, grid: Row, network: Rows) -> float:
    """Distance in ranks between neighbouring stages of a pipeline."""
    distance = key.inner_ranks
    return float(distance if network[0].pipeline_before_data > 0.0 else distance * grid.dp)


@jit
def stages_share_domain(key: Row, grid: Row, network: Rows) -> bool:
    """Whether all stages of a pipeline are in one scale-up domain."""
    return bool(stage_stride(key, grid, network) * grid.pp <= network[0].scale_up_domain)


@jit
def stage_domains(key: Row, grid: Row, network: Rows) -> float:
    """Number of scale-up domains over which the ranks of one stage are spread, at least 1."""
    domain = max(1.0, network[0].scale_up_domain)
    ranks = key.inner_ranks * grid.dp
    if network[0].pipeline_before_data > 0.0:
        together = min(domain, key.inner_ranks)
        ranks = min(ranks * grid.pp, ranks * domain / together)
    return float(max(1.0, ranks / domain))
