"""The only registry of rules over shapes.

Order matters to people alone: when rules contradict each other, `minimal_conflict` keeps the
earlier of two equally guilty ones, so what the user asked for and the model's own numbers come
first and what holds for the whole cluster comes last.

To add a rule over shapes: decorate its mask with `shape_rule` in the module that suits it and
list it here. `tests/constraints` demands a smallest legal and a smallest illegal shape of it.
"""

from __future__ import annotations

from constraints.batch import batch_size
from constraints.condition import UserCondition
from constraints.context import RuleContext
from constraints.context_exchange import context_exchange
from constraints.divisibility import (
    expert_ffn_by_etp,
    experts_by_ep,
    experts_fill_stage,
    ffn_by_tp,
    heads_by_tp,
    kv_heads_by_tp,
    low_precision_multiple,
    sequence_by_cp,
    sequence_by_tp_cp,
    state_heads_by_ranks,
    vocabulary_by_tp,
)
from constraints.framework import (
    context_supported,
    expert_supported,
    expert_tensor_supported,
    experts_needed,
    interleaving_supported,
    moe_tensor_needs_sequence,
    pipeline_supported,
    tensor_supported,
    zero_has_replicas,
    zero_stage_offered,
    zero_with_pipeline,
)
from constraints.host import host_memory
from constraints.offload import offload_chunks
from constraints.pipeline import (
    chunks_have_layers,
    greedy_stages_filled,
    interleaving_microbatches,
    interleaving_needs_pipeline,
    layers_split,
    microbatches_fill_pipeline,
    mtp_whole,
    tied_embeddings_whole,
)
from constraints.ramp import batch_ramp
from constraints.rule import ShapeRule
from constraints.schedule import (
    schedule_chunks,
    schedule_even_stages,
    schedule_microbatches,
    schedule_offered,
)
from constraints.sharding import (
    context_ranks_shard,
    experts_in_shards,
    hybrid_sharding_supported,
    optimizer_needs_sharding,
    shard_divides_replicas,
)
from constraints.topology import tp_in_domain, whole_nodes, world_size
from constraints.user import USER_RULES

RULES: tuple[ShapeRule, ...] = (
    *USER_RULES,
    heads_by_tp,
    kv_heads_by_tp,
    state_heads_by_ranks,
    ffn_by_tp,
    vocabulary_by_tp,
    experts_needed,
    experts_by_ep,
    expert_ffn_by_etp,
    sequence_by_cp,
    sequence_by_tp_cp,
    low_precision_multiple,
    batch_size,
    tensor_supported,
    pipeline_supported,
    interleaving_supported,
    schedule_offered,
    context_supported,
    context_exchange,
    expert_supported,
    expert_tensor_supported,
    moe_tensor_needs_sequence,
    zero_stage_offered,
    zero_with_pipeline,
    zero_has_replicas,
    hybrid_sharding_supported,
    shard_divides_replicas,
    context_ranks_shard,
    experts_in_shards,
    optimizer_needs_sharding,
    chunks_have_layers,
    layers_split,
    greedy_stages_filled,
    tied_embeddings_whole,
    mtp_whole,
    interleaving_needs_pipeline,
    interleaving_microbatches,
    microbatches_fill_pipeline,
    schedule_chunks,
    schedule_even_stages,
    schedule_microbatches,
    tp_in_domain,
    experts_fill_stage,
    host_memory,
    offload_chunks,
    world_size,
    whole_nodes,
    batch_ramp,
)


def condition_rule(condition: UserCondition) -> ShapeRule:
    """What a user requires, forbids or fixes, as a rule over shapes."""
    return ShapeRule(
        name=condition.option,
        sentence=f"what the user {condition.verb}s: {condition.text}",
        source="command line or job file",
        test=condition.mask,
        wording=lambda _ctx: f"you {condition.words}",
    )


def rules_of(ctx: RuleContext) -> tuple[ShapeRule, ...]:
    """Every rule of a search: the user's conditions first, then `RULES`."""
    return (*(condition_rule(condition) for condition in ctx.conditions), *RULES)
