"""The table of model settings for torchtitan, one for each block that the writer builds, from
`model.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.job.specs import ModelSpec
from planner.launch import architecture
from planner.launch.registry import dialect_toml


@dataclass(frozen=True, slots=True)
class Flavor:
    """A model size in torchtitan's registry. `longest`: the longest sequence, in tokens, that its
    table of rotary positions allows."""

    module: str
    name: str
    longest: int


_TABLE = dialect_toml("torchtitan", "model.toml")
FLAVORS = {name: Flavor(*size) for name, size in _TABLE["flavors"].items()}


def flavor_of(model: ModelSpec) -> Flavor | None:
    """The registry's size that equals a catalogue model; None for any other model, even one with
    the same name."""
    from planner.job.models.catalog import load_model, model_names

    if model.name not in FLAVORS or model.name not in model_names():
        return None
    same = load_model(model.name).spec
    return FLAVORS[model.name] if same == model else None


# Change of the experts' bias per step for a model that states an auxiliary loss instead.
_USUAL_RATE = 1e-3


def load_balance(model: ModelSpec) -> float | None:
    """load_balance_coeff: the amount by which a step changes an expert's bias; None without
    balancing."""
    moe = architecture.experts(model)
    if moe.score_correction_bias:
        return moe.bias_update_rate or None
    return _USUAL_RATE if moe.aux_loss else None


def _facts(model: ModelSpec) -> Mapping[str, object]:
    moe, dense = model.moe, architecture.leading_dense(model)
    whole = moe is not None and bool(moe.shared_ffn) and not moe.shared_ffn % moe.ffn
    return {
        "in_blocks": whole and dense is not None,
        "leading_dense": dense,
        "load_balance": load_balance(model) if moe else None,
    }


def _table(block: str, *parts: str) -> tuple[architecture.ArchitectureRow, ...]:
    rows = [entry for part in parts for entry in _TABLE["rows"][part]]
    return *architecture.model_rows(rows, _facts), *architecture.lacking(
        {*_TABLE["has"][block].split()}
    )


GROUPED = _table("grouped", "trunk", "grouped", "router", "llama3", "grouped-last")
LATENT = _table("latent", "trunk", "latent", "router", "latent-last")


def _registered(model: ModelSpec) -> str | None:
    """The reason for a refusal if a gpt-oss model has none of the sizes in torchtitan's registry;
    else None."""
    if flavor_of(model) is not None:
        return None
    return "torchtitan 0.3 builds gpt-oss only in its own sizes, 20b and 120b"


_LOSS = "moe.score_correction_bias moe.bias_update_rate moe.aux_loss moe.aux_loss_over"
GPT_OSS: tuple[architecture.ArchitectureRow, ...] = (
    architecture.row(" ".join(architecture.fields_of()), refuses=_registered),
    *(
        architecture.ArchitectureRow(("moe.aux_loss",), when=entry.when, departs=entry.departs)
        for entry in GROUPED
        if " ".join(entry.fields) == _LOSS
    ),
)


def titan_table(model: ModelSpec) -> tuple[architecture.ArchitectureRow, ...]:
    """The table of the torchtitan 0.3 block that expresses a model."""
    if model.family == "gpt_oss":
        return GPT_OSS
    return LATENT if model.mla else GROUPED
