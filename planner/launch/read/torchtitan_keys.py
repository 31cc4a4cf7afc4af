"""Keys of torchtitan's configuration: those of each version, and new names of old ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.launch.read.document import Document, unknown_key
from planner.launch.read.found import SURELY_MEANT, Problem, nearest
from planner.launch.read.names import known_names

KEYS = known_names("torchtitan")
NEWER_KEYS = known_names("torchtitan-newer")
# Keys of earlier releases -> those of 0.2; whole tables, where the names in them stayed.
_RENAMED = {
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    "validation.enabled": "validation.enable",
    "memory_estimation.enabled": "memory_estimation.enable",
    "model.tokenizer_path": "model.hf_assets_path",
    "float8": "quantize.linear.float8",
}
# Tables that held the degrees before there was one of them.
_HELD_DEGREES = ("training", "experimental")
_MOST_NAMED = 6


def is_known(key: str) -> bool:
    """Whether torchtitan 0.2.2 has the key, or the table that it belongs to."""
    return key in KEYS or any(key.startswith(f"{known}.") for known in KEYS)


def is_known_in_0_3(key: str) -> bool:
    """Whether 0.3 has it."""
    return key in NEWER_KEYS or is_known(key)


def _is_table(key: str) -> bool:
    return any(known.startswith(f"{key}.") for known in KEYS)


def unknown_keys(document: Document) -> Iterator[Problem]:
    """Keys that torchtitan 0.2.2 does not have, which its loader refuses.

    Misspelt ones are errors. Others are another release's or a fork's: those that were only renamed
    are read under their new names.
    """
    others = []
    for key, setting in [*document.settings.items()]:
        if is_known(key) or (setting.value == {} and _is_table(key)):
            continue
        new = _new_name(key)
        close = new or nearest(key, KEYS, 0.7)
        if document.has(new) if new else _is_misspelt(key, close):
            says = "torchtitan 0.2 has no such field and refuses it"
            yield unknown_key(document, key, says, close)
            continue
        others.append(key)
        if new:
            document.override(setting, new)
        elif key == "float8.enable_float8_linear" and setting.value:
            document.override(replace(setting, value=["float8"]), "model.converters")
    if others:
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        text = (
            "read as of another release of torchtitan, or of a fork; 0.2.2 refuses "
            f"{', '.join(others[:_MOST_NAMED])}{more}"
        )
        yield document.problem("dialect", text, others[0], severity="warning")


def _is_misspelt(key: str, close: str) -> bool:
    """Whether a key, and the name in its table, are so near to another's that it is a slip."""
    names = (key.rpartition(".")[2], close.rpartition(".")[2])
    return all(nearest(one, [other], SURELY_MEANT) for one, other in ((key, close), names))


def _new_name(key: str) -> str | None:
    """What 0.2 calls a key of earlier releases; None if it has none, or is not that old."""
    table, _, name = key.partition(".")
    moved = f"{_RENAMED[table]}.{name}" if table in _RENAMED else _RENAMED.get(key)
    if moved is None and table in _HELD_DEGREES:
        moved = f"parallelism.{name}"
    return moved if moved in KEYS else None
