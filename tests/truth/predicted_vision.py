"""Vision towers and projectors, against counts made in transformers.

Each row counts one image, or one tile, in a row of the language model that has as many tokens as
the tower reads, so that bytes a token here are bytes a patch there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.cost.keys import weight_elements
from planner.job.frameworks.adapters import tuned_profile
from planner.job.frameworks.profile import DtypeModeName, load_framework, with_tables
from planner.job.models.catalog import load_model
from planner.job.recompute import Module
from planner.job.specs import ModelSpec
from planner.job.tuning import VISION_TOWER, Tuning, read_tuning
from planner.job.vision import ImageLoad, VisionSpec
from planner.predict.ops.context import OpContext
from planner.predict.ops.rows import Op, Piece
from planner.predict.ops.table import pieces
from planner.predict.saved import Key, rank_key, saved_bytes
from tests.truth.predicted import Compared, Row

_MODES: dict[str, DtypeModeName] = {
    "bf16": "bf16",
    "bf16-amp": "bf16",
    "amp": "amp",
    "fp32": "fp32",
}
# Modules of a layer and of the ends of a tower by the end of their path in transformers, and rows
# of the op table by the beginning of their name, under the same term.
_LAYER_MODULES = (
    ("attention norm", r"^(norm1|layer_norm1|layernorm_before|attention_norm|input_layernorm)$"),
    ("block norm", r"^(norm2|layer_norm2|layernorm_after|ffn_norm|post_attention_layernorm)$"),
    ("head norms", r"\.[qk]_norm$"),
    ("projections", r"\.(qkv|[qkv]_proj)$"),
    ("output", r"^attn\.proj$|\.(out_proj|o_proj|projection_layer)$"),
    ("attention", r"^(attn(\.inner_attn)?|self_attn|attention)$"),
    ("first products", r"\.(fc1|linear_fc1|gate_proj|up_proj)$"),
    ("last product", r"\.(fc2|linear_fc2|down_proj)$"),
    ("activation", r"^(mlp|feed_forward)(\.(act|act_fn|activation_fn))?$"),
    ("scales", r"^$"),
)
_LAYER_ROWS = (
    ("attention norm", r"attention/norm"),
    ("block norm", r"ffn/norm"),
    ("head norms", r"attention/[qk]_norm"),
    ("projections", r"attention/qkv"),
    ("output", r"attention/out_proj|attention/output_copied"),
    ("attention", r"attention/(q|q_scaled|k|v|lse|scores|output)$"),
    ("first products", r"mlp/(up|gate)"),
    ("last product", r"mlp/down"),
    ("activation", r"mlp/activation"),
    ("scales", r"(attention|ffn)/scaled"),
)
_END_MODULES = (
    (
        "norms",
        r"(final_layernorm|pre_layrnorm|post_layernorm|ln_pre|layernorm_pre|layernorm_post)$",
    ),
    (
        "projector norm",
        r"(ln_q|merger\.norm|merger_list\.0\.norm|layer_norm|embd?_norm|soft_emb_norm|projector\.norm|pre_norm|mlp1\.0)$",
    ),
    (
        "places and order",
        r"(pos_embed|pos_emb|positional_embedding(\.embedding)?|position_embedding|visual|vision_tower|layers\.0.*|blocks\.0.*)$",
    ),
    ("patches", r"(patch_embed.*|patch_conv)$"),
    ("pooling", r"avg_pool$"),
    ("projector", r"(merger|projector|connector|vision_adapter|mlp1)"),
)
_END_ROWS = (
    ("norms", r"norm_(before|after)"),
    ("projector norm", r"projector/(tap1/)?norm"),
    ("places and order", r"positions|mask|rotary|order|projector/order"),
    ("patches", r"patch"),
    ("pooling", r"projector/pooled"),
    ("projector", r"projector"),
)
MODULES = {"layer": _LAYER_MODULES, "ends": _END_MODULES}
ROWS = {"layer": _LAYER_ROWS, "ends": _END_ROWS}
_CHECKPOINTING = {"none": Module.NOTHING, "full": Module.FULL}


def vision_of(name: str) -> VisionSpec:
    """The vision part of a model of the catalogue."""
    vision = load_model(name).with_vision().spec.vision
    if vision is None:
        raise ValueError(f"{name} has no vision part")
    return vision


def counted_model(row: Row) -> ModelSpec:
    """The model of a row, with one image in a row of as many tokens as its tower reads."""
    frozen = bool(row["freeze"])
    spec = load_model(row["model"]).with_vision().spec
    vision = vision_of(row["model"]).model_copy(update={"frozen": frozen})
    patches = int(row["patches"])
    images = ImageLoad(patches=1.0, span=patches, tokens=0.0)
    projector = vision.projector.model_copy(update={"taps": (0,) * int(row["tapped"])})
    vision = vision.model_copy(update={"projector": projector})
    return spec.model_copy(update={"vision": vision, "images": images})


def vision_tuning(row: Row) -> Tuning:
    """What `--train` and `--freeze` say of a row."""
    words = "full"
    if row["method"] != "full":
        base = f",base={row['base']}" if row["base"] else ""
        words = f"{row['method']}:targets=all-linear{base}"
    return read_tuning(words, (VISION_TOWER,) if row["freeze"] else ())


def vision_context(row: Row) -> tuple[OpContext, Key]:
    """Context and key of a row."""
    model, tuning = counted_model(row), vision_tuning(row)
    rules: dict[str, Any] = {"cast_bytes": 4.0} if row["mode"] == "bf16" else {}
    profile = with_tables(load_framework("hf-transformers"), {"adapters": rules})
    profile = tuned_profile(profile, tuning, model).in_mode(_MODES[row["mode"]])
    context = OpContext(
        model, profile, int(row["patches"]),
        attention="eager" if row["attention"] == "eager" else "flash",
        mode=_MODES[row["mode"]], one_sequence=True, tuning=tuning,
    )  # fmt: skip
    return context, rank_key(recompute=_CHECKPOINTING[row["checkpointing"]])


def layer_piece(row: Row, context: OpContext) -> Piece:
    """The rows of a tower's layer that a row is about."""
    vision = context.model.vision
    tower = vision.tower if vision else None
    if tower is None:
        raise ValueError(row["model"])
    # Of Llama 3.2 the layers with gates.
    wanted, gates = row["windowed"] == "1", bool(tower.gated_layers)
    kinds = context.model.piece_kinds
    [index] = [
        number
        for number, kind in enumerate(kinds)
        if kind.module == "vision"
        and not kind.unread
        and wanted == (kind.gated if gates else kind.attention == "sliding")
    ]
    return pieces(context)[index]


