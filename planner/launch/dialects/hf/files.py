"""Parts of all launches of transformers models, whatever shards them: the model's config.json,
derived from its shape by one table for all model types (table.toml), the programs that train it,
and their refusals.

The model's family is the type that is written. A field for which the type has no key is left out;
the config is then read back by `planner.job.models.hf_config`, and it is rejected if the result
differs from the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from planner.job.errors import ModelError
from planner.job.job import Job
from planner.job.models.hf_config import language_key, model_from_hf_config
from planner.job.models.hf_families import READERS
from planner.job.models.hf_fields import TABLES
from planner.job.models.hf_parts import FULL, SCALING_KEYS, SLIDING
from planner.job.models.layout import layer_pattern
from planner.job.specs import ModelSpec
from planner.launch.architecture import (
    ArchitectureRow,
    experts,
    fields_of,
    has_mla,
    has_moe,
    has_rope,
    leading_dense,
    model_rows,
    moe_indices,
    names_of_model,
    row,
    settings,
    value_of,
    value_of_text,
)
from planner.launch.contract import (
    PRETRAINED,
    STOP,
    Branch,
    Files,
    Launch,
    Refusal,
    RunCommand,
    length_refusals,
)
from planner.launch.dialects.hf.program_pieces import program_pieces
from planner.launch.dialects.hf.vision_config import with_vision_config
from planner.launch.quoting import Value
from planner.launch.registry import dialect_toml
from planner.launch.sentences import names_of, names_of_job, said_refusals, said_variables
from planner.launch.settings_text import filled
from planner.launch.time_limit import stop_variable

_TABLE = dialect_toml("hf", "table.toml")
_LAYER_TYPES = {
    "full": "full_attention", "sliding": "sliding_attention", "state": "linear_attention",
}  # fmt: skip


@cache
def _types(text: str) -> frozenset[str]:
    """The model types that a text of names lists; `@name` stands for all types of a group of
    table.toml."""
    groups: Mapping[str, str] = _TABLE["types"]
    named = (_types(groups[word[1:]]) if word[0] == "@" else {word} for word in text.split())
    return frozenset().union(*named)


# bitsandbytes' optimizers by family, as the Trainer names them (transformers, OptimizerNames).
BITSANDBYTES = {
    "adamw-8bit": "adamw_bnb_8bit", "paged-adamw": "paged_adamw_32bit",
    "paged-adamw-8bit": "paged_adamw_8bit", "paged-lion": "paged_lion_32bit",
}  # fmt: skip


def _rope(model: ModelSpec) -> dict[str, Value]:
    """The value of `rope_parameters`. For Gemma 3 and OLMo 3, one table for full-attention layers
    and one for sliding-window layers."""
    rope = model.rope
    table: dict[str, Value] = {"rope_type": "default", "rope_theta": rope.theta}
    if rope.scaling is not None:
        stated = rope.scaling.model_dump(exclude_none=True)
        table["rope_type"] = stated["kind"]
        table |= {
            key: list(value) if isinstance(value := stated[name], tuple) else value
            for key, name in SCALING_KEYS.items()
            if name in stated and name in _SAID_BY[stated["kind"]] and stated[name] != ()
        }
    if model.rotary_share < 1.0:
        table["partial_rotary_factor"] = model.rotary_share
    if model.family in _types("@rope-by-kind"):
        local = rope.local_theta or rope.theta
        return {FULL: table, SLIDING: {"rope_type": "default", "rope_theta": local}}
    return table


_LENGTH = ("factor", "original_positions")
# Kind of scaling -> fields that transformers allows for it.
_SAID_BY = {
    "linear": ("factor",),
    "dynamic": _LENGTH,
    "llama3": (*_LENGTH, "low_frequency", "high_frequency"),
    "yarn": (*_LENGTH, "beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim",
             "attention_factor"),
    "longrope": (*_LENGTH, "long_factor", "short_factor", "attention_factor"),
}  # fmt: skip


def _scalar(model: ModelSpec) -> int:
    """Gemma's `query_pre_attn_scalar`: 1 / (attention scale)², or the head width if the model
    states no scale."""
    scale = model.attention_scale
    return model.head_dim if scale is None else round(scale**-2)


def _block_width(model: ModelSpec) -> int:
    """The width of a dense feed-forward block. For types that use the same key for experts, such as
    Mixtral, the width of an expert."""
    if model.moe and model.family in _types("@mixtrals"):
        return model.moe.ffn
    return model.ffn or (model.moe.ffn if model.moe and model.family == "nemotron_h" else 0)


def _shared_experts(model: ModelSpec) -> int:
    moe = experts(model)
    return min(moe.shared_ffn, 1) if model.family == "nemotron_h" else moe.shared_ffn // moe.ffn


def _facts(model: ModelSpec) -> dict[str, object]:
    """Names that conditions and values in table.toml may use, such as the indices of layers of each
    kind, and whether the type has an auxiliary loss."""
    kinds = model.kind_sequence
    attending = {
        how: [i for i, kind in enumerate(kinds) if kind.attention == how]
        for how in ("sliding", "cross")
    }
    expert_layers = list(moe_indices(model))
    return attending | {
        "expert_layers": expert_layers,
        "dense_layers": sorted(set(range(model.layers)) - set(expert_layers)),
        "dense_first": leading_dense(model) or 0,
        "layer_types": [_LAYER_TYPES.get(kind.attention, "") for kind in kinds],
        "adds_loss": model.family in _types("@losses"),
        "states_loss": model.family in _types("@losses llama4_text @grouped"),
    }


_NAMES = names_of_model(_facts)
# Values that need a function; the table holds expressions for the others.
_VALUES: Mapping[str, Callable[[ModelSpec], Any]] = {
    "block_width": _block_width,
    "expansion": lambda m:
        max(1, m.state_space.inner // m.hidden) if m.state_space else None,
    "pattern": layer_pattern,
    "rope": _rope,
    "scalar": _scalar,
    "shared_experts": _shared_experts,
}  # fmt: skip
# Conditions on a model; the second argument is whether the row lists its type.
_CONDITIONS: Mapping[str, Callable[[ModelSpec, bool], object]] = {
    "": lambda _, named: named,
    "not": lambda _, named: not named,
    "experts": lambda m, named: named and has_moe(m),
    "latent": lambda m, named: named and has_mla(m),
    "states": lambda m, named: named and m.state_space is not None,
    "windowed": lambda m, named: named and has_moe(m) and m.sliding_window,
    "own-heads": lambda m, named: not named and not has_mla(m),
    "rotary": lambda m, _: has_rope(m),
}


def _when(models: str) -> Callable[[ModelSpec], bool]:
    """A condition from the text in a row."""
    condition, _, types = models.rpartition(":")
    named, holds = _types(types), _CONDITIONS[condition]
    return lambda model: bool(holds(model, model.family in named))


def _row(entry: Sequence[Any]) -> ArchitectureRow:
    entry = [*entry, *("", "", "", "", ...)[len(entry) :]]
    fields, key, models, named, default = entry
    if fields.endswith("*"):
        fields = " ".join(name for name in fields_of() if name.startswith(fields[:-1]))
    value = _VALUES.get(named) if named in ("", *_VALUES) else lambda _: named
    if named in _TABLE["values"]:
        value = value_of_text(_TABLE["values"][named], _NAMES)
    if not models:
        return row(fields, key, value, default)
    return row(fields, key, value, default, when=_when(models))


KEYS: tuple[ArchitectureRow, ...] = (
    *(_row(entry) for rows in _TABLE["rows"].values() for entry in rows),
    *model_rows(_TABLE["departures"], _facts),
)
Config = dict[str, object]
# Types to try for a shape whose family transformers does not have.
_GENERAL = ("llama", "qwen2", "qwen3", "mistral", "mixtral", "qwen3_moe", "gpt2", "gpt_neox")
# The layer class of each type, which FSDP wraps and DeepSpeed hooks (transformers 5.23).
_LAYER_CLASSES: Mapping[str, str] = dialect_toml("hf", "layer_classes.toml")
_TOWER_CLASSES: Mapping[str, str] = dialect_toml("hf", "tower_classes.toml")


def hf_config(model: ModelSpec) -> Config | None:
    """The config.json that describes this model; None if no type of transformers can."""
    config, differing = _nearest(model)
    return None if differing else config


def differences(model: ModelSpec) -> tuple[str, ...]:
    """Fields in which the nearest type of transformers differs from the model."""
    return _nearest(model)[1]


@lru_cache
def _nearest(model: ModelSpec) -> tuple[Config, tuple[str, ...]]:
    """The config.json that differs from the model in the fewest fields, and those fields. Frozen
    layers are ignored, since no config.json mentions them."""
    model = model.without_frozen()
    families = (model.family,) if model.family in READERS else _GENERAL
    return min((_written(model, family) for family in families), key=lambda found: len(found[1]))


def _refuses(name: str) -> Callable[[ModelSpec], str | None]:
    return lambda model: name if name in differences(model) else None


# Each field also has a row that refuses models for which it cannot be written.
HF: tuple[ArchitectureRow, ...] = (
    *KEYS,
    *(row(name, refuses=_refuses(name)) for name in fields_of()),
)


def layer_class(config: Config) -> str:
    """The name of transformers' class for a layer of the model; for a vision-language model
    followed by a comma and that of the tower's layers."""
    language = config.get(language_key(config["model_type"]), config)
    layer = _LAYER_CLASSES[str(language["model_type"])]  # type: ignore[index]
    tower = config.get("vision_config")
    if not isinstance(tower, dict):
        return layer
    kind = str(tower.get("model_type", config["model_type"]))
    return f"{layer},{_TOWER_CLASSES[kind]}"


