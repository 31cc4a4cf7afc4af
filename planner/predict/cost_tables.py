"""From a job to the NamedTuples that the compiled core reads; `planner.predict.op_columns` has the
op table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from constraints.numbers import Capabilities
from planner.cost.inputs import as_declared, filled
from planner.cost.piece_compute import TORCH_SOFTMAX_TRAFFIC
from planner.cost.schedule import SCHEDULE_1F1B
from planner.cost.tables import Array, FrameworkInputs, JobInputs
from planner.job.frameworks import FrameworkProfile
from planner.job.frameworks.profile import FP32_PRECISIONS
from planner.job.job import Job
from planner.job.schedules import schedule_named
from planner.job.specs import ModelSpec
from planner.predict.classes import class_inputs
from planner.predict.device import gpu_inputs
from planner.predict.links import channels, link_inputs
from planner.predict.ops import Piece, pieces
from planner.predict.ops.attention_core import score_parts
from planner.predict.ops.context import OpContext
from planner.predict.ops.table import parameter_count
from planner.predict.optimizer_terms import (
    gradients_on_gpu,
    moment_bytes,
    offload_seconds_per_parameter,
    traffic_bytes,
    trained_profile,
)


def dispatcher(job: Job) -> str:
    """Expert-dispatch library; empty means a plain all-to-all."""
    kernels = job.framework.kernels
    usual = job.cluster.gpu.traits.dispatcher
    return (kernels.dispatcher or usual) if kernels.dispatch_deduplicates else ""


def op_context(job: Job) -> OpContext:
    """Context of the row builders for a job."""
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
    )


def job_pieces(job: Job) -> tuple[Piece, ...]:
    """Pieces of the job's model under its framework, for the compiled core."""
    return pieces(op_context(job))


def may_part(job: Job) -> bool:
    """Whether multi-token prediction may stand in the block before that of head and loss."""
    rules, code = job.framework.parallelism, schedule_named(job.schedule).code
    split = rules.mtp_standalone and rules.standalone_vocab and rules.layouts == "any"
    return split and job.model.mtp_layers > 0 and code == SCHEDULE_1F1B


def greedy_costs(model: ModelSpec, parallelism: Capabilities) -> tuple[float, float]:
    """What a framework that fills its stages by cost takes a layer and the LM head to cost: 4·h² +
    3·f·h and V·h; zeros for other frameworks.

    Source: nanotron models/llama.py and qwen.py, get_block_compute_costs.
    """
    if parallelism.layouts != "greedy":
        return 0.0, 0.0
    hidden, ffn, vocab = float(model.hidden), float(model.ffn), float(model.vocab)
    return 4.0 * hidden * hidden + 3.0 * ffn * hidden, vocab * hidden


def context_inputs(context: OpContext) -> JobInputs:
    """Numbers of model and length for the compiled core, on one GPU without a job."""
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
            layers=model.layers,
            kinds=len(model.kinds),
            pieces=len(model.kinds) + (4 if model.mtp_layers else 2),
            mtp_layers=model.mtp_layers,
            tied_embeddings=float(model.tied_embeddings),
            sequence_parallel=float(parallelism.sequence_parallel == "with-tp"),
            eager_attention=0.0,
            top_k=float(model.moe.top_k if model.moe else 0),
            causal=1.0,
            standalone_vocab=float(parallelism.standalone_vocab),
            greedy_layer_cost=float(costs[0]),
            greedy_head_cost=float(costs[1]),
            kinds_in_order=float(list(model.kind_indices) == sorted(model.kind_indices)),
            mtp_copies_embedding=float(parallelism.mtp_copies_embedding),
        )
    )


def job_inputs(job: Job) -> JobInputs:
    """Numbers of model and batch for the compiled core."""
    groups, top_groups = _groups(job)
    return context_inputs(op_context(job))._replace(
        eager_attention=_score_traffic(job),
        neighbour_share=_neighbour_share(job),
        expert_groups=groups,
        top_groups=top_groups,
        weighed_experts=op_context(job).mapped_experts,
    )


def _groups(job: Job) -> tuple[float, float]:
    """Groups that the router chooses from, and how many; a gate that takes neighbours has none."""
    moe = job.model.moe
    if moe is None or job.framework.kernels.neighbouring_experts:
        return 1.0, 1.0
    return float(moe.groups), float(moe.top_groups)


