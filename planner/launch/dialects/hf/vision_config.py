"""The vision part of a model as the config.json of a type of transformers says it: the way back of
`planner.job.models.hf_vision`, whose tables say which types there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from planner.job.errors import ModelError
from planner.job.images import image_side
from planner.job.models.hf_config import family_of_type, language_key, language_type
from planner.job.models.hf_vision import read_vision, type_parts, vision_key, vision_types
from planner.job.specs import ModelSpec
from planner.job.vision import TowerSpec, VisionSpec

Config = dict[str, object]


def with_vision_config(text: Config, model: ModelSpec) -> Config:
    """The config of a language model inside of the type that has the model's vision part too; that
    of the language model where there is no such type."""
    vision = model.vision
    if vision is None:
        return text
    # Types whose own language model it is first: some share all the rest.
    types = sorted(vision_types(), key=lambda one: _own_family(one) != model.family)
    found = (_whole(one, text, model, vision) for one in types)
    return next((config for config in found if _says(config, model)), text)


def _own_family(outer: str) -> str:
    return family_of_type(language_type(outer))


def _says(config: Config, model: ModelSpec) -> bool:
    """Whether a config, read again, has the model's vision part and its language model's type."""
    outer = str(config["model_type"])
    key = language_key(outer)
    text = config[key] if key else {"model_type": language_type(outer)}
    if not isinstance(text, dict) or family_of_type(str(text["model_type"])) != model.family:
        return False
    try:
        return read_vision(outer, config, model.hidden, outer) == model.vision
    except ModelError:
        return False


def _whole(outer: str, text: Config, model: ModelSpec, vision: VisionSpec) -> Config:
    """A type's config. The language model has the type's own name where it is the type's own."""
    parts = type_parts(outer)
    own = language_type(outer)
    inner = own if _own_family(outer) == model.family else str(text["model_type"])
    beside, inside = _PROJECTORS[parts.projector](vision)
    table: Config = {**_tower(outer, parts.tower, vision, model.hidden), **inside}
    key, language = language_key(outer), {**text, "model_type": inner}
    return {
        **({key: language} if key else text),
        "model_type": outer,
        vision_key(outer): table,
        **beside,
        "tie_word_embeddings": model.tied_embeddings,
    }


def _tower(outer: str, kind: str, vision: VisionSpec, hidden: int) -> Config:
    """vision_config, without what the projector takes of it."""
    if kind == "phi3_clip":
        return dict(_PHI3_TOWER)
    if kind == "mllama":
        return _mllama(vision)
    if kind == "moonvit":
        return _moonvit(outer, vision)
    if kind in _QWENS:
        return {"model_type": outer, **_QWENS[kind](vision.tower, hidden)}
    return _trunk(vision) | _named(outer, kind, vision.tower)


# --- towers ---------------------------------------------------------------------------------------


def _qwen(tower: TowerSpec) -> Config:
    return {
        "depth": tower.layers,
        "num_heads": tower.heads,
        "patch_size": tower.patch,
        "temporal_patch_size": tower.frames,
    }


def _qwen2_vl(tower: TowerSpec, hidden: int) -> Config:
    """Whose `hidden_size` is the language model's."""
    ratio = tower.ffn // tower.hidden
    widths: Config = {"embed_dim": tower.hidden, "hidden_size": hidden, "mlp_ratio": ratio}
    return {**_qwen(tower), **widths}


def _widths(tower: TowerSpec, hidden: int) -> Config:
    return {
        "hidden_size": tower.hidden,
        "intermediate_size": tower.ffn,
        "out_hidden_size": hidden,
    }


def _qwen2_5_vl(tower: TowerSpec, hidden: int) -> Config:
    windows: Config = {
        "window_size": math.isqrt(tower.window) * tower.patch,
        "fullatt_block_indexes": list(tower.full_layers or ()),
    }
    return {**_qwen(tower), **_widths(tower, hidden), **windows}


def _qwen3_vl(tower: TowerSpec, hidden: int) -> Config:
    return {**_qwen(tower), **_widths(tower, hidden), "num_position_embeddings": tower.positions}


_QWENS: Mapping[str, Callable[[TowerSpec, int], Config]] = {
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
}


def _trunk(vision: VisionSpec) -> Config:
    """What towers of Hugging Face's own names state alike."""
    tower = vision.tower
    return {
        "hidden_size": tower.hidden,
        "intermediate_size": tower.ffn,
        "num_hidden_layers": tower.layers,
        "num_attention_heads": tower.heads,
        "patch_size": tower.patch,
        "image_size": _image_side(vision),
    }


# Phi-3-vision names its tower; the modelling file has its sizes.
_PHI3_TOWER: Config = {
    "name": "clip_vision_model",
    "model_name": "openai/clip-vit-large-patch14-336",
    "image_dim_out": 1024,
    "num_img_tokens": 144,
}


def _mllama(vision: VisionSpec) -> Config:
    """Llama 3.2 Vision's tower, whose tiles come in the shapes of its class."""
    tower, trunk = vision.tower, _trunk(vision)
    del trunk["num_attention_heads"]
    return {
        "model_type": "mllama_vision_model",
        **trunk,
        "attention_heads": tower.heads,
        "num_hidden_layers": tower.layers - tower.gated_layers,
        "num_global_layers": tower.gated_layers,
        "max_num_tiles": tower.tiles,
        "intermediate_layers_indices": list(tower.outputs),
        "vision_output_dim": vision.projector.widths[0],
    }


