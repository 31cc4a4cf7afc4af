"""Megatron-Bridge settings of a plan.

Fields: megatron-bridge 0.6.2, `training/config.py`, `training/mixed_precision.py`,
`models/gpt_provider.py`, and megatron-core 0.19's TransformerConfig, OptimizerConfig and
DistributedDataParallelConfig.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.launch.contract import Launch
from planner.launch.megatron_flags import Flag
from planner.launch.megatron_layout import layout_text
from planner.launch.megatron_model import model_overrides
from planner.launch.megatron_run import (
    FSDP_SHARDING,
    is_fsdp,
    offload_flags,
    recompute_flags,
    reduces_in_bf16,
    sharp_group,
)
from planner.launch.megatron_table import linear_bias

Overrides = Mapping[str, str]
Groups = Sequence[tuple[str, Overrides]]

# Precision of the plan -> Bridge's recipe of it; fields that the plan decides are set after.
_PRECISIONS = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
_FUSED = ("silu", "gelu", "quick_gelu")


def base_precision(launch: Launch) -> str:
    """Name of Bridge's precision recipe."""
    return _PRECISIONS[launch.job.precision]


def all_overrides(launch: Launch) -> Groups:
    """Titled groups of `section.field` and value."""
    model = launch.job.model
    return (
        (f"model: {model.name}", _model(launch)),
        ("attention", model_overrides(model, "attention")),
        ("experts", _experts(launch)),
        ("parallel degrees", _degrees(launch)),
        ("batch", _batch(launch)),
        ("data parallelism and overlap", _sharding(launch)),
        ("recomputation", _recompute(launch)),
        ("activations on the host", _of_model(offload_flags(launch))),
        ("precision", _precision(launch)),
        ("optimizer", _optimizer(launch)),
        ("what to see of the first steps", {"logger.log_interval": "1"}),
        ("PLACEHOLDERS, not part of the plan: replace them for a real run", _placeholders(launch)),
    )


def _yes(value: bool) -> str:
    return "true" if value else "false"


def _model(launch: Launch) -> Overrides:
    model = launch.job.model
    dropout = "0.1" if launch.job.dropout else "0.0"
    found = model_overrides(model, "model")
    fused = found["model.activation_func"] in _FUSED and (model.gated or bool(linear_bias(model)))
    return found | {
        "model.bias_activation_fusion": _yes(fused),
        "model.bias_dropout_fusion": _yes(not (model.moe and linear_bias(model))),
        "model.should_pad_vocab": "true",
        "model.hidden_dropout": dropout,
        "model.attention_dropout": dropout,
        # As the plan is costed: the fused loss makes its fp32 tensors anew.
        "model.cross_entropy_loss_fusion": "false",
    }


def _experts(launch: Launch) -> Overrides:
    found = model_overrides(launch.job.model, "experts")
    if launch.job.model.moe is None:
        return found
    found |= {"model.moe_token_dispatcher_type": "alltoall", "model.moe_grouped_gemm": "true"}
    found = {key: value for key, value in found.items() if key not in _techniques(launch)}
    if launch.job.precision not in ("bf16", "fp16"):
        found["model.moe_router_padding_for_quantization"] = "true"
    return found


def _degrees(launch: Launch) -> Overrides:
    degrees, layout = launch.plan.degrees, launch.plan.layout
    mtp = launch.job.model.mtp_layers
    found = {
        "model.tensor_model_parallel_size": str(degrees.tp),
        "model.sequence_parallel": _yes(degrees.tp > 1 and launch.splits_sequence),
        "model.pipeline_model_parallel_size": str(degrees.pp),
        "model.virtual_pipeline_model_parallel_size": str(degrees.vpp)
        if degrees.vpp > 1
        else "null",
        "model.context_parallel_size": str(degrees.cp),
        "model.expert_model_parallel_size": str(degrees.ep),
        "model.expert_tensor_parallel_size": str(degrees.etp),
    }
    if degrees.cp > 1:
        found["model.cp_comm_type"] = launch.plan.cp_comm_type or "p2p"
    if launch.plan.cp_sizes:
        sizes = ",".join(str(size) for size in launch.plan.cp_sizes)
        found["model.hierarchical_context_parallel_sizes"] = f"[{sizes}]"
    if degrees.pp > 1 and not layout.is_even:
        # Quotes within: brackets, stars and bars mean something to Hydra.
        text = layout_text(layout.block_layers, mtp, layout.mtp_standalone)
        found["model.pipeline_model_parallel_layout"] = f'"{text}"'
    return found


def _batch(launch: Launch) -> Overrides:
    plan = launch.plan
    return {
        "train.micro_batch_size": str(plan.degrees.mbs),
        "train.global_batch_size": str(plan.gbs),
        "model.seq_length": str(plan.seq),
        "dataset.seq_length": str(plan.seq),
    }