def end_ops(context: OpContext) -> tuple[Op, ...]:
    """The rows of the ends of a tower, and of its projector."""
    embedding = next(piece for piece in pieces(context) if piece.name == "embedding")
    return tuple(op for op in embedding.ops if op.name.startswith("vision/"))


def rows_of(ops: tuple[Op, ...], context: OpContext, key: Key) -> dict[str, float]:
    """Bytes by saved tensor, and by the cast of a product's weights."""
    sizes: dict[str, float] = {}
    for op in ops:
        for row in op.saved:
            if row.kept_under(Module(key.modules)) and not _is_argument(
                row.name, context.model.name, key
            ):
                sizes[row.name] = sizes.get(row.name, 0.0) + saved_bytes(row, context, key)
        cast = context.saved.weight_cast_bytes * weight_elements(op, key) * op.autocasts
        checkpointed = bool(key.modules) and bool(op.rerun_with)
        if cast and not checkpointed:
            sizes[f"cast of {op.name}"] = cast
    return sizes


def _is_argument(name: str, model: str, key: Key) -> bool:
    """Whether checkpoints hold a tensor as an argument, where no operation of the graph does."""
    by_name = model == "llama-4-scout" and name == "layer/checkpoint"
    return bool(key.modules) and (name == "rotary/tables" or by_name)


def vision_label(row: Row) -> str:
    """What sets a row apart, in words."""
    cells = ("model", "mode", "attention", "checkpointing", "method", "base", "freeze")
    marks = {"windowed": "windows", "hooked": "hooked", "tapped": "tapped"}
    said = (word for cell, word in marks.items() if row.get(cell) == "1")
    return " ".join([*(row[cell] for cell in cells if row.get(cell)), *said])