def without_scores(model: ModelSpec) -> ModelSpec:
    """The model without its head for scores: the language model from which the training of a reward
    model starts."""
    return model.model_copy(update={"scores": False})


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) < 40 else "..."


def _written(model: ModelSpec, family: str) -> tuple[Config, tuple[str, ...]]:
    """The config.json of one type, and the fields that differ when it is read back."""
    model_type = "deepseek_v3" if family == "kimi_k2" else family
    typed = model.model_copy(update={"family": model_type})
    config: Config = {"model_type": model_type, **settings(KEYS, typed), **dict(model.constants)}
    config = with_vision_config(config, typed)
    try:
        read = model_from_hf_config(config, where=f"{model.name}.json")
    except ModelError:
        return config, ("family",)
    return config, tuple(
        name
        for name in fields_of()
        if name not in _DEPARTS and value_of(read, name) != value_of(model, name)
    )


# How a type balances experts is reported as a departure, not as a difference.
_DEPARTS = ("moe.bias_update_rate", "moe.aux_loss", "moe.aux_loss_over")


MODEL_FOLDER, SCRIPT = "model", "train.py"

LIGER = "liger-kernels"
ENVIRONMENT = {"PYTORCH_CUDA_ALLOC_CONF": ("expandable_segments:True", "less fragmentation")}


