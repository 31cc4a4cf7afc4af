"""Counts vision towers and projectors in transformers, as rows of tests/truth/data.

    python -m tests.frameworks.count_vision FOLDER [MODEL ...]

writes vision_activations.csv, vision_breakdown.csv and vision_parameters.csv. A layer is what one
more adds to a tower of two; the ends are what remains of a tower of two without them, patch
embedding, norms around the layers and projector, for one image, or one tile of it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.frameworks.count_families import difference, held_bytes
from tests.frameworks.count_tuning import known_rows, write
from tests.frameworks.hf_counts import SavedTensor, pretend_gpu, saved_tensors
from tests.frameworks.tuned_models import Tuning
from tests.frameworks.vision_models import VisionRun, config_of, part_of

Row = dict[str, object]
FULL = Tuning()
# One of each kind and width of tower, and of each projector.
MODELS = (
    "qwen2-vl-2b", "qwen2.5-vl-7b", "qwen3-vl-2b", "qwen3-vl-8b", "llava-1.5-7b",
    "llava-v1.6-mistral-7b", "llava-onevision-7b", "gemma-3-4b", "internvl3-8b", "internvl3-38b",
    "pixtral-12b", "mistral-small-3.1-24b", "smolvlm2-500m", "idefics3-8b", "llama-4-scout",
    "paligemma-3b-224", "kimi-k2.5", "internvl2-8b", "internvl2-26b",
    "llama-3.2-11b-vision",
)  # fmt: skip
_LAYER = re.compile(r"\.(?:layers?|blocks)\.(\d+)(?:\.|$)")


@dataclass(frozen=True)
class Setting:
    """One way of training and running a model. `freeze`: the tower; `hooked`: what the embeddings
    of patches and words make needs gradients; `tapped`: a further projector reads the first layer.
    """

    mode: str = "bf16"
    attention: str = "flash"
    checkpointing: str = "none"
    tuning: Tuning = FULL
    windowed: bool = False
    freeze: bool = False
    hooked: bool = False
    tapped: bool = False


_LORA, _QLORA = Tuning("lora"), Tuning("qlora", base="nf4-double", prepared=True)
SETTINGS = (
    Setting(),
    Setting(windowed=True),
    Setting(attention="eager"),
    Setting(attention="eager", windowed=True),
    Setting(checkpointing="full"),
    Setting("amp"),
    Setting("amp", "eager"),
    Setting("amp", checkpointing="full"),
    Setting("fp32", "eager"),
    Setting(tuning=_LORA, hooked=True),
    Setting("bf16-amp", tuning=_LORA, hooked=True),
    Setting("bf16-amp", checkpointing="full", tuning=_LORA, hooked=True),
    Setting("bf16-amp", tuning=_QLORA, hooked=True),
    Setting(tapped=True),
    Setting("amp", tapped=True),
    Setting(freeze=True),
    Setting(checkpointing="full", tuning=_LORA, freeze=True, hooked=True),
)


def settings_of(name: str) -> Iterator[Setting]:
    """All of them that mean something for a model."""
    vision = config_of(name)["vision_config"]
    windows = "fullatt_block_indexes" in vision or "num_global_layers" in vision
    taps = "deepstack_visual_indexes" in vision
    # InternVL's own norms of queries hand on fp32 there, which flash-attn does not take.
    plain = bool(vision.get("qk_normalization"))
    return (
        setting
        for setting in SETTINGS
        if (windows or not setting.windowed)
        and (taps or not setting.tapped)
        and not (plain and (setting.tuning.base or setting.mode == "fp32"))
    )


@cache
def _saved(name: str, setting: Setting, layers: int) -> list[SavedTensor]:
    return saved_tensors(_run(name, setting, layers))


def _run(name: str, setting: Setting, layers: int) -> VisionRun:
    return VisionRun(
        config_of(name), 1, 1, setting.mode, setting.attention, setting.checkpointing,
        tuning=setting.tuning, hooked=setting.hooked, layers=layers, windowed=setting.windowed,
        tapped=setting.tapped, frozen_tower=setting.freeze,
    )  # fmt: skip


def _is_mllama(name: str) -> bool:
    """Whether `windowed` is about layers with gates."""
    return bool(config_of(name)["model_type"] == "mllama")


def described(name: str, setting: Setting) -> Row:
    """The cells that say what was counted."""
    tuning = setting.tuning
    return {
        "model": name, "patches": _run(name, setting, 1).patches, "mode": setting.mode,
        "attention": setting.attention, "checkpointing": setting.checkpointing,
        "windowed": int(setting.windowed), "method": tuning.method, "base": tuning.base,
        "freeze": "vision_tower" if setting.freeze else "", "hooked": int(setting.hooked),
        "tapped": int(setting.tapped),
    }  # fmt: skip


def count_run(name: str, setting: Setting) -> tuple[Row, list[SavedTensor]]:
    """Bytes that a layer and the ends hold, and the tensors of a tower of two layers."""
    two, three = _saved(name, setting, 2), _saved(name, setting, 3)
    layer = difference(held_bytes(three), held_bytes(two))
    ends = difference(difference(held_bytes(two), layer), layer)
    if setting.windowed and _is_mllama(name):
        # Two layers without gates are below those with.
        plain = count_run(name, replace(setting, windowed=False))[0]
        ends = plain["ends"], plain["weight_casts_ends"]
        two = [item for item in two if ".transformer." not in item.module]
    return described(name, setting) | {
        "per_layer": layer[0], "ends": ends[0],
        "weight_casts_per_layer": layer[1], "weight_casts_ends": ends[1],
    }, two  # fmt: skip


def breakdown(row: Row, tensors: Sequence[SavedTensor]) -> Iterator[Row]:
    """The tensors of the second layer, and of the ends, by the path of their module."""
    keys = [key for key in row if not key.startswith(("per_layer", "ends", "weight"))]
    for item in tensors:
        found = None if part_of(item.module) == "projector" else _LAYER.search(item.module)
        if found and found[1] == "0":
            continue
        module = item.module[found.end() :] if found else item.module
        yield {key: row[key] for key in keys} | {
            "part": "layer" if found else "ends", "module": module,
            "shape": "x".join(map(str, item.shape)), "dtype": item.dtype, "bytes": item.size,
            "weight_cast": int(item.is_cast),
        }  # fmt: skip


def count_parameters(name: str, tuning: Tuning, *, freeze: bool) -> Row:
    """Parameters of a tower of two layers and its projector, and how many are trained."""
    pretend_gpu()
    run = VisionRun(config_of(name), 1, tuning=tuning, layers=2, frozen_tower=freeze)
    with FakeTensorMode(), torch.device("cuda"):
        model = run.build()
        held = {part: _held(model, part) for part in ("tower", "projector")}
    return {"model": name, "method": tuning.method, "freeze": "vision_tower" if freeze else ""} | {
        f"{part}_{what}": count for part, counts in held.items() for what, count in counts.items()
    }


def _held(model: Any, part: str) -> dict[str, int]:
    of_part = [one for name, one in model.named_parameters() if part_of(name) == part]
    named = [(one.numel(), one.requires_grad) for one in of_part]
    return {"total": sum(n for n, _ in named), "trained": sum(n for n, trains in named if trains)}


def count(name: str, folder: Path) -> None:
    """Write the rows of a model beside those of others."""
    libraries = ("torch", "transformers", "peft")
    made_by = {"made_by": " ".join(f"{one}-{version(one)}" for one in libraries)}
    runs: list[Row] = []
    tensors: list[Row] = []
    for setting in settings_of(name):
        row, saved = count_run(name, setting)
        runs.append(row | made_by)
        if setting.checkpointing == "none":
            tensors += breakdown(row, saved)
    ways = ((FULL, False), (FULL, True), (_LORA, False))
    held = [count_parameters(name, tuning, freeze=freeze) | made_by for tuning, freeze in ways]
    for file, rows in (("activations", runs), ("breakdown", tensors), ("parameters", held)):
        path = folder / f"vision_{file}.csv"
        write(path, rows, [row for row in known_rows(path) if row["model"] != name], MODELS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Count the models named."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    options = parser.parse_args(arguments)
    for name in options.models:
        count(name, options.folder)


if __name__ == "__main__":
    main()
