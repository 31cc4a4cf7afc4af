"""Bytes of served weights on a rank: sums over the parameters of the op table."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, fields

from planner.cost.codes import OpKind, ParamShard
from planner.predict.memory.serving.deployment import Deployment, layer_piece
from planner.predict.ops.rows import Op


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes of weights by the way they are stored.

    `matrices`: linear layers in the requested format; `scales`: their scales and zero points;
    `kept`: embeddings, head, norms, router and biases; `absorbed`: 16-bit copies of MLA's
    up-projections, which the engine multiplies into queries and outputs; `rotary`: cosines and
    sines of every position, which are loaded with the weights.
    """

    matrices: float = 0.0
    scales: float = 0.0
    kept: float = 0.0
    absorbed: float = 0.0
    rotary: float = 0.0

    @property
    def _parts(self) -> tuple[float, ...]:
        return tuple(getattr(self, one.name) for one in fields(self))

    @property
    def total(self) -> float:
        """The sum of all of them."""
        return sum(self._parts)

    def __add__(self, other: WeightBytes) -> WeightBytes:
        parts = zip(self._parts, other._parts, strict=True)
        return WeightBytes(*(one + more for one, more in parts))

    def __mul__(self, times: int) -> WeightBytes:
        return WeightBytes(*(times * part for part in self._parts))


def stage_weights(deployment: Deployment, stage: int) -> WeightBytes:
    """Weights on a rank of one pipeline stage; multi-token-prediction modules are not loaded."""
    last = stage == deployment.pp - 1
    names = (*(("embedding",) if stage == 0 else ()), *(("head",) if last else ()))
    held = [(deployment.table[name], 1) for name in names]
    kinds = Counter(deployment.stages[stage])
    held += [(layer_piece(deployment, kind), count) for kind, count in kinds.items()]
    each = (op_weights(deployment, op) * count for piece, count in held for op in piece.ops)
    total = sum(each, WeightBytes())
    return total + _tied_head(deployment, stage) + WeightBytes(rotary=_rotary(deployment))


def _tied_head(deployment: Deployment, stage: int) -> WeightBytes:
    """Weights of the copy of the embedding that the last stage holds as its head. All 0 on other
    stages, without a pipeline, and if the model has a separate head."""
    alone = deployment.pp == 1 or not deployment.model.tied_embeddings
    if alone or stage != deployment.pp - 1:
        return WeightBytes()
    elements = deployment.padded_vocabulary * deployment.model.hidden / deployment.tp
    return WeightBytes(kept=elements * deployment.weights.kept_bytes)


def _rotary(deployment: Deployment) -> float:
    """Bytes of one rotary table, max_positions by rotated width, in the type of the norms."""
    model = deployment.model
    if model.position != "rope":
        return 0.0
    width = model.mla.qk_rope_head_dim if model.mla else model.head_dim
    return deployment.weights.kept_bytes * model.max_positions * width


def op_weights(deployment: Deployment, op: Op) -> WeightBytes:
    """Bytes on the rank of the weights of one row of the op table."""
    fmt = deployment.weights
    padding = deployment.padded_vocabulary / deployment.model.vocab if op.pads_vocabulary else 1.0
    kept = matrices = 0.0
    quantised = _takes_format(deployment, op)
    matrix_part = _matrix_share(op) if quantised else 0.0
    for count, shard in op.parameters:
        padded = padding if shard is ParamShard.TP else 1.0
        on_rank = count * padded * shard_share(deployment, shard)
        in_matrix = on_rank * matrix_part if _carries_matrix(op, shard) else 0.0
        matrices += in_matrix
        kept += on_rank - in_matrix
    share = matrices / _matrix_elements(op) if matrices else 0.0
    padded_matrix = _kernel_padding(deployment, op)
    # Scales of one of the row's matrices, unsharded.
    scales = fmt.scales(op.out_width + op.kv_out_width, op.in_width)
    return WeightBytes(
        matrices=matrices * fmt.element_bytes * padded_matrix,
        scales=share * padded_matrix * op.groups * scales,
        kept=kept * fmt.kept_bytes,
        absorbed=_absorbed(deployment, op) if quantised else 0.0,
    )


def shard_share(deployment: Deployment, shard: ParamShard) -> float:
    """Share of a row's parameters that a rank holds; `shard`: the way in which they are split. If
    experts cannot be divided evenly, the share is that of the rank with the most."""
    model = deployment.model
    match shard:
        case ParamShard.NONE | ParamShard.COPIED:
            return 1.0
        case ParamShard.TP:
            return 1 / deployment.tp
        case ParamShard.KV:
            return 1 / min(deployment.tp, model.kv_heads)
        case ParamShard.EXPERT:
            experts = model.moe.experts if model.moe else 1
            held = math.ceil(experts / deployment.ep) / experts
            return held / deployment.expert_tp


def _takes_format(deployment: Deployment, op: Op) -> bool:
    """Whether the row's matrices are stored in the weight format.

    Quantisation leaves out what also trains in 16 bits (`Op.low_precision`): head and router. With
    a format of 16 bits or more no row takes it: all weights count as kept.
    """
    fmt = deployment.weights
    if not fmt.quantised or not op.low_precision:
        return False
    if fmt.scope == "feed-forward" and op.name.startswith("attention/"):
        return False
    if fmt.scope == "experts" and deployment.model.moe:
        return op.kind is OpKind.GROUPED_GEMM
    return op.is_product


def _matrix_elements(op: Op) -> float:
    """Elements of all the row's matrices, unsharded."""
    return op.groups * (op.out_width + op.kv_out_width) * op.in_width


def _carries_matrix(op: Op, shard: ParamShard) -> bool:
    """Whether a parameter count of a row includes matrix elements. Replicated counts are biases,
    unless the whole row is replicated (MLA's down-projections)."""
    replicated = all(other is ParamShard.NONE for _, other in op.parameters)
    return replicated or shard is not ParamShard.NONE


def _matrix_share(op: Op) -> float:
    """Share of matrix elements among the parameters of the counts that include any; the rest are
    biases."""
    carried = sum(count for count, shard in op.parameters if _carries_matrix(op, shard))
    return _matrix_elements(op) / carried if carried else 0.0


def _kernel_padding(deployment: Deployment, op: Op) -> float:
    """Factor by which an expert's matrix grows if its kernel pads hidden size and width on the
    rank."""
    model = deployment.model
    padded = deployment.weights.padded_experts and op.kind is OpKind.GROUPED_GEMM
    if not padded or model.moe is None:
        return 1.0
    width = model.moe.ffn // deployment.expert_tp
    engine = deployment.engine
    return _padding(model.hidden, engine.pad_hidden) * _padding(width, engine.pad_width)


def _padding(width: int, multiple: int) -> float:
    return math.ceil(width / multiple) * multiple / width


def _absorbed(deployment: Deployment, op: Op) -> float:
    """Bytes of the 16-bit copies of MLA's key and value up-projections, kept in addition to the
    quantised matrix. If unquantised, they are views of the same memory (vLLM, MLA attention after
    loading)."""
    if op.name != "attention/kv_up":
        return 0.0
    return _matrix_elements(op) / deployment.tp * deployment.weights.kept_bytes
