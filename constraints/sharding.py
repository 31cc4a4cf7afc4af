"""Rules on ZeRO's hybrid sharding, and on what the optimizer demands of ZeRO.

Column `shard` 0 stands for sharding over all dp·cp ranks.
"""

from __future__ import annotations

import numpy as np

from constraints.context import RuleContext
from constraints.numbers import Columns, Mask, divides, equals
from constraints.rule import shape_rule


def _hybrid_wording(ctx: RuleContext) -> str:
    least = ctx.framework.hybrid_least_zero
    if least > 3:
        return f"{ctx.framework_name} has no hybrid sharding: shard must be 0 (all of dp·cp)"
    return f"{ctx.framework_name}: shard other than 0 needs zero of at least {least}"


@shape_rule(
    "hybrid-sharding-supported",
    "sharding over part of the data-parallel ranks needs a framework, and a ZeRO stage, with it",
    source="torchtitan data_parallel_replicate_degree; PyTorch FSDP1 HYBRID_SHARD; DeepSpeed "
    "zero_hpz_partition_size; Megatron-LM core 0.19 --num-distributed-optimizer-instances",
    wording=_hybrid_wording,
)
def hybrid_sharding_supported(columns: Columns, ctx: RuleContext) -> Mask:
    return equals(columns["shard"], 0) | (columns["zero"] >= ctx.framework.hybrid_least_zero)


@shape_rule(
    "shard-divides-replicas",
    "the shard group divides dp·cp; with experts, its replicas divide the ranks that share one",
    source="torch DeviceMesh (replicate, shard); Megatron-LM core 0.19, parallel_state.py",
    wording=lambda ctx: (
        "shard must divide dp·cp"
        + (", and dp·cp/shard must divide dp·cp·tp/(ep·etp)" if ctx.model.experts else "")
    ),
)
def shard_divides_replicas(columns: Columns, ctx: RuleContext) -> Mask:
    ranks = columns["dp"] * columns["cp"]
    shard = columns["shard"] + (columns["shard"] == 0) * ranks
    mask: Mask = ranks % shard == 0
    if ctx.model.experts > 0:
        replicas = ranks // shard + (shard > ranks)
        expert_ranks = ranks * columns["tp"] // (columns["ep"] * columns["etp"])
        mask = mask & (expert_ranks % replicas == 0)
    return mask


@shape_rule(
    "context-ranks-shard",
    "where parameters are always sharded over the context-parallel ranks, ZeRO-0 has none",
    source="torchtitan 0.3, distributed/parallel_dims.py: the fsdp mesh is dp_shard·cp",
    wording=lambda ctx: f"{ctx.framework_name} shards over cp: zero 0 only with cp = 1",
)
def context_ranks_shard(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if not ctx.framework.shards_over_context:
        return True
    whole_groups = equals(columns["shard"] % columns["cp"], 0)
    return equals(columns["cp"], 1) | ((columns["zero"] > 0) & whole_groups)


@shape_rule(
    "experts-in-shards",
    "where expert-parallel ranks come out of one shard group, ep divides it",
    source="torchtitan 0.3, distributed/parallel_dims.py: sparse mesh of dp_shard·cp·tp ranks",
    wording=lambda ctx: (
        f"{ctx.framework_name}: ep must divide tp·(ranks that share one copy of the parameters; "
        "with zero 0 every data-parallel rank has its own)"
    ),
)
def experts_in_shards(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if not ctx.framework.experts_in_shards:
        return True
    ranks = columns["dp"] * columns["cp"]
    shard = np.where(columns["shard"] > 0, columns["shard"], ranks)
    shard = np.where(columns["zero"] > 0, shard, columns["cp"])
    return divides(columns["ep"], shard * columns["tp"])


@shape_rule(
    "optimizer-needs-sharding",
    "moments of other types than fp32, and offload to the CPU, need the ZeRO stage that the "
    "framework builds them on",
    source="Megatron-LM core 0.19, arguments.py (precision-aware optimizer and CPU offload need "
    "the distributed optimizer); DeepSpeed runtime/zero; torch FSDP CPUOffload",
    wording=lambda ctx: (
        f"{ctx.framework_name}: this --optimizer or --optimizer-offload needs zero of at least "
        f"{ctx.least_zero}"
    ),
)
def optimizer_needs_sharding(columns: Columns, ctx: RuleContext) -> Mask:
    return columns["zero"] >= ctx.least_zero