def _neighbour_share(job: Job) -> float:
    """Experts of a token over all experts, where the gate takes neighbours."""
    moe = job.model.moe
    if moe is None or not job.framework.kernels.neighbouring_experts:
        return 0.0
    return moe.top_k / moe.experts


def _score_traffic(job: Job) -> float:
    """Passes over the scores of unfused attention, in units of a fused softmax; 0: it is fused."""
    if job.attention != "eager":
        return 0.0
    plain = job.attention_kernel == "torch"
    return TORCH_SOFTMAX_TRAFFIC if plain else job.framework.kernels.softmax_traffic


# Tables of a profile that may hold what the compiled core reads.
_TABLES = ("parallelism", "overlap", "saved", "state", "kernels", "outside", "activation_offload")


def profile_settings(profile: FrameworkProfile) -> dict[str, Any]:
    """Settings of a profile by the name that they have in the compiled core's record."""
    settings = {name: value for table in _TABLES for name, value in getattr(profile, table)}
    return settings | {f"hide_{name}": share for name, share in profile.overlap}


def derived_inputs(job: Job, profile: FrameworkProfile) -> dict[str, float]:
    """What the compiled core reads that is no setting of the framework as it stands."""
    setting, state, kernels = job.optimizer_setting, profile.state, profile.kernels
    gpu = gpu_inputs(job.cluster.gpu, job.precision, job.fused_attention)
    streaming = gpu.hbm_bytes_per_s * gpu.hbm_efficiency
    copies = quantised_copy_bytes(job, profile)
    return {
        "optimizer_bytes": moment_bytes(profile, setting),
        "hide_fsdp_prefetch": _prefetched(job, profile),
        "flat_update_bytes": state.flat_update_bytes * (1.0 - setting.offload),
        "live_gathered_bytes": _live_gathered(job, profile),
        "logits_transient_bytes": max(
            0.0, profile.saved.logits_peak_bytes - profile.saved.logits_saved_bytes
        ),
        "issue_s": kernels.issue_s / job.cluster.host_speed,
        "launch_s": min(
            kernels.launch_s / job.cluster.host_launch_speed,
            kernels.issue_s / job.cluster.host_speed,
        ),
        "fetch_s": kernels.fetch_s / job.cluster.host_speed,
        "tensor_gather_share": _tensor_gather_share(job),
        "tensor_copy_s": kernels.tensor_copy_bytes / streaming,
        "gather_copy_s": kernels.gather_copy_bytes / streaming,
        "reduce_copy_s": kernels.reduce_copy_bytes / streaming,
        "gather_wait_s": kernels.gather_wait_s / job.cluster.host_speed,
        "optimizer_traffic_bytes": traffic_bytes(profile, setting) + kernels.update_traffic_bytes,
        "host_step_s": profile.outside.host_step_s / job.cluster.host_speed,
        "schedule": schedule_named(job.schedule).code,
        "context_bytes": job.cluster.gpu.context_bytes + profile.outside.kernels_bytes,
        "communicator_bytes": profile.outside.channel_bytes * channels(job.cluster),
        "workspace_bytes": job.workspace_bytes,
        "unreduced_gradient_bytes": _unreduced_gradient(profile),
        "gradients_on_gpu": gradients_on_gpu(profile, setting),
        "offload_s": offload_seconds_per_parameter(
            job.framework,
            setting,
            link_inputs(job.cluster).host_bytes_per_s,
            job.cluster.gpus_per_node,
        ),
        "update_sharded": setting.kernel == "forloop",
        "persistent_gradients": state.persistent_gradients or state.gradients_at_backward,
        "weight_cast_bytes": profile.saved.weight_cast_bytes + copies,
        "weight_casts_stay": copies != 0.0,
        "unfused_tensors": _unfused_tensors(job),
        "softmax_bytes": _softmax_bytes(job, profile),
        "mask_buffer_bytes": _mask_buffer(job),
    }


def _prefetched(job: Job, profile: FrameworkProfile) -> float:
    """Share of ZeRO-3's gathers and reductions that may run beside other layers' compute."""
    overlap = profile.overlap
    return overlap.fsdp_prefetch * (overlap.experts_prefetch if job.model.moe else 1.0)


def quantised_copy_bytes(job: Job, profile: FrameworkProfile) -> float:
    """Bytes of the quantised copies of a weight beside it, in the precision of the profile; of one
    that is quantised itself, what they take beyond its 16 bits: negative where they save some.

    One copy in place of two where tensor cores take plain fp8 along either axis, as Blackwell's do.
    Source: Transformer Engine, pytorch/utils.py, is_non_tn_fp8_gemm_supported.
    """
    either_axis = job.precision == "fp8" and job.cluster.gpu.traits.fp8_along_either_axis
    copies = profile.state.quantised_copy_bytes / (2.0 if either_axis else 1.0)
    return copies - profile.state.weight_bytes if profile.state.quantised_weights else copies


