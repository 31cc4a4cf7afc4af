"""Tensors of a layer that leave the GPU if the activations of a module are offloaded.

A framework offloads the tensors that autograd saves inside a module's forward. A tensor that
another module saves as well is copied for each of them, and leaves the GPU only if both are
offloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.predict.ops.context import OpContext
from planner.predict.ops.rows import Op, Piece, Saved


@dataclass(frozen=True, slots=True)
class OffloadGroup:
    """Names of the tensors that a module saves: `alone`, those that no other module saves, and
    `shared`, those that another module saves too."""

    alone: tuple[str, ...]
    shared: tuple[str, ...] = ()


# Megatron-Core 0.19, `--offload-modules`: attention.py, multi_latent_attention.py,
# transformer_layer.py, moe/experts.py. Statistics of norms and the log-sum-exp of attention are
# left out: they are small, mostly below the least size.
_QKV = ("qkv", "q", "q_down", "kv_down", "q_norm", "kv_norm", "k_norm", "q_up", "kv_up")
_CORE = ("attention/q", "attention/k", "attention/v")
_OUTPUT = ("attention/output", "attention/output_copied")
GROUPS: Mapping[str, OffloadGroup] = {
    "attn_norm": OffloadGroup(("attention/norm/input",)),
    "qkv_linear": OffloadGroup(tuple(f"attention/{row}/input" for row in _QKV)),
    "core_attn": OffloadGroup(_CORE, _OUTPUT),
    "attn_proj": OffloadGroup((), _OUTPUT),
    "mlp_norm": OffloadGroup(("ffn/norm/input",)),
    "expert_fc1": OffloadGroup(("moe/experts_up/input",)),
    "moe_act": OffloadGroup(("moe/activation_input",)),
    # torchtune, `enable_activation_offloading`: tensors that checkpointed layers keep.
    "checkpoints": OffloadGroup(("layer/checkpoint",)),
}
_SCORES = ("attention/scores", "attention/k_expanded", "attention/v_expanded")
_EAGER: Mapping[str, OffloadGroup] = {
    "core_attn": OffloadGroup((*_CORE, *_SCORES)),
    "attn_proj": OffloadGroup(_OUTPUT),
}
_QUANTISED: Mapping[str, OffloadGroup] = {
    "core_attn": OffloadGroup((*_CORE, *_OUTPUT)),
    "attn_proj": OffloadGroup(("attention/output_quantised",)),
}


def offload_group(name: str, context: OpContext, piece: Piece) -> OffloadGroup:
    """Tensors that a module of a layer saves.

    Transformer Engine fuses a norm into the column-parallel product after it: attention's norm into
    the projection of queries, keys and values, except under MLA, whose down projections are not
    column-parallel; a dense feed-forward block's norm into its first product, which is not a module
    that can be offloaded (Megatron-Core 0.19, gpt_layer_specs.py). Unfused attention keeps its
    scores and not its output. In fp8 and below the output projection keeps a quantised copy of the
    output, so only attention keeps the output itself.
    """
    group, mla = GROUPS[name], context.model.mla is not None
    quantised = _QUANTISED if context.quantised_input_bytes else {}
    special = _EAGER if context.attention == "eager" else quantised
    if name in special:
        return special[name]
    if name == "attn_norm" and not mla:
        return OffloadGroup(())
    if name == "qkv_linear" and not mla:
        return OffloadGroup((*group.alone, "attention/norm/input"))
    if name == "mlp_norm" and not any(op.name.startswith("moe/") for op in piece.ops):
        return OffloadGroup(())
    return group


def with_offload(piece: Piece, context: OpContext) -> Piece:
    """A layer whose rows state which tensors cross the host link, and which of those leave the
    GPU."""
    if not context.offload:
        return piece
    groups = [offload_group(name, context, piece) for name in context.offload]
    savers = [offload_group(name, context, piece) for name in GROUPS]
    copies: dict[str, int] = {}
    leaves: dict[str, bool] = {}
    for tensor in {name for group in groups for name in (*group.alone, *group.shared)}:
        copies[tensor] = sum(tensor in (*group.alone, *group.shared) for group in groups)
        sharers = sum(tensor in group.shared for group in savers)
        leaves[tensor] = sum(tensor in group.shared for group in groups) == sharers
    return replace(piece, ops=tuple(_marked(op, copies, leaves) for op in piece.ops))


def _marked(op: Op, copies: Mapping[str, int], leaves: Mapping[str, bool]) -> Op:
    saved = tuple(
        replace(row, copies=float(copies[row.name]), leaves=float(leaves[row.name]))
        if row.name in copies
        else row
        for row in op.saved
    )
    return replace(op, saved=saved)


def offloaded_rows(piece: Piece) -> tuple[Saved, ...]:
    """Tensors of a piece that cross the host link."""
    return tuple(row for op in piece.ops for row in op.saved if row.copies)
