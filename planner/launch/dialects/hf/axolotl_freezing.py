"""How axolotl is told to freeze: `unfrozen_parameters` for whole weights, and
`peft_layers_to_transform` for adapters.

axolotl 0.19, src/axolotl/utils/freeze.py (LayerNamePattern): patterns match the start of a
parameter's name, a dot not followed by a plus is literal, and a range of rows in brackets may
follow. Parameters that match no pattern are frozen. The names are those of transformers' Llama, and
of families that name their modules alike (`[plain]` of adapters.toml).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from planner.job.specs import ModelSpec
from planner.job.tuned_layers import linear_layers
from planner.job.tuning import Tuning
from planner.launch.dialects.hf import said
from planner.launch.dialects.hf.arguments import Named
from planner.launch.dialects.hf.modules import adapter_table
from planner.launch.read.found import Problem

_ENDS = {"embeddings": "model.embed_tokens.weight", "head": "lm_head.weight"}
_INSIDE = {
    "q": "self_attn.q_proj.weight", "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight", "o": "self_attn.o_proj.weight",
    "gate": "mlp.gate_proj.weight", "up": "mlp.up_proj.weight", "down": "mlp.down_proj.weight",
    "norms": "input_layernorm.weight",
}  # fmt: skip
_ROWS = re.compile(r"(.+)\[\d*(?::\d*)?\]")


def has_known_names(model: ModelSpec) -> bool:
    """Whether the names of a model's parameters are known here."""
    plain = str(adapter_table("plain")["families"]).split()
    return model.family in plain and set(linear_layers(model)) <= {*_ENDS, *_INSIDE}


# --- as it is written -----------------------------------------------------------------------------


def unfrozen_pattern(tuning: Tuning) -> str:
    """A pattern for axolotl's `unfrozen_parameters`. It matches every parameter except those that
    `--freeze` freezes."""
    modules = tuning.frozen_modules
    names = [_ENDS[word] for word in _ENDS if word in modules]
    # A module's bias is frozen together with its weight.
    inside = (_INSIDE[word].removesuffix("weight") for word in _INSIDE if word in modules)
    names += [f".+{name[:-1]}[.]" for name in inside]
    names += [".+norm[.]"] if "norms" in modules else []
    if layers := tuning.frozen_layers:
        names.append(f"model.layers.(?:{'|'.join(map(str, range(layers)))})[.]")
    return f"(?!{'|'.join(names)})"


def freezing_words(tuning: Tuning) -> bool:
    """Whether every module that a plan freezes can be named to axolotl: its parameter names are
    known here."""
    return set(tuning.frozen_modules) <= {*_ENDS, *_INSIDE}


# --- as it is read --------------------------------------------------------------------------------


def told_to_freeze(
    named: Named, model: ModelSpec | None, adapters: bool
) -> tuple[tuple[str, ...], tuple[Problem, ...]]:
    """The frozen parts in the words of `--freeze`, such as `layers:4`, and problems. No parts if
    nothing is frozen or the model is unknown; no parts and a problem if the words of `--freeze`
    cannot express what is frozen."""
    for name in ("unfrozen", "adapted_layers"):
        keys = (key for key in adapter_table("names")[name] if key in named)
        where = next((named[key] for key in keys if named[key].value), None)
        if where is None or model is None:
            continue
        frozen = None
        if name == "unfrozen" and not adapters:
            frozen = frozen_by(where.value, model)
        elif name == "adapted_layers" and adapters:
            frozen = _without_adapters(where.value, model)
        if frozen is None:
            return (), said("frozen_elsewhere", where.place, key=where.key)
        return frozen, ()
    return (), ()


def frozen_by(patterns: object, model: ModelSpec) -> tuple[str, ...] | None:
    """The frozen parts if only parameters that match `patterns` train, in the words of `--freeze`;
    None if those words do not suffice or the model's parameter names are unknown. A range of rows
    counts as the whole parameter, whose gradient and state stay whole. The last norm is ignored."""
    if not has_known_names(model):
        return None
    listed = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(listed, list) or not listed:
        return None
    try:
        compiled = [_compiled(str(pattern)) for pattern in listed]
    except re.error:
        return None
    return _frozen(model, compiled)


def _compiled(pattern: str) -> re.Pattern[str]:
    rows = _ROWS.fullmatch(pattern)
    return re.compile(re.sub(r"\.(?!\+)", r"\\.", rows[1] if rows else pattern))


def _frozen(model: ModelSpec, patterns: Sequence[re.Pattern[str]]) -> tuple[str, ...] | None:
    def trains(name: str) -> bool:
        return any(pattern.match(name) for pattern in patterns)

    inside = [word for word in _INSIDE if word == "norms" or word in linear_layers(model)]
    trained = [
        {word for word in inside if trains(f"model.layers.{layer}.{_INSIDE[word]}")}
        for layer in range(model.layers)
    ]
    first = next((layer for layer, words in enumerate(trained) if words), model.layers)
    if any(words != trained[-1] for words in trained[first:]):
        return None
    ends = (word for word in _ENDS if word == "embeddings" or not model.tied_embeddings)
    frozen = [word for word in ends if not trains(_ENDS[word])]
    frozen += [f"layers:{first}"] if first else []
    # Modules that are frozen in the layers that train something.
    left = (word for word in inside if first < model.layers and word not in trained[-1])
    return (*frozen, *left)


def _without_adapters(layers: object, model: ModelSpec) -> tuple[str, ...] | None:
    """The leading layers without adapters, in the words of `--freeze`, from
    `peft_layers_to_transform`; empty if all layers have adapters. None if layers after the first
    one with adapters lack them."""
    if not isinstance(layers, list) or not layers:
        return None
    first = layers[0]
    if not isinstance(first, int) or layers != list(range(first, model.layers)):
        return None
    return (f"layers:{first}",) if first else ()
