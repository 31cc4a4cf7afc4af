"""What the term `activations` of a phase is made of: tensors kept for backward, by name.

The same rows of the op table that the account sums, so that they add up to its term.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from planner.memory.moments import Rank
from planner.memory.rank import saved_bytes
from planner.memory.timeline import PhaseMemory
from planner.modules import Module
from planner.ops.rows import Piece
from planner.ops.table import pieces

# Share of the sum that rounding may make.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class KeptTensor:
    """A saved tensor of the op table: bytes of all layers and micro-batches together, `copies`
    of them (a micro-batch that keeps part of its layers counts as that part)."""

    name: str
    size_bytes: float
    copies: float


def kept_tensors(rank: Rank, phase: PhaseMemory) -> tuple[KeptTensor, ...]:
    """Tensors kept for backward at a phase's heaviest moment, largest first."""
    sizes: dict[str, float] = {}
    counts: dict[str, float] = {}
    least = rank.context.profile.activation_offload.least_bytes
    if not phase.pieces_left or "activations" not in phase.terms:
        return ()
    for index, (piece, modules, times) in enumerate(_held(rank, phase)):
        given_back = _loss_is_done(rank, phase, index)
        for op in piece.ops:
            for row in op.saved:
                if not row.kept_under(modules):
                    continue
                copies = times - float(given_back and row.name == "head/loss")
                one = saved_bytes(row, rank.context, rank.shape)
                size = copies * one
                if size > 0.0 and not (row.leaves and one >= least):
                    sizes[row.name] = sizes.get(row.name, 0.0) + size
                    counts[row.name] = counts.get(row.name, 0.0) + copies
    found = [KeptTensor(name, size, counts[name]) for name, size in sizes.items()]
    # Schedules that split backward keep more: what weight gradients that wait will read.
    deferred = phase.terms["activations"] - sum(sizes.values())
    if deferred > _ROUNDING * phase.terms["activations"]:
        found.append(KeptTensor(_rest(rank), deferred, 1.0))
    return tuple(sorted(found, key=lambda tensor: -tensor.size_bytes))


def _rest(rank: Rank) -> str:
    """What else the term holds: offloaded tensors on the GPU, or what weight gradients read."""
    return "offloaded, on their way" if rank.offloaded else "deferred weight gradients"


def _loss_is_done(rank: Rank, phase: PhaseMemory, index: int) -> bool:
    """Whether the piece is the one in backward, past its loss."""
    in_backward = phase.name.startswith("backward") and phase.at != "loss"
    return in_backward and index == phase.pieces_left - 1 and rank.order[index].logits > 0.0


def _held(rank: Rank, phase: PhaseMemory) -> Iterator[tuple[Piece, Module, float]]:
    """Pieces in forward order, what recomputes in them, and how many times each is kept.

    See `Rank.activations`: other micro-batches keep embedding and layers; with several chunks a
    stage the micro-batch at work gives back one chunk in the end.
    """
    first = 0 if rank.embedding is None else 1
    layers = range(first, first + len(rank.layers))
    others = phase.in_flight - 1.0
    some_left = phase.pieces_left > first
    for index, (piece, modules) in enumerate(_pieces(rank)):
        own = float(index < phase.pieces_left)
        if rank.settings.chunks > 1 and index in layers:
            own = 1.0 if some_left else 1.0 - 1.0 / rank.settings.chunks
        yield piece, modules, own + (others if index < layers.stop else phase.head_in_flight - 1.0)


def _pieces(rank: Rank) -> Iterator[tuple[Piece, Module]]:
    """Pieces of the op table in the order of `rank.order`, with what recomputes in each."""
    table, model, settings = pieces(rank.context), rank.context.model, rank.settings
    modules, kinds = rank.shape.recompute, len(model.kinds)
    chosen = range(model.layers) if settings.layers is None else settings.layers
    again = settings.recomputed or [bool(modules)] * len(chosen)
    stays = settings.staying or [False] * len(chosen)
    kept = pieces(replace(rank.context, offload=()))
    if rank.embedding is not None:
        yield table[kinds], modules
    for layer, runs_again, stay in zip(chosen, again, stays, strict=True):
        own = (kept if stay else table)[model.kind_indices[layer]]
        yield own, modules if runs_again else Module.NOTHING
    for _ in rank.mtp:
        yield predictor(rank, table[kinds + 2 :]), Module.NOTHING
    if rank.head is not None:
        yield table[kinds + 1], modules


def predictor(rank: Rank, own: Sequence[Piece]) -> Piece:
    """A module of multi-token prediction, its loss, or both: what the rank has of it."""
    module, loss = own
    if not rank.settings.mtp:
        return loss
    return Piece(module.name, (*module.ops, *loss.ops)) if rank.settings.mtp_losses else module
