"""The vision part of a Hugging Face config.json -> VisionSpec.

`hf_vision.toml` lists the kind of tower and projector of each model type. Each reader follows the
modelling file of transformers 5.23: biases, norms, positions, how patches are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from pydantic import ValidationError

from hardware.files import shipped_toml
from planner.job.errors import ModelError, validation_message
from planner.job.models.hf_fields import Fields
from planner.job.models.hf_projectors import PROJECTORS, Shape, positions
from planner.job.vision import ProjectorSpec, TowerSpec, VisionSpec


@cache
def _tables() -> dict[str, dict[str, Any]]:
    tables = shipped_toml("planner.job", "hf_vision.toml")
    return {name: _row(tables, name) for name in tables}


def _row(tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    row = dict(tables[name])
    like = row.pop("like", None)
    return (_row(tables, like) if like else {}) | row


def vision_types() -> tuple[str, ...]:
    """Every `model_type` whose vision part can be read."""
    return tuple(_tables())


class TypeParts(NamedTuple):
    """Names of the readers of a model type's tower and projector."""

    tower: str
    projector: str


def type_parts(model_type: str) -> TypeParts:
    """The readers of a type in `vision_types`."""
    row = _tables()[model_type]
    return TypeParts(row["tower"], row["projector"])


def vision_key(model_type: str) -> str:
    """Key of the config table that describes the tower."""
    return str(_tables().get(model_type, {}).get("table", "vision_config"))


def read_vision(
    model_type: str, config: Mapping[str, object], hidden: int, where: str
) -> VisionSpec | None:
    """The vision part of a model whose language model has width `hidden`; None if the config has
    none, or an unknown one."""
    row = _tables().get(model_type)
    given = config.get(vision_key(model_type))
    if row is None or given is None:
        return None
    inside = f"{where} ({vision_key(model_type)})"
    if not isinstance(given, dict):
        raise ModelError(f"{inside} is {given!r}; expected an object")
    tower = Fields(given, inside, row["tower_defaults"])
    whole = Fields(config, where, {})
    try:
        unread = _unread(row, whole, tower)
        shape = TowerSpec.model_validate(_TOWERS[row["tower"]](tower) | unread)
        projector = PROJECTORS[row["projector"]](tower, whole, shape, hidden)
        return VisionSpec(
            rule=_rule(row["rule"], tower),
            input_rows=row.get("input_rows", 0),
            tower=shape,
            projector=ProjectorSpec.model_validate(projector),
        )
    except ValidationError as error:
        raise ModelError(validation_message(error, inside)) from error


def _unread(row: Mapping[str, Any], whole: Fields, tower: Fields) -> Shape:
    """Number of last tower layers whose output is unused, for types that select an earlier hidden
    state."""
    usual = row.get("feature_layer")
    if usual is None:
        return {}
    layers = tower.positive("num_hidden_layers")
    at = whole.index("vision_feature_layer", usual)
    state = at + layers + 1 if at < 0 else at
    if not 0 < state <= layers:
        raise whole.error(
            f"vision_feature_layer is {at}, but the tower has {layers} layers; -2 is usual"
        )
    return {"unread": layers - state}


# Image rules that Idefics 3 and SmolVLM share a name for, by the tile's side in pixels.
_SPLIT = {364: "idefics3", 384: "smolvlm", 512: "smolvlm2"}


def _rule(rule: str, tower: Fields) -> str:
    """The image rule. Models of one type may use different tile sizes; Pixtral has LLaVA's type
    with another tower."""
    if rule == "llava" and tower.kind() == "pixtral":
        return "pixtral"
    if rule in _SPLIT.values():
        return _SPLIT.get(tower.side("image_size"), rule)
    return rule


def _trunk(fields: Fields) -> Shape:
    """Fields that towers with Hugging Face's usual key names share."""
    return {
        "layers": fields.positive("num_hidden_layers"),
        "hidden": fields.positive("hidden_size"),
        "heads": fields.positive("num_attention_heads"),
        "ffn": fields.positive("intermediate_size"),
        "patch": fields.side("patch_size"),
    }


