"""Defaults for facts that a row leaves out and that its prediction needs.

They are used only for rows that would otherwise be refused, and each is named in `assumed`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from planner.evidence.runs.lengths import longest_row
from planner.evidence.runs.model import experts_text
from planner.evidence.runs.rows import MeasuredRow, zero_stage_named
from planner.job.models.layout import layer_pattern
from planner.job.specs import ModelSpec, MoeSpec

# Pretraining length of most models of 2023 to 2025.
_USUAL_SEQ = 4096
# Width of most models' heads since 2020.
_USUAL_HEAD_DIM = 128
# Mixtral's, which most coarse mixtures follow.
_USUAL_TOP_K = 2
# Micro-batches per pipeline stage at which the bubble no longer dominates.
_MICRO_BATCHES_PER_STAGE = 4
# Mixed-precision AdamW without sharding: weights, gradients, master weights and moments.
_STATE_BYTES_PER_PARAMETER = 18.0
_OPTIMIZER_BYTES = 12.0
# Share of HBM that the training state may fill; the rest is for activations and buffers.
_STATE_SHARE_OF_HBM = 0.6
_LARGEST_TP = 8
# Chunks per stage if Megatron-Core's layout is unknown: the fewest that interleave.
_USUAL_CHUNKS = 2

# For hybrids whose layers have a mixer and a feed-forward block each: one layer in this many has
# attention, as in Granite 4 and Bamba.
_USUAL_PERIOD = 10

# The most frequent GPU of fine-tuning runs that state one; memory depends little on the GPU.
_USUAL_GPU, _ITS_GB = "A100-80GB", "80"
# Text tokens of a sample with images, if only the tokens of the images are known.
_USUAL_TEXT = 128
# Column, value, and its words in `assumed`.
Default = tuple[str, str, str]


class Completed(NamedTuple):
    """A row with its gaps filled, and the defaults that filled them, in words."""

    row: MeasuredRow
    assumed: tuple[str, ...]


def complete(row: MeasuredRow) -> Completed:
    """The row with every default that applies; the same row if none does."""
    assumed: list[str] = []
    for default in _DEFAULTS:
        for column, value, words in default(row):
            row = MeasuredRow(row.file, row.line, row.cells | {column: value})
            assumed.append(words)
    return Completed(row, tuple(assumed))


def _plain(column: str, value: int) -> Default:
    return column, str(value), f"{column} {value}"


def _sequence(row: MeasuredRow) -> Iterator[Default]:
    # There is no usual length for padded samples.
    if row.text("seq") is None and not row.says("sequences", "padded|longest|single sample"):
        yield _plain("seq", _USUAL_SEQ)


def _text_beside_images(row: MeasuredRow) -> Iterator[Default]:
    """The length of samples if only the tokens of their images are stated."""
    if longest_row(row) is None and re.match(r"\d", row.fact("image_tokens")):
        length = int(row.number("image_tokens") or 0) + _USUAL_TEXT
        yield "length_max", str(length), f"{_USUAL_TEXT} tokens of text beside the images"


def _card(row: MeasuredRow) -> Iterator[Default]:
    """The usual GPU, for a row with a measured peak memory but no GPU."""
    if row.text("gpu") is None and row.measurement("peak_mem_gib") is not None:
        yield "gpu", _USUAL_GPU, f"memory as on {_USUAL_GPU}"
        yield "gpu_mem_gb", _ITS_GB, f"{_ITS_GB} GB of it"


def _hybrid(row: MeasuredRow) -> Iterator[Default]:
    """The layers of a hybrid that does not state them: those of the catalogue's hybrid with its
    depth and width; for fine-tuning otherwise the usual spacing of attention layers."""
    if not row.says("mixer", "mamba") or row.says("mixer", "pattern"):
        return
    depth = row.integer("layers"), row.integer("hidden")
    hybrids = (model for model in _catalogue() if model.family == "nemotron_h")
    known = next((one for one in hybrids if (one.layers, one.hidden) == depth), None)
    if known is None:
        if row.text("tuning") and not row.says("mixer", "attention every"):
            often = f"attention every {_USUAL_PERIOD}"
            yield "mixer", f"{row.text('mixer')}: {often}", often
        return
    stated = (pair for pair in hybrid_columns(known).items() if row.text(pair[0]) is None)
    for column, value in (*stated, ("mixer", hybrid_columns(known)["mixer"])):
        yield column, value, f"layers as in {known.name}"
    if known.moe is not None:
        yield "moe", _expert_words(known.moe), f"experts as in {known.name}"


def hybrid_columns(model: ModelSpec) -> dict[str, str]:
    """A Mamba-2 hybrid as columns of a row; empty for other models."""
    space = model.state_space
    if space is None:
        return {}
    pattern = layer_pattern(model)
    return {
        "heads": str(model.heads),
        "kv_heads": str(model.kv_heads),
        "head_dim": str(model.head_dim),
        "vocab": str(model.vocab),
        "ffn": str(model.ffn or ""),
        "bias": "n",
        "tied": "n",
        "mixer": f"mamba hybrid: pattern {pattern}, heads {space.heads}, "
        f"head_dim {space.head_dim}, groups {space.groups}, state {space.state}",
    }


def _expert_words(experts: MoeSpec) -> str:
    latent = f", latent {experts.latent}" if experts.latent else ""
    return (
        f"{experts.experts} experts top{experts.top_k}, expert ffn {experts.ffn}, "
        f"shared expert ffn {experts.shared_ffn}{latent}"
    )


@cache
def _catalogue() -> tuple[ModelSpec, ...]:
    from planner.job.models.catalog import load_model, model_names

    return tuple(load_model(name).spec for name in model_names())


def _heads(row: MeasuredRow) -> Iterator[Default]:
    hidden = row.integer("hidden")
    if row.text("heads") is None and hidden:
        yield _plain("heads", max(1, hidden // _USUAL_HEAD_DIM))


def _experts(row: MeasuredRow) -> Iterator[Default]:
    """The experts of the catalogue's model with this shape; otherwise the usual top-k."""
    text = experts_text(row)
    if text is None:
        return
    shape = tuple(row.integer(name) for name in ("hidden", "heads", "ffn"))
    # A hybrid has its own experts between mixers, unlike any other model.
    mixtures = (one for one in _catalogue() if one.moe and one.state_space is None)
    alike = [one for one in mixtures if (one.hidden, one.heads, one.ffn) == shape]
    # Only if a single model has the shape.
    if len(alike) == 1 and alike[0].moe is not None and "expert ffn" not in text:
        known, experts = alike[0], alike[0].moe
        dense = sum(kind.ffn == "dense" for kind in known.layer_kinds)
        yield (
            "moe",
            f"{text}; {_expert_words(experts)}, {dense} dense",
            f"experts as in {known.name}",
        )
    elif not re.search(r"top[-_ ]?k?\s*=?\s*\d|experts_per_tok", text):
        yield "moe", f"{text}; top{_USUAL_TOP_K}", f"top-k {_USUAL_TOP_K}"


