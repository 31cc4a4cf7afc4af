"""What the cost of a layer depends on, and what of a quantity a rank then holds.

Symbols: t = tp, e = etp, b = micro-batch size, s = sequence length; tokens on a rank = b·s/cp.
"""

from __future__ import annotations

from typing import NamedTuple

from planner.cost import fields as f
from planner.cost._jit import jit
from planner.cost.tables import Array, JobInputs


class Key(NamedTuple):
    """Degrees that the cost of a layer depends on.

    `modules` is the recompute mask, which holds in a `share` of the layers, `span` of them to a
    checkpoint. `pipelined`: 1 in a pipeline between domains where that slows a layer's own
    exchanges. `exchange`: of the cp ranks, those that exchange heads by all-to-all; cp/exchange
    such groups form a ring. 0: keys and values are gathered instead.
    """

    tp: float
    cp: float
    ep: float
    etp: float
    mbs: float
    modules: int
    sequence_parallel: float
    share: float
    span: float
    pipelined: float = 0.0
    exchange: float = 1.0


@jit
def shard_factor(code: int, key: Key, kv_heads: float) -> float:
    """Share of a per-token quantity on one rank (`planner.ops.rows.Shard`)."""
    if code in (f.SHARD_TP, f.SHARD_ROUTED_TP):
        return 1.0 / key.tp
    if code == f.SHARD_SEQUENCE:
        return 1.0 / key.tp if key.sequence_parallel > 0 else 1.0
    if code == f.SHARD_KV:
        return 1.0 / min(key.tp, kv_heads)
    if code == f.SHARD_ROUTED:
        return key.etp / key.tp
    if code == f.SHARD_EXPERT_TP:
        return 1.0 / key.etp
    return 1.0


@jit
def padding_factor(vocab: float, multiple: float, tp: float) -> float:
    """Padded over true vocabulary: the framework rounds up to a multiple of multiple·tp."""
    unit = multiple * tp
    return float(((vocab + unit - 1) // unit) * unit / vocab)


@jit
def local_tokens(key: Key, job: JobInputs) -> float:
    """Tokens of a micro-batch on a context-parallel rank: b·s/cp."""
    return key.mbs * job.seq / key.cp


@jit
def gemm_shape(op: Array, key: Key, job: JobInputs) -> tuple[float, float, float]:
    """(rows, out, in) of a row's product on one rank: tokens × local widths."""
    rows = (
        local_tokens(key, job)
        * op[f.OP_TOKENS_FACTOR]
        * shard_factor(int(op[f.OP_TOKENS_SHARD]), key, job.kv_heads)
    )
    out = op[f.OP_OUT_WIDTH] * shard_factor(int(op[f.OP_OUT_SHARD]), key, job.kv_heads)
    if op[f.OP_PADS_VOCABULARY] > 0:
        out *= padding_factor(job.vocab, job.vocabulary_multiple, key.tp)
    out += op[f.OP_KV_OUT_WIDTH] * shard_factor(f.SHARD_KV, key, job.kv_heads)
    depth = op[f.OP_IN_WIDTH] * shard_factor(int(op[f.OP_IN_SHARD]), key, job.kv_heads)
    return rows, out, depth
