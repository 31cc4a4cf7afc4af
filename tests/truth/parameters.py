"""Parameters of one rank, by the functions of the cost core."""

from __future__ import annotations

from types import SimpleNamespace

from planner.cost.codes import ParamShard
from planner.cost.light import LightRows
from planner.cost.piece_memory import parameters_on_rank
from planner.cost.tables import JobInputs
from planner.predict.ops.rows import Piece
from planner.predict.saved import Key


def rank_parameters(piece: Piece, inputs: JobInputs, key: Key) -> tuple[float, float]:
    """(dense, expert) parameters of a piece on the rank before ZeRO; vocabulary rows padded."""
    rows = [
        SimpleNamespace(
            piece=0, count=count, shard=shard,
            pads_vocabulary=op.pads_vocabulary and shard is ParamShard.TP,
        )
        for op in piece.ops
        for count, shard in op.parameters
    ]  # fmt: skip
    return parameters_on_rank(0, key, LightRows(rows), inputs)
