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

    `pieces`: layer kinds first, then embedding, head and perhaps MTP. Lengths in tokens, widths
    in elements.
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
    eager_attention: float
    # Ranks that train together: groups are placed on that many GPUs.
    world: float
    # 1 when attention masks the future: half of the square is computed.
    causal: float


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
    # 1 where the optimizer step waits for no other stage (Qi et al. 2024, arXiv 2401.10241).
    post_validation: float = 0.0
