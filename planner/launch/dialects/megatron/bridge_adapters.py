"""Adapters of Megatron-Bridge: reads `peft` of a configuration, and writes a plan's adapters.

Megatron-Bridge 067f987df, src/megatron/bridge/peft/lora.py and dora.py: rank 32, alpha 32, no
dropout, on linear_qkv, linear_proj, linear_fc1 and linear_fc2; recipes/utils/dataset_utils.py,
default_peft_config: the same by its name. Experts are reached by the names of the MLP's layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.job.job import Job
from planner.job.specs import ModelSpec
from planner.job.tuned_layers import EXPERTS, linear_layers
from planner.job.tuning import Tuning
from planner.launch.contract import Refusal
from planner.launch.languages.python import Record
from planner.launch.registry import dialect_toml
from planner.launch.sentences import said_refusals

_RANK, _ALPHA = 32, 32
_LAYERS: Mapping[str, Sequence[str]] = dialect_toml("megatron", "adapters.toml")["layers"]
# Halves of fused layers that only CanonicalLoRA can adapt separately.
_HALVES = {"linear_q", "linear_k", "linear_v", "linear_fc1_up", "linear_fc1_gate"}
_OF_EXPERTS = {"linear_fc1", "linear_fc2"}
_USUAL = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


def adapters_of(peft: Any, model: ModelSpec | None) -> tuple[str, str]:
    """(`--train` value, reason that it is unknown); one of the two is always empty. `peft`: the
    object that a configuration has there, or its name."""
    name = peft.name.rpartition(".")[2] if isinstance(peft, Record) else str(peft)
    if name == "default_peft_config" and peft.given:  # not beside the file
        name = str(peft.given[0])
    method = dialect_toml("megatron", "adapters.toml")["methods"].get(name.lower())
    if method is None:
        return "", f"peft {name}: adapters of that kind are not modelled; LoRA and DoRA are"
    fields: Mapping[str, Any] = peft.fields if isinstance(peft, Record) else {}
    listed = fields.get("target_modules")
    if listed is None or (isinstance(listed, Record) and listed.name == "?" and listed.made):
        listed = list(_USUAL)  # none are stated; or the list that the dataclass makes for that
    targets = tuple(_targets(listed, model)) if isinstance(listed, list) else ()
    if not targets:
        return "", f"peft {name}: the layers that have adapters are not known"
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
    """The planner's words for the listed layers that the model has, each once."""
    layers = None if model is None else linear_layers(model)
    words = (word for name in listed for word in _LAYERS.get(str(name).rpartition(".")[2], ()))
    yield from dict.fromkeys(word for word in words if layers is None or word in layers)


# --- a plan's ------------------------------------------------------------------------------------


def adapter_fields(tuning: Tuning, model: ModelSpec) -> dict[str, Any]:
    """Fields of Megatron-Bridge's LoRA or DoRA class. Only for adapters without refusals."""
    alpha = (tuning.rank or 0) if tuning.alpha is None else tuning.alpha
    return {
        "target_modules": list(target_modules(tuning, model)),
        "dim": tuning.rank,
        "alpha": round(alpha) if alpha == round(alpha) else alpha,
        "dropout": tuning.dropout,
    }


def target_modules(tuning: Tuning, model: ModelSpec) -> tuple[str, ...]:
    """Megatron's names for the layers that have adapters, in the order in which a layer runs
    them."""
    adapted = set(tuning.adapted(model))
    first = "linear_q_proj" if model.mla else "linear_qkv"
    other = "linear_qkv" if model.mla else "linear_q_proj"
    names = (name for name in _LAYERS if name not in _HALVES | {other})
    ordered = sorted(names, key=lambda name: name != first)
    return tuple(name for name in ordered if adapted & set(_LAYERS[name]))


def adapter_refusals(job: Job) -> Iterator[Refusal]:
    """Ways of training the language model that Megatron-Bridge has no settings for."""
    tuning, model = job.tuning, job.model
    adapted = set(tuning.adapted(model)) if tuning.has_adapters else set[str]()
    named = target_modules(tuning, model) if tuning.has_adapters else ()
    reached = set(_targets(list(named), model))
    facts = {"adapted": adapted, "experts": EXPERTS, "job": job, "reached": reached}
    facts |= {"halves": EXPERTS in adapted and not set(named) >= _OF_EXPERTS, "tuning": tuning}
    facts["others"] = sorted(reached ^ adapted)
    yield from said_refusals("megatron", "adapter_refusals", facts)