def _degrees(row: MeasuredRow) -> Iterator[Default]:
    """The smallest tp, then pp, whose share of the training state leaves room in HBM, with no more
    replicas than sequences in the batch.

    tp doubles; pp divides the remaining GPUs and the layers.
    """
    parameters, hbm_gib = row.number("params_b"), row.number("gpu_mem_gb")
    gpus = row.integer("num_gpus") or 1
    if any(row.text(name) for name in ("tp", "pp", "dp")) or parameters is None or hbm_gib is None:
        return
    # Nearly all GPUs share the state that the stated ZeRO stage shards.
    state = _bytes_at(zero_stage_named(row.text("zero") or "") or 0, gpus)
    wanted = parameters * state / (_STATE_SHARE_OF_HBM * hbm_gib)
    # Every replica needs a sequence.
    wanted = max(wanted, gpus / (row.integer("gbs") or gpus))
    layers = row.integer("layers") or 1
    tp = 1
    while tp < min(wanted, _LARGEST_TP) and gpus % (2 * tp) == 0:
        tp *= 2
    stages = [index for index in range(1, layers + 1) if gpus % (tp * index) == 0 == layers % index]
    enough = [stage for stage in stages if tp * stage >= wanted]
    pp = enough[0] if enough else stages[-1]
    yield _plain("tp", tp)
    yield _plain("pp", pp)
    interleaves = pp > 1 and layers % (_USUAL_CHUNKS * pp) == 0
    if interleaves and "megatron-core" in (row.text("framework") or "").lower():
        yield _plain("vpp", _USUAL_CHUNKS)