def attention(launch: Launch) -> str:
    """The attention implementation, as transformers names it."""
    return "eager" if launch.job.attention == "eager" else "sdpa"


def hf_program(model: ModelSpec, template: str, title: str, **more: Value) -> Files:
    """train.py, which takes every value of the plan as an argument, and the model's config.json."""
    return {
        SCRIPT: filled(
            template, title=title, stop=filled("hf/stop.py.txt"), **program_pieces(model), **more
        ),
        f"{MODEL_FOLDER}/config.json": json.dumps(hf_config(model) or {}, indent=2) + "\n",
    }


def hf_command(
    launch: Launch,
    arguments: Mapping[str, object],
    saving: Sequence[str],
    otherwise: Sequence[str] = (),
    stop: str = "stop-after-minutes",
    **more: Any,
) -> RunCommand:
    """The command that starts train.py with `arguments`. `saving`: further arguments if the user
    wants checkpoints; `otherwise`: those if not; `stop`: the name of the argument that limits the
    run's time."""
    words = (word for name, value in arguments.items() for word in (f"--{name}", str(value)))
    return RunCommand(
        argv=(SCRIPT, *words),
        variables=(*said_variables("hf", launch), stop_variable(launch)),
        branches=(
            Branch("DATASET", ("--dataset", "${DATASET}")),
            Branch(PRETRAINED, ("--pretrained", "${PRETRAINED}")),
            Branch("CHECKPOINTS", tuple(saving), tuple(otherwise)),
            Branch(STOP, (f"--{stop}", "${STOP_AFTER_MINUTES}")),
        ),
        environment=ENVIRONMENT,
        **more,
    )


def plan_refusals(launch: Launch) -> Iterator[Refusal]:
    """Plans that no program here can run."""
    yield from said_refusals("hf", "plan_refusals", names_of(launch))


def hf_job_refusals(job: Job) -> Iterator[Refusal]:
    """Models that transformers does not have, and dropout, lengths and batch ramps that no program
    here supports."""
    model = without_scores(job.model)
    missing = [f"{name} = {_shown(value_of(model, name))}" for name in differences(model)]
    yield from said_refusals("hf", "job_refusals", names_of_job(job) | {"missing": missing})
    if own := _own_code(model):
        yield Refusal(
            f"the modelling file of {own} stands beside the checkpoint, not in transformers, and "
            "the files written here load transformers' own classes",
            "--model internvl3-8b, qwen2.5-vl-7b or another that transformers has",
        )
    yield from length_refusals(job)


def _own_code(model: ModelSpec) -> str:
    """The type of a model whose code is beside the checkpoint, not in transformers (`own_code` of
    hf_readers.toml); empty if transformers has it."""
    config = hf_config(model) or {}
    inner = config.get(language_key(config.get("model_type")), {})
    types = [config.get("model_type"), inner.get("model_type") if isinstance(inner, dict) else None]
    return next((str(one) for one in types if one in TABLES["own_code"]), "")
