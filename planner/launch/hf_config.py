"""A model's config.json for Hugging Face transformers, out of its shape.

The way back of `planner.job.models.hf_config`: what is written is read again by that reader, and a
config that does not give the same shape is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache

from hardware.files import shipped_toml
from planner.job.models.errors import ModelError
from planner.job.models.hf_config import model_from_hf_config
from planner.job.models.hf_families import READERS
from planner.job.specs import ModelSpec
from planner.launch.architecture import Row, fields_of, settings, value_of
from planner.launch.contract import Refusal
from planner.launch.hf_states import linear_attention, mamba2, nemotron_h
from planner.launch.hf_table import DETAILS, hf_table
from planner.launch.model_traits import leading_dense, moe_indices

Config = dict[str, object]
# Types tried for a shape whose family transformers does not have.
_GENERAL = ("llama", "qwen2", "qwen3", "mistral", "mixtral", "qwen3_moe", "gpt2", "gpt_neox")
# Layer class of each type that FSDP wraps and DeepSpeed hooks (transformers 5.23, modelling files).
_LAYER_CLASSES: dict[str, str] = shipped_toml("planner.launch", "layer_classes.toml")


def hf_config(model: ModelSpec) -> Config | None:
    """The config.json that says this model; None if no type of transformers does."""
    config, differing = _nearest(model)
    return None if differing else config


def differences(model: ModelSpec) -> tuple[str, ...]:
    """Fields that no type of transformers can have as the model does, of the nearest type."""
    return _nearest(model)[1]


@lru_cache
def _nearest(model: ModelSpec) -> tuple[Config, tuple[str, ...]]:
    """The config.json whose model differs in the fewest fields, and those fields."""
    families = (model.family,) if model.family in READERS else _GENERAL
    return min((_written(model, family) for family in families), key=lambda found: len(found[1]))


HF: tuple[Row, ...] = hf_table(differences)


def config_text(config: Config) -> str:
    """A config as the text of its file."""
    return json.dumps(config, indent=2) + "\n"


def layer_class(config: Config) -> str:
    """Class of the transformer layers of a config's type."""
    return _LAYER_CLASSES[str(config["model_type"])]


def model_refusals(model: ModelSpec) -> tuple[Refusal, ...]:
    """A refusal if transformers has no such model."""
    missing = [f"{name} = {_shown(value_of(model, name))}" for name in differences(model)]
    if not missing:
        return ()
    return (
        Refusal(
            f"no model type of transformers 5.23 known here is {model.name} (family "
            f"{model.family}): the nearest has another {', '.join(missing)}",
            "--framework megatron-core",
        ),
    )


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) < 40 else "..."


def _written(model: ModelSpec, family: str) -> tuple[Config, tuple[str, ...]]:
    """The config.json as a type, and the fields that are others when it is read again."""
    model_type = "deepseek_v3" if family == "kimi_k2" else family
    typed = model.model_copy(update={"family": model_type})
    config: Config = {
        "model_type": model_type,
        **_trunk(typed),
        **_FAMILY_KEYS.get(model_type, _plain)(typed),
        **settings(DETAILS, typed),
        **dict(model.constants),
    }
    try:
        read = model_from_hf_config(config, where=f"{model.name}.json")
    except ModelError:
        return config, ("family",)
    return config, tuple(
        name
        for name in fields_of()
        if name not in _DEPARTS and value_of(read, name) != value_of(model, name)
    )


# What the types balance experts with is theirs: departures of `hf_table`.
_DEPARTS = ("moe.bias_update_rate", "moe.aux_loss", "moe.aux_loss_over")


def _trunk(model: ModelSpec) -> Config:
    config: Config = {
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "vocab_size": model.vocab,
        "max_position_embeddings": model.max_positions,
        "hidden_act": model.activation,
        "tie_word_embeddings": model.tied_embeddings,
    }
    if model.ffn:
        config["intermediate_size"] = model.ffn
    if not model.mla and model.family not in ("gpt2", "gpt_neox", "falcon", "phi", "phi3"):
        config["head_dim"] = model.head_dim
    return config


def _plain(model: ModelSpec) -> Config:
    """Biases and the window, as most families state them."""
    config: Config = {"attention_bias": model.qkv_bias, "mlp_bias": model.mlp_bias}
    return config | {"sliding_window": model.sliding_window}


def _layer_types(model: ModelSpec) -> Config:
    names = {"full": "full_attention", "sliding": "sliding_attention"}
    kinds = [names[kind.attention] for kind in model.kind_sequence]
    return {"layer_types": kinds, "sliding_window": model.sliding_window}


def _mixtral(model: ModelSpec) -> Config:
    moe = model.moe
    if moe is None:
        return {}
    return {
        "num_local_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "intermediate_size": moe.ffn,
        "sliding_window": model.sliding_window,
    }


def _qwen(model: ModelSpec) -> Config:
    late = [i for i, kind in enumerate(model.kind_sequence) if kind.attention == "sliding"]
    return {
        "attention_bias": model.qkv_bias,
        "use_sliding_window": bool(late),
        "sliding_window": model.sliding_window,
        "max_window_layers": late[0] if late else model.layers,
    }


