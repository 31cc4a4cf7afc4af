"""InternVL's own tower and projector, from a checkout of OpenGVLab/InternVL that `PLANNER_INTERNVL`
names (git show of its folder internvl_chat/internvl/model/internvl_chat suffices)."""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.utils import checkpoint

_WHERE = "PLANNER_INTERNVL"


class _Fused(torch.nn.Module):
    """flash-attn's packed attention, by torch's flash operator, which keeps the same tensors."""

    def forward(self, qkv: Any, **_: Any) -> tuple[Any, None]:
        """Attention of (batch, tokens, three, heads, width)."""
        query, key, value = (one.transpose(1, 2) for one in qkv.unbind(2))
        made = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, False)
        return made[0].transpose(1, 2), None


class _Chat(torch.nn.Module):
    """The vision part of InternVLChatModel (modeling_internvl_chat.py), by its names."""

    def __init__(self, tower: Any, width: int, out: int) -> None:
        super().__init__()
        self.vision_model, self.config = tower, tower.config
        # What transformers' loaders ask of a model.
        self.all_tied_weights_keys: dict[str, str] = {}
        self.mlp1 = torch.nn.Sequential(
            torch.nn.LayerNorm(4 * width),
            torch.nn.Linear(4 * width, out),
            torch.nn.GELU(),
            torch.nn.Linear(out, out),
        )

    def get_input_embeddings(self) -> Any:
        """Peft asks for them."""
        return self.vision_model.embeddings

    def get_output_embeddings(self) -> None:
        """It has no head."""

    def prepare_inputs_for_generation(self) -> None:
        """A language model's, which peft asks for."""

    def activation_checkpointing_enable(self, *_: Any) -> None:
        """The encoder has a switch of its own."""
        self.vision_model.encoder.gradient_checkpointing = True

    def enable_input_require_grads(self) -> None:
        """The model calls it of its language model alone (wrap_llm_lora)."""


def intern_chat(vision: dict[str, Any], dtype: Any, attention: str, out: int) -> Any:
    """Tower and projector with their weights on the current device."""
    folder = os.environ[_WHERE]
    if folder not in sys.path:
        sys.path.insert(0, folder)
    configuration = importlib.import_module("internvit.configuration_intern_vit")
    modelling = importlib.import_module("internvit.modeling_intern_vit")
    config = configuration.InternVisionConfig(**{**vision, "use_flash_attn": False})
    torch.set_default_dtype(dtype)
    try:
        # Rates of dropped paths, which fake tensors would not give as numbers.
        with patch.object(torch, "linspace", np.linspace):
            chat = _Chat(modelling.InternVisionModel(config), config.hidden_size, out)
    finally:
        torch.set_default_dtype(torch.float32)
    chat.vision_model.encoder.gradient_checkpointing = False
    for layer in chat.vision_model.encoder.layers if attention == "flash" else ():
        layer.attn.inner_attn, layer.attn.use_flash_attn = _Fused(), True
    return chat


def intern_features(model: Any, pixels: Any) -> Any:
    """What the projector makes of one tile (extract_feature)."""
    # Torch's newer checkpoints: the older train nothing where a layer's input needs no gradient.
    newer = partial(checkpoint.checkpoint, use_reentrant=False)
    with patch.object(checkpoint, "checkpoint", newer):
        seen = model.vision_model(pixels, return_dict=True).last_hidden_state[:, 1:]
    side = int(seen.shape[1] ** 0.5)
    seen = seen.reshape(seen.shape[0], side, side, -1)
    count, wide, high, width = seen.shape
    seen = seen.view(count, wide, high // 2, 2 * width).permute(0, 2, 1, 3).contiguous()
    seen = seen.view(count, high // 2, wide // 2, 4 * width).permute(0, 2, 1, 3).contiguous()
    return model.mlp1(seen.reshape(count, -1, 4 * width))
