"""A model's shape as the rules of `constraints` read it."""

from __future__ import annotations

from constraints.numbers import ModelNumbers
from planner.job.specs import ModelSpec


def model_numbers(model: ModelSpec, seq: int) -> ModelNumbers:
    """The model's shape as rules read it."""
    moe, space = model.moe, model.state_space
    return ModelNumbers(
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        kv_heads=model.kv_heads,
        query_width=model.query_width,
        ffn=model.ffn if any(kind.ffn == "dense" for kind in model.kinds) else 0,
        vocab=model.vocab,
        seq=seq,
        experts=moe.experts if moe else 0,
        top_k=moe.top_k if moe else 0,
        moe_ffn=moe.ffn if moe else 0,
        shared_ffn=moe.shared_ffn if moe else 0,
        has_mla=model.mla is not None,
        tied_embeddings=model.tied_embeddings,
        sliding_window=any(kind.attention == "sliding" for kind in model.kinds),
        attention_sinks=model.attention_sinks,
        mtp_layers=model.mtp_layers,
        state_heads=space.heads if space else 0,
        state_groups=space.groups if space and space.kind != "mamba1" else 0,
    )
