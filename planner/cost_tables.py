"""From a job to the numpy arrays and NamedTuples that the compiled core reads.

The op table decides what is counted; this module only flattens it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from constraints.layout_context import greedy_costs
from planner.cost import fields as f
from planner.cost.inputs import as_declared
from planner.cost.piece_compute import TORCH_SOFTMAX_TRAFFIC
from planner.cost.schedule import SCHEDULE_1F1B
from planner.cost.tables import Array, FrameworkInputs, JobInputs, OpTable
from planner.device import gpu_inputs
from planner.frameworks import FrameworkProfile
from planner.job import Job
from planner.links import link_inputs
from planner.ops import Op, ParamShard, Piece, pieces
from planner.ops.context import OpContext
from planner.optimizer_terms import (
    gradients_on_gpu,
    moment_bytes,
    offload_seconds_per_parameter,
    parameter_update,
    traffic_bytes,
    trained_profile,
)
from planner.schedules import schedule_named
from planner.specs import ModelSpec


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
    )


def job_pieces(job: Job) -> tuple[Piece, ...]:
    """Pieces of the job's model under its framework, for the compiled core."""
    return pieces(op_context(job))


def flatten(all_pieces: Sequence[Piece], job: Job) -> OpTable:
    """Op table of the pieces as arrays; columns in `planner.cost.fields`."""
    rows = [(index, op) for index, piece in enumerate(all_pieces) for op in piece.ops]
    return OpTable(
        ops=_array([_op_row(index, op) for index, op in rows], f.OP_COLUMNS),
        parameters=_array(
            [
                (index, count, shard, _pads(op, shard), *_update_row(op, count, job))
                for index, op in rows
                for count, shard in op.parameters
                if count
            ],
            f.PARAM_COLUMNS,
        ),
        saved=_array(
            [
                (
                    index,
                    saved.bytes_per_token,
                    saved.shard,
                    saved.freed_by,
                    saved.only_with,
                    op.pads_vocabulary and saved.name == "head/loss",
                    saved.fixed_bytes,
                    saved.copies,
                    saved.leaves,
                )
                for index, op in rows
                for saved in op.saved
            ],
            f.SAVED_COLUMNS,
        ),
        collectives=_array(
            [
                (
                    index,
                    comm.kind,
                    comm.group,
                    comm.bytes_per_token,
                    comm.forward,
                    comm.backward,
                    comm.shard,
                    comm.hidden_forward,
                    comm.hidden_backward,
                    comm.rerun_with,
                    comm.sequence_parallel_only,
                )
                for index, op in rows
                for comm in op.collectives
            ],
            f.COMM_COLUMNS,
        ),
    )


def _array(rows: Sequence[Sequence[float]], columns: int) -> Array:
    return np.array(rows, dtype=np.float64).reshape(len(rows), columns)


def _pads(op: Op, shard: ParamShard) -> bool:
    """Vocabulary-parallel tables are padded; a position table in the same row is not."""
    return op.pads_vocabulary and shard is ParamShard.TP


def _update_row(op: Op, count: float, job: Job) -> tuple[float, ...]:
    """What the optimizer adds for some parameters of a row."""
    update = parameter_update(
        op, count, job.optimizer_setting, job.framework, float(job.model.hidden)
    )
    return update.state_bytes, update.temporary_bytes, update.flop


def _op_row(index: int, op: Op) -> tuple[float, ...]:
    return (
        index,
        op.kind,
        op.tokens,
        op.tokens_factor,
        op.out_width,
        op.out_shard,
        op.kv_out_width,
        op.in_width,
        op.in_shard,
        op.groups,
        op.heads,
        op.kv_heads,
        op.qk_head_dim,
        op.v_head_dim,
        op.window,
        op.forward_bytes,
        op.backward_bytes,
        op.forward_kernels,
        op.backward_kernels,
        op.low_precision,
        op.pads_vocabulary,
        op.rerun_with,
    )


