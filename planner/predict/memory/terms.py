"""The contents of memory in a phase: terms in reading order with their names, and the tensors that
make up the term `activations`.

The tensors are rows of the op table, counted as often as the core's account keeps their piece
(`kept_copies`), so they add up to that term.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from planner.cost.keys import local_tokens
from planner.cost.piece_memory import saved_row_bytes
from planner.cost.terms import LIVE_TERMS, OUTSIDE_TERMS
from planner.job.job import Job
from planner.job.recompute import Module
from planner.predict.cost_tables import job_pieces
from planner.predict.memory.account import Footprint, Kept, PhaseMemory, StageAccount
from planner.predict.ops.rows import Piece, Saved
from planner.predict.pictures import VISION, held_pictures, with_pictures
from planner.predict.stage import Stage

# torch rounds every allocation up to a multiple of this (c10/cuda/CUDACachingAllocator.h,
# kMinBlockSize).
ALLOCATION_BYTES = 512
WAITING = "deferred weight gradients"
ON_THEIR_WAY = "offloaded, on their way"


@dataclass(frozen=True, slots=True)
class KeptTensor:
    """A tensor of the op table that is saved for backward. `size_bytes`: of all its copies;
    `copies`: one for each layer and micro-batch that keeps it (a micro-batch that keeps only some
    of its layers counts as a fraction)."""

    name: str
    size_bytes: float
    copies: float

    @property
    def rounding_bytes(self) -> float:
        """Bytes that torch's allocator adds by rounding up each copy."""
        each = self.size_bytes / self.copies
        return self.copies * (ceil(each / ALLOCATION_BYTES) * ALLOCATION_BYTES - each)


def kept_tensors(job: Job, stage: Stage, phase: PhaseMemory) -> tuple[KeptTensor, ...]:
    """Tensors kept for backward in a phase, largest first; empty if the phase keeps none."""
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
    """Bytes kept only because the computation of weight gradients is deferred."""
    copies, holds = kept.copies, stage.holds
    return float(copies.weight * holds.layer_weight + copies.head_weight * holds.head_weight)


def _rows(job: Job, stage: Stage, kept: Kept) -> Iterator[tuple[str, float, float]]:
    """(name, bytes of one, copies) of every row of every piece of the stage."""
    copies, inputs = kept.copies, stage.inputs.job
    pictures = held_pictures(job, int(stage.key.mbs))
    for index, piece in enumerate(with_pictures(_pieces(job, inputs.kinds), pictures)):
        count, again = stage.counts(index)
        if index < inputs.kinds:
            for layer in kept.layers:
                number = layer.copies if layer.kind == index else 0.0
                yield from _piece_rows(stage, piece, number, again=layer.again)
            yield from _piece_rows(stage, piece, copies.plain * (count - again), again=False)
            yield from _piece_rows(stage, piece, copies.again * again, again=True)
        elif index == inputs.kinds:
            yield from _piece_rows(stage, piece, copies.embedding * count, again=None)
        elif index == inputs.kinds + 1:
            number, done = copies.head * count, copies.head_done * count
            yield from _piece_rows(stage, piece, number, again=None, losses_done=done)
        else:
            done = copies.mtp_done * min(count, 1.0) if index > inputs.kinds + 2 else 0.0
            yield from _piece_rows(stage, piece, copies.mtp * count, again=False, losses_done=done)


def _pieces(job: Job, kinds: int) -> tuple[Piece, ...]:
    """Pieces in the core's order. Layers whose activations stay on the GPU are separate kinds."""
    table, count = job_pieces(job), len(job.model.piece_kinds)
    if kinds == count:
        return table
    resident = job_pieces(replace(job, activation_offload=()))
    return (*table[:count], *resident[:count], *table[count:])


def _piece_rows(
    stage: Stage, piece: Piece, copies: float, *, again: bool | None, losses_done: float = 0.0
) -> Iterator[tuple[str, float, float]]:
    """Rows of `copies` copies of a piece. `again`: whether it recomputes; None for embedding or
    head, which keep everything except the tensors that layers share. `losses_done` of the copies
    have freed their logits."""
    if not copies:
        return
    key, job = stage.key, stage.inputs.job
    for op in piece.ops:
        for row in op.saved:
            size = saved_row_bytes(row, local_tokens(key, job), key, job)
            share = _share_kept(stage, row, size, again)
            gone = losses_done if row.name == "head/loss" else 0.0
            name = row.name
            if op.name.startswith(VISION):
                # A tower's layers use the same tensor names as any layer.
                name = f"{VISION}{row.name.removeprefix(VISION)}"
            yield name, size, copies * share - gone


