"""Number formats of served weights and of the KV cache, with their scales, and the detection of a
published checkpoint's format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from hardware.files import shipped_toml
from hardware.schema import Gpu
from planner.job.errors import unknown_name

# Bytes of embeddings, head, norms, router and biases, which no quantisation method below changes.
KEPT_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the matrices of linear layers are stored.

    One scale of `scale_bytes` (including any zero point) covers a tile of `tile_out` outputs by
    `tile_in` inputs; 0 means the whole dimension, and `scale_bytes` 0 means no scales. `scope`:
    `experts` leaves attention unquantised in models with experts, `feed-forward` in every model.
    `padded_experts`: the engine's kernels for this format pad the experts' matrices.
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
        """Bytes per parameter of the parameters that are not quantised, such as embeddings and
        norms."""
        return max(KEPT_BYTES, self.element_bytes)

    def scales(self, outputs: float, inputs: float) -> float:
        """Bytes of all scales of one matrix of `outputs` by `inputs` elements; 0 if the format has
        none."""
        rows = math.ceil(outputs / self.tile_out) if self.tile_out else 1
        columns = math.ceil(inputs / self.tile_in) if self.tile_in else 1
        return self.scale_bytes * rows * columns


@dataclass(frozen=True, slots=True)
class KvFormat:
    """How keys and values are stored. `element_bytes`: bytes per element; `head_bytes`: bytes of
    scale and zero point for each head of a token."""

    name: str
    element_bytes: float
    title: str
    head_bytes: float = 0.0


TABLES = shipped_toml("planner.predict.memory.serving", "serving.toml")
WEIGHT_FORMATS: Mapping[str, WeightFormat] = {
    name: WeightFormat(name, **row) for name, row in TABLES["weights"].items()
}
KV_FORMATS: Mapping[str, KvFormat] = {
    name: KvFormat(name, **row) for name, row in TABLES["kv"].items()
}
# Format of families whose checkpoints are published in a quantised form.
PUBLISHED_FORMATS: Mapping[str, str] = TABLES["published"]
# By model and format: the variant of the format in which the publisher left more tensors at 16
# bits.
PUBLISHED_WIDER: Mapping[str, Mapping[str, str]] = TABLES["wider"]

# Formats whose products use them directly; weights of all others are converted to 16 bits first.
NATIVE = ("fp8", "fp8-block", "fp8-ffn", "int8")

_Format = TypeVar("_Format", WeightFormat, KvFormat)


def weight_format(name: str, option: str = "--weights") -> WeightFormat:
    """The weight format with this name; UsageError lists the names."""
    return _find(name, WEIGHT_FORMATS, TABLES["weight_aliases"], option)


def kv_format(name: str, option: str = "--kv-cache") -> KvFormat:
    """The KV-cache format with this name; UsageError lists the names."""
    return _find(name, KV_FORMATS, TABLES["kv_aliases"], option)


def _find(
    name: str, formats: Mapping[str, _Format], aliases: Mapping[str, str], option: str
) -> _Format:
    key = name.strip().lower()
    key = aliases.get(key, key)
    if key not in formats:
        hint = f"one of {', '.join(formats)}; also {', '.join(aliases)}"
        raise unknown_name(f"{option} format", name, (*formats, *aliases), hint)
    return formats[key]


def multiplies(weights: WeightFormat, gpu: Gpu) -> str:
    """A remark in brackets, with a space before it, on how products with quantised weights are
    computed: ` (stored only: H100-SXM5-80GB has no nvfp4 arithmetic, products multiply in 16
    bits)`. Empty if the weights are not quantised, or if products are costed in the weights' own
    type."""
    if not weights.quantised:
        return ""
    own = next((name for name in gpu.peak_flop_per_s if weights.name.startswith(name)), None)
    if own is None:
        return (
            f" (stored only: {gpu.name} has no {weights.name} arithmetic, products multiply in "
            "16 bits)"
        )
    return "" if weights.name in NATIVE else " (products costed as in 16 bits: none was measured)"


_SIMPLE: Mapping[str, str] = {
    "fbgemm_fp8": "fp8", "mxfp4": "mxfp4", "fp8": "fp8", "gpt_oss_mxfp4": "mxfp4",
}  # fmt: skip
_LEFT_ALONE = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
_ATTENTION = ("self_attn", "attention", "q_proj", "qkv_proj")
_OF_BITS: Mapping[tuple[str, object], str] = {
    ("int", 4): "int4", ("int", 8): "int8", ("float", 8): "fp8", ("float", 4): "nvfp4",
}  # fmt: skip


def published_format(config: Mapping[str, Any]) -> str | None:
    """Name of the format that `quantization_config` states; None without such a table or if the
    format is unknown."""
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
    """Name of the format in a quantization_config of compressed-tensors, in which groups describe
    their weights; None if groups differ, if there are none, or if the format is unknown."""
    groups = stated.get("config_groups")
    tables = groups.values() if isinstance(groups, Mapping) else ()
    weights = [table.get("weights") for table in tables if isinstance(table, Mapping)]
    found = {
        _OF_BITS.get((str(weight.get("type", "int")), weight.get("num_bits")))
        for weight in weights
        if isinstance(weight, Mapping)
    }
    return found.pop() if len(found) == 1 else None


def _leaves_attention(stated: Mapping[str, Any]) -> bool:
    """Whether the quantization_config lists attention among the modules that are not quantised."""
    lists = (stated.get(key) for key in _LEFT_ALONE)
    names = [str(name) for found in lists if isinstance(found, list) for name in found]
    return any(part in name for name in names for part in _ATTENTION)
