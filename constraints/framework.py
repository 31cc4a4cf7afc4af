"""Rules on what a framework can express, and on the ZeRO stages that its optimizer needs.

Column `shard` 0 means sharding over all dp·cp ranks.
"""

from __future__ import annotations

import numpy as np

from constraints.axes import AXES, EXPERTS, Axis, product_of
from constraints.context import RuleContext
from constraints.numbers import Columns, Mask, divides, equals
from constraints.rule import ShapeRule, shape_rule

_PROFILES = "the framework's profile, planner/job/frameworks"


def _capability(axis: Axis) -> ShapeRule:
    """Rule that a degree stays 1 if the framework lacks the capability."""

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


@shape_rule()
def experts_needed(columns: Columns, ctx: RuleContext) -> Mask | bool:
    return ctx.model.experts > 0 or product_of(EXPERTS, columns) == 1


@shape_rule()
def expert_tensor_supported(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if ctx.framework.expert_tensor or ctx.model.experts == 0:
        return True
    return ((columns["ep"] > 1) & equals(columns["etp"], 1)) | (
        equals(columns["ep"], 1) & equals(columns["etp"], columns["tp"])
    )


@shape_rule()
def moe_tensor_needs_sequence(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if ctx.model.experts == 0 or ctx.framework.sequence_parallel == "with-tp":
        return True
    return equals(columns["tp"], 1)


@shape_rule(
    wording=lambda ctx: (
        f"{ctx.framework_name}: zero must be one of "
        + ", ".join(str(stage) for stage in sorted(ctx.framework.zero_stages))
    )
)
def zero_stage_offered(columns: Columns, ctx: RuleContext) -> Mask:
    return np.isin(columns["zero"], ctx.framework.zero_stages)


def _stages_without_pipeline(ctx: RuleContext) -> list[int]:
    """ZeRO stages that the framework cannot combine with pp > 1."""
    combines = {2: ctx.framework.zero2_with_pipeline, 3: ctx.framework.zero3_with_pipeline}
    return [stage for stage, combined in combines.items() if not combined]


def _zero_pipeline_wording(ctx: RuleContext) -> str:
    stages = " and ".join(str(stage) for stage in _stages_without_pipeline(ctx))
    if not stages:
        return f"{ctx.framework_name}: every zero can be combined with pp > 1"
    return f"{ctx.framework_name}: zero {stages} only with pp = 1"


@shape_rule(wording=_zero_pipeline_wording)
def zero_with_pipeline(columns: Columns, ctx: RuleContext) -> Mask:
    refused = np.isin(columns["zero"], _stages_without_pipeline(ctx))
    return ~(refused & (columns["pp"] > 1))


@shape_rule()
def zero_with_tensor(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if ctx.framework.zero3_with_tensor:
        return True
    return (columns["zero"] < 3) | equals(columns["tp"], 1)


def _plain_stages(ctx: RuleContext) -> list[int]:
    """The ZeRO stages to keep if nothing is replicated and all stages are equal: the lowest one
    that the user allows, and the lowest ones that send gradients to the host or fetch weights from
    it, if the job does that."""
    limit = ctx.limits.get("zero")
    offered = sorted(ctx.framework.zero_stages)
    allowed = [
        stage
        for stage in offered
        if stage >= ctx.least_zero and (limit is None or limit.allows_value(stage))
    ]
    leaving = [stage for stage in allowed if stage >= 2] if ctx.gradients_leave else []
    fetching = [stage for stage in allowed if stage >= 3] if ctx.weights_leave else []
    return sorted({*(allowed or offered)[:1], *leaving[:1], *fetching[:1]})


@shape_rule(
    wording=lambda ctx: (
        "with dp·cp = 1 there is nothing to shard, and a search tries only zero "
        f"{' and '.join(map(str, _plain_stages(ctx)))}"
    )
)
def zero_has_replicas(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if ctx.given:
        return True
    replicas = columns["dp"] * columns["cp"]
    replicated = replicas > 1
    if ctx.model.experts > 0:
        replicated |= replicas * columns["tp"] > product_of(EXPERTS, columns)
    return replicated | np.isin(columns["zero"], _plain_stages(ctx))


@shape_rule()
def hybrid_sharding_supported(columns: Columns, ctx: RuleContext) -> Mask:
    return equals(columns["shard"], 0) | (columns["zero"] >= ctx.framework.hybrid_least_zero)


@shape_rule()
def shard_divides_replicas(columns: Columns, ctx: RuleContext) -> Mask:
    ranks = columns["dp"] * columns["cp"]
    shard = columns["shard"] + (columns["shard"] == 0) * ranks
    mask: Mask = ranks % shard == 0
    if ctx.model.experts > 0:
        replicas = ranks // shard + (shard > ranks)
        expert_ranks = ranks * columns["tp"] // (product_of(EXPERTS, columns))
        mask = mask & (expert_ranks % replicas == 0)
    return mask


@shape_rule()
def context_ranks_shard(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if not ctx.framework.shards_over_context:
        return True
    whole_groups = equals(columns["shard"] % columns["cp"], 0)
    # A shared axis of experts and context ranks shards the weights themselves.
    least_zero = 3 if ctx.framework.expert_axis_shards else 1
    return equals(columns["cp"], 1) | ((columns["zero"] >= least_zero) & whole_groups)


@shape_rule()
def experts_in_shards(columns: Columns, ctx: RuleContext) -> Mask | bool:
    if not ctx.framework.experts_in_shards:
        return True
    ranks = columns["dp"] * columns["cp"]
    shard = np.where(columns["shard"] > 0, columns["shard"], ranks)
    if ctx.framework.expert_axis_shards and ctx.model.experts > 0:
        whole_groups = divides(columns["ep"] * columns["cp"], shard)
        inside = equals(columns["zero"], 3) & whole_groups & divides(columns["ep"], columns["dp"])
        return (equals(columns["ep"], 1) | inside) & equals(columns["etp"], columns["tp"])
    shard = np.where(columns["zero"] > 0, shard, columns["cp"])
    return divides(columns["ep"], shard * columns["tp"])


@shape_rule()
def optimizer_needs_sharding(columns: Columns, ctx: RuleContext) -> Mask:
    return columns["zero"] >= ctx.least_zero
