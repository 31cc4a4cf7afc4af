"""The only registry of rules over shapes.

The order matters only for explanations. When rules contradict each other, `minimal_conflict` keeps
the earlier of two equally guilty ones, so the user's wishes and the model's numbers come first and
rules of the whole cluster last.

To add a rule: decorate its mask with `shape_rule` in the module that suits it and list it here.
`tests/constraints` demands a smallest legal and a smallest illegal shape of it.
"""

from __future__ import annotations

from constraints import (
    batch,
    context_exchange,
    divisibility,
    framework,
    offload,
    pipeline,
    topology,
)
from constraints.condition import UserCondition
from constraints.context import RuleContext
from constraints.rule import ShapeRule
from constraints.user import USER_RULES

# Rules that ask more of an axis than the framework's support for it.
_BESIDE = {"vpp": (pipeline.schedule_offered,), "cp": (context_exchange.context_exchange,)}

RULES: tuple[ShapeRule, ...] = (
    *USER_RULES,
    divisibility.CUTS["heads-by-tp"],
    divisibility.kv_heads_by_tp,
    divisibility.state_heads_by_ranks,
    divisibility.ffn_by_tp,
    divisibility.vocabulary_by_tp,
    framework.experts_needed,
    *(rule for name, rule in divisibility.CUTS.items() if name != "heads-by-tp"),
    divisibility.sequence_by_cp,
    divisibility.sequence_by_tp_cp,
    divisibility.low_precision_multiple,
    batch.batch_size,
    *(
        rule
        for axis, capability in framework.CAPABILITIES.items()
        for rule in (capability, *_BESIDE.get(axis, ()))
    ),
    framework.expert_tensor_supported,
    framework.moe_tensor_needs_sequence,
    framework.zero_stage_offered,
    framework.zero_with_pipeline,
    framework.zero_with_tensor,
    framework.zero_has_replicas,
    framework.hybrid_sharding_supported,
    framework.shard_divides_replicas,
    framework.context_ranks_shard,
    framework.experts_in_shards,
    framework.optimizer_needs_sharding,
    pipeline.chunks_have_layers,
    pipeline.layers_split,
    pipeline.greedy_stages_filled,
    pipeline.tied_embeddings_whole,
    pipeline.mtp_whole,
    pipeline.interleaving_needs_pipeline,
    pipeline.interleaving_microbatches,
    pipeline.microbatches_fill_pipeline,
    pipeline.schedule_chunks,
    pipeline.schedule_even_stages,
    pipeline.schedule_microbatches,
    topology.tp_in_domain,
    divisibility.experts_fill_stage,
    topology.host_memory,
    offload.offload_chunks,
    topology.world_size,
    topology.whole_nodes,
    batch.batch_ramp,
)


def condition_rule(condition: UserCondition) -> ShapeRule:
    """A condition of the user as a rule over shapes."""
    return ShapeRule(
        name=condition.option,
        sentence=f"condition of the user: {condition.verb} {condition.text}",
        source="command line or job file",
        test=condition.mask,
        wording=lambda _ctx: _brought(condition),
    )


def _brought(condition: UserCondition) -> str:
    """Where a condition comes from: the user, another option, or a part of the model."""
    if not condition.of:
        return f"you {condition.words}"
    if condition.of.startswith("-"):
        return f"you gave {condition.words}"
    return condition.words.replace(", which needs", " needs")


def rules_of(ctx: RuleContext) -> tuple[ShapeRule, ...]:
    """Every rule of a search: the user's conditions first, then `RULES`."""
    return (*(condition_rule(condition) for condition in ctx.conditions), *RULES)
