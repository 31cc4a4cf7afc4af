"""What `planner models`, `hardware` and `frameworks` show: lists, and one entry with sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from hardware import ClusterShape, Fact, Gpu, Price, Source
from planner.frameworks import FrameworkProfile
from planner.models.catalog import ResolvedModel
from planner.ops import ParameterCount, flop_per_token
from planner.report.tables import Block, Column, Facts, Notes, Report, TableData
from planner.report.units import gib, plural, short_count
from planner.specs import ModelSpec

ASSUMED = "ASSUMED"
_ABSENT = "-"


# --- models -------------------------------------------------------------------------------------


def models_report(entries: Sequence[tuple[ResolvedModel, ParameterCount]]) -> Report:
    """The list of models."""
    columns = (
        Column("model", "left"),
        Column("parameters"),
        Column("active"),
        Column("layers"),
        Column("hidden"),
        Column("heads"),
        Column("kv"),
        Column("experts"),
        Column("seq"),
    )
    rows = tuple(_model_row(model.spec, count) for model, count in entries)
    return Report(
        (
            TableData(columns, rows),
            Notes(
                (
                    f"{plural(len(rows), 'model')}; seq is the pretraining length in tokens. "
                    "Also taken: aliases such as 70b, Hugging Face names, and paths to a "
                    "config.json or a model .toml.",
                    "    planner models llama-3-70b",
                )
            ),
        )
    )


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


def model_report(model: ResolvedModel, count: ParameterCount) -> Report:
    """One model: shape, exact parameters, sources."""
    spec = model.spec
    blocks: list[Block] = [
        Facts((*_model_identity(model), *_model_counts(spec, count))),
        Facts(tuple(model_shape(spec).items()), "Shape"),
    ]
    if model.notes:
        blocks.append(Notes(model.notes, "Notes"))
    return Report(tuple(blocks))


def _model_identity(model: ResolvedModel) -> tuple[tuple[str, str], ...]:
    alias = f" ({model.asked} is {model.name})" if model.alias_of else ""
    rows = [("model", model.name + alias)]
    if model.hf_name:
        rows.append(("Hugging Face", model.hf_name))
    if model.source:
        rows.append(("source", model.source))
    return tuple(rows)


def _model_counts(spec: ModelSpec, count: ParameterCount) -> tuple[tuple[str, str], ...]:
    rows = [("parameters", f"{count.total:,} ({short_count(count.total)})")]
    if count.active != count.total:
        rows.append(("active", f"{count.active:,} ({short_count(count.active)}) per token"))
    if count.mtp:
        rows.append(("MTP", f"{count.mtp:,} more in multi-token-prediction layers"))
    full = flop_per_token(spec, spec.pretraining_seq)
    causal = flop_per_token(spec, spec.pretraining_seq, causal=True)
    rows.append(
        (
            "FLOP",
            f"{full / 1e9:,.1f} GFLOP per trained token at sequence {spec.pretraining_seq:,} "
            f"({causal / 1e9:,.1f} with causal attention halved)",
        )
    )
    return tuple(rows)


def model_shape(spec: ModelSpec) -> dict[str, str]:
    """The fields of a model's shape in words."""
    shape = {
        "layers": _layers_words(spec),
        "hidden": f"{spec.hidden:,}",
        "attention": _attention_words(spec),
        "FFN": _ffn_words(spec),
        "vocabulary": f"{spec.vocab:,}{', tied' if spec.tied_embeddings else ', not tied'}",
        "positions": f"{spec.position}, up to {spec.max_positions:,}",
        "norm": f"{spec.norm}, {spec.block}",
        "pretrained at": f"{spec.pretraining_seq:,} tokens (--seq changes it)",
    }
    biases = [name for name in _BIASES if getattr(spec, name)]
    if biases:
        shape["biases"] = ", ".join(biases)
    return shape


_BIASES = ("qkv_bias", "attention_out_bias", "mlp_bias", "head_bias", "norm_bias")


def _layers_words(spec: ModelSpec) -> str:
    runs = [(kind, len(list(run))) for kind, run in groupby(spec.kind_sequence)]
    if len(runs) == 1:
        return str(spec.layers)
    counts = {kind: spec.kind_sequence.count(kind) for kind in spec.kinds}
    kinds = ", ".join(f"{count} {kind.attention}/{kind.ffn}" for kind, count in counts.items())
    return f"{spec.layers}: {kinds}"


