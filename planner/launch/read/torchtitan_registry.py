"""Sizes of models in a torchtitan checkout's own registry, `models/NAME/__init__.py`: parsed, never
imported.

Fields: torchtitan 0.1 and 0.2, models/llama3/model/args.py, models/qwen3/model/args.py; since
2026-05 functions of models/llama3/__init__.py and models/qwen3/__init__.py.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.job.errors import CannotTellError, UsageError
from planner.job.specs import ModelSpec
from planner.launch.read.beside import beside, text_of
from planner.launch.read.python_records import Record, are_plain, last_name, python_module, written
from planner.launch.read.python_values import Reader, call_function
from planner.launch.read.text import Text

_PLACES = ("models", "experiments", "torchtitan/models", "torchtitan/experiments")
# Fields that the shape needs; their defaults where a size leaves them out.
_LLAMA = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": None, "vocab_size": 128256,
          "multiple_of": 256, "ffn_dim_multiplier": None, "hidden_dim": None,
          "enable_weight_tying": False}  # fmt: skip
_QWEN = {"dim": 1024, "n_layers": 28, "n_heads": 16, "n_kv_heads": 8, "vocab_size": 151936,
         "head_dim": 128, "hidden_dim": 3072, "qk_norm": True,
         "enable_weight_tying": False}  # fmt: skip
_FIELDS: Mapping[str, Mapping[str, object]] = {"llama3": _LLAMA, "qwen3": _QWEN}
# Fields without effect on the shape; any other is of a model that is not known.
_HARMLESS = {"rope_theta", "rope_scaling_args", "norm_eps", "max_seq_len", "depth_init", "eos_id",
             "use_flex_attn", "attn_type", "attn_mask_type", "fuse_qkv", "attn_backend",
             "rope"}  # fmt: skip
# By which a model is told from the catalogue's of its name.
_SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "tied_embeddings")
_BUILDER = re.compile(r"_build_\w+_layers")


def registered_model(name: str, flavor: str, folder: Path) -> ModelSpec | None:
    """The dense model that a registry around a folder has under a name; None where none has it, or
    has more of it than is read here."""
    from planner.job.models.errors import ModelError
    from planner.job.models.hf_config import model_from_hf_config

    fields = _FIELDS.get(name.lower())
    found = _registry(name, folder) if fields is not None else None
    stated = None if found is None else _stated(found, name, flavor)
    if fields is None or stated is None or stated.keys() - fields.keys() - _HARMLESS:
        return None
    # Left to the tokenizer, which is a small one of the tests.
    if flavor.startswith("debug") and "vocab_size" not in stated:
        return None
    values = {field: stated.get(field, default) for field, default in fields.items()}
    try:
        config = (_llama if name.lower() == "llama3" else _qwen)(values)
        spec = model_from_hf_config(config, where=f"{found} ({flavor})")
    except (ModelError, TypeError, ValueError, ArithmeticError):
        return None
    return spec.model_copy(update={"name": f"{name} {flavor}", "source": str(found)})


def is_size_of(shape: ModelSpec, name: str) -> bool:
    """Whether a model of a registry has the sizes of one of the catalogue."""
    from planner.job.models.catalog import load_model

    other = load_model(name).spec
    return all(getattr(shape, size) == getattr(other, size) for size in _SIZES)


def _registry(name: str, folder: Path) -> Path | None:
    if not re.fullmatch(r"\w{1,50}", name):
        return None
    # Until 2025-05 one folder held all Llamas.
    names = dict.fromkeys((name, name.rstrip("0123456789")))
    files = (
        beside(f"{place}/{one}/__init__.py", folder, whole=True)
        for one in names
        for place in _PLACES
    )
    return next((path for path in files if path is not None), None)


def _stated(path: Path, name: str, flavor: str) -> dict[str, Any] | None:
    """Literal arguments of the entry of a flavor."""
    try:
        module = python_module(Text.made(text_of(path) or ""), str(path))
    except UsageError:
        return None
    named: list[ast.AST] = [
        node.value
        for node in module.body
        if isinstance(node, ast.Assign) and written(node.targets[0]) == f"{name}_configs"
    ]
    for table in (node for root in named or [module] for node in ast.walk(root)):
        if not isinstance(table, ast.Dict):
            continue
        for key, value in zip(table.keys, table.values, strict=True):
            if not (isinstance(key, ast.Constant) and key.value == flavor):
                continue
            if isinstance(value, ast.Call) and last_name(value.func).endswith("Args"):
                return {item.arg or "**": _literal(item.value) for item in value.keywords}
            if isinstance(value, ast.Name):
                return _built(module, path, value.id)
    return None


def _built(tree: ast.Module, path: Path, name: str) -> dict[str, Any] | None:
    """Arguments of the model that a function makes, and of its `_build_..._layers`."""
    layers: dict[str, Any] = {}

    def build(**named: Any) -> None:
        layers.update(named)

    builders = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    reader = Reader({one: build for one in builders if _BUILDER.fullmatch(one)})
    function = reader.module(tree, str(path)).functions().get(name)
    try:
        model = None if function is None else call_function(function, [], {})
    except (CannotTellError, RecursionError):
        return None
    if not isinstance(model, Record) or not layers:
        return None
    own = {name: value for name, value in model.fields.items() if are_plain([value])}
    return layers | own


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _llama(values: Mapping[str, Any]) -> dict[str, object]:
    """Two thirds of four widths, times the multiplier, rounded up (FeedForward of llama3)."""
    if values["hidden_dim"] is not None:
        return _config("llama", values) | {"intermediate_size": values["hidden_dim"]}
    hidden = int(2 * 4 * values["dim"] / 3)
    if values["ffn_dim_multiplier"] is not None:
        hidden = int(values["ffn_dim_multiplier"] * hidden)
    step = values["multiple_of"]
    return _config("llama", values) | {"intermediate_size": step * math.ceil(hidden / step)}


def _qwen(values: Mapping[str, Any]) -> dict[str, object]:
    return _config("qwen3" if values["qk_norm"] else "qwen2", values) | {
        "intermediate_size": values["hidden_dim"],
        "head_dim": values["head_dim"],
    }


def _config(family: str, values: Mapping[str, Any]) -> dict[str, object]:
    """What both have, in Hugging Face's words."""
    return {
        "model_type": family,
        "hidden_size": values["dim"],
        "num_hidden_layers": values["n_layers"],
        "num_attention_heads": values["n_heads"],
        "num_key_value_heads": values["n_kv_heads"] or values["n_heads"],
        "vocab_size": values["vocab_size"],
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": values["enable_weight_tying"],
    }
