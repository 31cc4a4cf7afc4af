"""Every field of the architecture, in every dialect: written, the framework's default, or named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from planner.job.models.catalog import load_model, model_names
from planner.job.models.hf_config import model_from_hf_config
from planner.job.specs import LayerKind, ModelSpec
from planner.launch.architecture import (
    Table,
    all_settings,
    departures,
    fields_of,
    refusals,
    value_of,
)
from planner.launch.dialects.hf.files import HF, hf_config
from planner.launch.registry import table_of, targets

MODELS = {name: load_model(name).spec for name in model_names()}
# Of each kind of block.
EXAMPLES = ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-20b", "gemma-3-4b", "gpt2")
# A field -> another value of it, where adding a half or turning round is none.
OTHERS: Mapping[str, Any] = {
    "activation": "relu",
    "norm": "layernorm",
    "block": "sandwich",
    "position": "none",
    "qk_norm": "full",
    "rotary_share": 0.25,
    "qkv_clip": 8.0,
    "attention_softcap": 25.0,
    "logits_softcap": 20.0,
    "attention_scale": 0.1,
    "rope.local_theta": 5e4,
    "rope.scaling.kind": "dynamic",
    "rope.scaling.mscale": 0.5,
    "rope.scaling.mscale_all_dim": 0.5,
    "rope.scaling.attention_factor": 1.5,
    "rope.scaling.long_factor": (1.0, 2.0),
    "rope.scaling.short_factor": (1.0, 2.0),
    "moe.group_score": "max",
    "moe.aux_loss_over": "sequence",
    "moe.clamp": 5.0,
    "moe.capacity_factor": 1.25,
    "sliding_window": 64,
    "constants": (("attention_dropout", 0.05),),
    "vision": MODELS["llava-1.5-7b"].vision,
}
# Fields that say nothing of a model without another one.
IDLE = {
    "moe.group_score": lambda model: model.moe.groups == 1,
    "moe.top_groups": lambda model: model.moe.groups == 1,
    "moe.shared_gate": lambda model: model.moe.shared_ffn == 0,
    "moe.bias_update_rate": lambda model: not model.moe.score_correction_bias,
    "moe.aux_loss_over": lambda model: not model.moe.aux_loss,
    "mlp_bias": lambda model: all(kind.ffn == "moe" for kind in model.kinds),
    "sliding_window": lambda model: all(k.attention == "full" for k in model.kinds),
    # A bound of the run, where positions are no table.
    "max_positions": lambda model: model.position != "learned",
    "head_dim": lambda model: model.mla is not None,
    "kv_heads": lambda model: model.mla is not None,
    "ffn": lambda model: all(kind.ffn == "moe" for kind in model.kinds),
    # Only yarn's, Llama 3's, longrope's.
    "rope.scaling.low_frequency": lambda model: model.rope.scaling.kind != "llama3",
    "rope.scaling.high_frequency": lambda model: model.rope.scaling.kind != "llama3",
    **{
        f"rope.scaling.{name}": lambda model: model.rope.scaling.kind != "yarn"
        for name in ("beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim",
                     "attention_factor")
    },
    "rope.scaling.original_positions": lambda model: model.rope.scaling.kind == "linear",
    "rope.scaling.long_factor": lambda model: model.rope.scaling.kind != "longrope",
    "rope.scaling.short_factor": lambda model: model.rope.scaling.kind != "longrope",
}  # fmt: skip

# What a framework does whatever the model says, and what another test holds.
KNOWN = {
    # test_bridge: refused where the sequence is another.
    ("megatron-bridge", "max_positions"),
    # Always computed in fp32.
    ("torchtitan", "moe.router_fp32"),
}


def said(table: Table, model: ModelSpec) -> tuple[object, ...]:
    """All that a dialect says of a model: keys with values, refusals, departures."""
    settings = {key: value for key, (value, _) in all_settings(table, model).items()}
    return (
        repr(hf_config(model) if table is HF else settings),
        tuple(refusal.reason for refusal in refusals(table, model, "", "")),
        departures(table, model),
    )


def changed(model: ModelSpec, field: str, value: Any) -> ModelSpec | None:
    """The model with another value of a field; None where the model has no such table."""
    table, _, inner = field.rpartition(".")
    if not table:
        return model.model_copy(update={field: value})
    before = value_of(model, table)
    if before is None:
        return None
    return changed(model, table, before.model_copy(update={inner: value}))


def another(model: ModelSpec, field: str) -> Any:
    """Another value of a field."""
    before = value_of(model, field)
    if field == "layer_kinds":
        first = model.kind_sequence[0]
        turned = LayerKind(attention="sliding" if first.attention == "full" else "full",
                           ffn=first.ffn)  # fmt: skip
        return (turned, *model.kind_sequence[1:])
    if field in OTHERS:
        return OTHERS[field] if before != OTHERS[field] else None
    if isinstance(before, bool):
        return not before
    if isinstance(before, str):
        return {"softmax": "sigmoid", "sigmoid": "softmax"}[before]
    if before is None:
        return 64
    return before * 2 or 1 if isinstance(before, int) else before * 1.5 + 0.125


@pytest.mark.parametrize("dialect", targets())
def test_every_field_has_a_row(dialect: str) -> None:
    for model in MODELS.values():
        rows = table_of(dialect, model)
        assert set(fields_of()) <= {name for row in rows for name in row.fields}


@pytest.mark.parametrize("field", fields_of())
@pytest.mark.parametrize("dialect", targets())
def test_another_value_is_said_otherwise(dialect: str, field: str) -> None:
    """No field is dropped without a word: not one of the models of each kind of block."""
    if (dialect, field) in KNOWN:
        return
    for name in EXAMPLES:
        model = MODELS[name]
        table = table_of(dialect, model)
        if refusals(table, model, "", "") or not _speaks(model, field):
            continue
        value = another(model, field)
        other = changed(model, field, value)
        if value is not None and other is not None:
            now = said(table_of(dialect, other), other)
            assert now != said(table, model), (name, value_of(model, field), value)


def test_constants_of_a_config_are_written_or_refused_by_name() -> None:
    stated = {"model_type": "mixtral", "router_jitter_noise": 0.01, "attention_dropout": 0.0}
    model = model_from_hf_config(stated, "config.json")
    assert (hf_config(model) or {})["router_jitter_noise"] == 0.01
    for dialect in ("megatron-core", "torchtitan", "nanotron"):
        reasons = " ".join(one.reason for one in refusals(table_of(dialect, model), model, "", ""))
        assert "router_jitter_noise = 0.01" in reasons
        assert "attention_dropout" not in reasons
    # A switch of the job, which plans are costed without.
    assert (hf_config(MODELS["gpt2"]) or {})["attn_pdrop"] == 0.0


def _speaks(model: ModelSpec, field: str) -> bool:
    """Whether the field says something of the model."""
    if model.position != "rope" and field.startswith(("rope", "rotary")):
        return False
    table = field.rpartition(".")[0]
    if table and value_of(model, table) is None:
        return False
    return field not in IDLE or not IDLE[field](model)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_value_of_each_field_is_a_value(name: str) -> None:
    """What the test above changes to is another model."""
    model = MODELS[name]
    for field in fields_of():
        if _speaks(model, field) and (value := another(model, field)) is not None:
            assert value_of(changed(model, field, value) or model, field) != value_of(model, field)
