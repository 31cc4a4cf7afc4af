"""Turns a job into the core's NamedTuples; `planner.predict.op_columns` makes the op table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from constraints.numbers import Capabilities
from hardware.curves import load_compute_curves
from hardware.schema import Gpu
from planner.cost.codes import Sharers
from planner.cost.inputs import GpuInputs, as_declared, filled
from planner.cost.piece_attention import TORCH_SOFTMAX_TRAFFIC
from planner.cost.schedule import SCHEDULE_1F1B
from planner.cost.tables import CLASSES, NO_CLASSES, Array, ClassInputs, FrameworkInputs, JobInputs
from planner.job.frameworks.losses import read_bytes
from planner.job.frameworks.profile import FP32_PRECISIONS, FrameworkProfile
from planner.job.job import Job
from planner.job.optimizers import ELEMENT_BYTES
from planner.job.parameter_classes import ParameterClass, parameter_classes
from planner.job.reads import Read
from planner.job.schedules import schedule_named
from planner.job.specs import ModelSpec
from planner.predict.homes import fetch_bytes_per_s, host_weight_bytes, secondary_shards
from planner.predict.links import FAR_PEER_CHANNELS, channels, job_domain_gpus, peer_channels
from planner.predict.ops.attention_core import score_parts
from planner.predict.ops.context import OpContext, piece_counts
from planner.predict.ops.rows import Piece
from planner.predict.ops.table import parameter_count, pieces
from planner.predict.optimizer_terms import (
    moment_bytes,
    offload_seconds_per_parameter,
    paged_bytes,
    traffic_bytes,
    trained_profile,
)


def class_names(all_pieces: Sequence[Piece]) -> tuple[str, ...]:
    """Parameter classes that occur in some pieces, in the registry's order; the core numbers them
    in this order. ValueError if a class is not in the registry, or if there are more than the core
    has room for."""
    used = {op.parameter_class for piece in all_pieces for op in piece.ops if op.parameters}
    names = tuple(name for name in parameter_classes() if name in used)
    if len(names) > CLASSES or len(names) < len(used):
        known = ", ".join(parameter_classes())
        raise ValueError(f"classes {sorted(used)}: the core has room for {CLASSES} of: {known}")
    return names


def class_inputs(
    all_pieces: Sequence[Piece],
    profile: FrameworkProfile,
    moment: float = 4.0,
    reads: Sequence[Read] = (),
) -> tuple[ClassInputs, ...]:
    """The classes of some pieces under a profile, padded to the core's number of records. `moment`:
    bytes of an element of the optimizer's states; `reads`: models that a step reads besides the one
    that it trains."""
    found = tuple(
        _one_class(parameter_classes()[name], profile, moment, reads)
        for name in class_names(all_pieces)
    )
    return (*found, *NO_CLASSES[len(found) :])


def _one_class(
    kind: ParameterClass, profile: FrameworkProfile, moment: float, reads: Sequence[Read]
) -> ClassInputs:
    """Inputs of the core for one class of parameters. Bytes are given as ratios to those of the
    profile's trained weights, gradients and states."""
    held_bytes = kind.bytes_per_parameter
    weights = gathered = 1.0 if held_bytes is None else held_bytes / profile.state.weight_bytes
    frozen = held_bytes is None and not (kind.trained or kind.only_read)
    if frozen and profile.adapters.frozen_bytes:
        weights = profile.adapters.frozen_bytes / profile.state.weight_bytes
    gradients = states = float(kind.trained)
    if kind.gradient is not None:
        gradients = ELEMENT_BYTES[kind.gradient] / profile.state.gradient_bytes
    if kind.states is not None:
        # An optimizer without states has no states of any type.
        states = ELEMENT_BYTES[kind.states] / moment if moment else 0.0
    # A trained class is used by forward and backward, a read class once per reading.
    uses = sum(read.times for read in reads if read.copied == kind.only_read)
    uses += 0 if kind.only_read else 2
    gathered = gathered if kind.gathered == "before-use" else 0.0
    return ClassInputs(
        sharers=float(Sharers[kind.sharers.replace("-", "_").upper()]),
        weights=weights,
        gathered=0.0 if kind.only_read else gathered,
        gradients=gradients,
        reduced=gradients if kind.reduced else 0.0,
        states=states,
        gathers=gathered * uses / 2,
    )


