"""Rules on what a framework can express, and what its optimizer demands of ZeRO.

Column `shard` 0 stands for sharding over all dp·cp ranks.
"""

from __future__ import annotations

import numpy as np

from constraints.axes import AXES, EXPERTS, Axis, product_of
from constraints.context import RuleContext
from constraints.numbers import Columns, Mask, divides, equals
from constraints.rule import ShapeRule, shape_rule

_PROFILES = "the framework's profile, planner/job/frameworks"


def _capability(axis: Axis) -> ShapeRule:
    """A degree stays 1 where the framework lacks the capability."""

    def test(columns: Columns, ctx: RuleContext) -> Mask | bool:
        return bool(getattr(ctx.framework, axis.capability)) or columns[axis.name] == 1

    return ShapeRule(
        name=f"{axis.capability}-supported",
        sentence=f"{axis.name} > 1 needs a framework with {axis.needs}",
        source=_PROFILES,
        test=test,
        wording=lambda ctx: f"{ctx.framework_name} has no {axis.needs}: {axis.name} must be 1",
    )


CAPABILITIES = {axis.name: _capability(axis) for axis in AXES.values() if axis.needs}


@shape_rule(
    "experts-needed",
    "ep and etp are 1 in a model without experts",
    source="Megatron-LM core 0.19, training/arguments.py, validate_args",
    wording=lambda ctx: "the model has no experts: ep and etp must be 1",  # noqa: ARG005
)
def experts_needed(columns: Columns, ctx: RuleContext) -> Mask | bool:
    return ctx.model.experts > 0 or product_of(EXPERTS, columns) == 1


@shape_rule(
    "expert-tensor-supported",
    "without a degree of its own, experts are cut by tp when ep is 1 and stay whole otherwise",
    source="torchtitan 0.3, models/common (TensorParallel without ep, ExpertParallel with it)",
    wording=lambda ctx: f"{ctx.framework_name}: etp must be 1 if ep > 1, else tp",
)
def expert_tensor_supported(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if ctx.framework.expert_tensor or ctx.model.experts == 0:
        return True
    return ((columns["ep"] > 1) & equals(columns["etp"], 1)) | (
        equals(columns["ep"], 1) & equals(columns["etp"], columns["tp"])
    )


@shape_rule(
    "moe-tensor-needs-sequence",
    "MoE layers under tensor parallelism need sequence parallelism, or every tensor rank would "
    "route the same tokens",
    source="Megatron-LM core 0.19, transformer/moe/moe_layer.py (raises at run time only)",
    wording=lambda ctx: f"{ctx.framework_name} has no sequence parallelism: tp must be 1 with MoE",
)
def moe_tensor_needs_sequence(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if ctx.model.experts == 0 or ctx.framework.sequence_parallel == "with-tp":
        return True
    return equals(columns["tp"], 1)


@shape_rule(
    "zero-stage-offered",
    "the ZeRO stage is one that the framework has",
    source=_PROFILES,
    wording=lambda ctx: (
        f"{ctx.framework_name}: zero must be one of "
        + ", ".join(str(stage) for stage in sorted(ctx.framework.zero_stages))
    ),
)
def zero_stage_offered(columns: Columns, ctx: RuleContext) -> Mask:
    return np.isin(columns["zero"], ctx.framework.zero_stages)


def _stages_without_pipeline(ctx: RuleContext) -> list[int]:
    """ZeRO stages that the framework does not combine with pp > 1."""
    combines = {2: ctx.framework.zero2_with_pipeline, 3: ctx.framework.zero3_with_pipeline}
    return [stage for stage, combined in combines.items() if not combined]


def _zero_pipeline_wording(ctx: RuleContext) -> str:
    stages = " and ".join(str(stage) for stage in _stages_without_pipeline(ctx))
    if not stages:
        return f"{ctx.framework_name}: every zero goes with pp > 1"
    return f"{ctx.framework_name}: zero {stages} only with pp = 1"


@shape_rule(
    "zero-with-pipeline",
    "ZeRO 2 and 3 shard what a pipeline schedule accumulates or holds over many micro-batches; "
    "few frameworks combine them",
    source="DeepSpeed runtime/pipe/engine.py (refuses ZeRO 2 and 3); torchtitan docs (FSDP + PP)",
    wording=_zero_pipeline_wording,
)
def zero_with_pipeline(columns: Columns, ctx: RuleContext) -> Mask:
    refused = np.isin(columns["zero"], _stages_without_pipeline(ctx))
    return ~(refused & (columns["pp"] > 1))


@shape_rule(
    "zero-with-tensor",
    "DeepSpeed trains with AutoTP under ZeRO 0 to 2 alone: what it splits among tensor ranks it "
    "cannot split again among replicas",
    source="DeepSpeed 0.19, runtime/engine.py, _configure_tensor_parallel_states (refuses ZeRO-3 "
    "where there is an optimizer; deepspeedai/DeepSpeed, issue 7389 and pull request 8167)",
    wording=lambda ctx: (
        f"{ctx.framework_name}: every zero goes with tp > 1"
        if ctx.framework.zero3_with_tensor
        else f"{ctx.framework_name}: zero 3 only with tp = 1"
    ),
)
def zero_with_tensor(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if ctx.framework.zero3_with_tensor:
        return True
    return (columns["zero"] < 3) | equals(columns["tp"], 1)


def _plain_stages(ctx: RuleContext) -> list[int]:
    """The stages that stand for all where nothing is replicated: the lowest that the user allows,
    and the lowest under which gradients leave for the host."""
    limit = ctx.limits.get("zero")
    offered = sorted(ctx.framework.zero_stages)
    allowed = [
        stage
        for stage in offered
        if stage >= ctx.least_zero and (limit is None or limit.allows_value(stage))
    ]
    leaving = [stage for stage in allowed if stage >= 2] if ctx.gradients_leave else []
    return sorted({*(allowed or offered)[:1], *leaving[:1]})


@shape_rule(
    "zero-has-replicas",
    "where no weight is replicated, ZeRO stages shard over one rank and are the same, so that a "
    "search keeps the lowest; a stage that somebody gives stays",
    source="Rajbhandari et al. 2020, arXiv 1910.02054: ZeRO shards over replicas (dp·cp; experts: "
    "dp·cp·tp / (ep·etp)); Ren et al. 2021, arXiv 2101.06840: offload moves gradients from ZeRO-2 "
    "on, with one GPU too",
    wording=lambda ctx: (
        "with dp·cp = 1 there is nothing to shard, and a search tries zero "
        f"{' and '.join(map(str, _plain_stages(ctx)))} alone"
    ),
)
def zero_has_replicas(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if ctx.given:
        return True
    replicas = columns["dp"] * columns["cp"]
    replicated = replicas > 1
    if ctx.model.experts > 0:
        replicated |= replicas * columns["tp"] > product_of(EXPERTS, columns)
    return replicated | np.isin(columns["zero"], _plain_stages(ctx))


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
        expert_ranks = ranks * columns["tp"] // (product_of(EXPERTS, columns))
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