def compare_vision_activations(row: Row) -> Iterator[Compared]:
    """What one more layer of a tower keeps, and the whole of it with its projector."""
    context, key = vision_context(row)
    vision = context.model.vision
    layers = vision.tower.layers if vision else 0
    name = vision_label(row)
    layer = _number(row, "per_layer") + _number(row, "weight_casts_per_layer")
    ends = _number(row, "ends") + _number(row, "weight_casts_ends")
    one = sum(rows_of(layer_piece(row, context).ops, context, key).values())
    others = sum(rows_of(end_ops(context), context, key).values())
    yield Compared(name, "layer", layer, one)
    yield Compared(name, "whole", ends + layers * layer, others + layers * one)


def _number(row: Row, column: str) -> float:
    return float(row[column])


def compare_across(row: Row) -> Compared:
    """What one more layer keeps that attends across to an image of as many places as fit."""
    seq = int(row["seq"])
    given = {**row, "freeze": "", "tapped": "0", "patches": row["seq"]}
    context, key = vision_context(given)
    tower = vision_of(row["model"]).tower
    places = tower.positions * tower.tiles
    images = ImageLoad(patches=1.0, span=seq, across=places, seen=places / seq)
    context = replace(context, model=context.model.model_copy(update={"images": images}))
    kinds = context.model.piece_kinds
    [index] = [at for at, kind in enumerate(kinds) if kind.attention == "cross"]
    predicted = sum(rows_of(pieces(context)[index].ops, context, key).values())
    counted = _number(row, "per_layer") + _number(row, "weight_casts_per_layer")
    return Compared(vision_label(given), "layer", counted, predicted)


def compare_vision_tensors(row: Row, tensors: Sequence[Row]) -> Iterator[Compared]:
    """Bytes of each module of a tower's layer and of its ends: its tensors against its rows."""
    context, key = vision_context(row)
    for part, ops in (("layer", layer_piece(row, context).ops), ("ends", end_ops(context))):
        rows = rows_of(ops, context, key)
        if row["attention"] == "eager" and part == "layer":
            # No kernel keeps what attention makes; the product behind it does.
            rows["attention/out_proj/input"] = rows.pop("attention/output")
        predicted = _by_term(rows, part)
        counted: dict[str, float] = defaultdict(float)
        for tensor in tensors:
            if tensor["part"] == part:
                counted[_term_of(tensor["module"], part)] += float(tensor["bytes"])
        for term in sorted({*predicted, *counted}):
            yield Compared(
                vision_label(row),
                f"{part} {term}",
                counted.get(term, 0.0),
                predicted.get(term, 0.0),
            )


def _by_term(rows: Mapping[str, float], part: str) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for name, size in rows.items():
        if name in ("rotary/tables", "mask"):
            # Listed with the first layer, which reads them first.
            continue
        plain = name.removeprefix("cast of ").removeprefix("vision/")
        term = next(term for term, pattern in ROWS[part] if re.match(pattern, plain))
        found[term] += size
    return found


def _term_of(module: str, part: str) -> str:
    inside = re.sub(r"(\.base_layer)?(\.lora_[AB]\.default)?$", "", module)
    return next((term for term, end in MODULES[part] if re.search(end, inside)), module)


def compare_vision_parameters(row: Row) -> Iterator[Compared]:
    """Parameters of a tower of two layers and of its projector, all and those that are trained."""
    given = {**row, "mode": "bf16", "attention": "flash", "checkpointing": "none", "windowed": "0",
             "base": "", "hooked": "0", "tapped": "0", "patches": "256"}  # fmt: skip
    context, _ = vision_context(given)
    ends = end_ops(context)
    projector = [op for op in ends if op.name.startswith("vision/projector")]
    layer = layer_piece(given, context).ops
    tower = [*(op for op in ends if op not in projector), *layer, *layer]
    for part, ops in (("tower", tower), ("projector", projector)):
        held = sum(op.parameter_count for op in ops)
        trained = sum(op.parameter_count for op in ops if op.trains)
        yield Compared(row["model"], f"{part}_total", _number(row, f"{part}_total"), held)
        yield Compared(row["model"], f"{part}_trained", _number(row, f"{part}_trained"), trained)
