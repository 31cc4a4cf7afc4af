"""Rows of adapters beside frozen products, and what freezing changes in the other rows of a piece.

A low-rank adapter (Hu et al. 2021, arXiv 2106.09685) of a product from `in` to `out` adds, for each
token, s·B·A·x with A: r x in and B: out x r. Its rows are the products by A and by B, and one for
what moves memory alone: casts and dropout of x, the scale s, the sum with the frozen product.

A frozen product has a gradient of its input and none of its weights, so it keeps no input; adapters
keep it, once for all that read it, or a cast of their own, or with dropout the dropped one and its
mask (peft, src/peft/tuners/lora/layer.py, Linear.forward). Frozen norms that scale by an operation
of torch keep no normalised tensor. Kernels that fuse an adapter with its product (unsloth,
kernels/fast_lora.py) keep x alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from planner.cost.codes import OpKind, ParamShard, Shard
from planner.job.parameter_classes import class_name
from planner.job.recompute import Module
from planner.predict.ops.adapter_parts import Part, input_of, parts_of
from planner.predict.ops.context import WHOLE_LAYER, OpContext
from planner.predict.ops.frozen import Frozen, is_input, is_trained
from planner.predict.ops.rows import Op, Piece, Saved

_FP32, _MASK = 4.0, 1.0


def with_tuning(piece: Piece, context: OpContext, *, frozen: bool = False) -> Piece:
    """A piece as it is trained: rows frozen, adapters beside them; `frozen`: nothing trains it."""
    if context.tuning.trains_all:
        return piece
    rule = Frozen(context, frozen)
    adapted = {op.name: parts_of(op, context) for op in piece.ops} if not frozen else {}
    kept = _kept_inputs(piece.ops, adapted, context, frozen=frozen)
    ops: list[Op] = []
    for op in piece.ops:
        parts = adapted.get(op.name, ())
        ops.extend(rule.rows(op, kept.get(op.name, ()), adapted=bool(parts)))
        for part in parts:
            ops.extend(_adapter_rows(op, part, context))
    return replace(piece, ops=tuple(ops))


def _shares_inputs(context: OpContext) -> bool:
    """Whether adapters read, and keep, the very tensor that the frozen product reads."""
    rules, tuning = context.profile.adapters, context.tuning
    return rules.fused_kernels or (not rules.cast_bytes and not tuning.dropout)


def _kept_inputs(
    ops: Sequence[Op],
    adapted: dict[str, tuple[Part, ...]],
    context: OpContext,
    *,
    frozen: bool,
) -> dict[str, tuple[Saved, ...]]:
    """Of each row the inputs that it keeps: of a tensor that several products read, the first that
    trains keeps it."""
    held: dict[str, tuple[Saved, ...]] = {}
    for op in ops:
        rows = tuple(row for row in op.saved if op.is_product and is_input(row, context))
        if rows:
            held.setdefault(input_of(op, context), rows)
    kept: dict[str, tuple[Saved, ...]] = {}
    for op in ops:
        reads = is_trained(op, context, frozen=frozen)
        shares = _shares_inputs(context) and not _is_made_again(op, context)
        reads = reads or (shares and bool(adapted.get(op.name)))
        if op.is_product and reads:
            kept[op.name] = held.pop(input_of(op, context), ())
    return kept


def _is_made_again(op: Op, context: OpContext) -> bool:
    """Whether fused kernels make the product's input again, as the activation's output."""
    return bool(context.profile.adapters.fused_kernels) and op.name.endswith("/down")


@dataclass(frozen=True)
class _Adapter:
    """One adapter: the product it stands beside, its part of that, and the job's rules."""

    op: Op
    part: Part
    context: OpContext

    @property
    def name(self) -> str:
        return f"{self.op.name}/{self.part.name}"

    @property
    def rank(self) -> float:
        return float(self.context.tuning.rank)

    @property
    def element(self) -> float:
        """Bytes of a value that the adapter computes with."""
        return max(self.context.profile.adapters.cast_bytes, self.context.saved.activation_bytes)

    @property
    def dropout(self) -> bool:
        return self.context.tuning.dropout > 0.0

    @property
    def fused(self) -> bool:
        return bool(self.context.profile.adapters.fused_kernels)

    @property
    def parameter_class(self) -> str:
        """Of its matrices; those in the type of trained weights are held as these are."""
        rules = self.context.profile.adapters
        held = self.context.tuning.adapter or rules.weight_type
        expert = self.op.kind is OpKind.GROUPED_GEMM
        return class_name("adapter", None if held == "framework" else held, expert=expert)

    @property
    def is_split(self) -> bool:
        """Whether tensor parallelism divides both matrices."""
        return bool(self.context.profile.adapters.fused_targets)

    @property
    def freed(self) -> Module:
        """What frees its tensors: recomputation of the layer, or of the product's input."""
        if self.op.pads_vocabulary:
            return Module.NOTHING
        inputs = [row for row in self.op.saved if is_input(row, self.context)]
        return inputs[0].freed_by if inputs else WHOLE_LAYER

    def shards(self, *, first: bool) -> ParamShard:
        """How the matrix A (`first`) or B is divided."""
        if self.op.kind is OpKind.GROUPED_GEMM:
            return ParamShard.EXPERT
        if self.is_split:
            return ParamShard.TP
        if first:
            return ParamShard.TP if self.op.in_shard is Shard.TP else ParamShard.NONE
        return self.part.shard

    def product(
        self, name: str, sizes: tuple[float, float], saved: tuple[Saved, ...], first: bool
    ) -> Op:
        """The product by one of its matrices, for all experts where there are several."""
        into, out = sizes
        count = self.op.groups * into * out
        return Op(
            name=f"{self.name}/{name}",
            kind=self.op.kind,
            tokens=self.op.tokens,
            tokens_factor=self.op.tokens_factor,
            out_width=out,
            in_width=into,
            groups=self.op.groups,
            parameters=((count, self.shards(first=first)),),
            parameter_class=self.parameter_class,
            saved=saved,
            low_precision=False,
            torch_operators=True,
            captured=self.op.captured,
            rerun_with=self.op.rerun_with,
        )


