"""What DeepSpeed's own parser lets through: unknown keys at the top, settings that do nothing.

Keys read by DeepSpeed 0.19.8, runtime/config.py (`DeepSpeedConfig._initialize_params`) and the
modules it calls. Inside `zero_optimization` its own pydantic models refuse unknown keys.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

# fmt: off
TOP_LEVEL_KEYS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "managed_gradient_accumulation", "gradient_clipping", "gradient_allreduce_op",
    "prescale_gradients", "gradient_predivide_factor", "communication_data_type",
    "seq_parallel_communication_data_type", "optimizer", "scheduler", "fp16", "bf16", "bfloat16",
    "torch_autocast", "data_types", "zero_optimization", "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer", "activation_checkpointing", "tensor_parallel",
    "expert_parallel", "sequence_parallel_size", "pipeline", "hybrid_engine", "compile",
    "checkpoint", "data_efficiency", "curriculum_learning", "weight_quantization", "aio",
    "elasticity", "autotuning", "flops_profiler", "comms_logger", "timers", "datastates_ckpt",
    "tensorboard", "wandb", "csv_monitor", "comet", "steps_per_print", "wall_clock_breakdown",
    "memory_breakdown", "dump_state", "disable_python_gc", "disable_allgather",
    "dataloader_drop_last", "log_level", "use_data_before_expert_parallelism", "vocabulary_size",
)
# fmt: on
# Settings that only ZeRO-3 looks at.
_ONLY_STAGE_3 = (
    "offload_param",
    "zero_hpz_partition_size",
    "zero_quantized_weights",
    "zero_quantized_nontrainable_weights",
)


def deepspeed_problems(config: Mapping[str, object]) -> tuple[str, ...]:
    """What is wrong with a configuration although DeepSpeed reads it; empty if nothing."""
    return (*_unknown(config), *_zero(config), *_precision(config))


def _unknown(config: Mapping[str, object]) -> Iterator[str]:
    for key in config:
        if key not in TOP_LEVEL_KEYS:
            close = difflib.get_close_matches(key, TOP_LEVEL_KEYS, n=1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            yield f"unknown key {key!r}, which DeepSpeed ignores{meant}"


def _zero(config: Mapping[str, object]) -> Iterator[str]:
    zero = config.get("zero_optimization", {})
    if not isinstance(zero, Mapping):
        yield "zero_optimization is no object"
        return
    stage = zero.get("stage", 0)
    for key in _ONLY_STAGE_3:
        if stage != 3 and _is_on(zero.get(key)):
            yield f"zero_optimization.{key} does nothing at stage {stage}: it needs stage 3"
    for key in zero:
        if key.startswith("stage3_") and stage != 3:
            yield f"zero_optimization.{key} does nothing at stage {stage}: it needs stage 3"
    offload = zero.get("offload_optimizer")
    if isinstance(offload, Mapping) and offload.get("device", "none") != "none" and stage == 0:
        yield "zero_optimization.offload_optimizer does nothing at stage 0: it needs stage 1"


def _is_on(value: object) -> bool:
    if isinstance(value, Mapping):
        return bool(value.get("device", "none") != "none")
    return value not in (None, False, 0, 1)


def _precision(config: Mapping[str, object]) -> Iterator[str]:
    """Gradients are accumulated in the compute precision unless ZeRO says otherwise."""
    types = config.get("data_types", {})
    given = types.get("grad_accum_dtype") if isinstance(types, Mapping) else None
    compute = next((name for name in ("bf16", "fp16") if _enabled(config.get(name))), "fp32")
    zero = config.get("zero_optimization", {})
    stage = zero.get("stage", 0) if isinstance(zero, Mapping) else 0
    if given not in (None, compute) and stage == 0:
        yield (
            f"data_types.grad_accum_dtype {given} with {compute} compute at ZeRO stage 0: "
            "DeepSpeed refuses the mix when the engine starts"
        )


def _enabled(section: object) -> bool:
    return isinstance(section, Mapping) and section.get("enabled") is True