def _attention_words(spec: ModelSpec) -> str:
    if spec.mla:
        mla = spec.mla
        return (
            f"MLA, {spec.heads} heads of {mla.qk_nope_head_dim}+{mla.qk_rope_head_dim} "
            f"(values {mla.v_head_dim}), ranks {mla.q_lora_rank or 'none'} and {mla.kv_lora_rank}"
        )
    if spec.kv_heads == spec.heads:
        kind = "MHA"
    else:
        kind = "MQA" if spec.kv_heads == 1 else "GQA"
    window = f", window {spec.sliding_window:,}" if spec.sliding_window else ""
    norm = "" if spec.qk_norm == "none" else f", qk-norm ({spec.qk_norm})"
    return f"{kind}, {spec.heads} heads of {spec.head_dim}, {spec.kv_heads} kv heads{window}{norm}"


def _ffn_words(spec: ModelSpec) -> str:
    gated = "gated " if spec.gated else ""
    parts = [f"{gated}{spec.activation}"]
    if any(kind.ffn == "dense" for kind in spec.kinds):
        parts.append(f"width {spec.ffn:,}")
    if moe := spec.moe:
        shared = f", shared {moe.shared_ffn:,}" if moe.shared_ffn else ""
        parts.append(f"{moe.experts} experts of {moe.ffn:,}, top {moe.top_k}{shared}")
    return ", ".join(parts)


# --- hardware -----------------------------------------------------------------------------------


def hardware_report(gpus: Sequence[Gpu], shapes: Sequence[ClusterShape]) -> Report:
    """GPUs and node shapes."""
    return Report(
        (
            _gpu_table(gpus),
            _shape_table(shapes),
            Notes(
                (
                    "TFLOP/s are dense (no sparsity). HBM: what torch reports as total memory. "
                    "Links are per GPU and direction.",
                    "Every number with its source:",
                    "    planner hardware H100",
                    "    planner hardware dgx-h100",
                )
            ),
        )
    )


def _gpu_table(gpus: Sequence[Gpu]) -> TableData:
    columns = (
        Column("GPU", "left"),
        Column("16-bit\nTFLOP/s"),
        Column("fp8\nTFLOP/s"),
        Column("HBM\nGiB"),
        Column("HBM\nTB/s"),
        Column("link\nGB/s"),
        Column("domain\nGPUs"),
        Column("TDP\nW"),
    )
    return TableData(columns, tuple(_gpu_row(gpu) for gpu in gpus), "GPUs")


def _gpu_row(gpu: Gpu) -> tuple[str, ...]:
    peaks = gpu.peak_flop_per_s
    return (
        gpu.name,
        _tera(peaks.get("bf16", peaks.get("fp16"))),
        _tera(peaks.get("fp8")),
        gib(gpu.hbm_usable_bytes),
        f"{gpu.hbm_bytes_per_s / 1e12:.2f}",
        f"{gpu.scale_up_bytes_per_s_per_gpu_per_direction / 1e9:,.0f}",
        str(gpu.scale_up_domain_gpus),
        f"{gpu.tdp_w:,.0f}",
    )


def _tera(rate: float | None) -> str:
    return _ABSENT if rate is None else f"{rate / 1e12:,.0f}"


def _shape_table(shapes: Sequence[ClusterShape]) -> TableData:
    columns = (
        Column("node shape", "left"),
        Column("node", "left"),
        Column("domain\nGPUs"),
        Column("NICs", "left"),
        Column("fabric", "left"),
    )
    return TableData(columns, tuple(_shape_row(shape) for shape in shapes), "Node shapes")


def _shape_row(shape: ClusterShape) -> tuple[str, ...]:
    nics = shape.nics_per_node.value
    return (
        shape.name,
        f"{shape.gpus_per_node.value:g}×{shape.gpu}",
        f"{shape.scale_up_domain.value:g}",
        f"{nics:g}×{shape.nic_rate.value:g} {shape.nic_rate.unit}" if nics else _ABSENT,
        shape.fabric,
    )


def facts_report(
    title: Sequence[tuple[str, str]],
    facts: Sequence[Fact],
    sources: Mapping[str, Source],
    prices: Sequence[Price] = (),
) -> Report:
    """One GPU or node shape: each number with unit and source; assumptions are marked."""
    columns = (
        Column("number", "left"),
        Column("value"),
        Column("unit", "left"),
        Column("source", "left", wrap=True),
    )
    rows = tuple((fact.name, f"{fact.value:g}", _unit(fact), _origin(fact)) for fact in facts)
    blocks: list[Block] = [Facts(tuple(title)), TableData(columns, rows)]
    if prices:
        blocks.append(_price_table(prices))
    blocks.append(Facts(_bibliography(facts, prices, sources), "Sources"))
    return Report(tuple(blocks))


