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
    # Traffic of unfused attention's softmax over a fused one's; 0 with fused attention.
    eager_attention: float
    # Experts that a token is routed to; 0 without experts.
    top_k: float
    # 1 when attention masks the future: half of the square is computed.
    causal: float
    # 1 when all layers of one kind precede those of the next (dense ones first, then MoE).
    kinds_in_order: float = 0.0
    # Experts of a token over all experts where they are neighbours; 0: drawn one by one.
    neighbour_share: float = 0.0
    # Groups of neighbouring experts, and how many of them a token's experts lie in.
    expert_groups: float = 1.0
    top_groups: float = 1.0
    # Experts whose weights travel with a token: HybridEP's; 0: those of the token alone.
    weighed_experts: float = 0.0
    # 1 where the first and the last block of a pipeline may do without layers.
    standalone_vocab: float = 0.0
    # Costs of a layer and of the LM head, in any one unit, by which a framework fills the stages
    # greedily; 0: layers are split evenly.
    greedy_layer_cost: float = 0.0
    greedy_head_cost: float = 0.0
    # 1 where multi-token prediction away from the embedding holds a copy of the vocabulary table.
    mtp_copies_embedding: float = 0.0


CLASSES = 6
"""Most classes of parameters of one job (`planner/job/parameter_classes.toml` may have more)."""


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
"""Fewest classes of a record: their number is part of its type, and so of compiled code, which
dense models and mixtures then share."""
NO_CLASSES = LEAST_CLASSES * (ClassInputs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),)
"""Classes that a job does not have."""


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
    """The setting, times `experts_prefetch` where layers hold experts."""
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
    """Bytes per weight of copies of it: autocast's, or quantised ones."""
    weight_casts_stay: float
    """Copies are quantised ones, which stay through the whole step; 0: autocast's."""
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
    """Bytes per parameter of its states in unified memory that stay on the GPU."""
    update_group_parameters: float
    model_parameters: float
    """Trained parameters of the whole model."""
    flat_update_bytes: float
    """The setting, of the part of the optimizer that is on the GPU."""
    live_gathered_bytes: float
    """Weights that ZeRO-3 keeps gathered whatever the layer: `live_parameters`, of a model that has
    as many."""
    logits_transient_bytes: float
    """Per logit, at the peak of backward beyond what is kept (`logits_peak_bytes`)."""
    issue_s: float
    """The setting, on the cluster's host."""
    launch_s: float
    """The setting, on the cluster's host; at most `issue_s`, 0 where that is."""
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
    """What the GPU's context takes."""
    communicator_bytes: float
    """NCCL buffers of one communicator: `channel_bytes` of each of its channels."""
    world_communicators: float
    near_peer_bytes: float
    """NCCL buffers of one peer of an all-to-all that stays inside a scale-up domain:
    `peer_channel_bytes` of each channel between the two."""
    far_peer_bytes: float
    """The same where the group leaves the domain."""
    domain_gpus: float
    """GPUs of each scale-up domain that the job is placed on."""
    job_gpus: float
    """GPUs of the job."""
    workspace_bytes: float
    """The setting, or torch's on the job's GPU."""
    unreduced_gradient_bytes: float
    """The setting, or `gradient_bytes` where it is none."""
    gradients_on_gpu: float
    """Share of the settled gradients that stays on the GPU while the optimizer is offloaded."""
    offload_s: float
    """Seconds per parameter that the offloaded part of an update takes."""
    update_sharded: float
    """1 where the largest temporary of an update is of the rank's shard of a tensor."""
    secondary_shards: float
    """The setting, with the GPUs of a node for -1."""
    host_weight_bytes: float
    """Bytes per trained parameter of shards that are off the GPU between uses; 0: none is."""
    weight_fetch_bytes_per_s: float
    """Rate at which one GPU fetches them."""
    updates_in_backward: float
    persistent_gradients: float
    """The setting; also 1 with `gradients_at_backward`."""
    unfused_tensors: float
    """Tensors of feed-forward width whose gradients an unfused backward holds; 0: it is fused."""
    softmax_bytes: float
    """Per score, what the backward of an unfused softmax holds beyond what is kept; 0: fused."""
    mask_buffer_bytes: float
    """Bytes of each layer's causal mask: the setting times the square of the longest sequence."""
    tensor_gather_share: float
    """Share of 16 bits that an all-gather over tp sends (`quantised_gathers`)."""
    tensor_copy_s: float
    """Seconds per element of copying what tp gathers, or what a reduce-scatter sends, along the
    sequence."""
    forward_reads: float = 0.0
    """Forward passes beside that of training, of the model itself or of another, a micro-batch; -1:
    nothing is trained, and the one forward pass is all that a micro-batch does."""
    reloads_ahead: float = 0.0
    """1 where some layers' activations stay: copies back then run ahead until a chunk is back."""
    classes: tuple[ClassInputs, ...] = NO_CLASSES
    """Classes of the job's parameters; unused ones up to `LEAST_CLASSES`."""