def _share_kept(stage: Stage, row: Saved, size: float, again: bool | None) -> float:
    """Share of a tensor that a piece keeps on the GPU: as in `planner.cost.layer.recompute_costs`,
    minus the part that is moved to the host."""
    key = stage.key
    modules = Module(int(key.modules)) if again is not False else Module.NOTHING
    gone = row.leaves if size >= stage.inputs.framework.least_offload_bytes else 0.0
    under = float(row.kept_under(modules))
    if not again:
        return under * (1.0 - gone)
    share, plain = key.share / key.span, 1.0 - key.share
    return float(plain * row.kept_under(Module.NOTHING) + share * under - under * gone)


Where = Literal["tensors", "outside"]
Step = Literal["first", "later"]

# Parts of the activations by words in a tensor's name; the first match counts.
_PARTS = (
    (WAITING, "waiting for weight gradients"),
    (ON_THEIR_WAY, "on the way to and from the host"),
    ("vision/projector", "projector"),
    (VISION, "vision tower"),
    ("checkpoint", "checkpoints"),
    ("/norm", "norms"),
    ("attention/", "attention"),
    ("state/", "state spaces"),
    ("moe/", "router and experts"),
    ("shared_experts/", "router and experts"),
    ("ffn/", "feed-forward"),
    ("mlp/", "feed-forward"),
    ("head/loss", "logits for the loss"),
    ("head/", "head"),
    ("embedding/", "embedding"),
    ("mtp/", "multi-token prediction"),
)
_OTHER_PART = "tables shared by layers"
# Terms below this share of the whole are shown together.
_SMALL = 5e-5


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a stage's peak. `where`: `tensors` for live tensors, `outside` for bytes outside
    them; `of`: the larger term to which it belongs, or empty."""

    name: str
    label: str
    size_bytes: float
    where: Where
    of: str = ""


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A phase of the first step or of later ones (`step`), and whether it is the peak."""

    step: Step
    phase: PhaseMemory
    is_peak: bool


def label(name: str) -> str:
    """A term's name in words."""
    if name.startswith("communicator "):
        return f"NCCL buffers, {name.removeprefix('communicator ')} group"
    term = LIVE_TERMS.get(name) or OUTSIDE_TERMS.get(name)
    return term.words if term else name


def phase_rows(account: StageAccount) -> tuple[PhaseRow, ...]:
    """All phases of a stage in order; one of them is the peak."""
    peak = account.peak
    steps: tuple[tuple[Step, tuple[PhaseMemory, ...]], ...] = (
        ("first", account.first_step),
        ("later", account.later_steps),
    )
    return tuple(PhaseRow(step, phase, phase is peak) for step, phases in steps for phase in phases)


def peak_row(account: StageAccount) -> PhaseRow:
    """The heaviest phase."""
    return next(row for row in phase_rows(account) if row.is_peak)


def peak_tensors(footprint: Footprint, account: StageAccount) -> tuple[KeptTensor, ...]:
    """Tensors kept for backward at a stage's peak, largest first."""
    return kept_tensors(footprint.configuration.job, account.core, account.peak)


def peak_parts(footprint: Footprint, account: StageAccount) -> tuple[Part, ...]:
    """Everything in memory at a stage's peak; the parts add up to its total."""
    terms = account.peak.terms
    tensors: list[Part] = []
    for name in terms:
        if name == "activations" and terms[name]:
            tensors += _activation_parts(peak_tensors(footprint, account))
        else:
            tensors.append(Part(name, label(name), terms[name], "tensors"))
    outside = [Part(name, label(name), size, "outside") for name, size in account.outside.items()]
    least = _SMALL * account.total_bytes
    return (*_pooled(tensors, least), *(part for part in outside if part.size_bytes))


def _pooled(parts: list[Part], least: float) -> list[Part]:
    """The parts of at least `least` bytes; all smaller ones are added up in a last part, `other
    tensors`."""
    shown = [part for part in parts if part.size_bytes >= least]
    small = sum(part.size_bytes for part in parts if part.size_bytes < least)
    if small:
        shown.append(Part("other", "other tensors", small, "tensors"))
    return shown


def _activation_parts(tensors: tuple[KeptTensor, ...]) -> list[Part]:
    """Bytes of kept tensors, added up by the block of the model that keeps them, largest first."""
    sizes: dict[str, float] = {}
    for tensor in tensors:
        part = part_of(tensor.name)
        sizes[part] = sizes.get(part, 0.0) + tensor.size_bytes
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    return [
        Part(f"activations/{name}", f"kept: {name}", size, "tensors", "activations")
        for name, size in ordered
    ]


def part_of(tensor: str) -> str:
    """The block of the model that keeps a tensor, by the tensor's name."""
    return next((part for words, part in _PARTS if words in tensor), _OTHER_PART)
