"""Vision parts of transformers' models, run by themselves: tower and projector on one image.

Models are built as `tests/frameworks/hf_counts.py` builds language models, on fake tensors of a
GPU. Where a family reads sizes of images out of a tensor, it is given them as numbers, for fake
tensors have none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import AutoModelForImageTextToText, initialization
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.pixtral import modeling_pixtral

from tests.frameworks.hf_counts import TYPES, attention_of
from tests.frameworks.intern_chat import intern_chat, intern_features
from tests.frameworks.tuned_models import TunedRun

_CONFIGS = Path(__file__).parents[1] / "job" / "models" / "vision_configs.json"
_LLAMA4 = {
    "model_type": "llama4",
    "vision_config": {"hidden_size": 1408, "num_hidden_layers": 34, "image_size": 336,
                      "vision_output_dim": 4096},
    "text_config": {
        "num_local_experts": 1, "num_hidden_layers": 1, "hidden_size": 5120,
        "intermediate_size": 64, "intermediate_size_mlp": 64, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128,
    },
}  # fmt: skip
# Patches a side of the image that towers of any size read, and of the rows of one window.
SIDE, WINDOW = 16, 8


def config_of(name: str) -> dict[str, Any]:
    """The config of a model of the catalogue."""
    if name.startswith("llama-4"):
        return deepcopy(_LLAMA4)
    return dict(json.loads(_CONFIGS.read_text(encoding="utf-8"))[name]["config"])


@dataclass(frozen=True)
class VisionRun(TunedRun):
    """One forward pass of a vision part. `config`: of the whole model; `layers`: of the tower;
    `windowed`: whether its layers attend to windows; `tapped`: whether further projectors read
    them; `frozen_tower`: whether nothing of the tower is trained."""

    layers: int = 1
    windowed: bool = False
    tapped: bool = False
    frozen_tower: bool = False

    def build(self) -> Any:
        """The model with its weights on the current device, its tower frozen if asked."""
        model = super().build()
        for name, parameter in model.named_parameters():
            if self.frozen_tower and part_of(name) == "tower":
                parameter.requires_grad_(False)
        return model

    def plain(self) -> Any:
        """The model with a language model of one layer and few words."""
        given = deepcopy(self.config)
        kind, vision = given.pop("model_type"), given["vision_config"]
        vision["depth" if "depth" in vision else "num_hidden_layers"] = self.layers
        if kind == "mllama":
            first = 2 if self.windowed else self.layers
            vision |= {"num_hidden_layers": first, "intermediate_layers_indices": [0] * 5}
            vision["num_global_layers"] = self.layers if self.windowed else 0
        if "fullatt_block_indexes" in vision:
            vision["fullatt_block_indexes"] = [] if self.windowed else list(range(self.layers))
        if "deepstack_visual_indexes" in vision:
            vision["deepstack_visual_indexes"] = [0] if self.tapped else []
        if kind == "internvl_chat":
            out = given["llm_config"]["hidden_size"]
            return intern_chat(vision, TYPES[self.mode], self.attention, out)
        text = given.get("text_config", given)
        text |= {"num_hidden_layers": 1, "vocab_size": 600, "pad_token_id": 0}
        if kind == "mllama":
            text["cross_attention_layers"] = []
        given |= {"image_token_id": 5, "image_token_index": 5, "vision_feature_layer": -1}
        config = CONFIG_MAPPING[kind](**given)
        # It asks its values whether all are within bounds.
        untruncated = {"trunc_normal_": lambda tensor, **_: tensor}
        with patch.dict(initialization.TORCH_INIT_FUNCTIONS, untruncated):
            return AutoModelForImageTextToText.from_config(
                config, dtype=TYPES[self.mode], attn_implementation=attention_of(self.attention)
            )

    @property
    def patches(self) -> int:
        """Tokens that the tower reads."""
        if self.config["model_type"] == "mllama":
            # Of four tiles, each padded to whole vectors.
            return 4 * 1608
        tokens = _side(self.config) ** 2
        has_class = self.config["model_type"] in (
            "llava", "llava_next", "internvl", "llama4", "internvl_chat"
        )  # fmt: skip
        return tokens + int(has_class and not _is_packed(self.config))

    def loss(self, model: Any) -> Any:
        """What the projector makes of one image."""
        inner = model if self.tuning.method == "full" else model.get_base_model()
        return _features(inner, self)


def part_of(name: str) -> str:
    """The part of the model that a module or a parameter belongs to by its name."""
    if any(
        word in name
        for word in ("merger", "vision_adapter", "projector", "connector", "newline", "mlp1")
    ):
        return "projector"
    tower = any(word in name for word in ("visual", "vision_tower", "vision_model"))
    return "tower" if tower else "language"


def _is_packed(config: Mapping[str, Any]) -> bool:
    """Whether images of any size stand in one row."""
    return bool(config["vision_config"].get("model_type") == "pixtral")


def _side(config: Mapping[str, Any]) -> int:
    vision = config["vision_config"]
    if config["model_type"].startswith(("qwen", "kimi")) or _is_packed(config):
        return SIDE
    size, patch_size = vision.get("image_size", 336), vision.get("patch_size", 14)
    one = size[0] if isinstance(size, (list, tuple)) else size
    part = patch_size[0] if isinstance(patch_size, (list, tuple)) else patch_size
    return int(one) // int(part)


def _pixels(run: VisionRun) -> Any:
    """One image in the type of the weights."""
    patch_size = run.config["vision_config"].get("patch_size", 14)
    part = patch_size[0] if isinstance(patch_size, (list, tuple)) else patch_size
    edge = int(part) * _side(run.config)
    return torch.empty((1, 3, edge, edge), dtype=TYPES[run.mode])


def _features(model: Any, run: VisionRun) -> Any:
    kind = run.config["model_type"]
    base = model.model if hasattr(model, "model") and kind != "llama4" else model
    if kind == "mistral3" or _is_packed(run.config):
        return _pixtral(base, run)
    if kind.startswith("qwen"):
        return _qwen(base, run)
    return _OF_KINDS.get(kind, _plain)(base, run)


def _plain(base: Any, run: VisionRun) -> Any:
    return base.get_image_features(_pixels(run))


def _intern(base: Any, run: VisionRun) -> Any:
    return intern_features(base, _pixels(run))


def _llama4(base: Any, run: VisionRun) -> Any:
    seen = base.vision_model(_pixels(run)).last_hidden_state
    return base.multi_modal_projector(seen.reshape(-1, seen.shape[-1]))


def _llava(base: Any, run: VisionRun) -> Any:
    """LLaVA's tower, whose class token LLaVA-NeXT leaves out."""
    seen = base.vision_tower(_pixels(run), output_hidden_states=True).hidden_states[-1]
    return base.multi_modal_projector(
        seen[:, 1:] if run.config["model_type"] == "llava_next" else seen
    )


