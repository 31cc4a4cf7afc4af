"""Rows of adapters next to frozen products, and the effect of freezing on the other rows of a
piece.

A low-rank adapter (Hu et al. 2021, arXiv 2106.09685) of a product from `in` to `out` adds, for each
token, s·B·A·x with A: r x in and B: out x r. Its rows are the products by A and by B, and one row
that only moves memory: casts and dropout of x, the scale s, the sum with the frozen product.

Backward of a frozen product computes a gradient of its input and none of its weights, so it keeps
no input. Adapters keep the input, once for all that read it; or each a cast of it; or with dropout
the dropped input and its mask (peft, src/peft/tuners/lora/layer.py, Linear.forward). Frozen norms
that scale with a torch operation keep no normalised tensor. Kernels that fuse an adapter with its
product (unsloth, kernels/fast_lora.py) keep only x.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from planner.cost.codes import CollectiveKind, OpKind, ParamShard, Shard
from planner.job.parameter_classes import class_name
from planner.job.recompute import Module
from planner.predict.ops.adapter_parts import Part, input_of, parts_of
from planner.predict.ops.context import WHOLE_LAYER, OpContext, present
from planner.predict.ops.frozen import Frozen, is_input, is_packed, is_trained, is_wide, keeps_input
from planner.predict.ops.merged import merged_rows, merges
from planner.predict.ops.rows import Collective, Op, Piece, Saved

_HALF, _FP32, _MASK = 2.0, 4.0, 1.0
# CPU time to issue an operator of a backward over that of its forward: autograd's engine issues it
# in C++, without Python and modules. Assumed; LoRA of Qwen 1.8B on one A100 at 256 tokens, which
# waits for the CPU, is still 30 % slow with it (QwenLM/Qwen, README).
_ENGINE_SHARE = 0.5


def with_tuning(piece: Piece, context: OpContext, *, frozen: bool = False) -> Piece:
    """The piece with its rows changed to fit the job's tuning: rows that are not trained become
    frozen, and rows of adapters are added. Unchanged if the job trains all weights. `frozen`: no
    part of this piece is trained, so it gets no adapters."""
    if context.tuning.trains_all:
        return piece
    rule = Frozen(context, frozen)
    adapted = {op.name: parts_of(op, context) for op in piece.ops} if not frozen else {}
    kept = _kept_inputs(piece.ops, adapted, context, frozen=frozen)
    ops: list[Op] = []
    for op in piece.ops:
        parts = adapted.get(op.name, ())
        ops.extend(rule.rows(op, kept.get(op.name, ()), adapted=bool(parts)))
        rows_of = merged_rows if merges(op, context) else _adapter_rows
        for part in parts:
            ops.extend(rows_of(op, part, context))
    return replace(piece, ops=tuple(ops))


def _shares_input(op: Op, context: OpContext) -> bool:
    """Whether adapters read, and keep, the same tensor as the frozen product."""
    shares = not _cast_bytes(op, context) and not context.tuning.dropout
    return _are_fused(context) or shares


def _are_fused(context: OpContext) -> bool:
    """Whether kernels fuse adapters with their products: unsloth's do without dropout
    (unsloth/models/llama.py, patch_peft_model)."""
    return bool(context.profile.adapters.fused_kernels) and not context.tuning.dropout


def _cast_bytes(op: Op, context: OpContext) -> float:
    """Bytes per element of the cast of the input that each adapter of a row keeps; 0 if it reads
    the row's input without a cast.

    peft casts to the type of the adapter's weights, except next to quantised products under
    autocast (src/peft/tuners/lora/layer.py, Linear.forward; bnb.py, Linear4bit.forward); autocast
    then casts fp32 inputs to 16 bits.
    """
    rules, tuning = context.profile.adapters, context.tuning
    if _are_fused(context) or not rules.cast_bytes:
        return 0.0
    differs = (tuning.adapter or rules.weight_type) == "fp32"
    if tuning.base and is_packed(op, context) and rules.cast_bytes < _FP32:
        differs = False
    return rules.cast_bytes if differs or is_wide(op, context) else 0.0


def _kept_inputs(
    ops: Sequence[Op], adapted: dict[str, tuple[Part, ...]], context: OpContext, *, frozen: bool
) -> dict[str, tuple[Saved, ...]]:
    """The inputs that the products keep for backward, by the name of the row; rows that keep none
    may be missing. If several products read the same tensor, only the first of them that needs it
    keeps it."""
    held: dict[str, tuple[Saved, ...]] = {}
    for op in ops:
        rows = tuple(row for row in op.saved if op.is_product and is_input(row, context))
        if rows:
            held.setdefault(_input_of(op, context), rows)
    kept: dict[str, tuple[Saved, ...]] = {}
    for op in ops:
        reads = is_trained(op, context, frozen=frozen) or keeps_input(op, context)
        # Fused kernels recompute the down projection's input, as the activation's output.
        remade = _are_fused(context) and op.name.endswith("/down")
        shares = (_shares_input(op, context) and not remade) or merges(op, context)
        reads = reads or (shares and bool(adapted.get(op.name)))
        if op.is_product and reads:
            rows = held.pop(_input_of(op, context), ())
            gathered = (_gathered(row, context) for row in rows)
            kept[op.name] = tuple(_as_wide(row, op, context) for row in gathered)
    return kept


def _gathered(row: Saved, context: OpContext) -> Saved:
    """A kept input as it is stored: whole on every rank if the job has adapters that tensor
    parallelism splits, otherwise unchanged (Megatron-Bridge, src/megatron/bridge/peft/lora.py,
    sequence_parallel_input_regather)."""
    split = context.tuning.has_adapters and context.profile.adapters.fused_targets
    return replace(row, shard=Shard.NONE) if split and row.shard is Shard.SEQUENCE else row


def _input_of(op: Op, context: OpContext) -> str:
    """Name under which a product's input is kept: the name of the shared tensor if the framework
    keeps one for all its readers, otherwise the name of the row, because each product keeps a cast
    of its own."""
    return input_of(op, context) if context.saved.linear_inputs_shared else op.name


def _as_wide(row: Saved, op: Op, context: OpContext) -> Saved:
    """A kept input with the bytes of the type in which its product receives it: fp32 for a
    quantised product that reads an fp32 tensor, otherwise unchanged."""
    if not (context.tuning.base and is_packed(op, context) and is_wide(op, context)):
        return row
    factor = _FP32 / context.saved.activation_bytes
    return replace(row, bytes_per_token=factor * row.bytes_per_token)


@dataclass(frozen=True)
class _Adapter:
    """One adapter: its product, the part of that product that it adapts, and the job's rules."""

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
        """Bytes of a value in the adapter's arithmetic."""
        return max(_cast_bytes(self.op, self.context), self.context.saved.activation_bytes)

    @property
    def cast_of_weights(self) -> float:
        """Bytes per weight of the 16-bit copy of fp32 adapter weights that autocast makes and the
        graph keeps. 0 if the adapter is not fp32, if there is no autocast, or if the base is fp32:
        then the 16-bit copy of all weights (`saved.weight_cast_bytes`) includes it."""
        autocasts = 0.0 < self.context.profile.adapters.cast_bytes < _FP32
        over_16_bits = autocasts and not self.context.saved.weight_cast_bytes
        return _HALF if over_16_bits and self.held == "fp32" else 0.0

    @property
    def held(self) -> str:
        """Name of the type in which the adapter's weights are stored: the type that the job states,
        else the framework's."""
        return self.context.tuning.adapter or self.context.profile.adapters.weight_type

    @property
    def dropout(self) -> bool:
        return self.context.tuning.dropout > 0.0

    @property
    def fused(self) -> bool:
        return _are_fused(self.context)

    @property
    def of_each_expert(self) -> bool:
        """Whether every expert has adapter matrices of its own."""
        shared = bool(self.context.profile.adapters.shares_expert_adapters)
        return self.op.kind is OpKind.GROUPED_GEMM and not shared

    @property
    def groups(self) -> float:
        """Number of pairs of matrices A and B in the row: one per expert if every expert has its
        own, else 1."""
        return self.op.groups if self.of_each_expert else 1.0

    @property
    def parameter_class(self) -> str:
        """Parameter class of the adapter's matrices; matrices in the framework's type for trained
        weights are stored like those weights."""
        expert = self.of_each_expert
        held = None if self.held == "framework" else self.held
        return class_name("adapter", held, expert=expert)

    @property
    def is_split(self) -> bool:
        """Whether tensor parallelism divides both matrices."""
        return bool(self.context.profile.adapters.fused_targets)

    @property
    def freed(self) -> Module:
        """The recompute modes that drop the tensors that the adapter keeps: those that drop the
        product's input or, if the product lists no input, those that recompute the whole layer.
        NOTHING for the output head."""
        if self.op.pads_vocabulary:
            return Module.NOTHING
        inputs = [row for row in self.op.saved if is_input(row, self.context)]
        return inputs[0].freed_by if inputs else WHOLE_LAYER

    def shards(self, *, first: bool) -> ParamShard:
        """How tensor parallelism divides the matrix A (`first` is true) or B."""
        if self.op.kind is OpKind.GROUPED_GEMM:
            return ParamShard.EXPERT if self.of_each_expert else ParamShard.NONE
        if self.is_split:
            return ParamShard.TP
        if first:
            return ParamShard.TP if self.op.in_shard is Shard.TP else ParamShard.NONE
        return self.part.shard

    def product(
        self, name: str, sizes: tuple[float, float], saved: tuple[Saved, ...], first: bool
    ) -> Op:
        """The product by one of the adapter's matrices, for all experts if there are several."""
        into, out = sizes
        count = self.groups * into * out
        cast = Saved(f"{self.name}/{name}/cast", 0.0, self.op.tokens, self.freed,
                     fixed_bytes=self.cast_of_weights * count)  # fmt: skip
        return Op(
            name=f"{self.name}/{name}",
            kind=self.op.kind if self.of_each_expert else OpKind.GEMM,
            tokens=self.op.tokens,
            tokens_factor=self.op.tokens_factor,
            out_width=out,
            in_width=into,
            groups=self.groups,
            parameters=((count, self.shards(first=first)),),
            parameter_class=self.parameter_class,
            saved=(*saved, *present((cast,))),
            low_precision=False,
            backward_kernels=2.0 * _ENGINE_SHARE,
            torch_operators=True,
            captured=self.op.captured,
            rerun_with=self.op.rerun_with,
        )