def _qwen_moe(model: ModelSpec) -> Config:
    moe = model.moe
    if moe is None:
        return {}
    dense = sorted(set(range(model.layers)) - set(moe_indices(model)))
    return _qwen(model) | {
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.ffn,
        "decoder_sparse_step": 1,
        "mlp_only_layers": dense,
        "qkv_bias": model.qkv_bias,
        "shared_expert_intermediate_size": moe.shared_ffn,
        "norm_topk_prob": moe.normalised,
    }


def _deepseek(model: ModelSpec) -> Config:
    mla, moe = model.mla, model.moe
    config: Config = {"num_nextn_predict_layers": model.mtp_layers}
    if mla is not None:
        config |= {
            "q_lora_rank": mla.q_lora_rank,
            "kv_lora_rank": mla.kv_lora_rank,
            "qk_nope_head_dim": mla.qk_nope_head_dim,
            "qk_rope_head_dim": mla.qk_rope_head_dim,
            "v_head_dim": mla.v_head_dim,
        }
    if moe is not None:
        config |= {
            "n_routed_experts": moe.experts,
            "num_experts_per_tok": moe.top_k,
            "moe_intermediate_size": moe.ffn,
            "n_shared_experts": moe.shared_ffn // moe.ffn,
            "first_k_dense_replace": leading_dense(model) or 0,
            "n_group": moe.groups,
            "topk_group": moe.top_groups,
            "norm_topk_prob": moe.normalised,
        }
    return config


def _glm(model: ModelSpec) -> Config:
    deepseek = _deepseek(model)
    return deepseek | {"attention_bias": model.qkv_bias, "use_qk_norm": model.qk_norm == "head"}


def _local_experts(model: ModelSpec) -> Config:
    value = _mixtral(model) | {"attention_bias": model.qkv_bias}
    return value | _layer_types(model) if model.sliding_window else value


def _olmoe(model: ModelSpec) -> Config:
    moe = model.moe
    value = _mixtral(model) | {"attention_bias": model.qkv_bias}
    return value | ({"num_experts": moe.experts, "norm_topk_prob": moe.normalised} if moe else {})


def _gemma(model: ModelSpec) -> Config:
    return {"attention_bias": model.qkv_bias, "hidden_activation": model.activation}


def _gemma_windows(model: ModelSpec) -> Config:
    return (
        _gemma(model)
        | _layer_types(model)
        | {
            "attn_logit_softcapping": model.attention_softcap,
            "final_logit_softcapping": model.logits_softcap,
        }
    )


def _falcon(model: ModelSpec) -> Config:
    new = model.block == "parallel" or model.kv_heads not in (1, model.heads)
    return {
        "num_kv_heads": model.kv_heads,
        "new_decoder_architecture": new,
        "multi_query": model.kv_heads == 1,
        "parallel_attn": model.block in ("single", "parallel"),
        "num_ln_in_parallel_attn": 2 if model.block == "parallel" else 1,
        "alibi": model.position == "alibi",
        "bias": model.qkv_bias,
        "ffn_hidden_size": model.ffn,
    }


def _llama4(model: ModelSpec) -> Config:
    """Rotary layers attend within chunks, the others to everything."""
    rotary = [int(kind.attention == "sliding") for kind in model.kind_sequence]
    one_value = _mixtral(model) | {
        "attention_bias": model.qkv_bias,
        "intermediate_size_mlp": model.ffn,
        "moe_layers": list(moe_indices(model)),
        "attention_chunk_size": model.sliding_window,
        "no_rope_layers": rotary,
    }
    stated = {key: value for key, value in one_value.items() if key != "sliding_window" and value}
    return stated | {"use_qk_norm": model.qk_l2_norm}


def _gpt2(model: ModelSpec) -> Config:
    return {
        "n_embd": model.hidden,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_inner": model.ffn,
        "n_positions": model.max_positions,
        "activation_function": model.activation,
        # The class has a tenth: plans are costed without.
        **dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), 0.0),
    }


def _neox(model: ModelSpec) -> Config:
    parallel = model.block == "parallel"
    return {"attention_bias": model.qkv_bias, "use_parallel_residual": parallel}


_FAMILY_KEYS: dict[str, Callable[[ModelSpec], Config]] = {
    "mixtral": _mixtral,
    "qwen2": _qwen,
    "qwen3": _qwen,
    "qwen2_moe": _qwen_moe,
    "qwen3_moe": _qwen_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "glm4_moe": _glm,
    "olmoe": _olmoe,
    "gpt_oss": _local_experts,
    "minimax_m2": _local_experts,
    "gemma": _gemma,
    "gemma2": _gemma_windows,
    "gemma3_text": _gemma_windows,
    "falcon": _falcon,
    "llama4_text": _llama4,
    "gpt2": _gpt2,
    "gpt_neox": _neox,
    "nemotron_h": nemotron_h,
    "mamba2": mamba2,
    "qwen3_next": lambda model: _qwen_moe(model) | linear_attention(model),
}
