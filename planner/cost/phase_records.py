"""Phases of a step, and the records of a stage: its contents, its passes, its bytes by term.

`planner.cost.phases` fills the records. FORWARD_END is never the heaviest phase; only
`planner.predict.memory.account`, which shows a step over time, uses it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from planner.cost._jit import Row, jit
from planner.cost.fields import record_of
from planner.cost.tables import CLASSES, FrameworkInputs
from planner.cost.terms import MovingTerms, PhaseTerms

# Phases of a micro-batch, in order (`phase <= HEAD`: until the head's backward), followed by the
# optimizer's.
FORWARD_END = -1
FORWARD = 0  # at its end: everything kept, logits in flight
LOSS = 1  # gradient of the loss: logits, their softmax and its gradient side by side
HEAD = 2  # gradients of logits, of the head's input and of its weights
MTP = 3
LAYER = 4  # the first backward of a layer that does not recompute
LAYER_AGAIN = 5  # the first one of a layer that does
LAYER_SECOND = 6  # sharded: the second layer, while the first one's gradients are reduced
LAYER_LAST = 7  # gradients made along the way have piled up
EMBEDDING = 8  # the vocabulary table's gradient, which no kernel adds to one that exists
OPTIMIZER = 9
PHASES = 10
# Number of passes, see `passes`.
PASSES = 3


# Contents of a stage on one rank, as sums: parameters before ZeRO, bytes of a micro-batch. First
# the fields that depend only on parameters (`planner.cost.stage_parameters`): a `ClassShare`; of
# the gathered weights those of embedding and head and of multi-token prediction. `casts`: copies of
# weights; `head_made`: parameters whose gradients the head makes, including a tied table;
# `extra_state`: optimizer state on the rank beyond that of every parameter; `update_bytes`:
# temporaries of the largest update in the model, on any stage; `mtp_modules`, `mtp_losses`: number
# of these; `mtp_table`: trained parameters of the vocabulary table in which they look tokens up,
# `mtp_table_waits`: the same if the embedding is on the stage; `made_by_*`: parameters whose
# gradients exist once backward is past that part, as a rank then has them (`reduces_at_once`).
_PARAMETERS = (
    "weights", "updated", "states", "gathered", "trained", "trained_share", "vocab_gathered",
    "mtp_gathered", "layers", "layer_casts", "embedding_trained", "head", "head_trained",
    "head_made", "head_casts", "mtp_casts", "extra_state", "update_bytes", "mtp_modules",
    "mtp_losses", "mtp_table", "mtp_table_waits", "made_by_head", "made_by_mtp", "made_by_layers",
)  # fmt: skip
# Then the fields that also depend on micro-batch and recompute mode (`fill_kept`). `kept`: from
# forward to backward (`plain`: by layers that do not recompute, `logits`: the loss's part);
# `casts_kept`: casts that still exist in backward; `logits`: number of elements that the loss of
# one rank works on; `layer_weight`, `head_weight` (with MTP): inputs of deferred weight gradients;
# `resident`: offloaded tensors that are on the GPU nevertheless, and `fetched` those of one layer.
_KEPT = (
    "layer_kept", "plain_kept", "layer_casts_kept", "embedding_kept", "embedding_working",
    "embedding_apart", "head_kept", "head_logits", "logits", "mtp_kept", "mtp_working",
    "mtp_logits", "layer_weight", "head_weight", "resident", "fetched",
)  # fmt: skip
# Consecutive stages with the same contents: the first one, the number of stages, and for each its
# seconds of the optimizer's update, of reducing gradients and of gathering weights (0 if the
# framework does so during every micro-batch or not at all), its contents, and the bytes that depend
# only on parameters: at rest, in the update, and in every phase of the first and of later passes
# (`planner.cost.peak`). `parameters`: by class.
GROUP_ROW = record_of(
    "first", "span", "machine", "update_s", "reduce_s", "gather_s", *_PARAMETERS, *_KEPT,
    "resting_bytes", "packed_bytes", "update_moving_bytes", known_bytes=2 * (PHASES - 1),
    parameters=CLASSES,
)  # fmt: skip


class LayerMaxima(NamedTuple):
    """Maxima over the kinds of layers on a stage.

    `largest`, `reduced`: parameters whose weights are gathered and whose gradients are reduced.
    `working`, `working_again`: bytes of the working set of a layer that does not recompute and of
    one that does, in a pass that accumulates gradients; `making`, `making_again`: the same in a
    pass that makes them. `last`: bytes that the last layer in backward adds to those that all leave
    behind. `done_making`, `done`: bytes of gradients that the first layer has made minus bytes that
    it has freed, in a pass that makes gradients and in one that accumulates them.
    """

    largest: float
    reduced: float
    working: float
    working_again: float
    making: float
    making_again: float
    last: float
    done_making: float
    done: float


class Pass(NamedTuple):
    """Forward and backward of one micro-batch on a stage, and the micro-batches that are then in
    its memory.

    `in_flight`: number of micro-batches whose activations are in memory at its start.
    `accumulates`: 1 if all gradients exist before it, 0 if it makes them; `before`: 1 if they exist
    before its forward too. `deferred`, `head_deferred`: number of micro-batches whose layers, or
    whose head, wait only for their weight gradients. `head`: number of micro-batches that have not
    yet done the backward of their loss.

    `vocab_parameters`: 1, or 0 for the pass after the last forward, which has only phases inside
    the layers. `counts`: 0 if another pass always needs as much memory, so that this one need not
    be evaluated; otherwise 1.
    """

    in_flight: float
    accumulates: float
    deferred: float
    head: float
    head_deferred: float
    vocab_parameters: float
    counts: float
    before: float


class KeptCopies(NamedTuple):
    """Number of micro-batches that keep each part of a stage's contents for backward.

    `plain`, `again`: layers that do not recompute and layers that do. `weight`, `head_weight`:
    tensors that only deferred weight gradients read. `*_done`: parts of the ends that are past the
    backward of their loss.
    """

    plain: float
    again: float
    embedding: float
    mtp: float
    mtp_done: float
    head: float
    head_done: float
    weight: float
    head_weight: float


@jit
def largest_of(most: LayerMaxima) -> LayerMaxima:
    """The maxima of one kind of layer with all fields set to 0 except the numbers of parameters
    (`largest`, `reduced`)."""
    return LayerMaxima(most.largest, most.reduced, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class LayerParts(NamedTuple):
    """Bytes of one layer of a kind during its backward and after it.

    `working`: gradients in flight; `making`: these and the weight gradients made so far, in a pass
    that makes them. `remade`: recomputed tensors. `kept`, `light`: tensors kept by a layer that
    does not recompute and by one that does. `made`: gradients left after its backward. `gathered`:
    gathered weights, freed after it. `casts`: copies of weights that exist when it begins.
    """

    working: float
    making: float
    remade: float
    kept: float
    light: float
    made: float
    gathered: float
    casts: float


@jit
def total_bytes(terms: PhaseTerms) -> float:
    """Sum of the terms."""
    return float(sum(terms.resting) + sum(terms.moving))


@jit
def in_update(rest: PhaseTerms, aside: float) -> PhaseTerms:
    """The terms of the optimizer's phase: those of `rest`, and `aside` bytes more of the
    optimizer's temporaries, for the blocks that the allocator keeps for the update
    (`set_aside_bytes`)."""
    temporaries = rest.moving.optimizer_temporaries + aside
    return PhaseTerms(rest.resting, MovingTerms(*rest.moving[:-1], temporaries))


@jit
def packed_bytes(rest: PhaseTerms, framework: FrameworkInputs) -> float:
    """Bytes that a stage keeps from step to step. They are allocated once, side by side, so there
    are no gaps between them. Includes gradients that have separate buffers, but not inputs. `rest`:
    terms of the optimizer's phase."""
    gradients = rest.moving.gradients if framework.persistent_gradients > 0.0 else 0.0
    return sum(rest.resting) - rest.resting.inputs + gradients


