"""Inputs of a layer's cost, and the share of a quantity that a rank then has.

A key is a row of the key table (`planner.cost.fields.KEY_ROW`).

Symbols: t = tp, e = etp, b = micro-batch size, s = sequence length; tokens on a rank = b·s/cp.
"""

from __future__ import annotations

from planner.cost._jit import Row, jit
from planner.cost.codes import HOOKED, OpKind, ParamShard, Shard
from planner.cost.tables import JobInputs


@jit
def shard_factor(code: int, key: Row, kv_heads: float) -> float:
    """Share of a per-token quantity on one rank (`planner.cost.codes.Shard`)."""
    share = 1.0
    if code in (Shard.TP, Shard.ROUTED_TP):
        share = 1.0 / key.tp
    elif code == Shard.SEQUENCE:
        share = 1.0 / key.tp if key.sequence_parallel > 0 else 1.0
    elif code == Shard.KV:
        share = 1.0 / min(key.tp, kv_heads)
    elif code == Shard.ROUTED:
        share = key.etp / key.tp
    elif code == Shard.EXPERT_TP:
        share = 1.0 / key.etp
    elif code == Shard.WHOLE:
        share = key.cp
    elif code == Shard.WHOLE_TP:
        share = key.cp / key.tp
    return float(share)


@jit
def returned(op: Row, key: Row) -> float:
    """1 if backward computes a gradient of a row's input, else 0. If only checkpoints need that
    gradient, it is 1 if any module recomputes."""
    if op.returns == HOOKED:
        return 1.0 if int(key.modules) else 0.0
    return float(op.returns)


@jit
def padding_factor(vocab: float, multiple: float, tp: float) -> float:
    """Padded vocabulary over the true one: the framework rounds up to a multiple of multiple·tp."""
    unit = multiple * tp
    return float(((vocab + unit - 1) // unit) * unit / vocab)


@jit
def on_rank(value: float, row: Row, key: Row, job: JobInputs) -> float:
    """A rank's part of a value that belongs to some parameters, before ZeRO. `row`: of the
    parameter table."""
    shard = int(row.shard)
    if row.pads_vocabulary > 0 and shard == ParamShard.TP:
        value *= padding_factor(job.vocab, job.vocabulary_multiple, key.tp)
    if shard == ParamShard.EXPERT:
        return float(value / key.expert_ranks)
    if shard == ParamShard.TP:
        return float(value / key.tp)
    if shard == ParamShard.KV:
        return float(value / min(key.tp, job.kv_heads))
    return float(value)


@jit
def local_tokens(key: Row, job: JobInputs) -> float:
    """Tokens of the longest micro-batch on a context-parallel rank: b·s/cp, or a share of it for
    samples without padding."""
    return key.mbs * job.seq / key.cp * key.kept


@jit
def gemm_shape(op: Row, key: Row, job: JobInputs) -> tuple[float, float, float]:
    """(rows, out, in) of a row's product on one rank: tokens × local widths."""
    rows = (
        local_tokens(key, job)
        * op.tokens_factor
        * shard_factor(int(op.tokens_shard), key, job.kv_heads)
    )
    out = op.out_width * shard_factor(int(op.out_shard), key, job.kv_heads)
    if op.pads_vocabulary > 0:
        out *= padding_factor(job.vocab, job.vocabulary_multiple, key.tp)
    out += op.kv_out_width * shard_factor(Shard.KV, key, job.kv_heads)
    depth = op.in_width * shard_factor(int(op.in_shard), key, job.kv_heads)
    return rows, out, depth


@jit
def weight_elements(op: Row, key: Row) -> float:
    """Elements of the matrices of a product on one rank."""
    kind = int(op.kind)
    if kind not in (OpKind.GEMM, OpKind.GROUPED_GEMM):
        return 0.0
    split = key.expert_ranks if kind == OpKind.GROUPED_GEMM else key.tp
    out = op.out_width + op.kv_out_width
    return float(op.groups * out * op.in_width / split)
