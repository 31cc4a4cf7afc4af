"""A plan's layers, op by op: seconds of each kernel, and the volume of each collective.

`planner explain` shows this view of the compiled core; the step is the sum of these figures
(`planner.cost.piece_compute.compute_terms`, `piece_traffic.communication_terms`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from constraints.axes import GROUPS
from hardware.frozen import Frozen
from planner.cost import fields as f
from planner.cost._jit import Rows, record, rows
from planner.cost.codes import CollectiveKind, OpKind
from planner.cost.piece_compute import op_seconds
from planner.cost.piece_traffic import collective_bytes, row_stream
from planner.cost.schedule import microbatch_share
from planner.cost.tables import Array
from planner.job.job import Job
from planner.predict.configuration import Configuration
from planner.predict.cost_model import CostModel
from planner.predict.ops.rows import Piece
from planner.predict.pictures import timed_pictures
from planner.predict.plan import Plan
from planner.predict.sample_costs import timed_keys

# The limit on the time of each kind of row, in words.
BOUNDS = {
    OpKind.GEMM: "matrix products",
    OpKind.GROUPED_GEMM: "matrix products",
    OpKind.ATTENTION: "attention",
    OpKind.SCAN: "state-space scan",
    OpKind.MEMORY: "memory-bound kernels",
}
ACCUMULATION = "memory-bound kernels"
WAITING = "waiting for the CPU to launch kernels"


class OpProfile(Frozen):
    """Seconds of one op of a layer, forward and backward, for one micro-batch on one GPU. `bound`:
    the kind of kernel that takes them, a value of `BOUNDS`."""

    name: str
    bound: str
    forward_s: float
    backward_s: float


class CollectiveProfile(Frozen):
    """One collective of a layer, for one micro-batch.

    `size`: ranks of the group. `tensor_bytes`: the whole tensor, ungathered; for an all-to-all the
    bytes that one rank sends. `forward`, `backward`: number of times in each pass. `seconds`:
    duration of one of them, hidden or not.
    """

    name: str
    kind: str
    group: str
    size: int
    tensor_bytes: float
    forward: float
    backward: float
    seconds: float


class LayerProfile(Frozen):
    """A layer of one kind, the embedding, or the output head.

    `layers`: number of them on the slowest pipeline stage. `waiting_s`: seconds in which the GPU
    waits for the CPU, both passes. `accumulation_s`: seconds of adding gradients to their buffers.
    `again_s`: seconds of repeating the forward pass if the layer recomputes.
    """

    name: str
    layers: float
    ops: tuple[OpProfile, ...]
    collectives: tuple[CollectiveProfile, ...]
    waiting_s: float
    accumulation_s: float
    again_s: float = 0.0


class StepProfile(Frozen):
    """The layers of a plan; `micro_batches`: how many pass through the slowest stage in a step."""

    layers: tuple[LayerProfile, ...]
    micro_batches: float

    @property
    def compute_parts(self) -> dict[str, float]:
        """Seconds of a step's compute term by kind of kernel (`BOUNDS`; gradient accumulation
        counts as memory-bound) and by waiting for the CPU. They add up to the term; parts of zero
        seconds are left out."""
        parts = dict.fromkeys((*BOUNDS.values(), WAITING), 0.0)
        for layer in self.layers:
            passes = self.micro_batches * layer.layers
            for op in layer.ops:
                parts[op.bound] += passes * (op.forward_s + op.backward_s)
            parts[ACCUMULATION] += passes * layer.accumulation_s
            parts[WAITING] += passes * layer.waiting_s
        return {name: seconds for name, seconds in parts.items() if seconds > 0.0}


def step_profile(job: Job, plan: Plan) -> StepProfile | None:
    """The layers of a job's plan; None on GPUs of several types, whose stages differ."""
    if plan.stage_gpus:
        return None
    configuration = Configuration.of_plan(job, plan)
    cost_model = CostModel(configuration.job, compiled=False)
    costed = cost_model.price_shapes(configuration.columns)
    counts = configuration.kernel_layout(cost_model).counts
    slowest = int(np.argmax([stage.forward_s + stage.backward_s for stage in plan.stages]))
    view = _CoreView(cost_model, costed.keys[:1], rows(costed.piece_costs(0), f.PIECE_ROW))
    share = microbatch_share(cost_model.framework_inputs.schedule)
    return StepProfile(
        layers=tuple(
            view.layer(index, piece, float(counts[index, slowest]))
            for index, piece in enumerate(cost_model.pieces)
        ),
        micro_batches=plan.degrees.grad_acc * share,
    )