@jit
def weighed_bytes(terms: PhaseTerms, rest: PhaseTerms, framework: FrameworkInputs) -> float:
    """Bytes of a phase to compare with a limit: the reserved bytes divided by 1 + f, f being the
    share that fragmentation adds. Only tensors that come and go have gaps between them, so this is
    A - P f / (1 + f), with A bytes of live tensors and P `packed_bytes`. So limits on reserved
    memory become affine."""
    share = framework.fragmentation / (1.0 + framework.fragmentation)
    return total_bytes(terms) - share * packed_bytes(rest, framework)


@jit
def cached_bytes(rest: PhaseTerms, busiest: PhaseTerms, most_live: float, reduces: bool) -> float:
    """Bytes that the allocator keeps besides the peak while there is room, if each step makes
    gradients anew: blocks of gradients and of temporaries of the update.

    max(0, B + G + T - peak): B is the most bytes of the passes besides gradients (`busiest`), G all
    gradients if the job `reduces` them, T the temporaries. A block serves only the stream that it
    was made on: FSDP reduces on a separate stream, so its gradients cannot use blocks that backward
    frees. And an update over lists of tensors finds no blocks as large as it asks for, because
    segments are not joined. Freed blocks of both stay until an allocation fails. Ignores blocks
    that they share on one stream. Source: torch, c10/cuda/CUDACachingAllocator.cpp,
    distributed/fsdp/_runtime_utils.py, distributed/fsdp/_fully_shard/_fsdp_collectives.py.
    """
    update = rest.moving.optimizer_temporaries
    if reduces:
        update += rest.moving.gradients
    return max(0.0, total_bytes(busiest) - busiest.moving.gradients + update - most_live)


@jit
def split_logits_bytes(
    rest: PhaseTerms, busiest: PhaseTerms, holds: Row, most_live: float
) -> float:
    """Bytes that the allocator keeps in blocks as large as the logits, because the first step's
    optimizer state is in them.

    States are made at the end of the first step, in blocks that its activations have freed,
    smallest first; gradients G are in these too. States that do not fit in the blocks of
    activations A and 16-bit logits H, s bytes, split blocks of F bytes, an fp32 copy of the logits
    each, and stay there. The next step makes ⌈s / F⌉ new blocks, so that F·⌈s / F⌉ - s, and the
    rest of H, serve no tensor at the peak:

        s = min(S, max(0, S + G - A - H))

    with S the states; 0 if nothing is split. Seen in a memory snapshot of one H200 (8 layers of
    Llama 3.2 1B, recomputed: one of four blocks of 3.9 GiB contains 1.3 GiB of states), and in the
    memory that three other recomputed models reserve there beyond live tensors. Ignores losses in
    16 bits; readings under FSDP show no such blocks.
    """
    elements = holds.logits
    logits = holds.head_logits + busiest.moving.logits
    if elements <= 0.0 or logits < 8.0 * elements:
        return 0.0
    block, half = 4.0 * elements, 2.0 * elements
    states, gradients = rest.resting.optimizer_state, rest.moving.gradients
    small = max(0.0, most_live - sum(rest.resting) - logits)
    split = min(states, states + gradients - small - half)
    if split <= 0.0 or split > logits:
        return 0.0
    left = max(0.0, half - max(0.0, gradients - small) - (states - split))
    return float(block * math.ceil(split / block) - split + left)
