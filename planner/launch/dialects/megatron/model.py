"""The model that Megatron's options describe, with its vocabulary as stated or from its
tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import ValidationError

from hardware.errors import first_error
from planner.job.bounds import MOST_LAYERS
from planner.job.models.catalog import catalog_name, load_model
from planner.job.quantities import stated
from planner.job.specs import AttentionKind, LayerKind, MlaSpec, ModelSpec, MoeSpec
from planner.launch.dialects.megatron import details, table
from planner.launch.dialects.megatron.arguments import Arguments
from planner.launch.dialects.megatron.options import MEGATRON as MEGATRON_OPTIONS
from planner.launch.dialects.megatron.table import MEGATRON, option
from planner.launch.languages.limits import LimitError
from planner.launch.languages.python import evaluated
from planner.launch.languages.text import digits
from planner.launch.read.found import Hints, Problem, model_unknown, telling
from planner.launch.read.names import meanings
from planner.predict.ops.table import parameter_count

# GPT2BPETokenizer's vocabulary (Radford et al. 2019), which Megatron pads.
_GPT2_VOCABULARY = 50257
# Kinds of tokenizers that have one vocabulary.
_KINDS = {
    "GPT2BPETokenizer": _GPT2_VOCABULARY, "Llama2Tokenizer": 32_000, "Llama3Tokenizer": 128_256,
}  # fmt: skip
# Options that name a tokenizer, the most likely first.
_TOKENIZERS = (MEGATRON_OPTIONS["tokenizer"].name, "tokenizer-name-or-path")
# Most models have at most this vocabulary. If one of this size would add more than this share of
# the parameters, the user has to state the size.
_LARGE_VOCABULARY, _DECIDES = 152_064, 0.15


def vocabulary(arguments: Arguments, assumed: list[str]) -> int:
    """The size of the vocabulary, in tokens: the stated one, else that of the named tokenizer if it
    is known, else GPT-2's, with a note in `assumed`."""
    known = stated_vocabulary(arguments)
    if known is not None:
        return known
    name = _tokenizer_name(arguments)
    why = f"that of the tokenizer {name} is not known" if name else "no option states it"
    assumed.append(f"vocabulary {_GPT2_VOCABULARY:,} (assumed, {why}; give --vocab)")
    return _GPT2_VOCABULARY


def stated_vocabulary(arguments: Arguments) -> int | None:
    """The size of the vocabulary, in tokens, that an option states or that a known tokenizer has;
    None if neither is known."""
    for name in ("padded-vocab-size", option("vocab")):
        stated = arguments.number(name)
        if stated:
            return stated
    kind = arguments.text(MEGATRON_OPTIONS["tokenizer-kind"].name) or ""
    return _KINDS.get(kind) or _named_vocabulary(_tokenizer_name(arguments))


def _tokenizer_name(arguments: Arguments) -> str:
    """The tokenizer's Hugging Face name or path; empty if no option names one."""
    given = (arguments.setting(name) for name in _TOKENIZERS)
    named = next((setting for setting in given if setting is not None), None)
    return str(named.value or named.unknown) if named is not None else ""


def vocabulary_unknown(arguments: Arguments, hints: Hints, shape: ModelSpec) -> Iterator[Problem]:
    """A problem if the named tokenizer's vocabulary is unknown and could be a large share of the
    parameters."""
    name = _tokenizer_name(arguments)
    stated = hints.vocab or any(map(arguments.has, ("padded-vocab-size", option("vocab"))))
    kind = arguments.text(MEGATRON_OPTIONS["tokenizer-kind"].name) or ""
    if stated or not name or kind in _KINDS or _named_vocabulary(name) is not None:
        return
    tables = 1 if shape.tied_embeddings else 2
    more = (_LARGE_VOCABULARY - _GPT2_VOCABULARY) * shape.hidden * tables
    if more > _DECIDES * parameter_count(shape).total:
        text = f"the tokenizer {name} decides the vocabulary, and its size is not known"
        places = arguments.place(*_TOKENIZERS)
        yield Problem("vocabulary-unknown", text, "missing", places, "--vocab N")


def _named_vocabulary(tokenizer: str) -> int | None:
    """The vocabulary of the catalogue model that a tokenizer is named after; None if there is
    none."""
    name = tokenizer.rstrip("/")
    if not re.search(r"[A-Za-z]", name) or name.endswith((".model", ".json")):
        return None
    known = catalog_name(name.rsplit("/", 1)[-1])
    return load_model(known).spec.vocab if known else None


