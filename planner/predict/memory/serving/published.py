"""The weight format that a published checkpoint states of itself.

Keys: `quantization_config` of a Hugging Face config.json, as transformers 5 writes it and vLLM
reads it (model_executor/layers/quantization).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SIMPLE: Mapping[str, str] = {
    "fbgemm_fp8": "fp8", "mxfp4": "mxfp4", "fp8": "fp8", "gpt_oss_mxfp4": "mxfp4",
}  # fmt: skip
_LEFT_ALONE = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
_ATTENTION = ("self_attn", "attention", "q_proj", "qkv_proj")
_OF_BITS: Mapping[tuple[str, object], str] = {
    ("int", 4): "int4", ("int", 8): "int8", ("float", 8): "fp8", ("float", 4): "nvfp4",
}  # fmt: skip


def published_format(config: Mapping[str, Any]) -> str | None:
    """The name of the format of `quantization_config`; None where there is no such table or where
    the table states a format that is not known here."""
    stated = config.get("quantization_config")
    if not isinstance(stated, Mapping):
        return None
    name = _base_format(stated)
    return "fp8-ffn" if name == "fp8" and _leaves_attention(stated) else name


def _base_format(stated: Mapping[str, Any]) -> str | None:
    method = str(stated.get("quant_method", "")).lower()
    if method == "fp8" and stated.get("weight_block_size"):
        return "fp8-block"
    if method in ("awq", "gptq"):
        return _OF_BITS.get(("int", stated.get("bits", 4)))
    if method == "modelopt":
        return {"fp8": "fp8", "nvfp4": "nvfp4"}.get(str(stated.get("quant_algo", "")).lower())
    return _of_groups(stated) if method == "compressed-tensors" else _SIMPLE.get(method)


def _of_groups(stated: Mapping[str, Any]) -> str | None:
    """The format of compressed-tensors, whose groups describe their weights; None for several."""
    groups = stated.get("config_groups")
    tables = groups.values() if isinstance(groups, Mapping) else ()
    weights = [table.get("weights") for table in tables if isinstance(table, Mapping)]
    found = {
        _OF_BITS.get((str(item.get("type", "int")), item.get("num_bits")))
        for item in weights
        if isinstance(item, Mapping)
    }
    return found.pop() if len(found) == 1 else None


def _leaves_attention(stated: Mapping[str, Any]) -> bool:
    """Whether attention is among the modules that stay at 16 bits."""
    lists = (stated.get(key) for key in _LEFT_ALONE)
    names = [str(name) for found in lists if isinstance(found, list) for name in found]
    return any(part in name for name in names for part in _ATTENTION)
