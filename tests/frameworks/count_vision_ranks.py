"""Parameters of a tensor-parallel rank of a vision tower and its projector, as Megatron-Bridge has
them, counted tensor by tensor in transformers.

    python -m tests.frameworks.count_vision_ranks FILE.csv

Megatron's layers split weights and biases of their first products by the outputs, weights of their
second ones by the inputs (megatron/core/tensor_parallel/layers.py, ColumnParallelLinear and
RowParallelLinear), which they do for Qwen3-VL's tower; a tower of transformers' modules is whole on
every rank (Megatron-Bridge 0.6.2, models/qwen_vl/qwen25_vl_bridge.py, ReplicatedMapping).
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.frameworks.vision_models import config_of, part_of

# Tensors that a rank has its part of.
_SPLIT = r"\.(qkv|linear_fc1)\.(weight|bias)$|\.(attn\.proj|linear_fc2)\.weight$"
MODELS = {"qwen2.5-vl-72b": "", "qwen2.5-vl-7b": "", "qwen3-vl-8b": _SPLIT, "qwen3-vl-32b": _SPLIT}
DEGREES = (1, 2, 4, 8)


def rows() -> Iterator[dict[str, object]]:
    """A row for each model and degree."""
    for name, split in MODELS.items():
        config = config_of(name)
        with torch.device("meta"):
            kind = CONFIG_MAPPING[config.pop("model_type")]
            model = AutoModelForImageTextToText.from_config(kind(**config))
        held = ((key, one.numel()) for key, one in model.named_parameters())
        found = [(key, size) for key, size in held if part_of(key) != "language"]
        for tp in DEGREES:
            parts = (size // tp if split and re.search(split, key) else size for key, size in found)
            yield {"model": name, "tp": tp, "parameters": sum(parts)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("file", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    with options.file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ("model", "tp", "parameters"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows())


if __name__ == "__main__":
    main()
