"""Parameters of one rank, by the functions of the cost core."""

from __future__ import annotations

from types import SimpleNamespace

from planner.cost.codes import ParamShard
from planner.cost.keys import on_rank
from planner.cost.tables import JobInputs
from planner.predict.ops.rows import Piece
from planner.predict.saved import Key


def rank_parameters(piece: Piece, inputs: JobInputs, key: Key) -> tuple[float, float]:
    """(dense, expert) parameters of a piece on the rank before ZeRO; vocabulary rows padded."""
    found = {"dense": 0.0, "expert": 0.0}
    for op in piece.ops:
        for count, shard in op.parameters:
            pads = op.pads_vocabulary and shard is ParamShard.TP
            row = SimpleNamespace(shard=shard, pads_vocabulary=pads)
            found[op.parameter_class] += on_rank(count, row, key, inputs)
    return found["dense"], found["expert"]
