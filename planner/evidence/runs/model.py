"""A ModelSpec from the shape columns of a measured row."""

from __future__ import annotations

import re
from typing import Literal

from planner.evidence.runs.lengths import longest_row
from planner.evidence.runs.rows import MeasuredRow, named, words_of, yes_or_no
from planner.job.models.layout import hybrid_kinds
from planner.job.quantities import stated
from planner.job.specs import FfnKind, LayerKind, MlaSpec, ModelSpec, MoeSpec, StateSpaceSpec
from planner.predict.ops.table import parameter_count

# The vocabulary of a row that states none: GPT-2's, padded as Megatron pads it.
DEFAULT_VOCABULARY = 50304
_GATED = {"swiglu", "geglu", "silu", "gated"}
# Reasons in `words.toml`, and the column that may give one: a framework's name may say LoRA.
_REFUSED = (
    ("tuning", "tuning"), ("tuning", "framework"),
)  # fmt: skip
# Smallest head that attention kernels support; less is a misprint, and the row takes the usual
# width.
_SMALLEST_HEAD_DIM = 8
_USUAL_HEAD_DIM = 128
# Words for a `mixer` that is attention; any other is refused rather than priced as attention.
_OF_ATTENTION = r"^(?!.*(linear|lightning|delta)).*(attention|window|\b(m[hq]a|gqa|mla)\b)"
# Attention parallel to the FFN, after two norms (GPT-NeoX) or one.
_BLOCKS: dict[str, Literal["pre", "single", "parallel"]] = {
    "parallel": "parallel", "single": "single",
}  # fmt: skip
# Up to this number of experts, each is as wide as a dense FFN (Mixtral, Grok); if there are more,
# they are narrower.
_COARSE_EXPERTS = 16
# A rounded number of parameters belongs to a model within this share.
_SAME_COUNT = 0.05


class UnpredictableRowError(ValueError):
    """The row describes something the model does not cover; the message says what."""


