"""The kind of each layer of a model, from the compact forms in which models state it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.job.errors import ModelError
from planner.job.specs import AttentionKind, FfnKind, LayerKind, ModelSpec


def layer_kinds(
    attention: Sequence[AttentionKind], moe: Sequence[bool], has_experts: bool
) -> tuple[LayerKind, ...]:
    """Kinds first to last, or () if ModelSpec's default applies (full attention, one kind of
    FFN)."""
    uniform = all(kind == "full" for kind in attention) and all(m is has_experts for m in moe)
    if uniform:
        return ()
    ffn: list[FfnKind] = ["moe" if m else "dense" for m in moe]
    return tuple(LayerKind(attention=a, ffn=f) for a, f in zip(attention, ffn, strict=True))


# Megatron-Core's symbols of layers (core/models/hybrid/hybrid_layer_allocation.py): mixers,
# attention, feed-forward blocks and experts are separate layers.
SYMBOLS: Mapping[str, LayerKind] = {
    "M": LayerKind(attention="state", ffn="none"),
    "G": LayerKind(attention="state", ffn="none"),
    "*": LayerKind(attention="full", ffn="none"),
    "+": LayerKind(attention="full", ffn="none"),
    "-": LayerKind(attention="none", ffn="dense"),
    "E": LayerKind(attention="none", ffn="moe"),
}


def hybrid_kinds(pattern: str, where: str) -> tuple[LayerKind, ...]:
    """Kind of each layer in a hybrid's pattern, `M-M*-E`. `where`: its place, for errors."""
    unknown = [symbol for symbol in pattern if symbol not in SYMBOLS]
    if unknown or not pattern:
        raise ModelError(
            f"{where}: the pattern of layers has {unknown[0]!r}; expected {' '.join(SYMBOLS)}"
            if unknown
            else f"{where}: the pattern of layers is empty"
        )
    if "M" in pattern and "G" in pattern:
        raise ModelError(f"{where}: Mamba (M) and gated delta nets (G) in one model are not costed")
    return tuple(SYMBOLS[symbol] for symbol in pattern)


def layer_pattern(model: ModelSpec) -> str:
    """The pattern of a model whose mixers and blocks are separate layers; empty for other
    models."""
    delta = model.state_space is not None and model.state_space.kind == "gated_delta"
    symbols = {kind: symbol for symbol, kind in reversed(tuple(SYMBOLS.items()))}
    if not set(model.kinds) <= set(symbols):
        return ""
    changed = {"M": "G" if delta else "M", "*": "+" if model.mla else "*"}
    found = [symbols[kind] for kind in model.kind_sequence]
    return "".join(changed.get(symbol, symbol) for symbol in found)


def moe_layers(layers: int, first_k_dense: int = 0, every: int = 1) -> list[bool]:
    """True for layers with experts: after the dense head, the last of every `every` layers."""
    return [index >= first_k_dense and (index + 1) % every == 0 for index in range(layers)]


def repeat_pattern(pattern: Sequence[AttentionKind], layers: int) -> list[AttentionKind]:
    """The attention pattern repeated over all layers, cut after the last one."""
    return [pattern[index % len(pattern)] for index in range(layers)]
