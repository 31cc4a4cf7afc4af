"""Training of adapters or of a part of the weights: which frameworks support it, and what it
changes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from planner.job.errors import UsageError
from planner.job.frameworks.profile import (
    FrameworkProfile,
    frameworks_with,
    load_framework,
    with_tables,
)
from planner.job.frameworks.tables import AdapterRules
from planner.job.specs import ModelSpec
from planner.job.tuned_layers import EXPERTS
from planner.job.tuning import Tuning
from planner.job.vision import TowerSpec

if TYPE_CHECKING:
    from constraints.condition import UserCondition

_FP32 = 4.0
# LayerNorms under autocast keep an fp32 copy of their input, and each product casts their output.
# Powers, which GELU's approximation uses, are fp32 too.
_CAST_NORMS = {"layernorm_input_bytes": _FP32, "unfused_gelu_bytes": 14.0}


def usual_framework(tuning: Tuning, gpus: int, *, splits: bool = False) -> str:
    """The usual framework for adapters: transformers with peft on one GPU, FSDP on several, and
    DeepSpeed for base formats that FSDP cannot shard. Megatron-Bridge if `splits` (tensor or
    pipeline parallelism) and the base is not quantised."""
    if splits and tuning.base is None and tuning.method in _of("megatron-bridge").methods:
        return "megatron-bridge"
    if gpus == 1:
        return "hf-transformers"
    return "hf-fsdp2" if tuning.base in (None, *_of("hf-fsdp2").bases) else "deepspeed"


def _of(name: str) -> AdapterRules:
    return load_framework(name).adapters


def check_tuning(profile: FrameworkProfile, tuning: Tuning) -> None:
    """Raise UsageError if the framework cannot train this way; names those that can."""
    if not tuning.has_adapters:
        return
    rules = profile.adapters
    if tuning.method not in rules.methods:
        having = frameworks_with(lambda one: tuning.method in one.adapters.methods and one.listed)
        raise UsageError(
            f"--train {tuning.method}: {profile.name} does not support such adapters; give "
            f"--framework {' or '.join(having)}"
        )
    if tuning.method == "dora" and EXPERTS in tuning.targets and rules.merges_tensors:
        raise UsageError(
            f"--train dora:targets={','.join(tuning.targets)}: {profile.name} does not support "
            "DoRA on experts (peft, ParamWrapper); give lora, or leave experts out"
        )
    if tuning.base is not None and tuning.base not in rules.bases:
        having = frameworks_with(lambda one: tuning.base in one.adapters.bases and one.listed)
        bases = (
            (f"stores frozen weights only in {', '.join(rules.bases)}")
            if rules.bases
            else "does not quantise frozen weights"
        )
        raise UsageError(
            f"--train base={tuning.base}: {profile.name} {bases}; "
            + (f"give --framework {' or '.join(having)}" if having else "leave base= out")
        )


def tuned_profile(profile: FrameworkProfile, tuning: Tuning, model: ModelSpec) -> FrameworkProfile:
    """The profile as it runs a model with adapters beside 16-bit weights.

    Quantised layers return the type of their input. After a norm in fp32, the stream between
    layers, gate, up and the activation are therefore fp32 too. Norms are in fp32 in a base prepared
    for training (peft, src/peft/utils/other.py, prepare_model_for_kbit_training; bitsandbytes,
    nn/modules.py, Linear4bit.forward), and LayerNorms are under autocast, which computes and
    returns them in fp32 (torch, autocast_mode.h).
    """
    if tuning.has_adapters:
        profile = _with_units(profile, tuning, model)
    if not tuning.has_adapters or profile.mode != "bf16":
        return profile
    profile = _with_temporaries(profile, tuning)
    wide = _is_wide(profile, tuning, model.norm)
    profile = _with_cast_norms(profile, tuning) if _casts(profile, model.norm) else profile
    return _in_fp32(profile) if wide else profile


@cache
def part_profile(
    profile: FrameworkProfile, tuning: Tuning, norm: str, own: str, *, begins: bool = False
) -> FrameworkProfile:
    """The profile of a language model with norms of kind `norm`, as it runs another part of the
    model with norms of kind `own`. Under autocast LayerNorms run in fp32 and RMSNorms do not.
    `begins`: the part's stream between layers starts with a norm."""
    if own == norm or not tuning.has_adapters or profile.mode != "bf16":
        return profile
    wide = _is_wide(profile, tuning, own) and not _is_wide(profile, tuning, norm)
    if _casts(profile, own):
        profile = _with_cast_norms(profile, tuning)
        stream = {"residual_bytes": _FP32} if begins else {}
        profile = with_tables(profile, {"saved": stream})
    return _in_fp32(profile) if wide else profile


