"""Frozen NamedTuples of a job for the compiled core: op table, job, framework."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class OpTable(NamedTuple):
    """The op table as float64 arrays, one row an entry; columns in `planner.cost.fields`."""

    ops: Array
    parameters: Array
    saved: Array
    collectives: Array


class JobInputs(NamedTuple):
    """Numbers of model and batch that the terms need besides the op table.

    `pieces`: layer kinds first, then embedding, head and perhaps an MTP module and its loss.
    Lengths in tokens, widths in elements.
    """

    seq: float
    hidden: float
    kv_heads: float
    vocab: float
    vocabulary_multiple: float
    layers: int
    kinds: int
    pieces: int
    mtp_layers: int
    tied_embeddings: float
    sequence_parallel: float
    # Traffic of unfused attention's softmax over a fused one's; 0 with fused attention.
    eager_attention: float
    # Experts that a token is routed to; 0 without experts.
    top_k: float
    # Ranks that train together: groups are placed on that many GPUs.
    world: float
    # 1 when attention masks the future: half of the square is computed.
    causal: float
    # 1 when all layers of one kind precede those of the next (dense ones first, then MoE).
    kinds_in_order: float = 0.0
    # Experts of a token over all experts where they are neighbours; 0: drawn one by one.
    neighbour_share: float = 0.0
    # 1 where the first and the last block of a pipeline may do without layers.
    lone_ends: float = 0.0
    # Costs of a layer and of the LM head, in any one unit, by which a framework fills the stages
    # greedily; 0: layers are split evenly.
    greedy_layer_cost: float = 0.0
    greedy_head_cost: float = 0.0
    # 1 where multi-token prediction away from the embedding holds a copy of the vocabulary table.
    mtp_copies_embedding: float = 0.0
    # 1 where multi-token prediction may stand in the block before that of head and loss.
    mtp_apart: float = 0.0


class FrameworkInputs(NamedTuple):
    """A framework profile, the optimizer and the memory outside tensors, as numbers.

    Bytes are per parameter unless the name says otherwise; shares lie in 0..1.
    """

    weight_bytes: float
    gradient_bytes: float
    master_bytes: float
    optimizer_bytes: float
    zero3_keeps_weight_shard: float
    extra_gradient_bytes: float
    gathered_layers: float
    reduce_buffer_layers: float
    root_stays_gathered: float
    optimizer_temporary_bytes: float
    bucket_bytes: float
    # Per token and vocabulary entry, beyond what is kept for backward.
    logits_transient_bytes: float
    hide_gradient_reduction: float
    hide_parameter_gather: float
    hide_fsdp: float
    hide_tensor_backward: float
    hide_tensor: float
    hide_expert: float
    hide_context: float
    hide_pipeline: float
    contention: float
    issue_s: float
    memory_traffic: float
    # 1 where a token crosses once to each rank that holds some of its experts.
    dispatch_deduplicates: float
    # HBM bytes of casting one element of an operand to low precision.
    cast_traffic_bytes: float
    # Least seconds of each of the tp exchanges around a TP product in a pipeline between nodes.
    pipeline_exchange_s: float
    # Seconds that a ring step of a TP collective takes beyond its links' latency once the group
    # leaves the scale-up domain.
    outer_tensor_step_s: float
    # Seconds that each send or receive of a stage waits whose tensor group spans more than two
    # scale-up domains.
    wide_stage_wait_s: float
    # HBM bytes per parameter of a rank, ZeRO or not, that a step moves beyond its optimizer's.
    step_traffic_bytes: float
    # Seconds of copying one data-parallel rank's slice of one tensor under ZeRO-1.
    slice_copy_s: float
    # HBM bytes per parameter and micro-batch of adding 16-bit gradients into another buffer.
    accumulation_traffic_bytes: float
    # Seconds per parameter of the copies between a gathered (reduced) flat buffer and weights.
    gather_copy_s: float
    reduce_copy_s: float
    gradient_communication_bytes: float
    parameter_communication_bytes: float
    optimizer_traffic_bytes: float
    host_step_s: float
    # SCHEDULE_* of `planner.cost.schedule`.
    schedule: int
    context_bytes: float
    communicator_bytes: float
    workspace_bytes: float
    fragmentation: float
    # Per parameter: a weight gradient that backward makes beside the accumulation buffer.
    weight_gradient_bytes: float = 0.0
    # Tensors of full width that tensor parallelism gathers, in a layer's backward.
    gathered_tensors: float = 0.0
    # 1 where the loss works on logits split over tp, 0 where it gathers them.
    logits_sharded: float = 1.0
    # Share of the settled gradients that stays on the GPU while the optimizer is offloaded.
    gradients_on_gpu: float = 1.0
    # Seconds per parameter that the offloaded part of an update takes.
    offload_s: float = 0.0
    # 1 where the largest temporary of an update is of the rank's shard of a tensor.
    update_sharded: float = 0.0
    # 1 where gradients have buffers of their own, 0 where backward makes them.
    persistent_gradients: float = 0.0
    # Tensors of feed-forward width whose gradients an unfused backward holds; 0: it is fused.
    unfused_tensors: float = 0.0
    ddp_bucket_copies: float = 0.0
    # Bytes of each layer's causal mask.
    mask_buffer_bytes: float = 0.0
    # Per logit, beyond what is kept, at the end of forward.
    logits_forward_bytes: float = 0.0
    activation_bytes: float = 2.0
    residual_bytes: float = 2.0
    weight_cast_bytes: float = 0.0
    # Share of 16 bits that an all-gather over tp sends, and seconds per element of copying what it
    # gathers, or what a reduce-scatter sends, along the sequence.
    tensor_gather_share: float = 1.0
    tensor_copy_s: float = 0.0
    # 1 where the optimizer step waits for no other stage (Qi et al. 2024, arXiv 2401.10241).
    post_validation: float = 0.0
    # 1 where a tp rank sends its 1/tp of an activation that all tp ranks hold to the next stage,
    # which gathers it.
    pipeline_scatters: float = 0.0
    # 1 where the CPU waits for every kernel before it issues the next.
    blocking_launches: float = 0.0
    # 1 where each expert of a rank has products of its own, one after another.
    sequential_experts: float = 0.0
    # Seconds in which the host reads one sequence of a data-parallel rank, beside all else.
    sample_load_s: float = 0.0
    # Offloaded activations: layers whose tensors are on the GPU all the same, on their way or back,
    # and bytes below which a tensor stays.
    resident_layers: float = 0.0
    least_offload_bytes: float = 0.0
    # 1 where some layers' activations stay: copies back then run ahead until a chunk is back.
    reloads_ahead: float = 0.0