def _first_stated(fields: Fields, *keys: str) -> int:
    """A size under the first of several names that the config states or that has a default."""
    found = (fields.optional_positive(key) for key in keys)
    return next((size for size in found if size), 0) or fields.positive(keys[-1])


# --- towers ---------------------------------------------------------------------------------------


def _qwen(fields: Fields, hidden: int) -> Shape:
    return {
        "layers": fields.positive("depth"),
        "hidden": hidden,
        "heads": fields.positive("num_heads"),
        "patch": fields.side("patch_size"),
        "frames": fields.side("temporal_patch_size"),
        "rotary": True,
    }


def qwen2_vl(fields: Fields) -> Shape:
    hidden = fields.positive("embed_dim")
    ffn = hidden * fields.positive("mlp_ratio")
    more = {"kind": "qwen2_vl", "ffn": ffn, "patch_bias": False, "activation": "quick_gelu"}
    return _qwen(fields, hidden) | more


def qwen2_5_vl(fields: Fields) -> Shape:
    layers, patch = fields.positive("depth"), fields.side("patch_size")
    window = fields.positive("window_size") // patch
    return _qwen(fields, fields.positive("hidden_size")) | {
        "kind": "qwen2_5_vl",
        "ffn": fields.positive("intermediate_size"),
        "patch_bias": False,
        "gated": True,
        "activation": "silu",
        "norm": "rmsnorm",
        "full_layers": tuple(fields.indices("fullatt_block_indexes", below=layers) or ()),
        "window": window * window,
    }


def qwen3_vl(fields: Fields) -> Shape:
    return _qwen(fields, fields.positive("hidden_size")) | {
        "kind": "qwen3_vl",
        "ffn": fields.positive("intermediate_size"),
        "activation": "gelu_pytorch_tanh",
        "positions": fields.positive("num_position_embeddings"),
    }


def clip(fields: Fields) -> Shape:
    """CLIP's tower. Its last norm only applies to the class token, which is unused."""
    if fields.kind() == "siglip_vision_model":
        return unread_siglip(fields)
    if fields.kind() == "pixtral":
        return pixtral(fields)
    return _trunk(fields) | {
        "kind": "clip",
        "patch_bias": False,
        "positions": positions(fields) + 1,
        "class_tokens": 1,
        "activation": "quick_gelu",
        "norm_before": True,
        "norm_after": True,
        "norm_after_read": False,
    }


def siglip(fields: Fields) -> Shape:
    return _trunk(fields) | {
        "kind": "siglip",
        "positions": positions(fields),
        "norm_after": True,
        "activation": "gelu_pytorch_tanh",
    }


def unread_siglip(fields: Fields) -> Shape:
    """SigLIP's tower. The projector reads its layers before the last norm (LLaVA-OneVision)."""
    return siglip(fields) | {"norm_after_read": False}


def idefics3(fields: Fields) -> Shape:
    return siglip(fields) | {"kind": "idefics3"}


def internvl(fields: Fields) -> Shape:
    plain = fields.text("norm_type") == "layer_norm"
    bias = fields.flag("attention_bias")
    return _trunk(fields) | {
        "kind": "internvl",
        "positions": (positions(fields) + 1) * fields.flag("use_absolute_position_embeddings"),
        "class_tokens": 1,
        "layer_scale": True,
        "norm": "layernorm" if plain else "rmsnorm",
        "qk_norm": "full" if fields.flag("use_qk_norm") else "none",
        "qkv_bias": bias,
        "norm_after": not fields.flag("use_mean_pooling"),
    }