def _adapter_rows(op: Op, part: Part, context: OpContext) -> Iterator[Op]:
    """Products by A and by B, then the memory that they move."""
    one = _Adapter(op, part, context)
    first = one.product("lora_a", (part.into, one.rank), _kept_by_first(one), True)
    yield replace(first, in_shard=op.in_shard)
    second = one.product("lora_b", (one.rank, part.out), _kept_by_second(one), False)
    if part.shard is ParamShard.KV:
        second = replace(second, out_width=0.0, kv_out_width=part.out)
    elif op.kind is not OpKind.GROUPED_GEMM or op.out_shard is not Shard.NONE:
        second = replace(second, out_shard=op.out_shard)
    yield second
    yield _moved(one)
    if context.tuning.method == "dora":
        yield _magnitude(one)


def _kept_by_first(one: _Adapter) -> tuple[Saved, ...]:
    """What the product by A keeps of its input, unless it shares that with others."""
    context, width = one.context, one.part.into * one.op.tokens_factor
    if _shares_inputs(context):
        return ()
    size = one.element + (_MASK if one.dropout else 0.0)
    return (Saved(f"{one.name}/input", size * width, one.part.input_shard, one.freed),)


def _kept_by_second(one: _Adapter) -> tuple[Saved, ...]:
    """A·x, the input of the product by B; fused kernels make it again."""
    if one.fused:
        return ()
    size = one.element * one.rank * one.op.tokens_factor
    return (Saved(f"{one.name}/projected", size, one.op.tokens, one.freed),)


def _moved(one: _Adapter) -> Op:
    """Casts and dropout of the input, scale and sum of the output.

    Bytes an element, r = read, w = written. Forward: the cast to the adapters' type and, under
    autocast, back; dropout's input, output and mask; the scaled output r w, the sum r r w.
    Backward: the gradient scaled r w, dropout's r w and its mask, casts, and the gradient of the
    input added to the frozen product's r r w. Kernels that are fused add within the products.
    """
    context, part = one.context, one.part
    traffic = context.profile.kernels.memory_traffic
    cast = context.profile.adapters.cast_bytes > 0.0 and not one.fused
    stream, size = context.saved.activation_bytes, one.element
    casts = (stream + _FP32) + (_FP32 + size if size < _FP32 else 0.0) if cast else 0.0
    dropped = 2.0 * (_FP32 if cast else size) + _MASK if one.dropout else 0.0
    summed = 0.0 if one.fused else 5.0 * size
    back = (0.0 if one.fused else 2.0 * size) * part.out
    forward = (casts + dropped) * part.into + summed * part.out
    backward = (casts + dropped + (0.0 if one.fused else 3.0 * size)) * part.into + back
    kernels = (2.0 if cast else 0.0) + float(one.dropout) + (0.0 if one.fused else 2.0)
    return Op(
        name=f"{one.name}/add",
        kind=OpKind.MEMORY,
        tokens=part.input_shard if part.input_shard is not Shard.SEQUENCE else one.op.tokens,
        tokens_factor=one.op.tokens_factor,
        forward_bytes=forward / traffic,
        backward_bytes=backward / traffic,
        forward_kernels=kernels,
        backward_kernels=kernels,
        torch_operators=True,
        captured=one.op.captured,
        rerun_with=one.op.rerun_with,
    )


def _magnitude(one: _Adapter) -> Op:
    """DoRA's magnitudes, one for each output, with what it makes of the frozen weight for their
    norms and the two results that it scales by them (Liu et al. 2024, arXiv 2402.09353)."""
    part, context, groups = one.part, one.context, one.op.groups
    traffic, size = context.profile.kernels.memory_traffic, one.element
    kept = Saved(
        f"{one.name}/scaled", 2.0 * size * part.out * one.op.tokens_factor, one.op.tokens, one.freed
    )
    return Op(
        name=f"{one.name}/magnitude",
        kind=OpKind.MEMORY,
        tokens=one.op.tokens,
        tokens_factor=one.op.tokens_factor,
        forward_bytes=6.0 * size * part.out / traffic,
        backward_bytes=8.0 * size * part.out / traffic,
        forward_kernels=8.0,
        backward_kernels=6.0,
        parameters=((groups * part.out, one.shards(first=False)),),
        parameter_class=one.parameter_class,
        saved=(kept,),
        torch_operators=True,
        rerun_with=one.op.rerun_with,
    )
