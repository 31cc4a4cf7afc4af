"""Cost models of an RL trainer: of its update, and of passes that only read.

Both use the same op table, kernel and memory account as any training. Micro-batches of the update
have given numbers of tokens (`planner.predict.rl.micro_batches`). A reading pass has only forward
rows, with weights that are not trained.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from planner.cost import fields as f
from planner.cost.tables import Array, ClassInputs, FrameworkInputs
from planner.job.frameworks.losses import read_bytes, reading_peak_bytes
from planner.job.job import Job
from planner.job.parameter_classes import parameter_classes
from planner.job.reads import Read
from planner.predict import cost_tables
from planner.predict.calibrated import calibrated
from planner.predict.cost_model import Columns, CostModel
from planner.predict.ops.reads import forward_only
from planner.predict.ops.rows import Op, Piece
from planner.predict.unequal import elastic_seconds

_READ = Read("policy", 1, copied=True)


class BatchModel(CostModel):
    """The cost model of a trainer's update, in micro-batches whose numbers of tokens are given in
    columns (`planner.predict.rl.micro_batches.with_micro_batches`)."""

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Pieces of the model; the head multiplies only the tokens whose logits the loss uses."""
        return _with_answers(super().pieces, self.job)

    def of(self, job: Job) -> BatchModel:
        """The same model for another job on the same hardware."""
        return type(self)(job, self.altered, compiled=self.compiled)

    def waits(self, columns: Columns, shapes: Array, keys: Array, costs: Array) -> Array:
        """Seconds per shape in which ranks wait for the fullest one. Columns `more_tokens` and
        `more_squares` state the fullest rank's excess over the mean, in tokens and in squared
        lengths. Without these columns: as in any training."""
        if "more_tokens" not in columns:
            return super().waits(columns, shapes, keys, costs)
        if not (columns["more_tokens"].any() or columns["more_squares"].any()):
            return np.zeros(len(shapes))
        key_of_shape = shapes[:, f.SHAPE["key"]].astype(np.int64)
        tokens, squares, _ = elastic_seconds(self.on_machines, self.totals, keys, costs)
        more = (
            columns["more_tokens"] * tokens[key_of_shape]
            + columns["more_squares"] * squares[key_of_shape]
        )
        seconds: Array = shapes[:, f.SHAPE["grad_acc"]] * more / shapes[:, f.SHAPE["pp"]]
        return seconds


class ReadingModel(BatchModel):
    """The cost model of a pass that reads every sample forward, without gradients. For the core it
    is a step that reduces, updates and keeps nothing."""

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Pieces of the model, forward only."""
        pieces = _with_answers(cost_tables.job_pieces(self.job), self.job)
        return tuple(
            replace(piece, ops=tuple(_read_row(op, self.job) for op in piece.ops))
            for piece in pieces
        )

    @cached_property
    def framework_inputs(self) -> FrameworkInputs:
        """The core's inputs for the framework, with everything that only training has set to 0."""
        plain = cost_tables.framework_inputs(self.job, self.pieces)
        peak = reading_peak_bytes(self.job.framework, self.job.objective)
        reading = plain._replace(
            forward_reads=-1.0,
            model_parameters=0.0,
            whole_bucket_bytes=0.0,
            host_step_s=0.0,
            unfused_tensors=0.0,
            logits_transient_bytes=peak,
            logits_forward_bytes=peak,
            classes=tuple(map(_read_class, plain.classes)),
        )
        return calibrated(reading, "framework", self.factors, self.altered)


def _with_answers(pieces: tuple[Piece, ...], job: Job) -> tuple[Piece, ...]:
    share = job.objective.answers
    if share == 1.0:
        return pieces

    def of_answers(op: Op) -> Op:
        if op.name != "head/logits":
            return op
        return replace(op, tokens_factor=share * op.tokens_factor)

    return tuple(replace(piece, ops=tuple(map(of_answers, piece.ops))) for piece in pieces)


def _read_class(one: ClassInputs) -> ClassInputs:
    """A class of parameters as a reading pass uses it: gathered once, neither trained nor
    updated."""
    gathered = one.gathered or one.weights
    return one._replace(gathered=gathered, gathers=gathered, gradients=0.0, reduced=0.0, states=0.0)


def _read_row(op: Op, job: Job) -> Op:
    """A row without backward, whose weights have the format in which they are stored."""
    read = forward_only(op, _READ)
    if not parameter_classes()[op.parameter_class].trained:
        read = replace(read, parameter_class=op.parameter_class)
    if op.name != "head/loss":
        return read
    traffic = job.framework.kernels.memory_traffic
    moved = read_bytes(job.framework, job.objective) * job.model.vocab / traffic
    return replace(read, forward_bytes=moved)