def intern_vit(fields: Fields) -> Shape:
    """InternVL's tower, with one fused QKV projection and no norm after the layers
    (OpenGVLab/InternVL, internvl/model/internvl_chat/modeling_intern_vit.py)."""
    return _trunk(fields) | {
        "kind": "intern_vit",
        "positions": positions(fields) + 1,
        "class_tokens": 1,
        "layer_scale": True,
        "norm": "layernorm" if fields.text("norm_type") == "layer_norm" else "rmsnorm",
        "qk_norm": "full" if fields.flag("qk_normalization") else "none",
        "qkv_bias": fields.flag("qkv_bias"),
    }


def phi3_clip(fields: Fields) -> Shape:
    """CLIP large for 336 pixels, which Phi-3-vision's modelling file has as a constant
    (image_embedding_phi3_v.py, CLIP_VIT_LARGE_PATCH14_336_CONFIG)."""
    return clip(fields)


def moonvit(fields: Fields) -> Shape:
    """Kimi's tower: a learned position table that is resized to each image, and rotary positions.
    The checkpoints' configs use other names for its sizes."""
    sizes = {
        "layers": ("vt_num_hidden_layers", "num_hidden_layers"),
        "hidden": ("vt_hidden_size", "hidden_size"),
        "heads": ("vt_num_attention_heads", "num_attention_heads"),
        "ffn": ("vt_intermediate_size", "intermediate_size"),
    }
    down = _first_stated(fields, "init_pos_emb_height", "pos_emb_height")
    across = _first_stated(fields, "init_pos_emb_width", "pos_emb_width")
    return {name: _first_stated(fields, *keys) for name, keys in sizes.items()} | {
        "kind": "moonvit",
        "patch": fields.side("patch_size"),
        "positions": down * across,
        "rotary": True,
        "norm_after": True,
        "activation": "gelu_pytorch_tanh",
    }


def pixtral(fields: Fields) -> Shape:
    return _trunk(fields) | {
        "kind": "pixtral",
        "patch_bias": False,
        "rotary": True,
        "gated": True,
        "activation": "gelu",
        "norm": "rmsnorm",
        "qkv_bias": False,
        "out_bias": False,
        "mlp_bias": False,
        "norm_before": True,
    }


def llama4(fields: Fields) -> Shape:
    return _trunk(fields) | {
        "kind": "llama4",
        "patch_bias": False,
        "positions": positions(fields) + 1,
        "class_tokens": 1,
        "rotary": True,
        "norm_before": True,
        "norm_after": True,
    }


def mllama(fields: Fields) -> Shape:
    """Llama 3.2 Vision's tower. All tiles of an image form one row. Gated layers (a learned factor
    on each block's output) follow the ungated ones; the outputs of some ungated layers are read
    besides the last."""
    first, then = fields.positive("num_hidden_layers"), fields.positive("num_global_layers")
    ratios = fields.pairs("supported_aspect_ratios")
    return {
        "kind": "mllama",
        "layers": first + then,
        "gated_layers": then,
        "hidden": fields.positive("hidden_size"),
        "heads": _first_stated(fields, "num_attention_heads", "attention_heads"),
        "ffn": fields.positive("intermediate_size"),
        "patch": fields.side("patch_size"),
        "patch_bias": False,
        "positions": positions(fields) + 1,
        "class_tokens": 1,
        "tiles": fields.positive("max_num_tiles"),
        "aspects": 8 if ratios is None else len(ratios),
        "outputs": tuple(fields.indices("intermediate_layers_indices", below=first) or ()),
        "qkv_bias": False,
        "out_bias": False,
        "norm_before": True,
        "norm_after": True,
    }


_TOWERS: Mapping[str, Callable[[Fields], Shape]] = {
    "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "clip": clip,
    "siglip": siglip,
    "unread_siglip": unread_siglip,
    "idefics3": idefics3,
    "internvl": internvl,
    "pixtral": pixtral,
    "llama4": llama4,
    "intern_vit": intern_vit,
    "phi3_clip": phi3_clip,
    "moonvit": moonvit,
    "mllama": mllama,
}
