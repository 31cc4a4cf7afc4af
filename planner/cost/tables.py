"""Frozen NamedTuples that describe a job to the compiled core: op table, job, framework."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class OpTable(NamedTuple):
    """The op table as float64 arrays, one row per entry; columns in `planner.cost.fields`."""

    ops: Array
    parameters: Array
    saved: Array
    collectives: Array


class JobInputs(NamedTuple):
    """Numbers of the model and the batch that the terms need besides the op table.

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
    # Traffic of unfused attention's softmax, relative to a fused one; 0 with fused attention.
    eager_attention: float
    # Number of experts to which a token is routed; 0 without experts.
    top_k: float
    # 1 if attention masks the future: half of the square is computed.
    causal: float
    # 1 if all layers of one kind precede those of the next (dense ones first, then MoE).
    kinds_in_order: float = 0.0
    # Experts of a token over all experts, if they are neighbours; 0: drawn one by one.
    neighbour_share: float = 0.0
    # Number of groups of neighbouring experts, and of those that contain a token's experts.
    expert_groups: float = 1.0
    top_groups: float = 1.0
    # Number of experts whose weights are sent with a token: HybridEP's; 0: only those of the token.
    weighed_experts: float = 0.0
    # 1 if the first and the last block of a pipeline may be without layers.
    standalone_vocab: float = 0.0
    # Costs of a layer and of the LM head, in the same unit, by which a framework fills the stages
    # greedily; 0: layers are split evenly.
    greedy_layer_cost: float = 0.0
    greedy_head_cost: float = 0.0
    # 1 if multi-token prediction has a copy of the vocabulary table when it is not on the
    # embedding's stage.
    mtp_copies_embedding: float = 0.0


CLASSES = 6
"""Largest number of parameter classes in one job (`planner/job/parameter_classes.toml` may have
more)."""


class ClassInputs(NamedTuple):
    """One class of parameters (`planner/job/parameter_classes.toml`).

    `sharers`: a code of `planner.cost.codes.Sharers`. The other fields are weights of one parameter
    in several sums: bytes of weights, weights gathered before use, gradients, reduced gradients,
    and master weights and states: 1 as the framework and the optimizer have them, 0 if the class
    has none. `gathers`: number of gathers by ZeRO-3 during a micro-batch's forward, and as many
    during its backward, on average of the two; `gathered`: weights that are alive with the policy's
    layers.
    """

    sharers: float
    weights: float
    gathered: float
    gradients: float
    reduced: float
    states: float
    gathers: float


LEAST_CLASSES = 2
"""Least number of classes in a record. It is part of the record's type, and so of compiled code,
which dense models and mixtures of experts then share."""
NO_CLASSES = LEAST_CLASSES * (ClassInputs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),)
"""A class without parameters, for classes that a job does not have."""


