"""Projectors of vision-language models in a Hugging Face config.json -> fields of ProjectorSpec.

Each reader follows the modelling file of transformers 5.23. `hf_vision.toml` names the reader of
each model type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planner.job.models.hf_fields import Fields
from planner.job.vision import TowerSpec

Shape = dict[str, Any]


def positions(fields: Fields) -> int:
    """Number of patches of the square image that a tower is made for."""
    return (fields.side("image_size") // fields.side("patch_size")) ** 2


def merger(tower: Fields, whole: Fields, shape: TowerSpec, hidden: int) -> Shape:
    """Qwen's projector: a norm of each patch, then two layers over four concatenated patches.
    Deepstack's projectors normalise the four together."""
    del whole
    merged = tower.positive("spatial_merge_size") ** 2
    wide = merged * shape.hidden
    taps = tuple(tower.indices("deepstack_visual_indexes", below=shape.layers) or ())
    norm = shape.norm
    return {
        "merged": merged,
        "widths": (wide, wide, hidden),
        "norm": norm,
        "norm_width": shape.hidden,
        "taps": taps,
        "tap_norm_width": wide if taps else 0,
    }


def moonvit_projector(tower: Fields, whole: Fields, shape: TowerSpec, hidden: int) -> Shape:
    """Kimi's projector: a norm of each patch, then two layers over concatenated squares of
    patches."""
    del whole
    merged = tower.side("merge_kernel_size") ** 2
    wide = merged * shape.hidden
    return {"merged": merged, "widths": (wide, wide, hidden), "norm_width": shape.hidden}


def across(tower: Fields, whole: Fields, shape: TowerSpec, hidden: int) -> Shape:
    """Llama 3.2 Vision's projector: one layer over the concatenated outputs of several layers."""
    del tower, whole
    return {"widths": (shape.hidden * (1 + len(shape.outputs)), hidden)}


def single(tower: Fields, whole: Fields, shape: TowerSpec, hidden: int) -> Shape:
    """PaliGemma's projector: one layer."""
    del tower, whole
    return {"widths": (shape.hidden, hidden)}


def phi3_projector(tower: Fields, whole: Fields, shape: TowerSpec, hidden: int) -> Shape:
    """Phi-3-vision's projector: two layers over four concatenated patches. A learned vector of the
    same width ends each row of patches, and another stands between the tiles and the view of the
    whole image."""
    del tower, whole
    wide = 4 * shape.hidden
    return {"merged": 4, "widths": (wide, hidden, hidden), "row_ends": 2}


def linear_pair(tower: Fields, whole: Fields, shape: TowerSpec, hidden: int) -> Shape:
    """LLaVA's projector: two layers. From LLaVA-NeXT on a learned vector ends each row of
    patches."""
    del tower
    rows = int(whole.kind() in ("llava_next", "llava_onevision"))
    bias = whole.flag("multimodal_projector_bias", default=True)
    return {"widths": (shape.hidden, hidden, hidden), "bias": bias, "learned": rows}


def internvl_projector(tower: Fields, whole: Fields, shape: TowerSpec, hidden: int) -> Shape:
    """InternVL's projector: a norm of the concatenated patches, and two layers."""
    del tower
    ratio = whole.number("downsample_ratio", default=0.5)
    merged = round(1.0 / ratio) ** 2
    wide = merged * shape.hidden
    return {"merged": merged, "widths": (wide, hidden, hidden), "norm_width": wide}


def gemma3(tower: Fields, whole: Fields, shape: TowerSpec, hidden: int) -> Shape:
    """Gemma 3's projector: the mean of squares of patches, a norm, and one layer without bias."""
    tokens = whole.optional_positive("mm_tokens_per_image") or 256
    return {
        "merged": positions(tower) // tokens,
        "pooled": True,
        "widths": (shape.hidden, hidden),
        "bias": False,
        "norm": "rmsnorm",
        "norm_width": shape.hidden,
    }


def mistral3(tower: Fields, whole: Fields, shape: TowerSpec, hidden: int) -> Shape:
    """Mistral 3's projector: a norm of each patch, a layer over a token's four patches, and two
    more layers."""
    del tower
    merged = (whole.optional_positive("spatial_merge_size") or 2) ** 2
    widths = (merged * shape.hidden, shape.hidden, hidden, hidden)
    return {
        "merged": merged,
        "widths": widths,
        "plain": 1,
        "bias": whole.flag("multimodal_projector_bias"),
        "norm": "rmsnorm",
        "norm_width": shape.hidden,
    }


def shuffled(tower: Fields, whole: Fields, shape: TowerSpec, hidden: int) -> Shape:
    """Projector of concatenated squares of patches and one layer without bias (pixel shuffle)."""
    del tower
    merged = (whole.optional_positive("scale_factor") or 2) ** 2
    return {"merged": merged, "widths": (merged * shape.hidden, hidden), "bias": False}


def llama4_projector(tower: Fields, whole: Fields, shape: TowerSpec, hidden: int) -> Shape:
    """Llama 4's projector: two layers over four concatenated patches, and one to the language
    model, all without bias."""
    del whole
    merged = round(1.0 / tower.number("pixel_shuffle_ratio", default=0.5)) ** 2
    into, out = tower.positive("projector_input_dim"), tower.positive("projector_output_dim")
    return {"merged": merged, "widths": (merged * shape.hidden, into, out, hidden), "bias": False}


PROJECTORS: Mapping[str, Callable[[Fields, Fields, TowerSpec, int], Shape]] = {
    "merger": merger,
    "linear_pair": linear_pair,
    "internvl": internvl_projector,
    "gemma3": gemma3,
    "mistral3": mistral3,
    "shuffled": shuffled,
    "llama4": llama4_projector,
    "moonvit": moonvit_projector,
    "single": single,
    "across": across,
    "phi3": phi3_projector,
}
