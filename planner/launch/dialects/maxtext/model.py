"""The model that MaxText's settings describe, converted to a Hugging Face config of the same
layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.job.models.hf_config import model_from_hf_config
from planner.job.specs import ModelSpec
from planner.launch.dialects.maxtext.settings import default
from planner.launch.registry import dialect_toml

# Scaled rotary positions: MaxText's setting for each of Hugging Face's keys, or fixed values.
_YARN = {
    "factor": "rope_factor", "original_max_position_embeddings": "original_max_position_embeddings",
    "beta_fast": "beta_fast", "beta_slow": "beta_slow", "truncate": "rope_truncate",
    "mscale": "mscale", "mscale_all_dim": "mscale",
}  # fmt: skip
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 8192}  # fmt: skip
# Hugging Face's values for "none", which MaxText writes as 0 or -1.
_NONE = {"q_lora_rank": None, "attn_logit_softcapping": None, "final_logit_softcapping": None,
         "sliding_window": None, "attention_chunk_size": None, "rope_local_base_freq": None,
         "n_group": 1, "topk_group": 1}  # fmt: skip


_TABLES = dialect_toml("maxtext", "blocks.toml")
# For each `decoder_block`, how it is read; and the keys that all blocks have.
BLOCKS: Mapping[str, Any] = _TABLES["blocks"]
_COMMON: Mapping[str, str] = _TABLES["keys"]


def keys_of(block: str) -> tuple[str, ...]:
    """MaxText's settings that describe the shape of a decoder block."""
    return (*_COMMON, *BLOCKS[block].get("keys", {}), "mlp_activations", "attention_bias",
            "model_name", "rope_type", *_YARN.values(), "max_position_embeddings",
            "routed_score_func", "routed_bias")  # fmt: skip


def model_of(settings: Mapping[str, Any], seq: int, where: str) -> ModelSpec:
    """The model that the settings describe, for a known block. ModelError for an impossible
    shape."""
    block = settings["decoder_block"]
    config = _config(block, settings, seq)
    spec = model_from_hf_config(config, where=where)
    gated = settings["mlp_activations"][-1:] == ["linear"]
    name = settings["model_name"]
    known = name if name != default("model_name") else f"from {block} settings"
    named = {"name": known, "source": "MaxText settings", "gated": gated}
    return spec.model_copy(update={"pretraining_seq": seq, **named})


def _config(block: str, settings: Mapping[str, Any], seq: int) -> dict[str, Any]:
    """The config.json of the same model."""
    table = BLOCKS[block]
    keys = {**table.get("keys", {})}
    config: dict[str, Any] = {
        theirs: settings[ours] for ours, theirs in _COMMON.items() if ours not in keys
    }
    for ours, theirs in keys.items():
        is_none = theirs in _NONE and settings[ours] in (0, -1, None)
        config[theirs] = _NONE[theirs] if is_none else settings[ours]
    # One MaxText key may set two of Hugging Face's (head_dim).
    config.setdefault("head_dim", settings["head_dim"])
    stated = table.get("stated", {})
    config |= {key: None if value is False else value for key, value in stated.items()}
    config["num_hidden_layers"] *= table.get("layers", 1)
    config |= _positions(settings, seq, config)
    config["hidden_act"] = str(settings["mlp_activations"][0])
    config["model_type"] = table["type"]
    # Settings that change the model type.
    if block == "qwen2" and not settings["attention_bias"]:
        config["model_type"] = "llama"
    if block == "deepseek":
        config["norm_topk_prob"] = settings["routed_score_func"] == "sigmoid"
        config["topk_method"] = "noaux_tc" if settings["routed_bias"] else "greedy"
        config["model_type"] = table["type"] if settings["routed_bias"] else "deepseek_v2"
    return config


def _positions(settings: Mapping[str, Any], seq: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config's entries for positions. The longest sequence is the model's limit if it is
    stated, else the run's sequence length, in tokens; under yarn the larger of its own limit and
    the run's length."""
    kind = settings["rope_type"]
    if kind == "yarn":
        table = {key: settings[ours] for key, ours in _YARN.items()}
        longest = max(seq, settings["max_position_embeddings"])
        return {"max_position_embeddings": longest, "rope_scaling": {"rope_type": "yarn", **table}}
    scaled = {"rope_scaling": dict(_LLAMA3)} if kind == "llama3.1" else {}
    if config.get("max_position_embeddings", 0) > 0:
        return scaled
    return scaled | {"max_position_embeddings": seq}