_SHAPING = meanings("megatron", "shaping")
_LAYERS, _SEQ = option("layers"), MEGATRON_OPTIONS["seq"].name
_NEEDED = (_LAYERS, option("hidden"), option("heads"), _SEQ)
# SwiGLU keeps the parameters of a 4h FFN: 8h/3, rounded down to a multiple (megatron-core 0.19,
# training/arguments.py, validate_args).
_SWIGLU_MULTIPLE = 64
# Read by other functions; experts that drop tokens are not modelled.
_READ_ELSEWHERE = ("moe.score", "moe.aux_loss", "moe.bias_update_rate", "moe.capacity_factor")


def read_model(
    arguments: Arguments, hints: Hints, assumed: list[str]
) -> tuple[ModelSpec | None, list[Problem]]:
    """The shape, or None if required options are missing or wrong, and the problems."""
    if arguments.has("use-checkpoint-args") and not arguments.has(_LAYERS):
        reason = "--use-checkpoint-args: the model is in the checkpoint"
        return None, [model_unknown(reason, arguments.place("use-checkpoint-args"))]
    counted = (_LAYERS,) if details.hybrid_text(arguments) else ()
    missing = [name for name in _NEEDED if name not in counted and arguments.number(name) is None]
    unresolved = {
        f"--{name} is {setting.unknown}": telling(setting.unknown)
        for name in missing
        if (setting := arguments.setting(name)) is not None and setting.unknown
    }
    if unresolved:
        why = f"the model is not known: {'; '.join(unresolved)}"
        return None, [model_unknown(why, fix=" ".join(dict.fromkeys(unresolved.values())))]
    if missing:
        names = ", ".join(f"--{name}" for name in missing)
        return None, [Problem("model-unknown", f"the model is not known: {names} missing")]
    try:
        return _spec(arguments, hints, assumed), []
    except ValidationError as error:
        field, text = first_error(error)
        shaping = [option(name) for words, name in _SHAPING.items() if words in f"{field} {text}"]
        text = f"{field}: {text}" if field else text
        return None, [arguments.problem("model-shape", text, *shaping)]