class _CoreView:
    """The core's inputs for the seconds of one shape, in the form that its plain functions read."""

    def __init__(self, cost_model: CostModel, keys: Array, costs: Rows) -> None:
        self.cost_model, self.costs = cost_model, costs
        job_inputs, *inputs, self.network = cost_model.inputs
        timed, job_inputs = timed_keys(cost_model.job, job_inputs, keys)
        inputs = [job_inputs, *inputs]
        self.key = rows(timed[0], f.KEY_ROW)
        # Records are used in place of the named tuples in the core's signatures.
        self.job: Any
        self.framework: Any
        self.gpu: Any
        self.job, self.framework, self.gpu = (record(one)[()] for one in inputs)
        mbs = int(keys[0, f.KEY["mbs"]])
        table = cost_model.pictured_table(timed_pictures(cost_model.job, mbs))
        self.ops = rows(table.ops, f.OP_ROW)
        self.collectives = rows(table.collectives, f.COMM_ROW)

    def layer(self, index: int, piece: Piece, layers: float) -> LayerProfile:
        """The profile of one piece."""
        ops = tuple(self._ops(index, piece))
        cost = self.costs[index]
        in_kernels = sum(op.forward_s + op.backward_s for op in ops)
        both = float(cost.forward + cost.backward)
        waiting = float(cost.issue)
        return LayerProfile(
            name=piece.name,
            layers=layers,
            ops=ops,
            collectives=tuple(self._collectives(index, piece)),
            waiting_s=waiting,
            accumulation_s=max(0.0, both - waiting - in_kernels),
            again_s=float(cost.recompute) if int(self.key.modules) else 0.0,
        )

    def _ops(self, index: int, piece: Piece) -> list[OpProfile]:
        mine = [row for row in self.ops if int(row.piece) == index]
        found = []
        for op, row in zip(piece.ops, mine, strict=True):
            forward, backward, _ = op_seconds(row, self.key, self.job, self.framework, self.gpu)
            forward += row.host_waits * self.framework.issue_s
            if index == int(self.job.kinds) and int(row.rerun_with) & int(self.key.modules):
                backward += forward
            seconds = {
                "forward_s": float(row.repeats * forward),
                "backward_s": float(row.repeats * backward),
            }
            found.append(OpProfile(name=op.name, bound=BOUNDS[op.kind], **seconds))
        return found

    def _collectives(self, index: int, piece: Piece) -> list[CollectiveProfile]:
        """Collectives that the plan runs: those with more than one rank that belong to its exchange
        of context parallelism; those that need sequence parallelism, only under it."""
        mine = [row for row in self.collectives if int(row.piece) == index]
        named = [collective for op in piece.ops for collective in op.collectives]
        found = []
        for collective, row in zip(named, mine, strict=True):
            if collective.sequence_parallel_only and self.key.sequence_parallel == 0:
                continue
            stream = row_stream(row, self.key, self.job, self.framework, self.network)
            if stream.seconds == 0.0:
                continue
            size = self.key.ranks[int(row.group)]
            found.append(
                CollectiveProfile(
                    name=collective.name,
                    kind=CollectiveKind(int(row.kind)).name.lower().replace("_", "-"),
                    group=GROUPS[int(row.group)],
                    size=int(size),
                    tensor_bytes=collective_bytes(row, self.key, self.job),
                    forward=collective.forward,
                    backward=collective.backward,
                    seconds=float(stream.seconds),
                )
            )
        return found