def _sharding(launch: Launch) -> Overrides:
    degrees, overlap = launch.plan.degrees, launch.job.framework.overlap
    reduces, gathers = overlap.gradient_reduction > 0, overlap.parameter_gather > 0
    found = {
        "ddp.use_distributed_optimizer": _yes(degrees.zero >= 1),
        "optimizer.use_distributed_optimizer": _yes(degrees.zero >= 1),
        "ddp.overlap_grad_reduce": _yes(reduces),
        "ddp.overlap_param_gather": _yes(gathers and degrees.zero >= 1),
        "comm_overlap.overlap_grad_reduce": _yes(reduces),
        "comm_overlap.overlap_param_gather": _yes(gathers and degrees.zero >= 1),
        "comm_overlap.tp_comm_overlap": _yes(degrees.tp > 1 and overlap.tensor > 0),
        "ddp.grad_reduce_in_fp32": _yes(not reduces_in_bf16(launch)),
    }
    found |= _techniques(launch)
    if is_fsdp(launch):
        found |= {
            "ddp.use_megatron_fsdp": "true",
            "dist.use_megatron_fsdp": "true",
            "ddp.data_parallel_sharding_strategy": FSDP_SHARDING[degrees.zero],
            "checkpoint.ckpt_format": "fsdp_dtensor",
            "model.init_model_with_meta_device": "true",
            "model.gradient_accumulation_fusion": "false",
        }
    if degrees.shard and degrees.zero and degrees.dp * degrees.cp > degrees.shard:
        instances = degrees.dp * degrees.cp // degrees.shard
        found["ddp.num_distributed_optimizer_instances"] = str(instances)
    group = sharp_group(launch)
    if group:
        found |= {"dist.use_sharp": "true", "dist.sharp_enabled_group": group}
    return found


def _techniques(launch: Launch) -> Overrides:
    """What switches the plan's techniques on: overrides already."""
    pairs = (word.partition("=") for word in launch.plan.technique_flags.split())
    return {key: value for key, _, value in pairs}


def _recompute(launch: Launch) -> Overrides:
    """Flags of the plan, as fields; null where nothing runs again."""
    found = {
        "model.recompute_granularity": "null",
        "model.recompute_method": "null",
        "model.recompute_num_layers": "null",
    }
    return found | _of_model(recompute_flags(launch))


def _of_model(flags: Sequence[Flag]) -> dict[str, str]:
    """Flags whose fields of the transformer's configuration have the same names."""
    found: dict[str, str] = {}
    for flag in flags:
        listed = f"[{','.join(flag.values)}]" if flag.name.endswith("-modules") else ""
        name = flag.name.removeprefix("--").replace("-", "_")
        found[f"model.{name}"] = listed or (*flag.values, "true")[0]
    return found


def _precision(launch: Launch) -> Overrides:
    found = {"mixed_precision.grad_reduce_in_fp32": _yes(not reduces_in_bf16(launch))}
    if launch.job.precision in ("fp8", "mxfp8"):
        # Weights travel and stay in bf16, in all layers the same.
        found |= {
            "mixed_precision.fp8_param_gather": "false",
            "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag": "false",
            "mixed_precision.first_last_layers_bf16": "false",
        }
    return found


def _optimizer(launch: Launch) -> Overrides:
    job = launch.job
    found = {"optimizer.optimizer": "adam" if job.optimizer.family == "adamw" else "sgd"}
    if dict(job.optimizer.states).get("momentum") == "none":
        found["optimizer.sgd_momentum"] = "0.0"
    types = {
        "optimizer.exp_avg_dtype": dict(job.optimizer.states).get("exp_avg", "fp32"),
        "optimizer.exp_avg_sq_dtype": dict(job.optimizer.states).get("exp_avg_sq", "fp32"),
        "optimizer.main_params_dtype": job.optimizer.master or "fp32",
        "optimizer.main_grads_dtype": job.optimizer.gradient or "fp32",
    }
    changed = {key: dtype for key, dtype in types.items() if dtype != "fp32"}
    if changed or launch.plan.optimizer_offload:
        found["optimizer.use_precision_aware_optimizer"] = "true"
        if reduces_in_bf16(launch):
            found["optimizer.main_grads_dtype"] = "bf16"
    found |= changed
    if launch.plan.optimizer_offload:
        found |= {
            "optimizer.optimizer_cpu_offload": "true",
            "optimizer.optimizer_offload_fraction": f"{launch.plan.optimizer_offload:g}",
        }
    return found


def _placeholders(launch: Launch) -> Overrides:
    """Data, tokenizer and hyperparameters: values that run, none that was chosen."""
    return {
        "tokenizer.vocab_size": str(launch.job.model.vocab),
        "train.train_iters": "${TRAIN_STEPS}",
        "validation.eval_iters": "0",
        "scheduler.lr_warmup_iters": "5",
        "optimizer.lr": "0.0001",
        "optimizer.min_lr": "0.00001",
    }