def _spec(arguments: Arguments, hints: Hints, assumed: list[str]) -> ModelSpec:
    number = arguments.number
    layers, hidden, heads = (number(name) or 0 for name in _NEEDED[:3])
    layers = min(layers, MOST_LAYERS + 1)  # refused, and listed one by one before
    seq = hints.seq or number(_SEQ) or 0
    gated = any(arguments.has(row.name) for row in (table.SWIGLU, table.QUICK_GEGLU))
    # The gate of quick-GEGLU is x·sigmoid(1.702x), which costs the same as SiLU.
    squared = not gated and arguments.has(table.SQUARED_RELU.name)
    bias = not arguments.has(option("attention_out_bias"))
    rms = arguments.text(option("norm")) == "RMSNorm"
    usual = int(4 * hidden * 2 / 3) // _SWIGLU_MULTIPLE * _SWIGLU_MULTIPLE
    ffn = stated(number(option("ffn")), usual if gated else 4 * hidden)
    moe = _moe(arguments, ffn, bias)
    experts = _layer_marks(arguments, table.EXPERT_LAYERS, layers) if moe else []
    window, slides = _windows(arguments, layers)
    hybrid = details.read_kinds(arguments)
    layers = len(hybrid) or layers
    delta: list[bool] = []
    if not hybrid and details.is_delta(arguments):
        delta = _layer_marks(arguments, table.LINEAR_LAYERS, layers, all_but=True)
    kinds = hybrid or _layer_kinds(layers, slides, experts, delta)
    has_states = any(kind.attention == "state" for kind in kinds)
    mla = _mla(arguments)
    all_experts = moe is not None and all(experts)
    if hybrid:
        all_experts = all(kind.ffn != "dense" for kind in hybrid)
    head_dim = stated(number(option("head_dim")), hidden // heads if heads else 0)
    return ModelSpec(
        name="from the arguments",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(arguments, heads),
        head_dim=mla.qk_nope_head_dim + mla.qk_rope_head_dim if mla else head_dim,
        ffn=0 if all_experts else ffn,
        vocab=hints.vocab or vocabulary(arguments, assumed),
        max_positions=stated(number(option("max_positions")), max(seq, 1)),
        pretraining_seq=seq,
        gated=gated,
        activation="silu" if gated else "relu2" if squared else "gelu",
        norm="rmsnorm" if rms else "layernorm",
        norm_bias=not rms,
        tied_embeddings=not arguments.has(option("tied_embeddings")),
        position=_position(arguments),
        rope=details.read_rope(arguments, mla),
        rotary_share=stated(arguments.stated_real(option("rotary_share")), 1.0),
        norm_eps=stated(arguments.stated_real(option("norm_eps")), 1e-5),
        init_std=stated(arguments.stated_real(option("init_std")), 0.02),
        qkv_bias=bias or arguments.has(option("qkv_bias")),
        attention_out_bias=bias,
        mlp_bias=bias and not all_experts,
        qk_norm="head" if arguments.has(option("qk_norm")) and mla is None else "none",
        attention_sinks=arguments.text(option("attention_sinks")) == "learnable",
        sliding_window=window,
        mla=mla,
        moe=moe,
        state_space=details.read_states(arguments, hidden) if has_states else None,
        attention_gate=arguments.has(option("attention_gate")),
        layer_kinds=kinds,
        mtp_layers=details.predictors(arguments),
        source="Megatron-LM arguments",
    )


def _kv_heads(arguments: Arguments, heads: int) -> int:
    groups = option("kv_heads")
    if not arguments.has(table.GROUPED.name) or arguments.has(table.LATENT.name):
        arguments.has(groups)
        return heads
    return stated(arguments.number(groups), 1)


def _position(arguments: Arguments) -> str:
    if arguments.has("use-rotary-position-embeddings"):
        return "rope"
    kind = arguments.text(option("position"))
    if kind == "alibi":
        return "alibi"
    if arguments.has("no-position-embedding") and kind == "learned_absolute":
        return "none"
    return {"learned_absolute": "learned", "none": "none"}.get(kind or "", "rope")


def _mla(arguments: Arguments) -> MlaSpec | None:
    if not arguments.has(table.LATENT.name):
        return None
    return MlaSpec(**details.plain_fields(arguments, MEGATRON, MlaSpec, "mla"))


def _moe(arguments: Arguments, ffn: int, bias: bool) -> MoeSpec | None:
    if not arguments.number(option("moe.experts")):
        return None
    rows = [entry for entry in MEGATRON if entry.fields[0] not in _READ_ELSEWHERE]
    found = details.plain_fields(arguments, rows, MoeSpec, "moe") | details.read_router(arguments)
    # router.py, TopKRouter: the router has a bias if linear layers have one.
    found |= {"ffn": stated(found["ffn"], ffn), "expert_bias": bias, "router_bias": bias}
    return MoeSpec(**found)


def _layer_kinds(
    layers: int, slides: list[bool], experts: list[bool], delta: list[bool]
) -> tuple[LayerKind, ...]:
    """The kind of each layer; empty if all are alike with full attention."""
    if not any(slides) and not any(delta) and (all(experts) or not experts):
        return ()

    def attention(at: int) -> AttentionKind:
        if delta and delta[at]:
            return "state"
        return "sliding" if slides and slides[at] else "full"

    return tuple(
        LayerKind(attention=attention(at), ffn="moe" if experts and experts[at] else "dense")
        for at in range(layers)
    )


def _windows(arguments: Arguments, layers: int) -> tuple[int | None, list[bool]]:
    """The sliding window in tokens, including the token itself, and for each layer whether it has
    one.

    `--window-size left,right`. `--window-attn-skip-freq` N: every N-th layer has full attention; a
    list: 1 for layers with a window.
    """
    name = option("sliding_window")
    text, skips = arguments.text(name), arguments.text(table.WINDOW_SKIPS.name)
    if text is None:
        return None, []
    match = re.fullmatch(r"\(?\s*(-?\d{1,18})\s*,\s*(-?\d{1,18})\s*\)?", text)
    if match is None:
        arguments.refuse("option-value", f"--{name} {text}: needs left,right", name)
    if match is None or int(match[1]) < 0:
        return None, []
    if skips is None:
        return int(match[1]) + 1, [True] * layers
    return int(match[1]) + 1, _layer_marks(arguments, table.WINDOW_SKIPS, layers, all_but=True)


def _layer_marks(
    arguments: Arguments, row: table.MegatronRow, layers: int, *, all_but: bool = False
) -> list[bool]:
    """For each layer, whether an option marks it. A number N marks every N-th layer from the first
    on, or with `all_but` all except every N-th; a list has 0 or 1 per layer. Anything else is a
    problem and marks all."""
    text = arguments.text(row.name) or ("" if all_but else "1")
    if every := digits(text):
        return [(at + 1) % every != 0 if all_but else at % every == 0 for at in range(layers)]
    pattern = read_pattern(text)
    if pattern is not None and len(pattern) == layers:
        return [bool(item) for item in pattern]
    has = f"; this one has {len(pattern)}" if pattern is not None else ""
    needs = f"--{row.name} {text}: needs a number or a list of {layers} zeros and ones{has}"
    arguments.refuse(row.name, needs, row.name)
    return [True] * layers


def read_pattern(text: str) -> list[int] | None:
    """An expression such as `([0]*3+[1]*58)` as a list of numbers; None if it is not one."""
    try:
        found = evaluated(text)
    except (SyntaxError, ValueError, RecursionError, LimitError):
        return None
    is_list = isinstance(found, list) and all(isinstance(item, int) for item in found)
    return found if is_list else None