def _sharding(row: MeasuredRow) -> Iterator[Default]:
    """For ZeRO without a stage: the lowest stage whose share of the training state leaves room in
    HBM; with a pipeline, which accumulates gradients, stage 1."""
    text = row.text("zero") or ""
    if zero_stage_named(text) is not None or not row.says("zero", r"zero|shard|^y(es)?$"):
        return
    parameters, hbm_gib = row.number("params_b") or 0.0, row.number("gpu_mem_gb") or math.inf
    gpus = row.integer("num_gpus") or 1
    split = math.prod(row.integer(name) or 1 for name in ("tp", "pp"))
    limit_gib = _STATE_SHARE_OF_HBM * hbm_gib * split
    stages = (1,) if (row.integer("pp") or 1) > 1 else (1, 2, 3)
    fitting = (one for one in stages if parameters * _bytes_at(one, gpus // split) <= limit_gib)
    yield _plain("zero", next(fitting, stages[-1]))


def _bytes_at(stage: int, ranks: int) -> float:
    """Bytes of training state per parameter on each of the ranks that share it."""
    sharded = (0.0, _OPTIMIZER_BYTES, _STATE_BYTES_PER_PARAMETER - 2.0, _STATE_BYTES_PER_PARAMETER)
    return _STATE_BYTES_PER_PARAMETER - sharded[stage] * (1.0 - 1.0 / max(1, ranks))


def _gpus(row: MeasuredRow) -> Iterator[Default]:
    """The number of GPUs with which each pipeline gets the usual number of micro-batches."""
    gbs = row.integer("gbs")
    if row.text("num_gpus") is not None or gbs is None:
        return
    tp, pp, cp, mbs = (row.integer(name) or 1 for name in ("tp", "pp", "cp", "mbs"))
    dp = row.integer("dp") or max(1, gbs // (mbs * _MICRO_BATCHES_PER_STAGE * pp))
    yield _plain("num_gpus", tp * pp * cp * dp)


def _batch(row: MeasuredRow) -> Iterator[Default]:
    if row.text("mbs") is not None or row.text("gbs") is not None:
        return
    tp, pp, cp = (row.integer(name) or 1 for name in ("tp", "pp", "cp"))
    dp = max(1, (row.integer("num_gpus") or 1) // (tp * pp * cp))
    yield _plain("mbs", 1)
    if tokens := row.number("gbs_tokens"):
        sequences = tokens / (row.integer("seq") or _USUAL_SEQ)
        yield _plain("gbs", dp * max(1, round(sequences / dp)))
        return
    yield _plain("gbs", dp * (_MICRO_BATCHES_PER_STAGE * pp if pp > 1 else 1))


# The order matters: later defaults read cells that earlier ones filled in.
_DEFAULTS: tuple[Callable[[MeasuredRow], Iterator[Default]], ...] = (
    _text_beside_images,
    _sequence,
    _card,
    _hybrid,
    _heads,
    _experts,
    _sharding,
    _degrees,
    _gpus,
    _batch,
)
