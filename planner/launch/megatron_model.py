"""A model's shape in Megatron-LM's flags, and which models they cannot describe.

Flags and defaults: megatron-core 0.19, `megatron/training/arguments.py` and
`core/transformer/transformer_config.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from planner.job.specs import ModelSpec, MoeSpec
from planner.launch.contract import Refusal
from planner.launch.megatron_flags import Flag, flag, switches

_OTHERS = "--framework accelerate, which trains Hugging Face's own model"
# Families whose experts use a clamped, shifted SwiGLU (gpt-oss model card, arXiv 2508.10925).
_CLAMPED_SWIGLU = "gpt_oss"
_GPT_OSS_LIMIT, _GPT_OSS_OFFSET = 7.0, 1.0
# Attention in chunks, layers without positions: the catalogue costs them as a sliding window.
_CHUNKED_FAMILY = "llama4_text"
# What `F.gelu` under Megatron's fused bias is: the tanh approximation.
_GELU = ("gelu", "gelu_new", "gelu_pytorch_tanh")


def model_refusals(model: ModelSpec, seq: int) -> Iterator[Refusal]:
    """What Megatron's GPT model cannot be made into."""
    if model.block != "pre":
        yield _no(model, f"norms placed {model.block!r}: its layers have one before each branch")
    if model.family == _CHUNKED_FAMILY:
        yield _no(model, "attention in chunks and layers without positions")
    if model.position == "alibi":
        yield _no(model, "ALiBi: its positions are rotary, learned or none")
    if model.position == "learned" and seq > model.max_positions:
        yield Refusal(
            f"{model.name} has {model.max_positions:,} learned positions, fewer than a sequence "
            f"of {seq:,} tokens",
            f"--seq {model.max_positions}",
        )
    yield from _width_refusals(model)


def _width_refusals(model: ModelSpec) -> Iterator[Refusal]:
    """Activations, biases and norms."""
    if _activation(model) is None:
        kind = f"gated {model.activation}" if model.gated else model.activation
        yield _no(model, f"the activation {kind!r}: it has swiglu, quick-geglu, gelu, squared relu")
    if _biases(model) is None:
        yield _no(model, "biases on some products only: it has all of them, or q, k and v alone")
    if model.head_bias:
        yield _no(model, "a bias of the LM head")
    if not model.norm_weight:
        yield _no(model, "norms without a scale")
    if model.norm_bias != (model.norm == "layernorm"):
        with_or_not = "with" if model.norm_bias else "without"
        yield _no(model, f"{model.norm} {with_or_not} a bias")
    if model.qk_norm == "full":
        yield _no(model, "a norm over the whole width of queries and keys: its own is over a head")
    if model.moe is not None and model.moe.router_bias and not model.moe.expert_bias:
        yield _no(model, "a trained router bias without biases elsewhere")


def _no(model: ModelSpec, what: str) -> Refusal:
    return Refusal(f"Megatron's GPT model cannot express {model.name}: {what}", _OTHERS)


def model_flags(model: ModelSpec, seq: int, *, dropout: bool) -> tuple[Flag, ...]:
    """Shape, norms, activation, biases and positions. Only for models without refusals."""
    width = model.ffn or (model.moe.ffn if model.moe else 0)
    return (
        flag("--num-layers", model.layers),
        flag("--hidden-size", model.hidden),
        flag("--ffn-hidden-size", width),
        *(_activation(model) or ()),
        flag("--normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"),
        *(_biases(model) or ()),
        *switches(("--untie-embeddings-and-output-weights", not model.tied_embeddings)),
        *_positions(model, seq),
        *(() if dropout else (flag("--hidden-dropout", 0), flag("--attention-dropout", 0))),
    )


def attention_flags(model: ModelSpec) -> tuple[Flag, ...]:
    """Heads, grouped queries, latent attention, windows, norms of queries and keys."""
    flags = [flag("--num-attention-heads", model.heads)]
    if model.mla is not None:
        mla = model.mla
        rank = () if mla.q_lora_rank is None else (flag("--q-lora-rank", mla.q_lora_rank),)
        flags += [
            flag("--multi-latent-attention"),
            *rank,
            flag("--kv-lora-rank", mla.kv_lora_rank),
            flag("--qk-head-dim", mla.qk_nope_head_dim),
            flag("--qk-pos-emb-head-dim", mla.qk_rope_head_dim),
            flag("--v-head-dim", mla.v_head_dim),
            # Here: the norms of the compressed queries, keys and values.
            flag("--qk-layernorm"),
        ]
    else:
        flags.append(flag("--kv-channels", model.head_dim))
        if model.kv_heads != model.heads:
            flags += [
                flag("--group-query-attention"),
                flag("--num-query-groups", model.kv_heads),
            ]
        flags += switches(("--qk-layernorm", model.qk_norm == "head"))
    if model.attention_sinks:
        flags.append(flag("--softmax-type", "learnable"))
    return (*flags, *_windows(model))