def _qwen(base: Any, run: VisionRun) -> Any:
    """Qwen's tower, told where images and windows begin and where patches stand."""
    vision, count = run.config["vision_config"], SIDE * SIDE
    values = 3 * vision["temporal_patch_size"] * vision["patch_size"] ** 2
    places = {
        "position_ids": torch.zeros((count, 2), dtype=torch.long),
        "interp_indices": torch.zeros((count, 4), dtype=torch.long),
        "interp_weights": torch.zeros((count, 4)),
        "window_index": torch.zeros(count // 4, dtype=torch.long),
    }
    return base.visual(
        torch.empty((count, values), dtype=TYPES[run.mode]),
        grid_thw=None,
        cu_seqlens=np.array([0, count]),
        cu_window_seqlens=np.arange(0, count + 1, WINDOW * WINDOW),
        **places,
    )


def _kimi(base: Any, run: VisionRun) -> Any:
    """Kimi's tower, told where patches stand and which become one token."""
    size, count = run.config["vision_config"]["patch_size"], SIDE * SIDE
    seen = base.vision_tower(
        torch.empty((count, 3, size, size), dtype=TYPES[run.mode]),
        grid_thw=None,
        cu_seqlens=np.array([0, count]),
        position_ids=torch.zeros((count, 2), dtype=torch.long),
        interp_indices=torch.zeros((count, 16), dtype=torch.long),
        interp_weights=torch.zeros((count, 16)),
        frame_index=torch.zeros(count, dtype=torch.long),
        temporal_merge_index=torch.zeros((count // 4, 1, 4), dtype=torch.long),
    )
    return base.mm_projector(seen.pooler_output)


def _pixtral(base: Any, run: VisionRun) -> Any:
    """Pixtral's tower, without the mask that keeps images of a row apart."""
    pixels = _pixels(run)
    sizes = [tuple(pixels.shape[-2:])]
    with patch.object(modeling_pixtral, "generate_block_attention_mask", lambda *_: None):
        seen = base.vision_tower(pixels, image_sizes=sizes).last_hidden_state.squeeze(0)
    if run.config["model_type"] == "mistral3":
        return base.multi_modal_projector(seen, sizes)
    return base.multi_modal_projector(seen)


def _idefics(base: Any, run: VisionRun) -> Any:
    """Idefics 3's tower on a tile, whose patches have the places of the table."""
    tower = base.vision_model
    with patch.object(type(tower.embeddings), "forward", _embedded):
        seen = tower.embeddings(_pixels(run))
    seen = tower.encoder(inputs_embeds=seen, attention_mask=None).last_hidden_state
    return base.connector(tower.post_layernorm(seen))


def _embedded(embeddings: Any, pixels: Any) -> Any:
    seen = embeddings.patch_embedding(pixels).flatten(2).transpose(1, 2)
    places = torch.zeros((1, embeddings.num_positions), dtype=torch.long)
    return seen + embeddings.position_embedding(places)


def _mllama(base: Any, run: VisionRun) -> Any:
    """Llama 3.2's tower on an image of four tiles."""
    size = run.config["vision_config"]["image_size"]
    seen = base.vision_model(
        torch.empty((1, 1, 4, 3, size, size), dtype=TYPES[run.mode]),
        aspect_ratio_ids=torch.zeros((1, 1), dtype=torch.long),
        aspect_ratio_mask=torch.ones((1, 1, 4), dtype=torch.long),
    )
    return base.multi_modal_projector(seen.last_hidden_state)


_OF_KINDS: Mapping[str, Callable[[Any, VisionRun], Any]] = {
    "internvl_chat": _intern,
    "kimi_k25": _kimi,
    "llama4": _llama4,
    "mllama": _mllama,
    "idefics3": _idefics,
    "smolvlm": _idefics,
    "llava_next": _llava,
    "llava_onevision": _llava,
}
