"""A second, plain-Python form of the saved-bytes sum, to test the compiled one against."""

from __future__ import annotations

from planner.cost.codes import Shard
from planner.job.recompute import Module
from planner.predict.ops.rows import Piece, Saved


def share(shard: Shard, tp: int, sequence_parallel: bool, kv_heads: int) -> float:
    """Share of a per-token tensor on one rank."""
    return {
        Shard.NONE: 1.0,
        Shard.TP: 1 / tp,
        Shard.SEQUENCE: 1 / tp if sequence_parallel else 1.0,
        Shard.KV: 1 / min(tp, kv_heads),
    }[shard]


def is_kept(row: Saved, modules: Module) -> bool:
    """Whether a tensor lives from forward to backward under a recompute mode."""
    return not row.freed_by & modules and (not row.only_with or bool(row.only_with & modules))


def saved_bytes_per_token(
    piece: Piece, *, tp: int, sequence_parallel: bool, kv_heads: int, modules: Module
) -> float:
    """Bytes per token of one piece on one rank."""
    return sum(
        row.bytes_per_token * share(row.shard, tp, sequence_parallel, kv_heads)
        for op in piece.ops
        for row in op.saved
        if is_kept(row, modules)
    )
