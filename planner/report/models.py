"""Report of `planner models`: the list, or one model with its sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import isqrt
from typing import Any

from planner.job.images import image_count
from planner.job.models.catalog import ResolvedModel
from planner.job.quantities import share, short_count
from planner.job.specs import BIASES, ModelSpec
from planner.predict.ops.table import ParameterCount, flop_per_token, parameters_by_component
from planner.report.said import fact_rows, facts, notes, table_of
from planner.report.tables import Block, Facts, Notes, as_report

# Width and height in pixels of the image whose tokens are shown.
_EXAMPLE = (1024, 768)


@as_report
def models_report(entries: Sequence[tuple[ResolvedModel, ParameterCount]]) -> Iterator[Block]:
    yield table_of("models.list", map(_listed, entries))
    yield Notes(tuple(notes("models.notes", None, count=len(entries))))


def _listed(entry: tuple[ResolvedModel, ParameterCount]) -> dict[str, Any]:
    spec, count = entry[0].spec, entry[1]
    active = short_count(count.active) if count.active != count.total else ""
    kv = "MLA" if spec.mla else str(spec.kv_heads)
    return {"spec": spec, "count": count, "active": active, "kv": kv}


def model_document(model: ResolvedModel, count: ParameterCount) -> dict[str, Any]:
    """One model as JSON: how it was found, its shape, and parameters by component."""
    counts = {
        "parameters": count.total,
        "active_parameters": count.active,
        "parameters_by_component": [
            {"name": one.name, "layers": one.layers, "each": one.each, "total": one.total}
            for one in parameters_by_component(model.spec)
        ],
    }
    return model.model_dump(mode="json") | counts


@as_report
def model_report(model: ResolvedModel, count: ParameterCount) -> Iterator[Block]:
    """One model: shape, exact number of parameters, sources."""
    spec = model.spec
    alias = f"{model.asked} is {model.name}" if model.alias_of else ""
    counts = fact_rows(
        "models.counts", count, fewer=count.active != count.total, seq=spec.pretraining_seq,
        full=flop_per_token(spec, spec.pretraining_seq),
        causal=flop_per_token(spec, spec.pretraining_seq, causal=True),
    )  # fmt: skip
    yield Facts((*fact_rows("models.identity", model, alias=alias), *counts))
    yield model_shape(spec)
    yield from _vision(model)
    total = ("total", "", "", f"{count.total:,}", share(1.0))
    parts = parameters_by_component(spec)
    yield table_of("models.components", parts, (total,), part=lambda one: one.total / count.total)
    if model.notes:
        yield Notes(model.notes, "Notes")


def model_shape(spec: ModelSpec) -> Facts:
    """The fields of a model's shape, in words."""
    ffn = notes("models.ffn.parts", spec, dense=any(kind.ffn == "dense" for kind in spec.kinds))
    return facts(
        "models.shape", spec, title="Shape", layer_words=_layers_words(spec),
        q_rank=(spec.mla and spec.mla.q_lora_rank) or "none",
        kind={1: "MQA", spec.heads: "MHA"}.get(spec.kv_heads, "GQA"),
        qk="" if spec.qk_norm == "none" else spec.qk_norm,
        ffn_words="none" if all(kind.ffn == "none" for kind in spec.kinds) else ", ".join(ffn),
        biases=[name for name in BIASES if getattr(spec, name)],
    )  # fmt: skip


def _vision(model: ResolvedModel) -> Iterator[Facts]:
    """The vision part, in words."""
    vision = model.with_vision().spec.vision
    if vision is None:
        return
    width, height = _EXAMPLE
    tower, full = vision.tower, vision.tower.full_layers
    beside = "" if model.spec.vision else ", counted where --images are given"
    yield facts(
        "models.vision", vision, title=f"Vision tower{beside}",
        windowed=tower.layers - len(full) if full is not None else 0,
        side=isqrt(tower.window), pooled=vision.projector.pooled,
        frames=tower.frames if tower.frames > 1 else None, merged=vision.projector.merged,
        taps=len(vision.projector.taps),
        linear=[f"{wide:,}" for wide in vision.projector.widths],
        image=f"{width}x{height}", count=image_count(vision, width, height),
    )  # fmt: skip


def _layers_words(spec: ModelSpec) -> str:
    runs = [(kind, len(list(run))) for kind, run in groupby(spec.kind_sequence)]
    if len(runs) == 1:
        return str(spec.layers)
    counts = {kind: spec.kind_sequence.count(kind) for kind in spec.kinds}
    kinds = ", ".join(f"{count} {kind.parts}" for kind, count in counts.items())
    return f"{spec.layers}: {kinds}"
