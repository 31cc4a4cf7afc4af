"""What is assumed of the lengths of samples, and of how they are packed or padded."""

from __future__ import annotations

from planner.launch.dialects.hf.values import Named, Program, is_switched, value_of
from planner.launch.read.found import Setting
from planner.launch.read.names import meanings

_PACKED = (
    "packing", "sample_packing", "neat_packing", "packed", "use_packing", "use_packed_sequences",
    "pack_sequences", "dataset.packed", "multipack", "enable_packing",
)  # fmt: skip
_PADDED = ("pad_to_sequence_len", "pad_to_max_length")
_BY_LENGTH = ("group_by_length", "length_grouped")
_UNPADDED = ("padding_free", "batch_flattening", "dpo_padding_free")


def lengths_assumed(named: Named, program: Program, seq: int | None) -> str:
    """The one assumption about the lengths of samples, with the setting that it comes from."""
    length = f"{seq:,} tokens" if seq else "as many tokens as the model was pretrained with"
    limit = next((_said(named[key]) for key in named if _is_length(named, key)), "")
    limit = f" ({limit})" if limit else ""
    if packed := _first(named, _PACKED):
        return f"samples are packed, so every sequence is full: {length}{limit}; {_said(packed)}"
    if program == "llamafactory" and value_of(named, "stage") == "pt" and "packing" not in named:
        return f"samples are packed, so every sequence is full: {length}{limit}; stage: pt packs"
    if padded := _padding(named):
        return f"samples are padded to the longest allowed: {length}{limit}; {_said(padded)}"
    start = f"every sequence as long as the longest allowed: {length}{limit}; "
    if unpadded := _first(named, _UNPADDED):
        return f"{start}{_said(unpadded)} joins samples without padding, and shorter ones need less"
    if grouped := _first(named, _BY_LENGTH):
        return f"{start}{_said(grouped)} puts samples of like length together, and they are shorter"
    return f"{start}samples are not packed, and shorter ones need less"


def _first(named: Named, names: tuple[str, ...]) -> Setting | None:
    return next((named[name] for name in names if name in named and is_switched(named, name)), None)


def _padding(named: Named) -> Setting | None:
    """What pads to the longest allowed."""
    if value_of(named, "padding") == "max_length":
        return named["padding"]
    return _first(named, _PADDED)


def _is_length(named: Named, key: str) -> bool:
    setting = named[key]
    is_named = meanings("trainer-names").get(key) == "seq"
    return is_named and setting.value is not None and not setting.unknown


def _said(setting: Setting) -> str:
    """`packing: true`, as the file or the command has it."""
    value = str(setting.value).lower() if isinstance(setting.value, bool) else setting.value
    return f"{setting.key}: {value}"