def may_part(job: Job) -> bool:
    """Whether multi-token prediction may stand in the block before that of head and loss."""
    rules, code = job.framework.parallelism, schedule_named(job.schedule).code
    split = rules.mtp_apart and rules.lone_ends and rules.layouts == "any"
    return split and job.model.mtp_layers > 0 and code == SCHEDULE_1F1B


def job_inputs(job: Job, all_pieces: Sequence[Piece]) -> JobInputs:
    """Numbers of model and batch for the compiled core."""
    model, parallelism = job.model, job.framework.parallelism
    costs = (0, 0)
    if parallelism.layouts == "greedy":
        costs = greedy_costs(model.hidden, model.ffn, model.vocab)
    return as_declared(
        JobInputs(
            seq=float(job.seq),
            hidden=float(model.hidden),
            kv_heads=float(model.heads if model.mla else model.kv_heads),
            vocab=float(model.vocab),
            vocabulary_multiple=float(
                parallelism.vocabulary_multiple if parallelism.vocabulary_padded else 1
            ),
            layers=model.layers,
            kinds=len(model.kinds),
            pieces=len(all_pieces),
            mtp_layers=model.mtp_layers,
            tied_embeddings=float(model.tied_embeddings),
            sequence_parallel=float(parallelism.sequence_parallel == "with-tp"),
            eager_attention=_score_traffic(job),
            top_k=float(model.moe.top_k if model.moe else 0),
            world=float(job.cluster.num_gpus),
            causal=1.0,
            neighbour_share=_neighbour_share(job),
            lone_ends=float(parallelism.lone_ends),
            greedy_layer_cost=float(costs[0]),
            greedy_head_cost=float(costs[1]),
            kinds_in_order=float(list(model.kind_indices) == sorted(model.kind_indices)),
            mtp_copies_embedding=float(parallelism.mtp_copies_embedding),
            mtp_apart=float(may_part(job)),
        )
    )


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
    return TORCH_SOFTMAX_TRAFFIC if job.attention_kernel == "torch" else 1.0


