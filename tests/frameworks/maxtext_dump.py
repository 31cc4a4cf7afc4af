"""MaxText's own view of its settings, as JSON: run by a Python 3.12 that has MaxText, not by ours.

`keys`: every setting, with types, default and values; `configs`: what the shipped configurations
set; `read FILE [key=value ...]`: what its parser makes of a file, or that it refuses it.
"""

from __future__ import annotations

import enum
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any

ROOT = "maxtext/configs"


def kinds(annotation: Any) -> tuple[set[str], list[str]]:
    """Names of types, and the values of one that has few."""
    origin = typing.get_origin(annotation)
    inside = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        parts = [kinds(one) for one in inside]
        return set().union(*(names for names, _ in parts)), [v for _, found in parts for v in found]
    if origin is typing.Literal:
        return {"str"}, [str(value) for value in inside]
    if origin is typing.Annotated:
        return kinds(inside[0])
    return kinds_of_class(getattr(annotation, "__supertype__", origin or annotation))


def kinds_of_class(kind: Any) -> tuple[set[str], list[str]]:
    """The same of a class."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        name = "int" if issubclass(kind, enum.IntEnum) else "str"
        return {name}, [str(one.value) for one in kind]
    names = {type(None): "none", typing.Any: "any"}
    return {names.get(kind) or ("table" if hasattr(kind, "model_fields") else kind.__name__)}, []


def folder() -> Path:
    """Where its configurations lie."""
    import maxtext

    return Path(maxtext.__file__).parent / "configs"


def settings_of(path: Path) -> dict[str, Any]:
    """A YAML as MaxText reads it."""
    import omegaconf

    found: dict[str, Any] = omegaconf.OmegaConf.to_container(omegaconf.OmegaConf.load(path))
    return found


def all_keys() -> dict[str, Any]:
    from maxtext.configs.types import MaxTextConfig

    base, found = settings_of(folder() / "base.yml"), {}
    for name, field in MaxTextConfig.model_fields.items():
        names, values = kinds(field.annotation)
        default = base[name] if name in base else field.get_default(call_default_factory=True)
        default = default.value if isinstance(default, enum.Enum) else default
        is_none = "table" in names or (isinstance(default, str) and default.lower() == "none")
        values = [] if name == "model_name" else values
        found[name] = (sorted(names), None if is_none else default, values)
    return found


def configs() -> dict[str, Any]:
    paths = [*folder().glob("models/*.yml"), *folder().glob("gpu/models/*.yml")]
    paths.append(folder() / "gpu/gpu_smoke_test.yml")
    return {
        path.relative_to(folder()).with_suffix("").as_posix(): settings_of(path) for path in paths
    }


def read(file: str, overrides: list[str]) -> dict[str, Any]:
    """The parser's answer on as many devices as XLA_FLAGS makes of the CPU."""
    import jax
    from maxtext.configs import pyconfig
    from maxtext.utils import max_utils

    jax.devices()
    max_utils.maybe_initialize_jax_distributed_system = lambda _: None
    usual = ["run_name=x", "base_output_directory=/tmp/x", "log_config=false", "jax_cache_dir="]
    try:
        config = pyconfig.initialize(["train.py", file, *usual, *overrides])
    except (SystemExit, ValueError, AssertionError):
        return {"refused": True}
    wanted = (
        "num_target_devices", "global_batch_size_to_train_on", "ici_parallelism",
        "dcn_parallelism", "mesh_axes", "num_decoder_layers", "emb_dim", "remat_policy",
        "num_pipeline_microbatches", "num_pipeline_repeats", "using_pipeline_parallelism",
        "shard_optimizer_over_data",
    )  # fmt: skip
    return {name: getattr(config, name) for name in wanted}


def main() -> None:
    """One JSON on the last line."""
    what, *rest = sys.argv[1:]
    found = {"keys": all_keys, "configs": configs}.get(what, lambda: read(rest[0], rest[1:]))()
    sys.stdout.write("\n" + json.dumps(found, default=str) + "\n")


if __name__ == "__main__":
    main()
