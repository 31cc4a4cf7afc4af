"""Rotary positions as Hugging Face configs state them: two spellings, one meaning."""

from __future__ import annotations

from collections.abc import Mapping

from planner.job.models.hf_fields import Fields
from planner.job.specs import RopeScaling, RopeSpec

# Key of rope_scaling (up to transformers 4) and rope_parameters (from 5 on) -> field.
SCALING_KEYS: Mapping[str, str] = {
    "factor": "factor",
    "original_max_position_embeddings": "original_positions",
    "low_freq_factor": "low_frequency",
    "high_freq_factor": "high_frequency",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "truncate": "truncate",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "attention_factor": "attention_factor",
    "long_factor": "long_factor",
    "short_factor": "short_factor",
}
# Names of one kind.
_KINDS = {"su": "longrope"}
# Layers of a nested table: {"full_attention": {...}, "sliding_attention": {...}}.
FULL, SLIDING = "full_attention", "sliding_attention"


def read_rope(fields: Fields) -> RopeSpec:
    """`rope_parameters`, or `rope_theta` with `rope_scaling` beside it."""
    tables = _tables(fields)
    table = tables[0] if len(tables) == 1 else fields.nested("rope_parameters", FULL)
    theta = _number(fields, table, "rope_theta") or fields.optional_number("rope_theta")
    local = fields.optional_number("rope_local_base_freq")
    if len(tables) > 1:
        local = _number(fields, fields.nested("rope_parameters", SLIDING), "rope_theta") or local
    return RopeSpec(
        theta=theta or 10000.0,
        local_theta=None if local == theta else local,
        scaling=_scaling(fields, table),
    )


def _tables(fields: Fields) -> list[Mapping[str, object]]:
    """One table, or one for each kind of layer."""
    new = fields.table("rope_parameters")
    if FULL in new:
        return [fields.nested("rope_parameters", FULL), fields.nested("rope_parameters", SLIDING)]
    return [new or fields.table("rope_scaling")]


def _scaling(fields: Fields, table: Mapping[str, object]) -> RopeScaling | None:
    kind = table.get("rope_type", table.get("type", "default"))
    if kind == "default" or not table:
        return None
    if not isinstance(kind, str):
        raise fields.error(f"rope_type is {kind!r}; expected a string")
    values = {name: table[key] for key, name in SCALING_KEYS.items() if table.get(key) is not None}
    if kind in ("su", "longrope") or "original_positions" not in values:
        # Phi-3 states it beside the table; else it is the length that the model was made for.
        longest = fields.optional_positive("original_max_position_embeddings")
        values.setdefault("original_positions", longest)
    return RopeScaling.model_validate({"kind": _KINDS.get(kind, kind), **values})


def _number(fields: Fields, table: Mapping[str, object], key: str) -> float | None:
    value = table.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise fields.error(f"{key} is {value!r}; expected a positive number")
    return float(value)
