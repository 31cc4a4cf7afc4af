"""Rows of a vision part: the tower's layers, what stands before and behind them, and the projector.

A tower's rows are those of a layer whose tokens are patches; here they are scaled to patches for
each token of the language model, so that one micro-batch has them all. Attention is among the
patches of one image, tile or window. What stands outside the tower's layers is on the stage of the
embeddings and is never checkpointed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from planner.cost.codes import OpKind, ParamShard, Shard
from planner.job.recompute import Module
from planner.job.specs import LayerKind
from planner.job.towers import tower_model
from planner.job.tuning import PROJECTOR, VISION_TOWER, Tuning
from planner.job.vision import TowerSpec, VisionSpec
from planner.predict.ops.adapters import with_tuning
from planner.predict.ops.context import OpContext, elementwise, norm
from planner.predict.ops.linear import linear_inputs
from planner.predict.ops.rows import Op, Piece, Saved

Layer = Callable[[OpContext, LayerKind], Piece]


def tower_layer(context: OpContext, kind: LayerKind, layer: Layer) -> Piece:
    """A layer of the tower; `layer`: builds one of any model."""
    model = tower_model(_vision(context).tower)
    span = context.model.images.span
    if kind.attention == "sliding":
        span = min(span, model.sliding_window or span)
    inside = tower_context(context, span)
    piece = layer(inside, kind.model_copy(update={"module": "language"}))
    if _vision(context).tower.layer_scale:
        scales = Piece("scales", tuple(_scales(inside)))
        scales = with_tuning(scales, inside, frozen=kind.frozen)
        piece = replace(piece, ops=(*piece.ops, *scales.ops))
    name = f"vision {piece.name}"
    return Piece(name, tuple(_of_patches(op, context, span) for op in piece.ops))


def _scales(context: OpContext) -> Iterator[Op]:
    """A learned factor a channel on what each block adds, whose gradient needs what it scales
    (transformers, modeling_internvl.py, lambda_1 and lambda_2)."""
    hidden = float(context.model.hidden)
    for block in ("attention", "ffn"):
        row = elementwise(context, f"{block}/scale", hidden, Shard.SEQUENCE, (2, 4))
        kept = context.kept(f"{block}/scaled", hidden, Shard.SEQUENCE)
        yield replace(row, parameters=((hidden, ParamShard.NONE),), saved=(kept,))


def tower_context(context: OpContext, span: int) -> OpContext:
    """What the tower's rows depend on, where a patch attends to so many."""
    return replace(
        context,
        model=tower_model(_vision(context).tower),
        seq=span,
        dropout=False,
        tuning=part_tuning(context.tuning, VISION_TOWER),
    )


def part_tuning(tuning: Tuning, part: str) -> Tuning:
    """How the tower or the projector is trained: as the language model, without what names its
    layers, or not at all."""
    if tuning.freezes(part):
        return replace(tuning, method="full", rank=0, targets=(), whole=(), frozen=("embeddings",))
    return replace(tuning, whole=(), frozen=())


def end_rows(context: OpContext) -> tuple[Op, ...]:
    """What stands before the tower's layers and behind them, and the projector."""
    if context.model.vision is None:
        return ()
    tower = tower_context(context, context.model.images.span)
    ends = Piece("vision", tuple(_tower_ends(tower, _vision(context).tower)))
    frozen = context.tuning.freezes(VISION_TOWER)
    ends = with_tuning(ends, tower, frozen=frozen)
    rows = [_of_patches(op, context, 1) for op in ends.ops]
    return (*rows, *_projector(context))


def _vision(context: OpContext) -> VisionSpec:
    vision = context.model.vision
    if vision is None:
        raise ValueError(f"{context.model.name} has no vision part")
    return vision


def _of_patches(op: Op, context: OpContext, span: int, share: float = 1.0) -> Op:
    """A row per patch as one per token of the language model; `share`: of the patches."""
    factor = share * context.model.images.patches
    named = replace(op, name=f"vision/{op.name}")
    if not factor:
        return _only_held(named)
    return replace(
        named,
        tokens_factor=factor * op.tokens_factor,
        span=float(span) if op.kind is OpKind.ATTENTION else 0.0,
        window=0.0,
        saved=tuple(replace(row, bytes_per_token=factor * row.bytes_per_token) for row in op.saved),
        collectives=tuple(
            replace(one, bytes_per_token=factor * one.bytes_per_token) for one in op.collectives
        ),
    )


def _only_held(op: Op) -> Op:
    """The weights of a row that a batch without images does not use."""
    return Op(
        name=op.name,
        kind=OpKind.MEMORY,
        forward_kernels=0.0,
        backward_kernels=0.0,
        parameters=op.parameters,
        parameter_class=op.parameter_class,
        rerun_with=Module.NOTHING,
    )