def _unit(fact: Fact) -> str:
    return "" if fact.unit == "1" else fact.unit


def _origin(fact: Fact) -> str:
    origin = ASSUMED if fact.assumption else fact.source
    return f"{origin}: {fact.note}" if fact.note else origin


def _price_table(prices: Sequence[Price]) -> TableData:
    columns = (
        Column("provider", "left"),
        Column("kind", "left"),
        Column("USD per\nGPU hour"),
        Column("date", "left"),
        Column("source", "left", wrap=True),
    )
    rows = tuple(
        (p.provider, p.kind, f"{p.usd_per_gpu_hour:.2f}", p.date or "unknown", p.source)
        for p in prices
    )
    return TableData(columns, rows, "List prices")


def _bibliography(
    facts: Sequence[Fact], prices: Sequence[Price], sources: Mapping[str, Source]
) -> tuple[tuple[str, str], ...]:
    cited = dict.fromkeys(
        [fact.source for fact in facts if not fact.assumption] + [price.source for price in prices]
    )
    return tuple((key, _citation(sources[key])) for key in cited if key in sources)


def _citation(source: Source) -> str:
    accessed = f"accessed {source.accessed}" if source.accessed else ""
    return ", ".join(part for part in (source.title, source.url, accessed) if part)


# --- frameworks ---------------------------------------------------------------------------------


def frameworks_report(profiles: Sequence[FrameworkProfile]) -> Report:
    """The list of framework profiles."""
    columns = (
        Column("framework", "left"),
        Column("version", "left"),
        Column("degrees", "left", wrap=True),
        Column("ZeRO", "left"),
        Column("precisions", "left", wrap=True),
    )
    rows = tuple(
        (
            profile.name,
            profile.version,
            " ".join(offered_degrees(profile)),
            ", ".join(str(stage) for stage in sorted(profile.parallelism.zero_stages)),
            " ".join(profile.precisions),
        )
        for profile in profiles
    )
    return Report((TableData(columns, rows), Notes(("    planner frameworks megatron-core",))))


def offered_degrees(profile: FrameworkProfile) -> tuple[str, ...]:
    """Degrees beside dp that the framework has."""
    rules = profile.parallelism
    offered = {
        "tp": rules.tensor,
        "pp": rules.pipeline,
        "vpp": rules.interleaved,
        "cp": rules.context,
        "ep": rules.expert,
        "etp": rules.expert_tensor,
    }
    return tuple(name for name, has in offered.items() if has)


def framework_report(profile: FrameworkProfile) -> Report:
    """One profile: what it expresses, keeps and overlaps, its recompute modes and sources."""
    columns = (
        Column("--recompute", "left"),
        Column("tried", "left"),
        Column("flags there", "left", wrap=True),
    )
    modes = tuple(
        (mode.name, "yes" if mode.searched else "if asked", mode.flags or _ABSENT)
        for mode in profile.recompute
    )
    return Report(
        (
            Facts(
                (
                    ("framework", f"{profile.name} {profile.version}"),
                    ("what", profile.summary),
                    ("degrees", " ".join(("dp", *offered_degrees(profile)))),
                    ("precisions", ", ".join(profile.precisions)),
                )
            ),
            TableData(columns, modes, "Recompute modes"),
            *(_settings(profile, part, title) for part, title in _PARTS.items()),
            Notes(profile.assumptions, "Assumed"),
            Notes(profile.sources, "Sources"),
        )
    )


_PARTS = {
    "parallelism": "Parallelism",
    "saved": "Bytes per element kept for backward",
    "state": "Weights, gradients and optimizer",
    "overlap": "Share of traffic that may hide behind compute",
    "outside": "Memory outside tensors",
}


def _settings(profile: FrameworkProfile, part: str, title: str) -> Facts:
    settings = getattr(profile, part).model_dump(mode="json")
    return Facts(tuple((name, _setting(value)) for name, value in settings.items()), title)


def _setting(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(str(item) for item in value)
        case float():
            return f"{value:g}"
        case _:
            return str(value)