def _adapter_rows(op: Op, part: Part, context: OpContext) -> Iterator[Op]:
    """The products by A and by B, the row of the memory that they move and, in DoRA, the row of the
    magnitudes."""
    one = _Adapter(op, part, context)
    first = one.product("lora_a", (part.into, one.rank), _kept_by_first(one), True)
    first = replace(first, in_shard=op.in_shard)
    second = one.product("lora_b", (one.rank, part.out), _kept_by_second(one), False)
    if one.is_split and op.kind is not OpKind.GROUPED_GEMM:
        yield from _split(first, second, op.in_shard is Shard.TP)
    else:
        yield first
        yield _by_outputs(second, one)
    yield _moved(one)
    if context.tuning.method == "dora":
        yield _magnitude(one)


def _by_outputs(second: Op, one: _Adapter) -> Op:
    """The product by B, with its outputs divided over ranks as those of the frozen product are."""
    if one.part.shard is ParamShard.KV:
        return replace(second, out_width=0.0, kv_out_width=one.part.out)
    if one.op.kind is OpKind.GROUPED_GEMM and not one.of_each_expert:
        return second
    return replace(second, out_shard=one.op.out_shard)


def _split(first: Op, second: Op, by_inputs: bool) -> tuple[Op, Op]:
    """Products whose matrices tensor parallelism divides, with their exchanges.

    B is split by outputs; A by outputs, or by inputs if the frozen product is (`by_inputs`). A·x is
    gathered in the first case and summed in the second; in the second, B·A·x is gathered too, and
    under sequence parallelism its gradient as well (Megatron-Bridge,
    src/megatron/bridge/peft/utils.py, ParallelLinearAdapter).
    """
    narrow = CollectiveKind.ALL_REDUCE if by_inputs else CollectiveKind.ALL_GATHER
    inner = Collective(f"{first.name}/exchange", narrow, "tp", 2.0 * first.out_width, 1, 0)
    outer = Collective(
        f"{second.name}/gather", CollectiveKind.ALL_GATHER, "tp", 2.0 * second.out_width, 1, 1
    )
    return (
        replace(first, out_shard=Shard.NONE if by_inputs else Shard.TP, collectives=(inner,)),
        replace(second, out_shard=Shard.TP, collectives=(outer,) if by_inputs else ()),
    )


