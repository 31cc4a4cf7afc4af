"""The table of MaxText's model settings: the rows of `model.toml`, and names that imply
settings."""

from __future__ import annotations

from collections.abc import Mapping

from planner.job.specs import ModelSpec
from planner.launch import architecture
from planner.launch.dialects.maxtext.settings import default, model_config, model_names
from planner.launch.registry import dialect_toml

# Values built into LLaMARotaryEmbedding, layers/embeddings.py.
_LLAMA3 = {"factor": 8.0, "low_frequency": 1.0, "high_frequency": 4.0, "original_positions": 8192}
# Beginnings of `model_name` for which blocks route tokens as DeepSeek-V3 does (layers/moe.py,
# get_topk).
_ROUTED_BY_NAME = ("deepseek3", "kimi-k2")


def block_of(model: ModelSpec) -> str:
    """`decoder_block`: MaxText's block with the model's layers."""
    if model.mla is not None:
        return "deepseek"
    if model.moe is not None:
        return "qwen3_moe" if model.qk_norm == "head" else "mixtral"
    if model.qk_norm == "head":
        return "qwen3"
    return "qwen2" if model.qkv_bias else "llama2"


def _facts(model: ModelSpec) -> Mapping[str, object]:
    names = _LLAMA3 if architecture.stretched("llama3")(model) else {}
    stated = {name: architecture.value_of(model, f"rope.scaling.{name}") for name in names}
    other = [
        f"{name.replace('_', ' ')} {_LLAMA3[name]:g}, not {value:g}"
        for name, value in stated.items()
        if value != _LLAMA3[name]
    ]
    return {
        "block": block_of(model),
        "leading_dense": architecture.leading_dense(model),
        "other_numbers": "; ".join(other),
        "yarn": architecture.stretched("yarn")(model),
    }


def model_name(model: ModelSpec) -> str | None:
    """`model_name`: `default` if the settings state everything. DeepSeek's blocks choose their
    routing by that name, so it is the one whose settings equal the model's; None if there is none.
    """
    if not model.mla:
        return str(default("model_name"))
    said = architecture.settings(MAXTEXT, model)
    for name in sorted(model_names(), key=len):
        known = model_config(name) or {}
        same = all(
            value == said.get(key, default(key)) for key, value in known.items() if key in _WRITTEN
        )
        routes = (
            name.startswith(_ROUTED_BY_NAME) == architecture.experts(model).score_correction_bias
        )
        if known.get("decoder_block") == "deepseek" and same and routes:
            return name
    return None


def _unnamed(model: ModelSpec) -> str | None:
    if model_name(model) is not None:
        return None
    return "its router follows from model_name, and none of MaxText's DeepSeek models is this one"


_TABLE = dialect_toml("maxtext", "model.toml")
MAXTEXT = (
    *architecture.model_rows(_TABLE["rows"], _facts),
    architecture.row("mla.kv_lora_rank", when=architecture.has_mla, refuses=_unnamed),
    *architecture.lacking({*_TABLE["has"].split()}),
)
_WRITTEN = frozenset(entry.key for entry in MAXTEXT if entry.key)
