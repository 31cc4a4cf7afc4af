"""Adapters of Megatron-Bridge's recipes: what `peft` of a configuration holds.

Megatron-Bridge 067f987df, src/megatron/bridge/peft/lora.py and dora.py: rank 32, alpha 32, no
dropout, on linear_qkv, linear_proj, linear_fc1 and linear_fc2; recipes/utils/dataset_utils.py,
default_peft_config: the same by its name. Experts are reached by the names of the MLP's layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.job.specs import ModelSpec
from planner.job.tuned_layers import EXPERTS, linear_layers
from planner.launch.languages.python import Record

_RANK, _ALPHA = 32, 32
# Megatron's fused layers -> the planner's words.
_LAYERS: Mapping[str, tuple[str, ...]] = {
    "linear_qkv": ("q", "k", "v"),
    "linear_q": ("q",), "linear_k": ("k",), "linear_v": ("v",),
    "linear_proj": ("o",),
    "linear_fc1": ("gate", "up", "shared-gate", "shared-up", EXPERTS),
    "linear_fc1_up": ("up", "shared-up", EXPERTS),
    "linear_fc1_gate": ("gate", "shared-gate", EXPERTS),
    "linear_fc2": ("down", "shared-down", EXPERTS),
    "linear_q_down_proj": ("q-down",), "linear_q_up_proj": ("q-up",),
    "linear_kv_down_proj": ("kv-down",), "linear_kv_up_proj": ("kv-up",),
    "in_proj": ("state-in",), "out_proj": ("state-out",),
}  # fmt: skip
_USUAL = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
_METHODS = {"lora": "lora", "canonicallora": "lora", "vlmlora": "lora", "dora": "dora"}


def adapters_of(peft: Any, model: ModelSpec | None) -> tuple[str, str]:
    """`--train`, and why it is not known; one of them is empty. `peft`: what the configuration
    holds, a record of a class, or its name."""
    name = peft.name.rpartition(".")[2] if isinstance(peft, Record) else str(peft)
    if name == "default_peft_config" and peft.given:  # not beside the file
        name = str(peft.given[0])
    method = _METHODS.get(name.lower())
    if method is None:
        return "", f"peft {name}: adapters of that kind are not modelled; LoRA and DoRA are"
    fields: Mapping[str, Any] = peft.fields if isinstance(peft, Record) else {}
    listed = fields.get("target_modules")
    if listed is None or (isinstance(listed, Record) and listed.name == "?" and listed.made):
        listed = list(_USUAL)  # none are stated; or the list that the dataclass makes for that
    targets = tuple(_targets(listed, model)) if isinstance(listed, list) else ()
    if not targets:
        return "", f"peft {name}: which layers have adapters is not known"
    said = {
        "rank": _number(fields, "dim", _RANK),
        "alpha": _number(fields, "alpha", _ALPHA),
        "targets": "+".join(targets),
        "dropout": _number(fields, "dropout", 0),
    }
    return f"{method}:" + ",".join(f"{key}={value}" for key, value in said.items() if value), ""


def _number(fields: Mapping[str, Any], name: str, usual: int) -> str:
    value = fields.get(name, usual)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    number = value if is_number else usual
    return f"{number:g}" if number else ""


def _targets(listed: list[Any], model: ModelSpec | None) -> Iterator[str]:
    """The planner's words for a list of layers, of those that the model has, each once."""
    layers = None if model is None else linear_layers(model)
    words = (word for name in listed for word in _LAYERS.get(str(name).rpartition(".")[2], ()))
    yield from dict.fromkeys(word for word in words if layers is None or word in layers)