def _kept_by_first(one: _Adapter) -> tuple[Saved, ...]:
    """The input that the product by A keeps, with dropout's mask if there is dropout; empty if the
    adapter keeps the same tensor as the frozen product."""
    width = one.part.into * one.op.tokens_factor
    if _shares_input(one.op, one.context):
        return ()
    size = one.element + (_MASK if one.dropout else 0.0)
    return (Saved(f"{one.name}/input", size * width, one.part.input_shard, one.freed),)


def _kept_by_second(one: _Adapter) -> tuple[Saved, ...]:
    """A·x, the input of the product by B; fused kernels compute it again."""
    if one.fused:
        return ()
    size = one.element * one.rank * one.op.tokens_factor
    return (Saved(f"{one.name}/projected", size, one.op.tokens, one.freed),)


def _moved(one: _Adapter) -> Op:
    """Casts and dropout of the input, scale and sum of the output.

    Bytes per element, r = read, w = written. Forward: the cast to the adapters' type and, under
    autocast, back; dropout's input, output and mask; the scaled output r w, the sum r r w.
    Backward: the gradient scaled r w, dropout's r w and its mask, casts, and the gradient of the
    input added to the frozen product's r r w. Fused kernels add within the products.
    """
    context, part = one.context, one.part
    traffic = context.profile.kernels.memory_traffic
    cast = _cast_bytes(one.op, context) > 0.0
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
        backward_kernels=kernels * _ENGINE_SHARE,
        torch_operators=True,
        captured=one.op.captured,
        rerun_with=one.op.rerun_with,
    )


