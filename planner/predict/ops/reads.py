"""Rows of models that a step only reads forward: the trained model itself, or a teacher.

The layers of a reference are on the same stages as the policy's and use the same degrees. A
teacher's layers are all counted with the head: frameworks that support a teacher have no pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from planner.job.parameter_classes import parameter_classes
from planner.job.reads import Read
from planner.job.tuning import FULL
from planner.predict.ops.context import OpContext, piece_counts
from planner.predict.ops.rows import Op, Piece, without_backward

# Class of the weights of a model that is only read, by the ranks that share the trained row's
# class.
_READ = {"data": "read", "expert-data": "read-expert"}


def with_reads(trained: Piece, plain: Piece, context: OpContext) -> Piece:
    """A piece with further rows for each model that a step reads and that has the same pieces;
    `trained`: the piece as it is trained, `plain`: before adapters and recomputation change its
    rows."""
    rows = [
        row for read in context.reads if read.model is None for row in _rows(trained, plain, read)
    ]
    return replace(trained, ops=(*trained.ops, *_with_loss(rows, context))) if rows else trained


def with_teacher(
    head: Piece, context: OpContext, pieces: Callable[[OpContext], tuple[Piece, ...]]
) -> Piece:
    """The head with all rows of a teacher; `pieces`: builds the pieces of a model by itself."""
    rows: list[Op] = []
    for read in context.reads:
        if read.model is not None:
            alone = pieces(replace(context, model=read.model, reads=(), tuning=FULL))
            # Without multi-token prediction.
            counts = piece_counts(read.model)[: len(read.model.piece_kinds) + 2]
            for piece, count in zip(alone, counts, strict=False):
                rows.extend(_whole(piece, read, count))
    return replace(head, ops=(*head.ops, *_with_loss(rows, context))) if rows else head


def _whole(piece: Piece, read: Read, count: int) -> Iterator[Op]:
    """Rows of `count` equal pieces of a model that is read, with the work repeated for each piece
    and each read; the weights of all pieces are in the first repetition."""
    for op in piece.ops:
        first = forward_only(op, read)
        parameters = tuple((count * number, shard) for number, shard in first.parameters)
        yield replace(first, parameters=parameters)
        yield from (replace(first, parameters=()),) * (count * read.times - 1)


def _rows(trained: Piece, plain: Piece, read: Read) -> Iterator[Op]:
    """Rows of the trained model when it is read forward, repeated for each read; the weights are in
    the first repetition only. Rows of adapters are left out if the model is read without them
    (`read.plain`)."""
    names = {op.name for op in plain.ops}
    for op in trained.ops:
        if read.plain and op.name not in names:
            continue
        first = forward_only(op, read)
        yield first
        yield from (replace(first, parameters=()),) * (read.times - 1)


def forward_only(op: Op, read: Read) -> Op:
    """A row as part of a forward pass without gradients."""
    held = parameter_classes()[op.parameter_class]
    other = read.copied or held.trained
    return replace(
        without_backward(op),
        name=f"{read.name}/{op.name}",
        parameters=op.parameters if read.copied else (),
        parameter_class=_READ[held.sharers] if other else op.parameter_class,
        autocasts=False,
        backward_bytes=0.0,
        backward_kernels=0.0,
        backward_launches=0.0,
        backward_adds=0.0,
        work_bytes=0.0,
        weight_traffic=0.0,
        weight_copies=0.0,
    )


def _with_loss(rows: list[Op], context: OpContext) -> Iterator[Op]:
    """The rows; a row of the loss only reads the logits and keeps nothing."""
    moved = context.read_bytes * context.model.vocab / context.profile.kernels.memory_traffic
    for op in rows:
        yield replace(op, forward_bytes=moved) if op.name.endswith("/head/loss") else op