def _casts(profile: FrameworkProfile, norm: str) -> bool:
    """Whether autocast computes a model's norms in fp32."""
    return 0.0 < profile.adapters.cast_bytes < _FP32 and norm == "layernorm"


def _is_prepared(profile: FrameworkProfile, tuning: Tuning) -> bool:
    return tuning.is_prepared and bool(profile.adapters.upcasts_norms)


def _is_wide(profile: FrameworkProfile, tuning: Tuning, norm: str) -> bool:
    """Whether quantised layers receive fp32 inputs and return fp32."""
    casts = _casts(profile, norm) and tuning.base is not None
    return _is_prepared(profile, tuning) or casts


def _with_cast_norms(profile: FrameworkProfile, tuning: Tuning) -> FrameworkProfile:
    saved = dict(_CAST_NORMS)
    # Autocast does not apply to products of quantised layers.
    saved["linear_inputs_shared"] = tuning.base is not None
    # Casts of scale and shift, unless they are already fp32.
    saved["norm_weight_copy_bytes"] = 0.0 if _is_prepared(profile, tuning) else 2 * _FP32
    return with_tables(profile, {"saved": saved})


def _with_units(profile: FrameworkProfile, tuning: Tuning, model: ModelSpec) -> FrameworkProfile:
    """Profile in which each adapter matrix that is an FSDP unit is gathered by itself. Adapters
    fused with their base product are excluded (fms-acceleration)."""
    rules = profile.adapters
    if not rules.unit_gather_s or rules.fused_kernels:
        return profile
    beside = [name for name in tuning.adapted(model) if name not in ("head", "router")]
    if set(profile.saved.fused_qkv_families) & {"*", model.family}:
        beside = ["qkv" if name in ("q", "k", "v") else name for name in beside]
    waits = profile.kernels.gather_wait_s + 2 * len(set(beside)) * rules.unit_gather_s
    return with_tables(profile, {"kernels": {"gather_wait_s": waits}})


def _with_temporaries(profile: FrameworkProfile, tuning: Tuning) -> FrameworkProfile:
    """Profile whose optimizer temporaries have the width of the updated weights: twice that of 16
    bits if only fp32 adapters are trained."""
    held = tuning.adapter or profile.adapters.weight_type
    if held != "fp32" or tuning.whole:
        return profile
    made = 2.0 * profile.state.optimizer_temporary_bytes
    return with_tables(profile, {"state": {"optimizer_temporary_bytes": made}})


def _in_fp32(profile: FrameworkProfile) -> FrameworkProfile:
    saved, kernels = profile.saved, profile.kernels
    factor = _FP32 / saved.activation_bytes
    return with_tables(
        profile,
        {
            "saved": {
                "residual_bytes": _FP32,
                "gated_activation_tensors": factor * saved.gated_activation_tensors,
                "plain_activation_tensors": factor * saved.plain_activation_tensors,
                "unfused_gelu_bytes": 16.0,
                "expert_bytes": _FP32,
                # Attention casts the values, and the cast is not part of a wider tensor.
                "value_is_view": False,
            },
            "kernels": {
                "activation_traffic": factor * kernels.activation_traffic,
                "rotary_traffic": factor * kernels.rotary_traffic,
            },
        },
    )


def tuning_conditions(profile: FrameworkProfile, tuning: Tuning) -> tuple[UserCondition, ...]:
    """Conditions on the degrees that follow from how the weights are trained."""
    from constraints.condition import user_condition

    if tuning.base is None or profile.adapters.quantised_tensor:
        return ()
    return (replace(user_condition("require", "tp == 1"), of=f"--train base={tuning.base}"),)


# Towers whose patch embedding the hook does not find.
_UNHOOKED = ("qwen3_vl", "moonvit", "intern_vit")


def hooks_tower(tuning: Tuning, profile: FrameworkProfile, tower: TowerSpec) -> bool:
    """Whether the hook that requests gradients of all embeddings (for checkpointing beside
    adapters) also covers the tower's patch embedding (transformers 5, enable_input_require_grads).
    """
    asks = tuning.has_adapters and bool(profile.adapters.hooks_inputs)
    return asks and tower.kind not in _UNHOOKED