def _dora_bytes(one: _Adapter) -> float:
    """Bytes that DoRA keeps regardless of the number of tokens: the norms of the weight's rows, and
    the magnitudes divided by them, unchanged and minus one. With dropout it multiplies by the
    frozen weight itself, and keeps a copy of that weight if it is packed or of another type than
    the adapter (peft, src/peft/tuners/lora/dora.py, DoraLinearLayer.forward; variants.py,
    DoraLinearVariant)."""
    out, wide = one.op.groups * one.part.out, one.held == "fp32"
    vectors = 3.0 * (_FP32 if wide else _HALF) * out
    packed = bool(one.context.tuning.base) and is_packed(one.op, one.context)
    copied = one.dropout and (wide or packed)
    return vectors + (one.element * one.part.into * out if copied else 0.0)


def _magnitude(one: _Adapter) -> Op:
    """The row of DoRA's magnitudes, one per output, with the tensors kept for their norms and the
    two results that they scale (Liu et al. 2024, arXiv 2402.09353)."""
    part, context, groups = one.part, one.context, one.groups
    traffic, size = context.profile.kernels.memory_traffic, one.element
    scaled = 2.0 * size * part.out * one.op.tokens_factor
    kept = Saved(f"{one.name}/scaled", scaled, one.op.tokens, one.freed,
                 fixed_bytes=_dora_bytes(one))  # fmt: skip
    return Op(
        name=f"{one.name}/magnitude",
        kind=OpKind.MEMORY,
        tokens=one.op.tokens,
        tokens_factor=one.op.tokens_factor,
        forward_bytes=6.0 * size * part.out / traffic,
        backward_bytes=8.0 * size * part.out / traffic,
        forward_kernels=8.0,
        backward_kernels=6.0 * _ENGINE_SHARE,
        parameters=((groups * part.out, one.shards(first=False)),),
        parameter_class=one.parameter_class,
        saved=(kept,),
        torch_operators=True,
        rerun_with=one.op.rerun_with,
    )
