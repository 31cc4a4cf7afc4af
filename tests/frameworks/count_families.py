"""Counts one layer and the ends of models in transformers, as rows of tests/truth/data.

    python -m tests.frameworks.count_families FOLDER MODEL...

appends to activations.csv, activations_breakdown.csv, flops.csv and params.csv in FOLDER; models
are those of the catalogue. A layer is what the last kind of layer adds to a model that has one of
each kind; outside the layers is what remains of such a model without them.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from planner.job.models.layout import layer_kinds
from planner.job.specs import LayerKind, ModelSpec
from planner.launch.dialects.hf.files import hf_config
from tests.frameworks.hf_counts import (
    Flop,
    Run,
    SavedTensor,
    flop,
    parameters,
    saved_tensors,
)
from tests.truth.predicted import reference_model

Row = dict[str, object]
# Micro-batches of one and of several sequences keep different tensors: batched products copy.
BATCHES = ((2048, 1), (1024, 2))
MODES = ("bf16", "amp", "fp32")
ATTENTION = ("flash", "eager")
CHECKPOINTING = ("none", "full")


_TYPES = {"full": "full_attention", "sliding": "sliding_attention"}


def config_of(spec: ModelSpec, kinds: Sequence[LayerKind]) -> dict[str, Any]:
    """transformers' config of a model with the given layers, without the router's loss, as it is
    off in released configs; ValueError if it has none."""
    experts = [kind.ffn == "moe" for kind in kinds]
    blocks_apart = any(kind.ffn == "none" for kind in spec.kinds)
    found = tuple(kinds)
    if not blocks_apart:
        found = layer_kinds([kind.attention for kind in kinds], experts, spec.moe is not None)
    cut = spec.model_copy(update={"layers": len(kinds), "layer_kinds": found})
    if spec.moe:
        moe = spec.moe.model_copy(update={"aux_loss": 0.0})
        cut = cut.model_copy(update={"moe": moe if any(experts) or not blocks_apart else None})
    if all(kind.ffn != "dense" for kind in kinds):
        cut = cut.model_copy(update={"ffn": 0})
    config = _of_class(spec, kinds) if spec.name == spec.family else hf_config(cut)
    if config is None:
        raise ValueError(f"{spec.name}: transformers has no model of this shape")
    return config


def _of_class(spec: ModelSpec, kinds: Sequence[LayerKind]) -> dict[str, Any]:
    """The defaults of a type's class with the given layers, each type's way of naming them."""
    types = [_TYPES.get(kind.attention, "linear_attention") for kind in kinds]
    experts = [spec.moe.experts if spec.moe and kind.ffn == "moe" else 1 for kind in kinds]
    named: dict[str, dict[str, Any]] = {
        "bamba": {"attn_layer_indices": [i for i, kind in enumerate(kinds) if _attends(kind)]},
        "granitemoehybrid": {"layer_types": types},
        "minimax": {"layer_types": types},
        "qwen3_5_text": {"layer_types": types},
        "exaone4": {"layer_types": types},
        "glm4_moe_lite": {
            "mlp_layer_types": ["sparse" if kind.ffn == "moe" else "dense" for kind in kinds]
        },
        # The class cannot be built without.
        "hunyuan_v1_dense": {"head_dim": spec.head_dim},
        "qwen3_5_moe_text": {"layer_types": types},
        # Read of the class, which derives them from periods.
        "jamba": {
            "of_class": {
                "layers_block_type": ["attention" if _attends(kind) else "mamba" for kind in kinds],
                "layers_num_experts": experts,
            }
        },
    }
    given = {"model_type": spec.family, "num_hidden_layers": len(kinds)}
    return given | named.get(spec.family, {})


def _attends(kind: LayerKind) -> bool:
    return kind.attention == "full"


def runs(spec: ModelSpec) -> Iterator[tuple[int, int, str, str, str]]:
    """(seq, mbs, mode, attention, checkpointing) of a model; no flash kernel computes in fp32."""
    for (seq, mbs), mode, attention, checkpointing in product(
        BATCHES, MODES, ATTENTION, CHECKPOINTING
    ):
        if mode != "fp32" or attention == "eager":
            yield min(seq, spec.max_positions), mbs, mode, attention, checkpointing


def count_run(
    spec: ModelSpec, settings: tuple[int, int, str, str, str]
) -> tuple[Row, list[SavedTensor]]:
    """Bytes a layer and the ends hold, and the tensors of the layer."""
    of_all, of_kind = _saved(spec, spec.kinds, settings), []
    layer: list[SavedTensor] = []
    for index, kind in enumerate(spec.kinds):
        before = _saved(spec, spec.kinds[: index + 1], settings)
        after = _saved(spec, (*spec.kinds[: index + 1], kind), settings)
        of_kind.append(difference(held_bytes(after), held_bytes(before)))
        if kind == spec.kind_sequence[-1]:
            last, layer = of_kind[-1], layer_tensors(after, index + 1)
    outside = held_bytes(of_all)
    for sums in of_kind:
        outside = difference(outside, sums)
    seq, mbs, mode, attention, checkpointing = settings
    row: Row = {
        "model": spec.name, "layers": spec.layers, "hidden": spec.hidden, "seq": seq, "mbs": mbs,
        "mode": mode, "attention": attention, "checkpointing": checkpointing,
        "per_layer": last[0], "non_layer": outside[0],
        "per_layer_per_token_in_hidden": round(last[0] / (seq * mbs * spec.hidden), 4),
        "weight_casts_per_layer": last[1], "weight_casts_non_layer": outside[1],
    }  # fmt: skip
    return row, layer


@cache
def _saved(
    spec: ModelSpec, kinds: Sequence[LayerKind], settings: tuple[int, int, str, str, str]
) -> list[SavedTensor]:
    return saved_tensors(Run(config_of(spec, kinds), *settings))


def held_bytes(tensors: Sequence[SavedTensor]) -> tuple[int, int]:
    """(bytes of tensors, bytes of copies of weights)."""
    casts = sum(tensor.size for tensor in tensors if tensor.is_cast)
    return sum(tensor.size for tensor in tensors) - casts, casts


def difference(whole: tuple[int, int], part: tuple[int, int]) -> tuple[int, int]:
    """Figures of `whole` without those of `part`."""
    return whole[0] - part[0], whole[1] - part[1]


def layer_tensors(tensors: Sequence[SavedTensor], index: int) -> list[SavedTensor]:
    """Those that modules of the layer of this number saved."""
    return [tensor for tensor in tensors if f".{index}." in f"{tensor.module}."]


def breakdown(spec: ModelSpec, row: Row, layer: Sequence[SavedTensor]) -> Iterator[Row]:
    """The tensors of the last layer, under its own number."""
    tokens = int(str(row["seq"])) * int(str(row["mbs"]))
    for item in layer:
        path, _, inside = item.module.partition(f".{len(spec.kinds)}.")
        module = f"{path}.{spec.layers - 1}.{inside}" if inside else item.module
        yield {key: row[key] for key in ("model", "seq", "mbs", "mode", "attention",
                                         "checkpointing")} | {
            "module": module, "shape": "x".join(map(str, item.shape)), "dtype": item.dtype,
            "bytes": item.size, "weight_cast": int(item.is_cast),
            "per_token_in_hidden": round(item.size / tokens / spec.hidden, 4),
        }  # fmt: skip


def count_flop(spec: ModelSpec, seq: int, attention: str, checkpointing: str) -> Row:
    """FLOP of a layer of the last kind, of the ends and of the whole model."""

    def counted(kinds: Sequence[LayerKind]) -> Flop:
        return flop(Run(config_of(spec, kinds), seq, 1, "bf16", attention, checkpointing))

    of_kind = {}
    for index, kind in enumerate(spec.kinds):
        before = spec.kinds[: index + 1]
        of_kind[kind] = counted((*before, kind)) - counted(before)
    outside = counted(spec.kinds)
    for one in of_kind.values():
        outside -= one
    last, kinds = of_kind[spec.kind_sequence[-1]], spec.kind_sequence
    forward = outside.forward + sum(of_kind[kind].forward for kind in kinds)
    backward = outside.backward + sum(of_kind[kind].backward for kind in kinds)
    fused = attention == "flash"
    return {
        "model": spec.name, "layers": spec.layers, "seq": seq, "attention": attention,
        "checkpointing": checkpointing, "forward_per_layer": last.forward,
        "backward_per_layer": last.backward, "forward_non_layer": outside.forward,
        "backward_non_layer": outside.backward, "forward": forward, "backward": backward,
        "step": forward + backward, "step_per_token": (forward + backward) / seq,
        "attention_forward_per_layer": last.attention_forward if fused else "",
        "attention_backward_per_layer": last.attention_backward if fused else "",
    }  # fmt: skip


def count_parameters(spec: ModelSpec) -> Row:
    """Parameters of the whole model, of its ends and of its first and last layer."""
    counts = parameters(config_of(spec, spec.kind_sequence))

    def having(pattern: str, under: str = "") -> int:
        named = (name for name in counts if under in f".{name}")
        return sum(counts[name] for name in named if re.search(pattern, name))

    total, embedding = sum(counts.values()), having("embed_tokens|wte|embed_in|embeddings")
    positions, head = having("wpe|embed_positions"), having("lm_head|embed_out")
    experts = having(r"\.experts\.")
    chosen = spec.moe.top_k / spec.moe.experts if spec.moe else 0.0
    active = total - round(experts * (1 - chosen))
    body = total - embedding - positions - head
    last = f".{spec.layers - 1}."
    attention = having(r"\.(self_)?(attn|attention)\.", last)
    block = having(r"\.(mlp|feed_forward|block_sparse_moe|fc\d)\.", last)
    blocks: Row = {
        "last_layer_attention": attention, "last_layer_mlp": block,
        "last_layer_other": having("", last) - attention - block,
    }  # fmt: skip
    return ({} if spec.state_space else blocks) | {
        "model": spec.name, "layers": spec.layers, "total": total, "input_embedding": embedding,
        "position_embedding": positions, "lm_head": head, "non_embedding": body,
        "routed_experts": experts, "n_experts": spec.moe.experts if spec.moe else 0,
        "top_k": spec.moe.top_k if spec.moe else 0, "active": active,
        "active_non_embedding": active - (total - body), "first_layer": having("", ".0."),
        "last_layer": having("", last),
    }  # fmt: skip


def append(path: Path, rows: Sequence[Row]) -> None:
    """Rows at the end of a file, in the order of its columns."""
    with path.open(newline="", encoding="utf-8") as handle:
        columns = next(csv.reader(handle))
    with path.open("a", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, columns, extrasaction="ignore", lineterminator="\n")
        writer.writerows(rows)


def count(spec: ModelSpec, folder: Path) -> None:
    """Append all rows of a model; tensor by tensor those of one sequence without checkpoints. Of
    models with state-space layers neither tensors nor FLOP, which are kernels' affair."""
    append(folder / "params.csv", [count_parameters(spec)])
    for settings in runs(spec):
        row, layer = count_run(spec, settings)
        append(folder / "activations.csv", [row])
        if row["checkpointing"] == "none" and row["mbs"] == 1 and not spec.state_space:
            append(folder / "activations_breakdown.csv", list(breakdown(spec, row, layer)))
    if spec.state_space:
        return
    seq = min(BATCHES[0][0], spec.max_positions)
    kernels = list(product(ATTENTION, CHECKPOINTING))
    append(folder / "flops.csv", [count_flop(spec, seq, *kernel) for kernel in kernels])


def main(arguments: Sequence[str] | None = None) -> None:
    """Count the models named."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    options = parser.parse_args(arguments)
    for name in options.models:
        count(reference_model(name), options.folder)


if __name__ == "__main__":
    main()
