"""Number formats of served weights and of the KV cache, with what their scales take, and the format
that a published checkpoint states of itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from planner.job.errors import unknown_name

# Embeddings, head, norms, router and biases: what every quantisation method below leaves alone.
KEPT_BYTES = 2.0
_FULL_BYTES = 4.0


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the matrices of linear layers are stored.

    One scale of `scale_bytes` (with its zero point, if any) covers a tile of `tile_out` outputs
    by `tile_in` inputs; 0 stands for the whole dimension, `scale_bytes` 0 for no scales.
    `scope`: `experts` leaves attention alone in models that have experts, `feed-forward` in every
    model. `padded_experts`: the engine's kernels for it pad the experts' matrices.
    """

    name: str
    element_bytes: float
    title: str
    scale_bytes: float = 0.0
    tile_out: int = 0
    tile_in: int = 0
    scope: Literal["linear", "experts", "feed-forward"] = "linear"
    padded_experts: bool = False

    @property
    def quantised(self) -> bool:
        """Whether the format has fewer than 16 bits."""
        return self.element_bytes < KEPT_BYTES

    @property
    def kept_bytes(self) -> float:
        """Bytes of a parameter that is not in a quantised matrix."""
        return max(KEPT_BYTES, self.element_bytes)

    def scales(self, outputs: float, inputs: float) -> float:
        """Bytes of the scales of one matrix of `outputs` by `inputs` elements."""
        rows = math.ceil(outputs / self.tile_out) if self.tile_out else 1
        columns = math.ceil(inputs / self.tile_in) if self.tile_in else 1
        return self.scale_bytes * rows * columns


@dataclass(frozen=True, slots=True)
class KvFormat:
    """How keys and values are stored. `head_bytes`: scale and zero point of a token's head."""

    name: str
    element_bytes: float
    title: str
    head_bytes: float = 0.0


WEIGHT_FORMATS: Mapping[str, WeightFormat] = {
    fmt.name: fmt
    for fmt in (
        WeightFormat("fp32", _FULL_BYTES, "fp32"),
        WeightFormat("bf16", KEPT_BYTES, "bf16"),
        WeightFormat("fp16", KEPT_BYTES, "fp16"),
        # compressed-tensors and vLLM --quantization fp8: one fp32 scale a tensor.
        WeightFormat("fp8", 1.0, "fp8, one scale a tensor", 4.0),
        # Meta's FP8 checkpoint of Llama 3.1 405B quantises the feed-forward layers alone (arXiv
        # 2407.21783, section 6.2): 57.75 GiB a GPU at tp8 in vLLM issue 6746, which this comes to
        # within 4 %: its first and last layer stay at 16 bits, too.
        WeightFormat(
            "fp8-ffn",
            1.0,
            "fp8, attention at 16 bits",
            4.0,
            1,
            0,
            "feed-forward",
        ),
        # DeepSeek-V3, arXiv 2412.19437, section 3.3.2: tiles of 128x128, fp32 scales.
        WeightFormat("fp8-block", 1.0, "fp8, a scale for each 128×128", 4.0, 128, 128),
        # SmoothQuant-style W8A8, arXiv 2211.10438: a scale for each output channel.
        WeightFormat("int8", 1.0, "int8, a scale for each output channel", 4.0, 1, 0),
        # GPTQ, arXiv 2210.17323, and AWQ, arXiv 2306.00978: groups of 128 inputs, each with an
        # fp16 scale and a 4-bit zero point.
        WeightFormat("int4", 0.5, "int4 (AWQ, GPTQ), groups of 128", 2.5, 1, 128),
        # OCP Microscaling 1.0: 32 elements share an 8-bit exponent. gpt-oss, arXiv 2508.10925,
        # section 2.1, quantises the experts alone.
        WeightFormat("mxfp4", 0.5, "mxfp4, groups of 32", 1.0, 1, 32, "experts", True),
        # NVFP4 (CUDA 12.8, block-scaled e2m1): 16 elements share an fp8 scale.
        WeightFormat("nvfp4", 0.5, "nvfp4, groups of 16", 1.0, 1, 16),
    )
}
# Families whose checkpoints are quantised from the start: gpt-oss model card (arXiv 2508.10925,
# section 2.1), DeepSeek-V3 (arXiv 2412.19437, section 3.3).
PUBLISHED_FORMATS: Mapping[str, str] = {"gpt_oss": "mxfp4", "deepseek_v3": "fp8-block"}

# Checkpoints whose publisher left more at 16 bits than the format of the name says.
PUBLISHED_WIDER: Mapping[tuple[str, str], str] = {("llama-3.1-405b", "fp8"): "fp8-ffn"}

_WEIGHT_ALIASES = {"awq": "int4", "gptq": "int4", "w4a16": "int4", "w8a8": "int8", "w8a16": "int8"}

KV_FORMATS: Mapping[str, KvFormat] = {
    fmt.name: fmt
    for fmt in (
        KvFormat("fp32", 4.0, "fp32"),
        KvFormat("bf16", 2.0, "bf16"),
        KvFormat("fp16", 2.0, "fp16"),
        KvFormat("fp8", 1.0, "fp8, one scale a layer"),
        # LMDeploy's online KV quantisation: asymmetric, per token and head, fp16 scale and zero.
        KvFormat("int8", 1.0, "int8, scale and zero for each token and head", 4.0),
        KvFormat("int4", 0.5, "int4, scale and zero for each token and head", 4.0),
    )
}
_KV_ALIASES = {"fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float16": "fp16", "bfloat16": "bf16"}

_Format = TypeVar("_Format", WeightFormat, KvFormat)


def weight_format(name: str) -> WeightFormat:
    """The format of --weights; UsageError lists the names."""
    return _find(name, WEIGHT_FORMATS, _WEIGHT_ALIASES, "--weights")


def kv_format(name: str) -> KvFormat:
    """The format of --kv-cache; UsageError lists the names."""
    return _find(name, KV_FORMATS, _KV_ALIASES, "--kv-cache")


def _find(
    name: str, formats: Mapping[str, _Format], aliases: Mapping[str, str], option: str
) -> _Format:
    key = name.strip().lower()
    key = aliases.get(key, key)
    if key not in formats:
        hint = f"one of {', '.join(formats)}; also {', '.join(aliases)}"
        raise unknown_name(f"{option} format", name, (*formats, *aliases), hint)
    return formats[key]


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
