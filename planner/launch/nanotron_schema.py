"""A schema check for nanotron configurations: nanotron itself needs GPUs' packages to read one.

Keys and rules of nanotron, src/nanotron/config/{config,parallelism_config,models_config}.py as of
2026-04 (strict reading with dacite: unknown keys are errors).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

# fmt: off
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "general": ("project", "run", "seed", "step", "consumed_train_samples", "benchmark_csv_path",
                "ignore_sanity_checks"),
    "parallelism": ("dp", "pp", "tp", "pp_engine", "tp_mode", "tp_linear_async_communication",
                    "recompute_layer", "moe_layer_recompute", "tp_recompute_allgather",
                    "expert_parallel_size", "context_parallel_size"),
    "model": ("model_config", "init_method", "dtype", "make_vocab_size_divisible_by",
              "ddp_bucket_cap_mb"),
    "tokens": ("sequence_length", "train_steps", "micro_batch_size",
               "batch_accumulation_per_replica", "val_check_interval", "limit_val_batches",
               "limit_test_batches"),
    "optimizer": ("optimizer_factory", "zero_stage", "weight_decay", "clip_grad",
                  "accumulate_grad_in_fp32", "learning_rate_scheduler",
                  "weight_decay_exclude_named_params"),
    "checkpoints": ("checkpoints_path", "checkpoint_interval", "save_initial_state",
                    "save_final_state", "resume_checkpoint_path", "load_lr_scheduler",
                    "load_optimizer", "checkpoints_path_is_shared_file_system"),
    "logging": ("log_level", "log_level_replica", "iteration_step_info_interval"),
    "tokenizer": ("tokenizer_name_or_path", "tokenizer_revision", "tokenizer_max_length"),
    "profiler": ("profiler_export_path", "wait", "warmup", "active", "repeat", "skip_first",
                 "record_shapes", "profile_memory", "with_stack", "export_chrome_trace"),
}
_OTHER_SECTIONS = ("data_stages", "lighteval", "s3_upload", "metrics_logging")
_REQUIRED = {
    "general": ("project",),
    "parallelism": ("dp", "pp", "tp"),
    "model": ("model_config", "init_method"),
    "tokens": ("sequence_length", "train_steps", "micro_batch_size",
               "batch_accumulation_per_replica"),
    "optimizer": ("optimizer_factory", "zero_stage", "weight_decay", "clip_grad",
                  "accumulate_grad_in_fp32", "learning_rate_scheduler"),
}
_MODEL_KEYS = (
    "bos_token_id", "eos_token_id", "pad_token_id", "hidden_act", "hidden_size",
    "initializer_range", "intermediate_size", "max_position_embeddings", "num_attention_heads",
    "num_hidden_layers", "num_key_value_heads", "attention_bias", "pretraining_tp",
    "rms_norm_eps", "rope_scaling", "rope_theta", "rope_interleaved", "tie_word_embeddings",
    "use_cache", "vocab_size", "_attn_implementation", "z_loss_enabled", "z_loss_coefficient",
)
MODEL_KEYS = {
    "is_llama_config": (*_MODEL_KEYS, "is_llama_config"),
    "is_qwen2_config": (
        *_MODEL_KEYS, "is_qwen2_config", "flex_attention_mask", "sliding_window_size",
        "no_rope_layer", "_fused_rotary_emb", "_fused_rms_norm", "_use_qkv_packed",
        "_use_doc_masking", "moe_config",
    ),
}
_ENGINES = ("1f1b", "afab")
_TP_MODES = ("ALL_REDUCE", "REDUCE_SCATTER")
# fmt: on


def nanotron_problems(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What nanotron would refuse in a configuration; empty if nothing."""
    return (*_keys(config), *_values(config), *_model(config))


def _keys(config: Mapping[str, Any]) -> Iterator[str]:
    for name in config:
        if name not in (*SECTIONS, *_OTHER_SECTIONS):
            yield _unknown(name, "the file", (*SECTIONS, *_OTHER_SECTIONS))
    for section, known in SECTIONS.items():
        for key in config.get(section) or {}:
            if key not in known:
                yield _unknown(key, section, known)
    for section, keys in _REQUIRED.items():
        for key in keys:
            if key not in (config.get(section) or {}):
                yield f"{section}.{key} is missing"


def _unknown(key: str, where: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(str(key), known, n=1)
    return f"unknown key {key!r} in {where}" + (f"; did you mean {close[0]!r}?" if close else "")


def _values(config: Mapping[str, Any]) -> Iterator[str]:
    table = config.get("parallelism") or {}
    for key in ("dp", "pp", "tp", "expert_parallel_size", "context_parallel_size"):
        value = table.get(key, 1)
        if not isinstance(value, int) or value < 1:
            yield f"parallelism.{key} is {value!r}; expected a positive integer"
    if table.get("pp_engine", "1f1b") not in _ENGINES:
        yield f"parallelism.pp_engine is {table['pp_engine']!r}; expected one of {list(_ENGINES)}"
    if str(table.get("tp_mode", "ALL_REDUCE")).upper() not in _TP_MODES:
        yield f"parallelism.tp_mode is {table['tp_mode']!r}; expected one of {list(_TP_MODES)}"
    stage = (config.get("optimizer") or {}).get("zero_stage", 0)
    if stage not in (0, 1):
        yield f"optimizer.zero_stage is {stage!r}; nanotron has 0 and 1"


def _model(config: Mapping[str, Any]) -> Iterator[str]:
    """Rules of the model against the degrees (Config.__post_init__)."""
    model = (config.get("model") or {}).get("model_config") or {}
    kind = next((key for key in MODEL_KEYS if model.get(key)), None)
    if kind is None:
        yield "model.model_config has none of " + ", ".join(MODEL_KEYS)
        return
    for key in model:
        if key not in MODEL_KEYS[kind]:
            yield _unknown(key, "model.model_config", MODEL_KEYS[kind])
    heads, tp = model.get("num_attention_heads", 32), (config.get("parallelism") or {}).get("tp", 1)
    kv_heads = model.get("num_key_value_heads") or heads
    if heads % tp:
        yield f"num_attention_heads {heads} is not divisible by tp {tp}"
    if kv_heads < tp:
        yield f"num_key_value_heads {kv_heads} is less than tp {tp}"
    if heads % kv_heads:
        yield f"num_attention_heads {heads} is not divisible by num_key_value_heads {kv_heads}"
