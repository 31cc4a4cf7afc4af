"""Keys of torchtitan's configuration: those of each version, and new names of old ones."""

from __future__ import annotations

from collections.abc import Iterator

from planner.launch.read.document import Document, unknown_key
from planner.launch.read.found import Problem, nearest
from planner.launch.read.names import known_names

KEYS = known_names("torchtitan")
NEWER_KEYS = known_names("torchtitan-newer")
# Keys of 0.1 and before -> those of 0.2.
_RENAMED = {
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    "training.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    "model.tokenizer_path": "model.hf_assets_path",
}


def is_known(key: str) -> bool:
    """Whether torchtitan 0.2.2 has the key, or the table that it belongs to."""
    return key in KEYS or any(key.startswith(f"{known}.") for known in KEYS)


def is_known_in_0_3(key: str) -> bool:
    """Whether 0.3 has it."""
    return key in NEWER_KEYS or is_known(key)


def _is_table(key: str) -> bool:
    return any(known.startswith(f"{key}.") for known in KEYS)


def unknown_keys(document: Document) -> Iterator[Problem]:
    """Keys that torchtitan 0.2.2 does not have, which its loader refuses, and the nearest."""
    for key, setting in document.settings.items():
        if is_known(key) or (setting.value == {} and _is_table(key)):
            continue
        says = "torchtitan 0.2 has no such field and refuses it"
        yield unknown_key(document, key, says, _new_name(key) or nearest(key, KEYS, 0.7))


def _new_name(key: str) -> str | None:
    """What 0.2 calls a key of older versions; None if it has none, or is not that old."""
    table, _, name = key.partition(".")
    new = f"quantize.linear.float8.{name}" if table == "float8" else _RENAMED.get(key)
    return new if new in KEYS else None
