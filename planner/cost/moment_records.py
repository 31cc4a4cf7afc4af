"""Moments of a step and what is recorded of them: contents of a stage, passes, bytes by term.

`planner.cost.moments` fills them in; `planner.memory.moments` explains each moment.
"""

from __future__ import annotations

from typing import NamedTuple

# Moments; the last is the optimizer's.
FORWARD = 0
LOSS = 1
HEAD = 2
MTP = 3
LAYER = 4  # the first backward of a layer that does not recompute
LAYER_AGAIN = 5  # the first one of a layer that does
LAYER_SECOND = 6  # sharded: the second layer, while the first one's gradients are reduced
LAYER_LAST = 7  # gradients made along the way have piled up
EMBEDDING = 8
OPTIMIZER = 9
MOMENTS = 10
# See `passes`.
PASSES = 3


class StageHolds(NamedTuple):
    """Contents of a stage on one rank, sums: parameters before ZeRO, bytes of a micro-batch.

    `kept`: from forward to backward (`plain`: by layers that do not recompute, `logits`: the
    loss's part); `casts`: of weights, `_kept` those that backward finds; `head_made`: parameters
    whose gradients the head makes, a tied table included; `layer_weight`, `head_weight` (with
    MTP): what a deferred weight gradient reads. `extra_state`: optimizer state on the
    rank beyond that of every parameter; `update_bytes`: temporaries of the largest update of the
    model, wherever it lives; `resident`: offloaded tensors that are on the GPU all the same, and
    `fetched` those of one layer. `mtp_modules`: how many; `mtp_table`: parameters of the vocabulary
    table in which they look tokens up, `mtp_table_waits` those if the embedding is on the stage.
    """

    dense: float
    expert: float
    layers: float
    layer_kept: float
    plain_kept: float
    layer_casts: float
    layer_casts_kept: float
    embedding_parameters: float
    embedding_kept: float
    head: float
    head_parameters: float
    head_made: float
    head_kept: float
    head_logits: float
    head_casts: float
    mtp_dense: float
    mtp_expert: float
    mtp_kept: float
    mtp_casts: float
    mtp_working: float
    mtp_logits: float
    extra_state: float
    update_bytes: float
    layer_weight: float
    head_weight: float
    resident: float = 0.0
    fetched: float = 0.0
    mtp_modules: float = 0.0
    mtp_table: float = 0.0
    mtp_table_waits: float = 0.0


class LayerMaxima(NamedTuple):
    """Maxima over the kinds of layers on a stage.

    `largest`: parameters; `working`, `working_again`: working sets of plain layers and of those
    that recompute; `last`: what the last layer in backward adds to what all leave behind;
    `done_making`, `done`: what the first one changes once it is done (gradients made less what it
    gave back), in a pass that makes gradients and in one that accumulates them.
    """

    largest: float
    working: float
    working_again: float
    last: float
    done_making: float
    done: float


class Pass(NamedTuple):
    """One micro-batch's forward and backward.

    `in_flight` micro-batches of activations at its start; `accumulates` 1 if all gradients exist
    before it, 0 if it makes them. `deferred`, `head_deferred`: micro-batches of which layers, the
    head, only wait for weight gradients; `head`: those whose loss is not yet differentiated.
    `ends` 0: after the last forward, inside the layers. `counts` 0: another pass exceeds it.
    """

    in_flight: float
    accumulates: float
    deferred: float
    head: float
    head_deferred: float
    ends: float
    counts: float


class MomentTerms(NamedTuple):
    """Bytes of a moment by term."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    working: float
    logits: float
    gather: float
    temporary: float