def _moonvit(outer: str, vision: VisionSpec) -> Config:
    """Kimi's tower: transformers' own names of K2.5's, the checkpoint's of Kimi-VL's."""
    own = outer == "kimi_k25"
    name = "pos_emb" if own else "init_pos_emb"
    side = math.isqrt(vision.tower.positions)
    config = _trunk(vision)
    del config["image_size"]
    return {
        "model_type": "kimi_k25_vision" if own else "moonvit",
        **config,
        f"{name}_height": side,
        f"{name}_width": side,
        "merge_kernel_size": [math.isqrt(vision.projector.merged)] * 2,
    }


def _image_side(vision: VisionSpec) -> int:
    """Pixels a side of the images that the tower has positions for: those of the family's tiles,
    unless its table is of another size."""
    tower, usual = vision.tower, image_side(vision.rule)
    places = tower.positions - tower.class_tokens
    if usual and (places <= 0 or (usual // tower.patch) ** 2 == places):
        return usual
    return math.isqrt(max(1, places)) * tower.patch


def _named(outer: str, kind: str, tower: TowerSpec) -> Config:
    """The tower's own type, and what only that type states."""
    if kind == "internvl":
        return {
            "model_type": "internvl_vision",
            "attention_bias": tower.qkv_bias,
            "use_qk_norm": tower.qk_norm == "full",
            "norm_type": "layer_norm" if tower.norm == "layernorm" else "rms_norm",
            "use_absolute_position_embeddings": tower.positions > 0,
            "use_mean_pooling": not tower.norm_after,
        }
    if kind == "intern_vit":
        return {
            "model_type": "intern_vit_6b",
            "architectures": ["InternVisionModel"],
            "qkv_bias": tower.qkv_bias,
            "qk_normalization": tower.qk_norm == "full",
            "norm_type": "layer_norm" if tower.norm == "layernorm" else "rms_norm",
        }
    own = _tower_type(outer, kind, tower)
    # SigLIP's own head would have weights that nothing reads (modeling_siglip.py).
    head = {"vision_use_head": False} if own == "siglip_vision_model" else {}
    return {"model_type": own, **head}


def _tower_type(outer: str, kind: str, tower: TowerSpec) -> str:
    """Type of a tower, which LLaVA's reader leaves open between CLIP's, SigLIP's and Pixtral's."""
    own = {"llama4": "llama4_vision_model", "idefics3": f"{outer}_vision"}
    if kind in own:
        return own[kind]
    if tower.rotary:
        return "pixtral"
    return "clip_vision_model" if tower.class_tokens else "siglip_vision_model"


# --- projectors: keys beside vision_config, and keys inside ---------------------------------------


def _merger(vision: VisionSpec) -> tuple[Config, Config]:
    inside: Config = {"spatial_merge_size": math.isqrt(vision.projector.merged)}
    if vision.tower.positions:
        inside["deepstack_visual_indexes"] = list(vision.projector.taps)
    return {}, inside


def _linear_pair(vision: VisionSpec) -> tuple[Config, Config]:
    """Pixtral in LLaVA's type reads the last layer and all patches (published config.json)."""
    beside: Config = {"multimodal_projector_bias": vision.projector.bias}
    beside["vision_feature_layer"] = -1 - vision.tower.unread
    if vision.tower.rotary:
        beside["vision_feature_select_strategy"] = "full"
    return beside, {}


def _internvl(vision: VisionSpec) -> tuple[Config, Config]:
    return {"downsample_ratio": 1.0 / math.isqrt(vision.projector.merged)}, {}


def _gemma3(vision: VisionSpec) -> tuple[Config, Config]:
    tokens = vision.tower.positions // vision.projector.merged
    return {"mm_tokens_per_image": tokens}, {}


def _mistral3(vision: VisionSpec) -> tuple[Config, Config]:
    projector = vision.projector
    merged = math.isqrt(projector.merged)
    return {"spatial_merge_size": merged, "multimodal_projector_bias": projector.bias}, {}


def _moonvit_projector(vision: VisionSpec) -> tuple[Config, Config]:
    return {"projection_hidden_size": vision.projector.norm_width}, {}


def _single(vision: VisionSpec) -> tuple[Config, Config]:
    """PaliGemma states the width of what its projector makes at two places."""
    width = vision.projector.widths[-1]
    return {"projection_dim": width, "hidden_size": width}, {"projection_dim": width}


def _across(vision: VisionSpec) -> tuple[Config, Config]:
    """It states no more than the tower does."""
    del vision
    return {}, {}


def _phi3(vision: VisionSpec) -> tuple[Config, Config]:
    del vision
    transform: Config = {
        "embedding_cls": "image",
        "hd_transform_order": "sub_glb",
        "projection_cls": "mlp",
        "use_hd_transform": True,
        "with_learnable_separator": True,
    }
    return {"embd_layer": transform}, {}


def _shuffled(vision: VisionSpec) -> tuple[Config, Config]:
    return {"scale_factor": math.isqrt(vision.projector.merged)}, {}


def _llama4(vision: VisionSpec) -> tuple[Config, Config]:
    _, into, out, *_ = (*vision.projector.widths, 0, 0)
    return {}, {
        "pixel_shuffle_ratio": 1.0 / math.isqrt(vision.projector.merged),
        "projector_input_dim": into,
        "projector_output_dim": out,
        "vision_output_dim": out,
    }


_PROJECTORS: Mapping[str, Callable[[VisionSpec], tuple[Config, Config]]] = {
    "merger": _merger,
    "linear_pair": _linear_pair,
    "internvl": _internvl,
    "gemma3": _gemma3,
    "mistral3": _mistral3,
    "shuffled": _shuffled,
    "llama4": _llama4,
    "moonvit": _moonvit_projector,
    "single": _single,
    "across": _across,
    "phi3": _phi3,
}
