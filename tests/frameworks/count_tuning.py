"""Counts models that are trained in part, as rows of tests/truth/data.

    python -m tests.frameworks.count_tuning FOLDER [MODEL ...]

writes what tuning_activations.csv, tuning_breakdown.csv and tuning_parameters.csv in FOLDER do not
have yet of the models named, or of one model a family. A layer is what one more layer adds to a
model of two or more, for the first trained one keeps less: nothing below it needs a gradient.
Outside the layers is what remains of the model when each of its layers is taken for such a one.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.job.specs import LayerKind, ModelSpec
from tests.frameworks.count_families import config_of, difference, held_bytes, layer_tensors
from tests.frameworks.hf_counts import SavedTensor, pretend_gpu, saved_tensors
from tests.frameworks.tuned_models import TunedRun, Tuning, state_tensors
from tests.truth.predicted import reference_model

Row = dict[str, object]
MODELS = (
    "llama-3-8b", "mistral-7b", "qwen2-7b", "qwen3-8b", "gemma-2-2b", "gemma-3-4b", "phi-2",
    "phi-3-mini", "gpt-neox-20b", "mixtral-8x7b", "qwen3-30b-a3b",
)  # fmt: skip
_LINEAR, _ATTENTION, _QUERY_VALUE = ("all-linear",), ("attention",), ("q", "v")
_LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes")


@dataclass(frozen=True)
class Setting:
    """One way of training and running a model. `listed`: whether each tensor is."""

    tuning: Tuning
    mode: str = "bf16-amp"
    attention: str = "flash"
    checkpointing: str = "none"
    seq: int = 2048
    mbs: int = 1
    listed: bool = True


_LORA = Tuning("lora", targets=_LINEAR)
_ADAPTERS_16 = Tuning("lora", targets=_LINEAR, adapter="bf16")
_QLORA = Tuning("qlora", targets=_LINEAR, base="nf4-double", prepared=True)
_QLORA_16 = Tuning("qlora", targets=_LINEAR, base="nf4-double", adapter="bf16")
_DORA = Tuning("dora", targets=_LINEAR)
_DORA_16 = Tuning("dora", targets=_LINEAR, adapter="bf16")
_FROZEN_EMBEDDING = Tuning(frozen=("embeddings",))
_FROZEN_LAYER = Tuning(frozen=("embeddings", "layers:1"))
SETTINGS = (
    Setting(_LORA),
    Setting(_LORA, "bf16"),
    Setting(_LORA, "amp", listed=False),
    Setting(_LORA, attention="eager", listed=False),
    Setting(_LORA, checkpointing="full", listed=False),
    Setting(_LORA, seq=1024, mbs=2, listed=False),
    Setting(Tuning("lora", rank=64, targets=_ATTENTION)),
    Setting(Tuning("lora", rank=8, targets=_QUERY_VALUE, dropout=0.05)),
    Setting(Tuning("lora", targets=_LINEAR, dropout=0.1), listed=False),
    Setting(_ADAPTERS_16, "bf16"),
    Setting(Tuning("lora", targets=_LINEAR, adapter="bf16", dropout=0.1), "bf16"),
    Setting(_QLORA),
    Setting(_QLORA, checkpointing="full", listed=False),
    Setting(_QLORA_16),
    Setting(Tuning("qlora", targets=_LINEAR, base="nf4"), listed=False),
    Setting(Tuning("qlora", targets=_LINEAR, base="int8")),
    Setting(Tuning("qlora", targets=_ATTENTION, base="int8", prepared=True), listed=False),
    Setting(Tuning("lora", targets=_LINEAR, whole=("embeddings", "head")), listed=False),
    Setting(_DORA),
    Setting(_DORA_16, "bf16", listed=False),
    Setting(Tuning("dora", targets=_LINEAR, dropout=0.1), listed=False),
    Setting(Tuning(), listed=False),
    Setting(_FROZEN_EMBEDDING, listed=False),
    Setting(_FROZEN_EMBEDDING, "bf16", listed=False),
    Setting(_FROZEN_EMBEDDING, "amp", listed=False),
    Setting(_FROZEN_LAYER, "bf16", listed=False),
    Setting(_FROZEN_LAYER, "bf16", checkpointing="full", listed=False),
)
_EXPERTS_STAY = Setting(Tuning(frozen=("experts",)), "bf16")


def settings_of(spec: ModelSpec) -> Iterator[Setting]:
    """All of them that mean something for the model: where peft puts adapters on experts, they have
    neither dropout nor magnitudes, and torch groups no products of experts in fp32, as preparation
    makes them."""
    for setting in SETTINGS:
        tuning = setting.tuning
        plain = not tuning.dropout and tuning.method != "dora"
        on_experts = spec.moe is not None and tuning.targets == _LINEAR
        if (plain or not on_experts) and not (spec.moe and tuning.prepared):
            yield setting
    if spec.moe:
        yield _EXPERTS_STAY


def _run(
    spec: ModelSpec, kinds: Sequence[LayerKind], setting: Setting, *, hooked: bool = False
) -> TunedRun:
    return TunedRun(
        config_of(spec, kinds),
        min(setting.seq, spec.max_positions),
        setting.mbs,
        setting.mode,
        setting.attention,
        setting.checkpointing,
        tuning=setting.tuning,
        hooked=hooked,
    )


@cache
def _saved(spec: ModelSpec, kinds: Sequence[LayerKind], setting: Setting) -> list[SavedTensor]:
    return saved_tensors(_run(spec, kinds, setting))


def first_layer(spec: ModelSpec, setting: Setting) -> int:
    """Bytes that the first layer keeps more, casts of weights included, where what the embedding
    makes needs a gradient."""
    found = (spec.kinds[0], *spec.kinds)
    hooked = held_bytes(saved_tensors(_run(spec, found, setting, hooked=True)))
    return sum(difference(hooked, held_bytes(_saved(spec, found, setting))))


def count_run(spec: ModelSpec, setting: Setting) -> tuple[Row, list[SavedTensor]]:
    """Bytes that a layer of the last kind and the ends hold, and the tensors of the layer."""
    found = (spec.kinds[0], *spec.kinds)
    whole = _saved(spec, found, setting)
    of_kind = {}
    layer: list[SavedTensor] = []
    for kind in spec.kinds:
        after = _saved(spec, (*found, kind), setting)
        of_kind[kind] = difference(held_bytes(after), held_bytes(whole))
        if kind == spec.kind_sequence[-1]:
            layer = layer_tensors(after, len(found))
    outside = held_bytes(whole)
    for kind in found:
        outside = difference(outside, of_kind[kind])
    last = of_kind[spec.kind_sequence[-1]]
    return described(spec, setting) | {
        "per_layer": last[0], "non_layer": outside[0],
        "weight_casts_per_layer": last[1], "weight_casts_non_layer": outside[1],
        "first_layer": first_layer(spec, setting),
    }, layer  # fmt: skip


def described(spec: ModelSpec, setting: Setting) -> Row:
    """The cells that say what was counted."""
    tuning = setting.tuning
    return {
        "model": spec.name, "hidden": spec.hidden, "seq": min(setting.seq, spec.max_positions),
        "mbs": setting.mbs, "mode": setting.mode, "attention": setting.attention,
        "checkpointing": setting.checkpointing,
    } | _tuning_cells(tuning)  # fmt: skip


def _tuning_cells(tuning: Tuning) -> Row:
    trains_adapters = tuning.method != "full"
    return {
        "method": tuning.method,
        "rank": tuning.rank if trains_adapters else "",
        "targets": " ".join(tuning.targets) if trains_adapters else "",
        "dropout": tuning.dropout or "",
        "adapter": tuning.adapter,
        "base": tuning.base,
        "whole": " ".join(tuning.whole),
        "prepared": int(tuning.prepared),
        "freeze": " ".join(tuning.frozen),
    }


def breakdown(row: Row, layer: Sequence[SavedTensor]) -> Iterator[Row]:
    """The tensors of the last layer, by the path of their module inside it."""
    keys = [
        key for key in row if not key.startswith(("per_layer", "non_layer", "weight", "hidden"))
    ]
    for item in layer:
        inside = item.module.partition("layers.")[2].partition(".")[2]
        yield {key: row[key] for key in keys} | {
            "module": inside, "shape": "x".join(map(str, item.shape)), "dtype": item.dtype,
            "bytes": item.size, "weight_cast": int(item.is_cast),
        }  # fmt: skip


def count_parameters(spec: ModelSpec, tuning: Tuning, mode: str) -> Row:
    """Parameters of the whole model and their bytes: frozen as they are, quantised with what
    belongs to them, trained; gradients; states of AdamW. Counted once where modules share."""
    pretend_gpu()
    run = TunedRun(config_of(spec, spec.kind_sequence), 1, mode=mode, tuning=tuning)
    with FakeTensorMode(), torch.device("cuda"):
        model = run.build()
        held = held_by(model)
    columns = ("total", "trained", "trained_per_layer", "quantised", "frozen_bytes",
               "quantised_bytes", "trained_bytes", "gradient_bytes", "state_bytes")  # fmt: skip
    held["trained_per_layer"] = _per_layer(model, spec.layers - 1)
    return parameter_cells(spec, tuning, mode) | {column: held[column] for column in columns}


def held_by(model: Any) -> Counter[str]:
    """Parameters of a model and bytes, by what they are for."""
    held: Counter[str] = Counter()
    for module in model.modules():
        held["quantised_bytes"] += sum(_size(one) for one in state_tensors(module))
    for parameter in model.parameters():
        held.update(_held(parameter))
    return held


def parameter_cells(spec: ModelSpec, tuning: Tuning, mode: str) -> Row:
    """The cells that say whose parameters were counted."""
    return {"model": spec.name, "mode": mode} | _tuning_cells(tuning)


def _held(parameter: Any) -> dict[str, int]:
    """What one parameter adds; packed weights of four bits are half as many bytes as weights."""
    state = getattr(parameter, "quant_state", None)
    count, size = parameter.numel(), _size(parameter)
    if state is not None:
        count = int(state.shape[0]) * int(state.shape[1])
        return {"total": count, "quantised": count, "quantised_bytes": size}
    if parameter.dtype is torch.int8:
        return {"total": count, "quantised": count, "quantised_bytes": size}
    if not parameter.requires_grad:
        return {"total": count, "frozen_bytes": size}
    return {
        "total": count, "trained": count, "trained_bytes": size, "gradient_bytes": size,
        "state_bytes": 2 * size,
    }  # fmt: skip


def _per_layer(model: Any, index: int) -> int:
    return sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and f"layers.{index}." in name
    )


def _size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def write(
    path: Path, rows: Sequence[Row], kept: Sequence[Row], models: Sequence[str] = MODELS
) -> None:
    """A file of rows that were there and of new ones, in the order of `models`."""
    with path.open("w", newline="", encoding="utf-8") as handle:
        columns = list((*rows, *kept)[0])
        writer = csv.DictWriter(handle, columns, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(sorted((*kept, *rows), key=lambda row: _place(row, models)))


def _place(row: Row, models: Sequence[str]) -> int:
    return models.index(str(row["model"])) if row["model"] in models else len(models)


def known_rows(path: Path) -> list[Row]:
    """The rows that a file has, if it is there."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as handle:
        return [dict(row) for row in csv.DictReader(handle)]