def half_precision(gpu: Gpu) -> str:
    """The 16-bit type in which a GPU trains: bf16, or fp16 if it lacks bf16 (V100)."""
    return "bf16" if "bf16" in gpu.peak_flop_per_s else "fp16"


def head_precision(gpu: Gpu, precision: str) -> str:
    """Type of the products that never use low precision (head, router, attention): fp32 in an fp32
    job, else the GPU's 16-bit type."""
    return precision if precision in FP32_PRECISIONS else half_precision(gpu)


@cache
def gpu_inputs(gpu: Gpu, precision: str, attention: str) -> GpuInputs:
    """Inputs of the core for a GPU, with linear layers in `precision` and one attention kernel.

    `attention`: eager or torch (unfused), flash1, flash2, flash3_or_cudnn, or auto for the GPU's
    usual fused kernel. HardwareError if the GPU lacks the precision or the kernel.
    """
    half = head_precision(gpu, precision)
    loaded = load_compute_curves(gpu)
    # Unfused attention uses no curve, so the usual one does no harm.
    fused = loaded.attention("auto" if attention in ("eager", "torch") else attention)
    derived = {
        "matmul_flop_per_s": gpu.peak(precision),
        "matmul16_flop_per_s": gpu.peak(half),
        "element_bytes": 4.0 if precision in FP32_PRECISIONS else 2.0,
        "hbm_bytes_per_s": gpu.hbm_bytes_per_s,
        "sm_count": gpu.sm_count,
        "gemm_max_efficiency": loaded.sustained_share(precision),
        "gemm16_max_efficiency": loaded.sustained_share(half),
    }
    kernel = {f"attention_{name}": value for name, value in fused.values().items()}
    return filled(GpuInputs, loaded.curves.values() | kernel | derived)


def dispatcher(job: Job) -> str:
    """Expert-dispatch library; empty means a plain all-to-all."""
    kernels = job.framework.kernels
    usual = job.cluster.gpu.traits.dispatcher
    return (kernels.dispatcher or usual) if kernels.dispatch_deduplicates else ""


def op_context(job: Job) -> OpContext:
    """Context in which the op table's rows of a job are built."""
    return OpContext(
        model=job.model,
        profile=job.framework.in_precision(job.precision),
        seq=job.seq,
        attention=job.attention,
        dropout=job.dropout,
        expert_imbalance=job.expert_imbalance,
        memory_budget=job.memory_budget,
        mode=job.dtype,
        offload=job.on_host,
        rack=job.cluster.gpu.traits.dispatcher == "hybridep",
        exchanges_heads=any(kind.startswith("a2a") for kind in job.context_kinds),
        reads=job.reads,
        read_bytes=read_bytes(job.framework, job.objective) if job.reads else 0.0,
        tuning=job.tuning,
    )


def job_pieces(job: Job) -> tuple[Piece, ...]:
    """Pieces of the job's model under its framework."""
    return pieces(op_context(job))


def may_part(job: Job) -> bool:
    """Whether multi-token prediction may have a block to itself, before the block of head and
    loss."""
    rules, code = job.framework.parallelism, schedule_named(job.schedule).code
    split = rules.mtp_standalone and rules.standalone_vocab and rules.layouts == "any"
    return split and job.model.mtp_layers > 0 and code == SCHEDULE_1F1B


def greedy_costs(model: ModelSpec, parallelism: Capabilities) -> tuple[float, float]:
    """Costs of a layer, 4·h² + 3·f·h, and of the LM head, V·h, by which a framework with a greedy
    layout fills its stages; zeros for other frameworks.

    Source: nanotron models/llama.py and qwen.py, get_block_compute_costs.
    """
    if parallelism.layouts != "greedy":
        return 0.0, 0.0
    hidden, ffn, vocab = float(model.hidden), float(model.ffn), float(model.vocab)
    return 4.0 * hidden * hidden + 3.0 * ffn * hidden, vocab * hidden


