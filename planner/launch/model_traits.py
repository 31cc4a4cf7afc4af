"""What a model has beyond Llama's block, so that a writer can say which of it a framework lacks.

Llama's block: RMSNorm before attention and before a gated SiLU feed-forward, rotary positions,
grouped-query attention over the whole sequence, no biases, an output projection of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from planner.job.specs import ModelSpec, MoeSpec
from planner.launch.contract import Refusal


def traits(model: ModelSpec) -> dict[str, str]:
    """Name -> phrase of everything that sets a model apart from Llama."""
    return dict(
        (
            *_norm_traits(model),
            *_ffn_traits(model),
            *_bias_traits(model),
            *_attention_traits(model),
            *_expert_traits(model),
        )
    )


def lacking(model: ModelSpec, known: Set[str], what: str) -> tuple[Refusal, ...]:
    """A refusal that names the traits outside `known`; empty if there are none."""
    unknown = [phrase for name, phrase in traits(model).items() if name not in known]
    if not unknown:
        return ()
    return (
        Refusal(
            f"{what} cannot build {model.name}: it has no " + ", no ".join(unknown),
            "--framework megatron-core",
        ),
    )


def _norm_traits(model: ModelSpec) -> Iterator[tuple[str, str]]:
    if model.norm != "rmsnorm":
        yield "layernorm", "LayerNorm"
    if model.norm_bias or not model.norm_weight:
        yield "norm-parameters", "norms " + ("with biases" if model.norm_bias else "without weight")
    if model.block != "pre":
        yield "block", f"{model.block!r} placement of norms"
    if model.qk_norm != "none":
        yield f"qk-norm-{model.qk_norm}", f"query/key norm over {_QK_NORMS[model.qk_norm]}"


_QK_NORMS = {"head": "each head", "full": "the whole width"}


def _ffn_traits(model: ModelSpec) -> Iterator[tuple[str, str]]:
    if not model.gated:
        yield "plain-ffn", "feed-forward without gate"
    if model.activation != "silu":
        yield "activation", f"activation {model.activation}"


def _bias_traits(model: ModelSpec) -> Iterator[tuple[str, str]]:
    for name, has, phrase in (
        ("qkv-bias", model.qkv_bias, "biases of query, key and value"),
        ("out-bias", model.attention_out_bias, "bias of attention's output projection"),
        ("mlp-bias", model.mlp_bias, "biases in the feed-forward"),
        ("head-bias", model.head_bias, "bias of the output projection"),
        ("tied", model.tied_embeddings, "embeddings tied to the output projection"),
        ("mtp", model.mtp_layers > 0, "multi-token prediction"),
    ):
        if has:
            yield name, phrase


def _attention_traits(model: ModelSpec) -> Iterator[tuple[str, str]]:
    if model.position != "rope":
        yield "position", f"{model.position} positions"
    if any(kind.attention == "sliding" for kind in model.kinds):
        yield "sliding", f"sliding window of {model.sliding_window}"
    if model.attention_sinks:
        yield "sinks", "attention sinks"
    if model.mla:
        yield "mla", "latent attention"
    elif model.hidden != model.query_width:
        yield "head-dim", f"heads of {model.head_dim} (not hidden/heads)"


def _expert_traits(model: ModelSpec) -> Iterator[tuple[str, str]]:
    if model.moe is None:
        return
    yield "moe", "experts"
    if len({kind.ffn for kind in model.kinds}) > 1:
        yield "mixed", "dense layers beside those with experts"
    yield from _router_traits(model.moe)


def _router_traits(moe: MoeSpec) -> Iterator[tuple[str, str]]:
    for name, has, phrase in (
        ("shared-experts", moe.shared_ffn > 0, "shared experts"),
        ("shared-gate", moe.shared_gate, "gate on the shared experts"),
        ("router-bias", moe.router_bias, "router bias"),
        ("score-bias", moe.score_correction_bias, "score correction of the router"),
        ("expert-bias", moe.expert_bias, "biases inside the experts"),
    ):
        if has:
            yield name, phrase


def moe_indices(model: ModelSpec) -> tuple[int, ...]:
    """Indices of the layers that have experts."""
    return tuple(i for i, kind in enumerate(model.kind_sequence) if kind.ffn == "moe")


def leading_dense(model: ModelSpec) -> int | None:
    """Number of dense layers if all of them come first; None otherwise."""
    dense = model.layers - len(moe_indices(model))
    return dense if moe_indices(model) == tuple(range(dense, model.layers)) else None
