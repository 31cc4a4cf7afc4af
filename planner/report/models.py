"""What `planner models` shows: the list, and one model with its sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from planner.job.models.catalog import ResolvedModel
from planner.job.quantities import plural, share, short_count
from planner.job.specs import BIASES, ModelSpec
from planner.predict.ops import ParameterCount, flop_per_token, parameters_by_component
from planner.report.tables import Block, Facts, Notes, TableData, as_report, table


@as_report
def models_report(entries: Sequence[tuple[ResolvedModel, ParameterCount]]) -> Iterator[Block]:
    """The list of models."""
    titles = "<model | parameters | active | layers | hidden | heads | kv | experts | seq"
    yield table(titles, (_model_row(model.spec, count) for model, count in entries))
    yield Notes((
        f"{plural(len(entries), 'model')}; seq is the pretraining length in tokens. Also taken: "
        "aliases such as 70b, Hugging Face names, and paths to a config.json or a model .toml.",
        "    planner models llama-3-70b",
    ))  # fmt: skip


def _model_row(spec: ModelSpec, count: ParameterCount) -> tuple[str, ...]:
    return (
        spec.name,
        short_count(count.total),
        short_count(count.active) if count.active != count.total else "",
        str(spec.layers),
        f"{spec.hidden:,}",
        str(spec.heads),
        "MLA" if spec.mla else str(spec.kv_heads),
        str(spec.moe.experts) if spec.moe else "",
        f"{spec.pretraining_seq:,}",
    )


def model_document(model: ResolvedModel, count: ParameterCount) -> dict[str, Any]:
    """One model as JSON: how it was found, every field of its shape, parameters, in all and by
    component."""
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
    """One model: shape, exact parameters, sources."""
    yield Facts((*_model_identity(model), *_model_counts(model.spec, count)))
    yield Facts(tuple(model_shape(model.spec).items()), "Shape")
    yield _components_table(model.spec, count)
    if model.notes:
        yield Notes(model.notes, "Notes")


def _components_table(spec: ModelSpec, count: ParameterCount) -> TableData:
    """Parameters of each op: in one layer, in how many layers, in all."""
    rows = [
        (one.name, f"{one.each:,.0f}", str(one.layers), f"{one.total:,}",
         share(one.total / count.total))
        for one in parameters_by_component(spec)
    ]  # fmt: skip
    return table(
        "<component | in one | layers | parameters | share",
        [*rows, ("total", "", "", f"{count.total:,}", share(1.0))],
        "Parameters by component",
    )


def _model_identity(model: ResolvedModel) -> Iterator[tuple[str, str]]:
    yield "model", model.name + (f" ({model.asked} is {model.name})" if model.alias_of else "")
    if model.hf_name:
        yield "Hugging Face", model.hf_name
    if model.source:
        yield "source", model.source


def _model_counts(spec: ModelSpec, count: ParameterCount) -> Iterator[tuple[str, str]]:
    yield "parameters", f"{count.total:,} ({short_count(count.total)})"
    if count.active != count.total:
        yield "active", f"{count.active:,} ({short_count(count.active)}) per token"
    if count.mtp:
        yield "MTP", f"{count.mtp:,} more in multi-token-prediction layers"
    full = flop_per_token(spec, spec.pretraining_seq) / 1e9
    causal = flop_per_token(spec, spec.pretraining_seq, causal=True) / 1e9
    at = f"per trained token at sequence {spec.pretraining_seq:,}"
    yield "FLOP", f"{full:,.1f} GFLOP {at} ({causal:,.1f} with causal attention halved)"


def model_shape(spec: ModelSpec) -> dict[str, str]:
    """The fields of a model's shape in words."""
    shape = {
        "layers": _layers_words(spec),
        "hidden": f"{spec.hidden:,}",
        **({"attention": _attention_words(spec)} if spec.has_attention else {}),
        **({"state space": _state_words(spec)} if spec.has_states else {}),
        "FFN": _ffn_words(spec),
        "vocabulary": f"{spec.vocab:,}{', tied' if spec.tied_embeddings else ', not tied'}",
        "positions": f"{spec.position}, up to {spec.max_positions:,}",
        "norm": f"{spec.norm}, {spec.block}",
        "pretrained at": f"{spec.pretraining_seq:,} tokens (--seq changes it)",
    }
    if biases := [name for name in BIASES if getattr(spec, name)]:
        shape["biases"] = ", ".join(biases)
    return shape


def _layers_words(spec: ModelSpec) -> str:
    runs = [(kind, len(list(run))) for kind, run in groupby(spec.kind_sequence)]
    if len(runs) == 1:
        return str(spec.layers)
    counts = {kind: spec.kind_sequence.count(kind) for kind in spec.kinds}
    kinds = ", ".join(f"{count} {kind.parts}" for kind, count in counts.items())
    return f"{spec.layers}: {kinds}"


def _attention_words(spec: ModelSpec) -> str:
    if spec.mla:
        mla = spec.mla
        return (
            f"MLA, {spec.heads} heads of {mla.qk_nope_head_dim}+{mla.qk_rope_head_dim} "
            f"(values {mla.v_head_dim}), ranks {mla.q_lora_rank or 'none'} and {mla.kv_lora_rank}"
        )
    kind = {1: "MQA", spec.heads: "MHA"}.get(spec.kv_heads, "GQA")
    window = f", window {spec.sliding_window:,}" if spec.sliding_window else ""
    norm = "" if spec.qk_norm == "none" else f", qk-norm ({spec.qk_norm})"
    return f"{kind}, {spec.heads} heads of {spec.head_dim}, {spec.kv_heads} kv heads{window}{norm}"


def _state_words(spec: ModelSpec) -> str:
    space = spec.state_space
    if space is None:
        return ""
    conv = f", convolution over {space.conv}" if space.conv else ""
    return (
        f"{space.kind}, {space.heads:,} heads of {space.head_dim}, {space.groups} groups, "
        f"state {space.state}{conv}, chunks of {space.chunk}"
    )


def _ffn_words(spec: ModelSpec) -> str:
    gated = "gated " if spec.gated else ""
    if all(kind.ffn == "none" for kind in spec.kinds):
        return "none"
    parts = [f"{gated}{spec.activation}"]
    if any(kind.ffn == "dense" for kind in spec.kinds):
        parts.append(f"width {spec.ffn:,}")
    if moe := spec.moe:
        shared = f", shared {moe.shared_ffn:,}" if moe.shared_ffn else ""
        latent = f", latent {moe.latent:,}" if moe.latent else ""
        parts.append(f"{moe.experts} experts of {moe.ffn:,}, top {moe.top_k}{shared}{latent}")
    return ", ".join(parts)