def context_inputs(context: OpContext) -> JobInputs:
    """Inputs of the core for model and length, without a job."""
    model, parallelism = context.model, context.profile.parallelism
    costs = greedy_costs(model, parallelism)
    return as_declared(
        JobInputs(
            seq=float(context.seq),
            hidden=float(model.hidden),
            kv_heads=float(model.heads if model.mla else model.kv_heads),
            vocab=float(model.vocab),
            vocabulary_multiple=float(
                parallelism.vocabulary_multiple if parallelism.vocabulary_padded else 1
            ),
            layers=len(model.piece_sequence),
            kinds=len(model.piece_kinds),
            pieces=len(model.piece_kinds) + (4 if model.mtp_layers else 2),
            mtp_layers=model.mtp_layers,
            tied_embeddings=float(model.tied_embeddings and not context.tuning.unties),
            sequence_parallel=float(parallelism.sequence_parallel == "with-tp"),
            eager_attention=0.0,
            top_k=float(model.moe.top_k if model.moe else 0),
            causal=1.0,
            standalone_vocab=float(parallelism.standalone_vocab),
            greedy_layer_cost=float(costs[0]),
            greedy_head_cost=float(costs[1]),
            kinds_in_order=float(list(model.piece_indices) == sorted(model.piece_indices)),
            mtp_copies_embedding=float(parallelism.mtp_copies_embedding),
        )
    )


def job_inputs(job: Job) -> JobInputs:
    """Inputs of the core for model and batch."""
    context, moe, kernels = op_context(job), job.model.moe, job.framework.kernels
    # A gate that selects neighbouring experts does not choose among groups.
    near = moe is not None and kernels.neighbouring_experts
    grouped = None if near else moe
    return context_inputs(context)._replace(
        eager_attention=_score_traffic(job),
        neighbour_share=moe.top_k / moe.experts if moe and near else 0.0,
        expert_groups=float(grouped.groups) if grouped else 1.0,
        top_groups=float(grouped.top_groups) if grouped else 1.0,
        weighed_experts=context.mapped_experts,
    )


def _score_traffic(job: Job) -> float:
    """Memory traffic of the softmax of unfused attention, as a multiple of the traffic of a fused
    softmax kernel; 0 if attention itself is fused."""
    if job.attention != "eager":
        return 0.0
    plain = job.attention_kernel == "torch"
    return TORCH_SOFTMAX_TRAFFIC if plain else job.framework.kernels.softmax_traffic


# Tables of a profile with settings that the core reads.
_TABLES = ("parallelism", "overlap", "saved", "state", "kernels", "outside", "activation_offload")


def profile_settings(profile: FrameworkProfile) -> dict[str, Any]:
    """Settings of a profile by their names in the core's record."""
    settings = {name: value for table in _TABLES for name, value in getattr(profile, table)}
    return settings | {f"hide_{name}": share for name, share in profile.overlap}