def model_of(row: MeasuredRow) -> ModelSpec:
    """The shape of the row's model. UnpredictableRowError names the missing or unsupported part."""
    for table, column in _REFUSED:
        if reason := named(table, row.fact(column)):
            raise UnpredictableRowError(reason)
    layers, hidden, heads = (row.integer(name) for name in ("layers", "hidden", "heads"))
    hybrid = _hybrid(row, layers or 0)
    layers = len(hybrid) or layers
    seq = longest_row(row)
    if not layers or not hidden or not heads or not seq:
        sizes = {"layers": layers, "hidden": hidden, "heads": heads, "seq": seq}
        missing = [name for name, size in sizes.items() if not size]
        verb = "is" if len(missing) == 1 else "are"
        raise UnpredictableRowError(f"{', '.join(missing)} {verb} not stated")
    kv_heads = row.integer("kv_heads") or heads
    if kv_heads > heads:
        raise UnpredictableRowError(f"kv_heads {kv_heads} is more than heads {heads}")
    if hidden // heads < _SMALLEST_HEAD_DIM:
        heads = max(1, hidden // _USUAL_HEAD_DIM)
    activation = (row.text("act") or "gelu").lower()
    gated = any(name in activation for name in _GATED) and "non-gated" not in activation
    # Squared ReLU, GELU, or the GELU that transformers writes in torch operations.
    plain = "gelu_new" if "gelu_new" in activation else "gelu"
    plain = "relu2" if re.search(r"squared|relu\W?2", activation) else plain
    # Unstated: 4h, or Llama's 8h/3 rounded up to 256.
    usual = -(-(8 * hidden // 3) // 256) * 256 if gated else 4 * hidden
    ffn, position = stated(row.integer("ffn"), usual), row.fact("position")
    if position not in ("rope", "learned", "alibi", "none"):
        position = "rope" if gated else "learned"
    moe = _moe(row, ffn)
    text = experts_text(row) or ""
    kinds = _layer_kinds(text, layers) if moe else ()
    window = _number("window", text)
    if window:
        kinds = tuple(
            LayerKind(ffn="moe", attention="full" if i % 2 else "sliding") for i in range(layers)
        )
    samples = _number("samples", row.text("sequences") or "")
    if samples and not kinds:
        # On average, half of a token's sample precedes it.
        kind = LayerKind(ffn="moe" if moe else "dense", attention="sliding")
        window, kinds = max(1, samples // 2), (kind,) * layers
    kinds = hybrid or kinds
    in_attention = row.says("bias", "attention")
    biased = row.says("bias", "^y") if row.text("bias") else not gated
    model = ModelSpec(
        name=row.text("model") or "measured",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=min(heads, kv_heads),
        head_dim=row.integer("head_dim") or _number("head_dim", text) or hidden // heads,
        ffn=ffn,
        vocab=row.integer("vocab") or DEFAULT_VOCABULARY,
        max_positions=seq,
        pretraining_seq=seq,
        gated=gated,
        activation="silu" if gated else plain,
        norm="rmsnorm" if gated else "layernorm",
        norm_bias=not gated,
        qkv_bias=biased or in_attention,
        attention_out_bias=biased or in_attention,
        mlp_bias=biased,
        position=position,
        # GPT-style models share embeddings.
        tied_embeddings=row.says("tied", "^y") if row.text("tied") else not gated,
        sliding_window=window,
        mla=_mla(row.text("mla") or text),
        state_space=_state_space(row, hidden) if hybrid else None,
        attention_gate=row.says("mixer", "gated attention"),
        moe=moe,
        layer_kinds=kinds,
        mtp_layers=row.integer("mtp_layers") or 0,
        qk_norm="head" if row.says("qk_norm", "^y") else "none",
        block=_BLOCKS.get(row.fact("block"), "pre"),
    )
    _demand_width_of_experts(row, model)
    return model


def _demand_width_of_experts(row: MeasuredRow, model: ModelSpec) -> None:
    """Raise UnpredictableRowError if many experts have their width only from the column `ffn`,
    which may be that of a dense layer, and the number of parameters does not confirm it."""
    text = experts_text(row) or ""
    if model.moe is None or model.moe.experts <= _COARSE_EXPERTS or _number("width", text):
        return
    counted, billions = parameter_count(model).total, row.number("params_b")
    if billions is None or abs(counted / (1e9 * billions) - 1.0) > _SAME_COUNT:
        raise UnpredictableRowError(f"the width of an expert is not stated in {text!r}")


def _hybrid(row: MeasuredRow, layers: int) -> tuple[LayerKind, ...]:
    """The kinds of a hybrid's layers, from the pattern in `mixer`; empty for other models.

    Gated delta nets share their layer with a feed-forward block, as in Qwen3-Next and Qwen3.5, and
    so do Granite 4's state-space layers; the row says which layers have attention (`attention every
    4`).
    """
    period = _number("attention_every", row.text("mixer") or "")
    if period:
        ffn: FfnKind = "moe" if experts_text(row) else "dense"
        full, state = LayerKind(attention="full", ffn=ffn), LayerKind(attention="state", ffn=ffn)
        return tuple(state if index % period else full for index in range(1, layers + 1))
    if row.says("mixer", "gated delta"):
        raise UnpredictableRowError("which layers are gated delta nets is not stated")
    if not row.says("mixer", "mamba"):
        if row.text("mixer") and not row.says("mixer", _OF_ATTENTION):
            raise UnpredictableRowError(f"mixer {row.text('mixer')!r} is not modelled")
        return ()
    if row.says("mixer", r"^(pure )?mamba-?2?$"):
        return hybrid_kinds("M" * layers, "mixer")
    stated = re.search(r"pattern ([-MGE*+|]+)", row.text("mixer") or "")
    if stated is None:
        raise UnpredictableRowError("which layers are state spaces is not stated")
    return hybrid_kinds(stated[1].replace("|", ""), "mixer")


def _state_space(row: MeasuredRow, hidden: int) -> StateSpaceSpec:
    """The state-space numbers in `mixer`. Defaults: Megatron-Core's for Mamba-2; for gated delta
    nets, heads that are together as wide as the model, two per key (Qwen3-Next)."""
    text = row.text("mixer") or ""
    if row.says("mixer", "gated delta"):
        head_dim = _number("head_dim", text) or 128
        values = _number("heads", text) or hidden // head_dim
        return StateSpaceSpec(
            kind="gated_delta",
            heads=values,
            head_dim=head_dim,
            groups=_number("groups", text) or values // 2,
            state=_number("state", text) or head_dim,
            conv_bias=False,
            chunk=64,
        )
    head_dim = _number("head_dim", text) or 64
    return StateSpaceSpec(
        heads=_number("heads", text) or 2 * hidden // head_dim,
        head_dim=head_dim,
        groups=_number("groups", text) or 8,
        state=_number("state", text) or 128,
    )


def _number(name: str, text: str) -> int | None:
    """The number found by the first matching pattern of that name in `words.toml`."""
    found = (re.search(pattern, text, re.IGNORECASE) for pattern in words_of("numbers")[name])
    return next((int(match[1]) for match in found if match), None)


def _mla(text: str) -> MlaSpec | None:
    """The stated MLA ranks; DeepSeek's if the text only says MLA."""
    if not re.search("MLA|kv_lora", text):
        return None
    return MlaSpec(
        q_lora_rank=None if "no q_lora" in text else stated(_number("q_lora", text), 1536) or None,
        kv_lora_rank=_number("kv_lora", text) or 512,
        qk_nope_head_dim=_number("nope", text) or 128,
        qk_rope_head_dim=_number("rope", text) or 64,
        v_head_dim=_number("v", text) or 128,
    )


def experts_text(row: MeasuredRow) -> str | None:
    """The `moe` cell; None if it says that there are no experts (`no`, `dense`, `0`)."""
    text = row.text("moe")
    return None if text == "dense" or yes_or_no(text) is False else text


def _moe(row: MeasuredRow, ffn: int) -> MoeSpec | None:
    """The experts that the `moe` cell describes, in words or as key=value pairs."""
    text = experts_text(row)
    if text is None:
        return None
    experts, top_k, width = (_number(name, text) for name in ("experts", "top_k", "width"))
    if experts is None:
        raise UnpredictableRowError(f"the number of experts is not stated in {text!r}")
    if top_k is None:
        raise UnpredictableRowError(f"top-k is not stated in {text!r}")
    shared = _number("shared_width", text)
    if shared is None and re.search(r"\d shared|\+ shared", text):
        shared = stated(_number("shared", text), 1) * (width or ffn)
    biased = row.says("bias", "experts")
    grouped = re.search(r"(\d+) of (\d+) groups", text)
    top_groups, groups = map(int, grouped.groups()) if grouped else (1, 1)
    return MoeSpec(
        experts=experts,
        top_k=top_k,
        ffn=width or ffn,
        latent=_number("latent", text),
        groups=groups,
        top_groups=top_groups,
        shared_ffn=shared or 0,
        expert_bias=biased,
        # gpt-oss's, the one public family whose experts have biases.
        clamp=7.0 if biased else None,
    )


def _layer_kinds(text: str, layers: int) -> tuple[LayerKind, ...]:
    """Layer kinds of a mixture: dense layers first (`3 dense + 58 MoE`), or alternating (`on
    alternate layers`)."""
    dense, moe = LayerKind(ffn="dense"), LayerKind(ffn="moe")
    first = _number("dense", text)
    if first:
        return tuple(dense if i < first else moe for i in range(layers))
    listed = re.search(r"layer_freq=\(\[0\]\*(\d+)\+\[1\]\*(\d+)\)", text)
    if listed:
        return tuple(dense if i < int(listed[1]) else moe for i in range(layers))
    if "alternate layers" in text or "layer_freq=2" in text:
        return tuple(dense if i % 2 == 0 else moe for i in range(layers))
    return ()
