"""Tokens of an image, as the processors of transformers count them.

    python -m tests.frameworks.image_processors FILE

writes the table that tests without transformers check (tests/job/image_tokens.csv): a few sizes of
each family, drawn at random.
"""

from __future__ import annotations

import csv
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from planner.job.images import image_rules

_SEED, _FEW = 7, 6


def sizes(number: int) -> Iterator[tuple[int, int]]:
    """Widths and heights in pixels, at random."""
    draw = random.Random(_SEED)
    for _ in range(number):
        yield draw.randint(30, 3000), draw.randint(30, 3000)


class _Square:
    """The size of a tile in pixels."""

    height = width = 336


def _made(kind: type[Any], **fields: Any) -> Any:
    """A processor without the files of a model."""
    made = kind.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def _qwen(factor: int, least: int, most: int) -> Callable[[int, int], int]:
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    def count(width: int, height: int) -> int:
        down, across = smart_resize(height, width, factor, least, most)
        return int(down // factor) * int(across // factor) + 2

    return count


def _llava_next() -> Callable[[int, int], int]:
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor

    images = SimpleNamespace(image_grid_pinpoints=image_rules()["llava_next"]["grids"])
    made = _made(
        LlavaNextProcessor, image_processor=images, patch_size=14, num_additional_image_tokens=1
    )
    return lambda width, height: int(made._get_number_of_features(height, width, 336, 336)) - 1


def _onevision() -> Callable[[int, int], int]:
    from transformers.models.llava_onevision.processing_llava_onevision import (
        LlavaOnevisionProcessor,
    )

    grids = [[a * 384, b * 384] for a in range(1, 7) for b in range(1, 7)]
    images = SimpleNamespace(image_grid_pinpoints=grids)
    made = _made(
        LlavaOnevisionProcessor, image_processor=images, num_image_tokens=729,
        vision_aspect_ratio="anyres_max_9",
    )  # fmt: skip
    return lambda width, height: int(made._get_number_of_features(height, width, 384, 384))


def _internvl() -> Callable[[int, int], int]:
    from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas

    def count(width: int, height: int) -> int:
        across, down = get_optimal_tiled_canvas((height, width), (448, 448), 1, 12)
        tiles = across * down
        return 2 + 256 * (tiles + 1 if tiles > 1 else 1)

    return count


def _llama4() -> Callable[[int, int], int]:
    import torch
    from transformers.models.llama4 import image_processing_llama4 as module

    supported = torch.tensor(module.find_supported_resolutions(16, _Square()))

    def count(width: int, height: int) -> int:
        down, across = (int(x) // 336 for x in module.get_best_fit((height, width), supported))
        tiles = across * down
        separators = tiles if tiles > 1 else 0
        return 144 * (tiles + (tiles > 1)) + separators + 3

    return count


def _pixtral(longest: int, step: int) -> Callable[[int, int], int]:
    import numpy as np
    from transformers.models.pixtral.image_processing_pixtral import get_resize_output_image_size

    def count(width: int, height: int) -> int:
        picture = np.zeros((height, width, 3))
        down, across = get_resize_output_image_size(picture, (longest, longest), (step, step))
        return int((across // step + 1) * (down // step))

    return count


def _idefics(size: int, longest: int, tokens: int) -> Callable[[int, int], int]:
    from transformers.models.idefics3.image_processing_idefics3 import Idefics3ImageProcessor

    said = {
        "do_image_splitting": True,
        "max_image_size": {"longest_edge": size},
        "size": {"longest_edge": longest},
    }
    made = _made(Idefics3ImageProcessor)

    def count(width: int, height: int) -> int:
        _, rows, columns = made.get_number_of_image_patches(height, width, said)
        return int(tokens + 3 + rows * ((tokens + 2) * columns + 1))

    return count


def _kimi() -> Callable[[int, int], int]:
    from transformers.models.kimi_k25.image_processing_kimi_k25 import navit_resize

    def count(width: int, height: int) -> int:
        _, (down, across) = navit_resize(height, width, 14, 2, 16384, 512)
        return int(down // 28) * int(across // 28) + 4

    return count


def processors() -> Mapping[str, Callable[[int, int], int]]:
    """Tokens of an image of a width and a height, by model of the catalogue."""
    return {
        "qwen2.5-vl-7b": _qwen(28, 3136, 12845056),
        "qwen3-vl-8b": _qwen(32, 65536, 16777216),
        "llava-v1.6-mistral-7b": _llava_next(),
        "llava-onevision-7b": _onevision(),
        "internvl3-8b": _internvl(),
        "llama-4-scout": _llama4(),
        "pixtral-12b": _pixtral(1024, 16),
        "mistral-small-3.1-24b": _pixtral(1540, 28),
        "idefics3-8b": _idefics(364, 1456, 169),
        "smolvlm-2b": _idefics(384, 1536, 81),
        "smolvlm2-500m": _idefics(512, 2048, 64),
        "kimi-k2.5": _kimi(),
    }


def main() -> None:
    """Write the table."""
    with Path(sys.argv[1]).open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(("model", "width", "height", "tokens"))
        for model, count in processors().items():
            writer.writerows((model, *size, count(*size)) for size in sizes(_FEW))


if __name__ == "__main__":
    main()