def derived_inputs(job: Job, profile: FrameworkProfile) -> dict[str, float]:
    """Inputs of the core that are computed from several settings."""
    setting, state, kernels = job.optimizer_setting, profile.state, profile.kernels
    gpu = gpu_inputs(job.cluster.gpu, job.precision, job.fused_attention)
    streaming = gpu.hbm_bytes_per_s * gpu.hbm_efficiency
    copies = quantised_copy_bytes(job, profile)
    overlap, saved, model = profile.overlap, profile.saved, job.model
    host_speed, unfused = job.cluster.host_speed, job.framework.state.unfused_backward
    low = job.precision not in ("bf16", "fp16", *FP32_PRECISIONS)
    live = min(state.live_parameters, parameter_count(model).total)
    unreduced, whole = state.unreduced_gradient_bytes, state.gradient_bytes
    mask_bytes = job.framework.saved.mask_buffer_bytes * model.max_positions**2
    return {
        "optimizer_bytes": moment_bytes(profile, setting),
        "paged_bytes": paged_bytes(setting),
        "hide_fsdp_prefetch": overlap.fsdp_prefetch
        * (overlap.experts_prefetch if model.moe else 1.0),
        "flat_update_bytes": state.flat_update_bytes * (1.0 - setting.on_cpu),
        # ZeRO-3 cannot keep more weights gathered than the model has.
        "live_gathered_bytes": state.weight_bytes * float(live),
        "logits_transient_bytes": max(0.0, saved.logits_peak_bytes - saved.logits_saved_bytes),
        "issue_s": kernels.issue_s / host_speed,
        "launch_s": min(
            kernels.launch_s / job.cluster.host_launch_speed, kernels.issue_s / host_speed
        ),
        "fetch_s": kernels.fetch_s / host_speed,
        # Relative to 16 bits: 8- and 4-bit products gather operands that were cast before.
        "tensor_gather_share": 0.5 if low and job.framework.kernels.quantised_gathers else 1.0,
        "tensor_copy_s": kernels.tensor_copy_bytes / streaming,
        "gather_copy_s": kernels.gather_copy_bytes / streaming,
        "reduce_copy_s": kernels.reduce_copy_bytes / streaming,
        "gather_wait_s": kernels.gather_wait_s / host_speed,
        "optimizer_traffic_bytes": traffic_bytes(profile, setting) + kernels.update_traffic_bytes,
        "host_step_s": profile.outside.host_step_s / host_speed,
        "schedule": schedule_named(job.schedule).code,
        "context_bytes": job.cluster.gpu.context_bytes + profile.outside.kernels_bytes,
        "communicator_bytes": profile.outside.channel_bytes * channels(job.cluster),
        "near_peer_bytes": profile.outside.peer_channel_bytes * peer_channels(job.cluster),
        "far_peer_bytes": profile.outside.peer_channel_bytes * FAR_PEER_CHANNELS,
        "domain_gpus": job_domain_gpus(job.cluster),
        "job_gpus": job.cluster.num_gpus,
        "workspace_bytes": job.workspace_bytes,
        "unreduced_gradient_bytes": whole if unreduced is None else unreduced,
        "gradients_on_gpu": 0.0
        if state.updates_in_backward
        else 1.0 - setting.on_cpu * profile.optimizer.offload_gradients,
        "offload_s": offload_seconds_per_parameter(job.framework, setting, job.cluster),
        "secondary_shards": secondary_shards(job.framework, job.cluster),
        "host_weight_bytes": host_weight_bytes(job.framework, setting),
        "weight_fetch_bytes_per_s": fetch_bytes_per_s(job.framework, setting, job.cluster),
        "update_sharded": setting.kernel == "forloop",
        "persistent_gradients": state.persistent_gradients or state.gradients_at_backward,
        "weight_cast_bytes": saved.weight_cast_bytes + copies,
        "weight_casts_stay": copies != 0.0,
        # Gradients of feed-forward width that are alive in backward.
        "unfused_tensors": (4.0 if model.gated else 2.0) if unfused else 0.0,
        "softmax_bytes": _softmax_bytes(job, profile),
        # A layer's causal mask, if unfused attention registers one.
        "mask_buffer_bytes": float(mask_bytes) if job.attention == "eager" else 0.0,
    }


def quantised_copy_bytes(job: Job, profile: FrameworkProfile) -> float:
    """Bytes per parameter of a weight's quantised copies, in addition to the weight. If the weight
    itself is stored quantised: the bytes of the copies minus those of the profile's weight, which
    may be negative.

    Blackwell's tensor cores take fp8 along either axis, so one copy replaces two. Source:
    Transformer Engine, pytorch/utils.py, is_non_tn_fp8_gemm_supported.
    """
    either_axis = job.precision == "fp8" and job.cluster.gpu.traits.fp8_along_either_axis
    copies = profile.state.quantised_copy_bytes / (2.0 if either_axis else 1.0)
    return copies - profile.state.weight_bytes if profile.state.quantised_weights else copies