def framework_inputs(job: Job) -> FrameworkInputs:
    """A framework profile, optimizer and the memory outside tensors, as numbers."""
    setting = job.optimizer_setting
    profile = trained_profile(job.framework.in_precision(job.precision), setting)
    state, overlap, kernels, outside = (
        profile.state,
        profile.overlap,
        profile.kernels,
        profile.outside,
    )
    gpu = gpu_inputs(job.cluster.gpu, job.precision, job.fused_attention)
    streaming = gpu.hbm_bytes_per_s * gpu.hbm_efficiency
    return as_declared(
        FrameworkInputs(
            weight_bytes=state.weight_bytes,
            gradient_bytes=state.gradient_bytes,
            master_bytes=state.master_bytes,
            optimizer_bytes=moment_bytes(profile, setting),
            zero3_keeps_weight_shard=float(state.zero3_keeps_weight_shard),
            extra_gradient_bytes=state.extra_gradient_bytes,
            gathered_layers=state.gathered_layers,
            reduce_buffer_layers=state.reduce_buffer_layers,
            root_stays_gathered=float(state.root_stays_gathered),
            optimizer_temporary_bytes=state.optimizer_temporary_bytes,
            bucket_bytes=state.bucket_bytes,
            logits_transient_bytes=_logits_transient(profile),
            hide_gradient_reduction=overlap.gradient_reduction,
            hide_parameter_gather=overlap.parameter_gather,
            hide_fsdp=overlap.fsdp_prefetch,
            hide_tensor_backward=overlap.tensor_backward,
            hide_tensor=overlap.tensor,
            hide_expert=overlap.expert,
            hide_context=overlap.context,
            hide_pipeline=overlap.pipeline,
            contention=overlap.contention,
            issue_s=kernels.issue_s / job.cluster.host_speed,
            memory_traffic=kernels.memory_traffic,
            dispatch_deduplicates=float(kernels.dispatch_deduplicates),
            cast_traffic_bytes=kernels.cast_traffic_bytes,
            pipeline_exchange_s=kernels.pipeline_exchange_s,
            outer_tensor_step_s=kernels.outer_tensor_step_s,
            wide_stage_wait_s=kernels.wide_stage_wait_s,
            step_traffic_bytes=kernels.step_traffic_bytes,
            slice_copy_s=kernels.slice_copy_s,
            accumulation_traffic_bytes=kernels.accumulation_traffic_bytes,
            tensor_gather_share=_tensor_gather_share(job),
            tensor_copy_s=kernels.tensor_copy_bytes / streaming,
            gather_copy_s=kernels.gather_copy_bytes / streaming,
            reduce_copy_s=kernels.reduce_copy_bytes / streaming,
            gradient_communication_bytes=kernels.gradient_communication_bytes,
            parameter_communication_bytes=kernels.parameter_communication_bytes,
            optimizer_traffic_bytes=traffic_bytes(setting) + kernels.update_traffic_bytes,
            host_step_s=outside.host_step_s / job.cluster.host_speed,
            sample_load_s=outside.sample_load_s,
            schedule=schedule_named(job.schedule).code,
            context_bytes=job.cluster.gpu.context_bytes,
            communicator_bytes=outside.communicator_bytes,
            workspace_bytes=outside.workspace_bytes,
            fragmentation=outside.fragmentation,
            weight_gradient_bytes=state.weight_gradient_bytes,
            gathered_tensors=state.gathered_tensors,
            logits_sharded=float(profile.saved.logits_sharded),
            gradients_on_gpu=gradients_on_gpu(profile, setting),
            offload_s=offload_seconds_per_parameter(
                job.framework,
                setting,
                link_inputs(job.cluster).host_bytes_per_s,
                job.cluster.gpus_per_node,
            ),
            update_sharded=float(setting.kernel == "forloop"),
            persistent_gradients=float(state.persistent_gradients or state.gradients_at_backward),
            unfused_tensors=_unfused_tensors(job),
            ddp_bucket_copies=state.ddp_bucket_copies,
            mask_buffer_bytes=_mask_buffer(job),
            logits_forward_bytes=profile.saved.logits_forward_bytes,
            activation_bytes=profile.saved.activation_bytes,
            residual_bytes=profile.saved.residual_bytes,
            weight_cast_bytes=profile.saved.weight_cast_bytes,
            post_validation=float(profile.parallelism.optimizer_post_validation),
            pipeline_scatters=float(kernels.pipeline_scatters),
            blocking_launches=float(kernels.blocking_launches),
            sequential_experts=float(kernels.sequential_experts),
            resident_layers=profile.activation_offload.resident_layers,
            least_offload_bytes=profile.activation_offload.least_bytes,
        )
    )


def _tensor_gather_share(job: Job) -> float:
    """Bytes of a gathered activation over 16 bits: half where products in 8 or 4 bits take operands
    that were cast before the gather."""
    low = job.precision not in ("bf16", "fp16", "fp32")
    return 0.5 if low and job.framework.kernels.quantised_gathers else 1.0


def _unfused_tensors(job: Job) -> float:
    """Gradients of feed-forward width alive in an unfused backward, 0 in a fused one."""
    if not job.framework.state.unfused_backward:
        return 0.0
    return 4.0 if job.model.gated else 2.0


def _mask_buffer(job: Job) -> float:
    """Bytes of a layer's causal mask, where unfused attention registers one."""
    if job.attention != "eager":
        return 0.0
    return float(job.framework.saved.mask_buffer_bytes * job.model.max_positions**2)


def _logits_transient(profile: FrameworkProfile) -> float:
    return max(0.0, profile.saved.logits_peak_bytes - profile.saved.logits_saved_bytes)


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
    ends = len(model.kinds)
    totals[ends] = totals[ends + 1] = 1
    if model.mtp_layers:
        totals[ends + 2] = totals[ends + 3] = model.mtp_layers
    return totals
