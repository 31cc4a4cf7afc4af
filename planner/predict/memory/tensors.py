"""What the term `activations` of a phase is made of: tensors kept for backward, by name.

The rows of the op table, each as often as the core's account keeps its piece (`kept_copies`), so
that they add up to its term.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from planner.cost.keys import local_tokens
from planner.cost.piece_memory import saved_row_bytes
from planner.job.job import Job
from planner.job.recompute import Module
from planner.predict.cost_tables import job_pieces
from planner.predict.memory.timeline import Kept, PhaseMemory
from planner.predict.ops.rows import Piece, Saved
from planner.predict.stage import Stage

# torch rounds every allocation up to a multiple of this (c10/cuda/CUDACachingAllocator.h,
# kMinBlockSize).
ALLOCATION_BYTES = 512
WAITING = "deferred weight gradients"
ON_THEIR_WAY = "offloaded, on their way"


@dataclass(frozen=True, slots=True)
class KeptTensor:
    """A saved tensor of the op table: bytes of all layers and micro-batches together, `copies`
    of them (a micro-batch that keeps part of its layers counts as that part)."""

    name: str
    size_bytes: float
    copies: float

    @property
    def rounding_bytes(self) -> float:
        """Bytes that torch's allocator adds to all copies, which it rounds up one by one."""
        each = self.size_bytes / self.copies
        return self.copies * (ceil(each / ALLOCATION_BYTES) * ALLOCATION_BYTES - each)


def kept_tensors(job: Job, stage: Stage, phase: PhaseMemory) -> tuple[KeptTensor, ...]:
    """Tensors kept for backward in a phase, largest first."""
    kept = phase.kept
    if kept is None:
        return ()
    counts: dict[str, float] = defaultdict(float)
    sizes: dict[str, float] = defaultdict(float)
    for name, size, copies in _rows(job, stage, kept):
        counts[name] += copies
        sizes[name] += copies * size
    found = [KeptTensor(name, size, counts[name]) for name, size in sizes.items() if size > 0.0]
    found += [
        KeptTensor(name, size, 1.0)
        for name, size in ((WAITING, _waiting(stage, kept)), (ON_THEIR_WAY, kept.on_their_way))
        if size
    ]
    return tuple(sorted(found, key=lambda tensor: -tensor.size_bytes))


def _waiting(stage: Stage, kept: Kept) -> float:
    """Bytes that only weight gradients which are deferred will read."""
    copies, holds = kept.copies, stage.holds
    return float(copies.weight * holds.layer_weight + copies.head_weight * holds.head_weight)


def _rows(job: Job, stage: Stage, kept: Kept) -> Iterator[tuple[str, float, float]]:
    """(name, bytes of one, copies) of every row of every piece of the stage."""
    copies, told = kept.copies, stage.inputs.job
    for index, piece in enumerate(_pieces(job, told.kinds)):
        count, again = stage.counts(index)
        if index < told.kinds:
            for layer in kept.layers:
                one_copies = layer.copies if layer.kind == index else 0.0
                yield from _piece_rows(stage, piece, one_copies, again=layer.again)
            yield from _piece_rows(stage, piece, copies.plain * (count - again), again=False)
            yield from _piece_rows(stage, piece, copies.again * again, again=True)
        elif index == told.kinds:
            yield from _piece_rows(stage, piece, copies.embedding * count, again=None)
        elif index == told.kinds + 1:
            one_copies, done = copies.head * count, copies.head_done * count
            yield from _piece_rows(stage, piece, one_copies, again=None, losses_done=done)
        else:
            done = copies.mtp_done * min(count, 1.0) if index > told.kinds + 2 else 0.0
            yield from _piece_rows(stage, piece, copies.mtp * count, again=False, losses_done=done)


def _pieces(job: Job, kinds: int) -> tuple[Piece, ...]:
    """Pieces in the order of the core: layers that stay on the GPU come as kinds of their own."""
    table, count = job_pieces(job), len(job.model.kinds)
    if kinds == count:
        return table
    resident = job_pieces(replace(job, activation_offload=()))
    return (*table[:count], *resident[:count], *table[count:])


def _piece_rows(
    stage: Stage, piece: Piece, copies: float, *, again: bool | None, losses_done: float = 0.0
) -> Iterator[tuple[str, float, float]]:
    """Rows of `copies` of a piece that recomputes, or not (`again` None: an end, which keeps its
    tensors but for those that all layers share); of `losses_done` the logits are gone."""
    if not copies:
        return
    for op in piece.ops:
        for row in op.saved:
            size = _row_bytes(stage, row)
            share = _share_kept(stage, row, size, again)
            gone = losses_done if row.name == "head/loss" else 0.0
            yield row.name, size, copies * share - gone


def _row_bytes(stage: Stage, row: Saved) -> float:
    """Bytes of one tensor of one micro-batch on the rank."""
    key, job = stage.key, stage.inputs.job
    return saved_row_bytes(row, local_tokens(key, job), key, job)


def _share_kept(stage: Stage, row: Saved, size: float, again: bool | None) -> float:
    """How much of a tensor a piece keeps on the GPU: `planner.cost.layer.recompute_costs`, less
    what leaves for the host."""
    key = stage.key
    modules = Module(int(key.modules)) if again is not False else Module.NOTHING
    gone = row.leaves if size >= stage.inputs.framework.least_offload_bytes else 0.0
    under = float(row.kept_under(modules))
    if not again:
        return under * (1.0 - gone)
    share, plain = key.share / key.span, 1.0 - key.share
    return float(plain * row.kept_under(Module.NOTHING) + share * under - under * gone)