def framework_inputs(job: Job, all_pieces: Sequence[Piece]) -> FrameworkInputs:
    """Inputs of the core for profile, optimizer, memory outside tensors and parameter classes."""
    profile = trained_profile(job.framework.in_precision(job.precision), job.optimizer_setting)
    settings = profile_settings(profile) | derived_inputs(job, profile)
    return filled(FrameworkInputs, settings | parameter_inputs(job, profile, all_pieces))


def parameter_inputs(
    job: Job, profile: FrameworkProfile, all_pieces: Sequence[Piece]
) -> dict[str, Any]:
    """Inputs of the core for the model's parameters and their classes."""
    return {
        "classes": class_inputs(all_pieces, profile, _moment_element(job, profile), job.reads),
        "forward_reads": float(sum(read.times for read in job.reads)),
        "model_parameters": trained_parameters(job, all_pieces),
    }


def _moment_element(job: Job, profile: FrameworkProfile) -> float:
    """Bytes of an element of the optimizer's moments."""
    follows = job.optimizer.follows_weights
    return profile.state.optimizer_state_element_bytes if follows else ELEMENT_BYTES["fp32"]


def held_classes(job: Job, profile: FrameworkProfile) -> tuple[tuple[ClassInputs, float], ...]:
    """(inputs of the core for a class of parameters, number of parameters in it) for each class in
    the job's model, multi-token prediction included."""
    all_pieces = job_pieces(job)
    totals, names = piece_totals(job.model, len(all_pieces)), class_names(all_pieces)
    counts = dict.fromkeys(names, 0.0)
    for piece, count in zip(all_pieces, totals, strict=True):
        for op in piece.ops:
            if op.parameters:
                counts[op.parameter_class] += float(count) * op.parameter_count
    classes = class_inputs(all_pieces, profile, _moment_element(job, profile))
    return tuple(zip(classes, counts.values(), strict=False))


def trained_parameters(job: Job, all_pieces: Sequence[Piece]) -> float:
    """Number of trained parameters in the model, without those of multi-token prediction."""
    totals = piece_totals(job.model, len(all_pieces))[: len(job.model.piece_kinds) + 2]
    counted = [(op, n) for piece, n in zip(all_pieces, totals, strict=False) for op in piece.ops]
    if job.tuning.trains_all:
        rows = [(op, n) for op, n in counted if not op.trains and not op.only_read]
        frozen = sum(count * op.parameter_count for op, count in rows)
        return float(parameter_count(job.model).total) - float(frozen)
    return float(sum(count * op.parameter_count for op, count in counted if op.trains))


def _softmax_bytes(job: Job, profile: FrameworkProfile) -> float:
    """Bytes per score that the backward of an unfused softmax needs in addition to the tensors kept
    for it.

    These are the gradients of its output and its input, in the type of the softmax; the operand
    kept for the product with the values is freed by then. A softmax written in operators makes
    three more: the negative of the quotient's gradient, and the exponents divided by their sum once
    and twice.
    """
    if job.attention != "eager":
        return 0.0
    softmax, operand, mask = score_parts(profile.saved, dropout=job.dropout)
    if not (job.framework.state.unfused_backward or softmax > profile.saved.activation_bytes):
        return 0.0
    gradients = 5.0 if profile.saved.softmax_in_operators else 2.0
    return gradients * softmax - operand - mask


def kind_prefix(model: ModelSpec) -> Array:
    """prefix[kind, n]: number of layers of a kind among the model's first n."""
    prefix = np.zeros((len(model.piece_kinds), len(model.piece_sequence) + 1))
    for position, kind in enumerate(model.piece_indices):
        prefix[:, position + 1] = prefix[:, position]
        prefix[kind, position + 1] += 1
    return prefix


def piece_totals(model: ModelSpec, pieces_count: int) -> Array:
    """Number of each of the first `pieces_count` kinds of piece in the model."""
    return np.array(piece_counts(model)[:pieces_count], dtype=np.float64)