def _tower_ends(context: OpContext, tower: TowerSpec) -> Iterator[Op]:
    """Patch embedding with positions, and the norms around the layers; per patch."""
    hidden, values = float(tower.hidden), float(tower.patch_values)
    learned = hidden * (tower.positions + tower.class_tokens)
    yield Op(
        name="patch_embedding",
        kind=OpKind.GEMM,
        tokens=Shard.SEQUENCE,
        out_width=hidden,
        in_width=values,
        parameters=((hidden * (values + tower.patch_bias), ParamShard.NONE),),
        saved=_never_freed(linear_inputs(context, "patch_embedding", values, Module.NOTHING)),
        rerun_with=Module.NOTHING,
    )
    if learned:
        row = elementwise(context, "positions", hidden, Shard.SEQUENCE, (3, 1), Module.NOTHING)
        yield replace(row, parameters=((learned, ParamShard.NONE),))
    for name, present in (("norm_before", tower.norm_before), ("norm_after", tower.norm_after)):
        if present:
            yield _kept(norm(context, name, hidden, of_stream=True))


def _projector(context: OpContext) -> tuple[Op, ...]:
    """Norm and linear layers between tower and language model, and its further projectors."""
    vision = _vision(context)
    inside = replace(tower_context(context, 1), tuning=part_tuning(context.tuning, PROJECTOR))
    frozen = context.tuning.freezes(PROJECTOR)
    rows: list[Op] = []
    for tap in range(1 + len(vision.projector.taps)):
        name = "projector" if not tap else f"projector/tap{tap}"
        width = vision.projector.tap_norm_width if tap else vision.projector.norm_width
        piece = Piece(name, tuple(_one_projector(inside, vision, name, width)))
        tuned = with_tuning(piece, inside, frozen=frozen)
        rows.extend(_of_patches(op, context, 1) for op in tuned.ops)
    return tuple(rows)


def _one_projector(
    context: OpContext, vision: VisionSpec, name: str, norm_width: int
) -> Iterator[Op]:
    """Rows of a projector per patch of the tower."""
    projector = vision.projector
    share = 1.0 / projector.merged
    if projector.learned and not name.count("tap"):
        yield _learned(context, projector.learned * float(projector.widths[-1]))
    if norm_width:
        normed = share if norm_width == projector.widths[0] else 1.0
        inside = replace(
            context,
            model=context.model.model_copy(
                update={"norm": projector.norm, "norm_bias": projector.norm == "layernorm"}
            ),
        )
        row = norm(inside, f"{name}/norm", float(norm_width), of_stream=True)
        yield _kept(_times(row, normed))
    pairs = tuple(zip(projector.widths, projector.widths[1:], strict=False))
    for index, (into, out) in enumerate(pairs):
        layer = f"{name}/linear{index + 1}"
        inputs = linear_inputs(context, layer, float(into), Module.NOTHING)
        yield _times(
            Op(
                name=layer,
                kind=OpKind.GEMM,
                tokens=Shard.SEQUENCE,
                out_width=float(out),
                in_width=float(into),
                parameters=((float(out) * (into + projector.bias), ParamShard.NONE),),
                saved=_never_freed(inputs),
                rerun_with=Module.NOTHING,
            ),
            share,
        )
        if index + 1 < len(pairs):
            act = elementwise(context, f"{layer}/activation", float(out), Shard.SEQUENCE, (2, 3))
            size = context.saved.activation_bytes * float(out)
            kept = Saved(f"{layer}/activation_input", size, Shard.SEQUENCE, Module.NOTHING)
            yield _times(replace(act, saved=(kept,), rerun_with=Module.NOTHING), share)


def _learned(context: OpContext, parameters: float) -> Op:
    """Vectors that stand between rows of patches, whose copies are part of the row."""
    row = elementwise(context, "projector/row_ends", 0.0, Shard.SEQUENCE, (0, 0), Module.NOTHING)
    return replace(row, parameters=((parameters, ParamShard.NONE),))


def _times(op: Op, factor: float) -> Op:
    """A row of so many tokens for each that it is written for."""
    return replace(
        op,
        tokens_factor=factor * op.tokens_factor,
        saved=tuple(replace(row, bytes_per_token=factor * row.bytes_per_token) for row in op.saved),
    )


def _kept(op: Op) -> Op:
    """The row with tensors that no recompute mode frees."""
    return replace(op, saved=_never_freed(op.saved), rerun_with=Module.NOTHING)


def _never_freed(saved: tuple[Saved, ...]) -> tuple[Saved, ...]:
    return tuple(replace(row, freed_by=Module.NOTHING) for row in saved)