def _found(cells: Row, known: Sequence[Row]) -> Row | None:
    """The row with these cells, if there is one."""
    wanted = {(name, str(cell)) for name, cell in cells.items()}
    words = ({(name, str(cell)) for name, cell in row.items()} for row in known)
    return next((row for row, one in zip(known, words, strict=True) if wanted <= one), None)


def count(spec: ModelSpec, folder: Path) -> None:
    """Write the rows of a model that the files have not yet."""
    names = ("tuning_activations", "tuning_breakdown", "tuning_parameters")
    paths = [folder / f"{name}.csv" for name in names]
    known = [known_rows(path) for path in paths]
    runs, tensors, parameters = [], [], []
    for setting in settings_of(spec):
        there = _found(described(spec, setting), known[0])
        if there is not None and not there.get("first_layer"):
            there["first_layer"] = first_layer(spec, setting)
        if there is None:
            row, layer = count_run(spec, setting)
            runs.append(row | {"made_by": _made_by()})
            tensors += list(breakdown(row, layer)) if setting.listed else []
        key = (setting.tuning, setting.mode)
        if _found(parameter_cells(spec, *key), [*known[2], *parameters]) is None:
            parameters.append(count_parameters(spec, *key) | {"made_by": _made_by()})
    for path, rows, kept in zip(paths, (runs, tensors, parameters), known, strict=True):
        write(path, rows, kept)


def _made_by() -> str:
    return " ".join(f"{name}-{version(name)}" for name in _LIBRARIES)


def main(arguments: Sequence[str] | None = None) -> None:
    """Count the models named."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    options = parser.parse_args(arguments)
    for name in options.models:
        count(reference_model(name), options.folder)


if __name__ == "__main__":
    main()