class FrameworkInputs(NamedTuple):
    """A framework profile, the optimizer and the memory outside tensors, as numbers.

    A field without a text is the setting of that name in the profile (`docs/settings.md`; `hide_*`:
    in its table `overlap`) and is filled from there; `planner.predict.cost_tables` derives the
    others.
    """

    weight_bytes: float
    gradient_bytes: float
    master_bytes: float
    zero3_keeps_weight_shard: float
    extra_gradient_bytes: float
    gathered_layers: float
    reduce_buffer_layers: float
    root_stays_gathered: float
    optimizer_temporary_bytes: float
    bucket_bytes: float
    whole_bucket_bytes: float
    hide_gradient_reduction: float
    hide_parameter_gather: float
    hide_fsdp_prefetch: float
    """The setting, times `experts_prefetch` if layers have experts."""
    hide_tensor_backward: float
    hide_tensor: float
    hide_expert: float
    hide_context: float
    hide_pipeline: float
    contention: float
    data_contention: float
    memory_traffic: float
    dispatch_deduplicates: float
    overlap_keeps_chunk: float
    context_balanced: float
    score_block: float
    pads_products: float
    cast_traffic_bytes: float
    quantised_rate: float
    pipeline_exchange_s: float
    outer_tensor_step_s: float
    wide_stage_wait_s: float
    step_traffic_bytes: float
    slice_copy_s: float
    accumulation_traffic_bytes: float
    gradient_communication_bytes: float
    parameter_communication_bytes: float
    tensor_buffer_bytes: float
    fragmentation: float
    exchange_blocks: float
    weight_gradient_bytes: float
    gathered_tensors: float
    weighing_bytes: float
    logits_sharded: float
    linear_loss: float
    loss_rows: float
    frozen_units_hold: float
    gradients_at_backward: float
    ddp_bucket_copies: float
    input_bytes: float
    logits_forward_bytes: float
    activation_bytes: float
    residual_bytes: float
    weight_cast_bytes: float
    """Bytes per weight of its copies: autocast's, or quantised ones."""
    weight_casts_stay: float
    """1 if the copies are quantised ones, which stay for the whole step; 0 if they are
    autocast's."""
    optimizer_post_validation: float
    pipeline_scatters: float
    blocking_launches: float
    sequential_experts: float
    sample_load_s: float
    unreduced_gradients: float
    resident_layers: float
    least_offload_bytes: float
    optimizer_bytes: float
    """Bytes per parameter of the optimizer's moments."""
    paged_bytes: float
    """Bytes per parameter of optimizer states in unified memory that stay on the GPU."""
    update_group_parameters: float
    model_parameters: float
    """Number of trained parameters of the whole model."""
    flat_update_bytes: float
    """The setting, for the part of the optimizer that is on the GPU."""
    live_gathered_bytes: float
    """Number of weights that ZeRO-3 keeps gathered, in any layer: `live_parameters`, or all weights
    of a smaller model."""
    logits_transient_bytes: float
    """Bytes per logit at the peak of backward, besides kept ones (`logits_peak_bytes`)."""
    issue_s: float
    """The setting, on the cluster's host."""
    launch_s: float
    """The setting, on the cluster's host; at most `issue_s`, and 0 if that is 0."""
    fetch_s: float
    """The setting, on the cluster's host."""
    gather_copy_s: float
    """Seconds per parameter of the copy from a gathered flat buffer into weights."""
    reduce_copy_s: float
    """Seconds per parameter of the copy of gradients into the buffer that is reduced."""
    gather_wait_s: float
    """The setting, on the cluster's host."""
    optimizer_traffic_bytes: float
    """HBM bytes per parameter of the update: the optimizer's and `update_traffic_bytes`."""
    host_step_s: float
    """The setting, on the cluster's host."""
    schedule: int
    """SCHEDULE_* of `planner.cost.schedule`."""
    context_bytes: float
    """Bytes of the GPU's context."""
    communicator_bytes: float
    """Bytes of NCCL buffers of one communicator: `channel_bytes` for each of its channels."""
    world_communicators: float
    near_peer_bytes: float
    """Bytes of NCCL buffers for one peer of an all-to-all inside a scale-up domain:
    `peer_channel_bytes` for each channel between the two."""
    far_peer_bytes: float
    """The same if the group leaves the domain."""
    domain_gpus: float
    """Number of GPUs in each scale-up domain on which the job is placed."""
    job_gpus: float
    """Number of GPUs of the job."""
    workspace_bytes: float
    """The setting, or torch's on the job's GPU."""
    unreduced_gradient_bytes: float
    """The setting, or `gradient_bytes` if it is not set."""
    gradients_on_gpu: float
    """Share of the settled gradients that stays on the GPU while the optimizer is offloaded."""
    offload_s: float
    """Seconds per parameter that the offloaded part of an update takes."""
    update_sharded: float
    """1 if the largest temporary of an update has the size of the rank's shard of a tensor."""
    secondary_shards: float
    """The setting; -1 is replaced by the number of GPUs of a node."""
    host_weight_bytes: float
    """Bytes per trained parameter of shards that are off the GPU between uses; 0 if there are
    none."""
    weight_fetch_bytes_per_s: float
    """Rate at which one GPU fetches these shards."""
    updates_in_backward: float
    persistent_gradients: float
    """The setting; also 1 with `gradients_at_backward`."""
    unfused_tensors: float
    """Number of tensors of feed-forward width whose gradients are alive in an unfused backward; 0
    if it is fused."""
    softmax_bytes: float
    """Bytes per score in the backward of an unfused softmax, besides kept ones; 0 if it is
    fused."""
    mask_buffer_bytes: float
    """Bytes of each layer's causal mask: the setting times the square of the longest sequence."""
    tensor_gather_share: float
    """Size of an element in an all-gather over tp, as a share of 16 bits (`quantised_gathers`)."""
    tensor_copy_s: float
    """Seconds per element to copy the result of an all-gather over tp, or the input of a
    reduce-scatter, along the sequence."""
    forward_reads: float = 0.0
    """Forward passes per micro-batch besides that of training, of the model itself or of another;
    -1: nothing is trained, and a micro-batch is one forward pass."""
    reloads_ahead: float = 0.0
    """1 if some layers' activations are not offloaded: copies back then run ahead until a chunk is
    back."""
    classes: tuple[ClassInputs, ...] = NO_CLASSES
    """Classes of the job's parameters; unused ones up to `LEAST_CLASSES`."""