def framework_inputs(job: Job, all_pieces: Sequence[Piece]) -> FrameworkInputs:
    """A framework profile, optimizer and the memory outside tensors, as numbers; with the classes
    of the pieces' parameters."""
    profile = trained_profile(job.framework.in_precision(job.precision), job.optimizer_setting)
    settings = profile_settings(profile) | derived_inputs(job, profile)
    return filled(FrameworkInputs, settings | parameter_inputs(job, profile, all_pieces))


def parameter_inputs(
    job: Job, profile: FrameworkProfile, all_pieces: Sequence[Piece]
) -> dict[str, Any]:
    """What the compiled core reads of the model's parameters and their classes."""
    return {
        "classes": class_inputs(all_pieces, profile),
        "model_parameters": trained_parameters(job, all_pieces),
    }


def _tensor_gather_share(job: Job) -> float:
    """Bytes of a gathered activation over 16 bits: half where products in 8 or 4 bits take operands
    that were cast before the gather."""
    low = job.precision not in ("bf16", "fp16", *FP32_PRECISIONS)
    return 0.5 if low and job.framework.kernels.quantised_gathers else 1.0


def _live_gathered(job: Job, profile: FrameworkProfile) -> float:
    """Bytes of the weights that ZeRO-3 keeps gathered: at most all of the model's."""
    live = profile.state.live_parameters
    if not live:
        return 0.0
    return profile.state.weight_bytes * min(live, _parameters(job))


def _parameters(job: Job) -> float:
    """Parameters of the whole model."""
    return float(parameter_count(job.model).total)


def trained_parameters(job: Job, all_pieces: Sequence[Piece]) -> float:
    """Parameters of the whole model that are trained, without multi-token prediction."""
    totals = piece_totals(job.model, len(all_pieces))[: len(job.model.kinds) + 2]
    frozen = sum(
        count * op.parameter_count
        for piece, count in zip(all_pieces, totals, strict=False)
        for op in piece.ops
        if not op.trains
    )
    return _parameters(job) - float(frozen)


def _unreduced_gradient(profile: FrameworkProfile) -> float:
    """Bytes of a gradient that is kept whole until it is reduced."""
    size = profile.state.unreduced_gradient_bytes
    return profile.state.gradient_bytes if size is None else size


def _unfused_tensors(job: Job) -> float:
    """Gradients of feed-forward width alive in an unfused backward, 0 in a fused one."""
    if not job.framework.state.unfused_backward:
        return 0.0
    return 4.0 if job.model.gated else 2.0


def _softmax_bytes(job: Job, profile: FrameworkProfile) -> float:
    """Bytes per score that the backward of an unfused softmax holds beyond what is kept.

    Gradients of its output and of its input, in its own type; what the product with the values
    kept for itself is freed by then.
    """
    if job.attention != "eager":
        return 0.0
    softmax, operand, mask = score_parts(profile.saved, dropout=job.dropout)
    if not (job.framework.state.unfused_backward or softmax > profile.saved.activation_bytes):
        return 0.0
    return 2.0 * softmax - operand - mask


def _mask_buffer(job: Job) -> float:
    """Bytes of a layer's causal mask, where unfused attention registers one."""
    if job.attention != "eager":
        return 0.0
    return float(job.framework.saved.mask_buffer_bytes * job.model.max_positions**2)


def kind_prefix(model: ModelSpec) -> Array:
    """prefix[kind, n]: how many of the model's first n layers are of that kind."""
    prefix = np.zeros((len(model.kinds), model.layers + 1))
    for position, kind in enumerate(model.kind_indices):
        prefix[:, position + 1] = prefix[:, position]
        prefix[kind, position + 1] += 1
    return prefix


def piece_totals(model: ModelSpec, pieces_count: int) -> Array:
    """How many of each piece the model has."""
    totals = np.zeros(pieces_count)
    for kind in model.kind_indices:
        totals[kind] += 1
    vocab_layers = len(model.kinds)
    totals[vocab_layers] = totals[vocab_layers + 1] = 1
    if model.mtp_layers:
        totals[vocab_layers + 2] = totals[vocab_layers + 3] = model.mtp_layers
    return totals