def window_marks(model: ModelSpec) -> list[bool]:
    """Which layers have a sliding window; empty if none has."""
    slides = [kind.attention == "sliding" for kind in model.kind_sequence]
    return slides if any(slides) else []


def expert_marks(model: ModelSpec) -> list[bool]:
    """Which layers have experts."""
    return [kind.ffn == "moe" for kind in model.kind_sequence]


def is_clamped(model: ModelSpec) -> bool:
    """Whether the SwiGLU of the experts is gpt-oss's clamped and shifted one."""
    return model.gated and model.family == _CLAMPED_SWIGLU


def _windows(model: ModelSpec) -> tuple[Flag, ...]:
    """Sliding layers: tokens to the left, and a mark for each layer that slides."""
    slides = window_marks(model)
    if not slides:
        return ()
    # A window of w tokens sees w - 1 before its own.
    size = flag("--window-size", f"{(model.sliding_window or 1) - 1},0")
    if all(slides):
        return (size,)
    return size, flag("--window-attn-skip-freq", pattern(slides))


def pattern(marks: list[bool]) -> str:
    """A mark a layer as Megatron evaluates it: `([0]*3+[1]*58)`."""
    runs = [(int(mark), len(list(run))) for mark, run in groupby(marks)]
    period = _period(marks)
    if period is not None:
        unit = ",".join(str(int(mark)) for mark in marks[:period])
        return f"([{unit}]*{len(marks) // period})"
    return "(" + "+".join(f"[{mark}]*{count}" for mark, count in runs) + ")"


def _period(marks: list[bool]) -> int | None:
    """Smallest number of layers after which all marks repeat, if they do so exactly."""
    for period in range(2, len(marks) // 2 + 1):
        if len(marks) % period == 0 and marks == marks[:period] * (len(marks) // period):
            return period
    return None


def expert_flags(model: ModelSpec, low_precision: bool) -> tuple[Flag, ...]:
    """Routed and shared experts, router, dispatch. Empty for a dense model."""
    moe = model.moe
    if moe is None:
        return ()
    experts = expert_marks(model)
    shared: tuple[Flag, ...] = ()
    if moe.shared_ffn:
        shared = (
            flag("--moe-shared-expert-intermediate-size", moe.shared_ffn),
            *switches(("--moe-shared-expert-gate", moe.shared_gate)),
        )
    return (
        flag("--num-experts", moe.experts),
        flag("--moe-router-topk", moe.top_k),
        flag("--moe-ffn-hidden-size", moe.ffn),
        *(() if all(experts) else (flag("--moe-layer-freq", pattern(experts)),)),
        *shared,
        *_balance(moe),
        flag("--moe-token-dispatcher-type", "alltoall"),
        flag("--moe-grouped-gemm"),
        # Quantised products want multiples of 16 or 32 tokens an expert.
        *switches(
            ("--moe-router-padding-for-quantization", low_precision),
            # experts.py, TEGroupedMLP: not with biases.
            ("--no-bias-dropout-fusion", moe.expert_bias),
        ),
    )


def _balance(moe: MoeSpec) -> tuple[Flag, ...]:
    """A bias that balances without a loss (DeepSeek-V3, arXiv 2412.19437), or the usual loss."""
    if moe.score_correction_bias:
        return (
            flag("--moe-router-score-function", "sigmoid"),
            flag("--moe-router-enable-expert-bias"),
            flag("--moe-router-load-balancing-type", "none"),
        )
    return (
        flag("--moe-router-load-balancing-type", "aux_loss"),
        flag("--moe-aux-loss-coeff", "1e-2"),
    )


def _activation(model: ModelSpec) -> tuple[Flag, ...] | None:
    """Flags of the activation, none for GELU, which is the default; None where it is missing."""
    if model.gated:
        if is_clamped(model):
            return (
                flag("--quick-geglu"),
                flag("--glu-linear-offset", _GPT_OSS_OFFSET),
                flag("--activation-func-clamp-value", _GPT_OSS_LIMIT),
            )
        return (flag("--swiglu"),) if model.activation in ("silu", "swish") else None
    if model.activation in ("relu2", "squared_relu"):
        return (flag("--squared-relu"),)
    return () if model.activation in _GELU else None


def _biases(model: ModelSpec) -> tuple[Flag, ...] | None:
    """Flags of the biases of linear layers; None where Megatron has no such choice."""
    dense = any(kind.ffn == "dense" for kind in model.kinds)
    own = {model.attention_out_bias}
    if dense:
        own.add(model.mlp_bias)
    if model.moe is not None:
        own |= {model.moe.expert_bias, model.moe.router_bias}
    if own == {True} and model.qkv_bias:
        return ()
    if own == {False}:
        return (flag("--disable-bias-linear"), *switches(("--add-qkv-bias", model.qkv_bias)))
    return None


def _positions(model: ModelSpec, seq: int) -> tuple[Flag, ...]:
    kinds = {"rope": "rope", "learned": "learned_absolute", "none": "none"}
    positions = model.max_positions if model.position == "learned" else seq
    return (
        flag("--position-embedding-type", kinds[model.position]),
        flag("--max-position-embeddings", positions),
    )
