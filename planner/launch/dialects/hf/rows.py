"""How long samples are and how they become rows, from the settings of Hugging Face's programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.job.models.catalog import load_model
from planner.job.samples import PACKING_WORDS, Packing
from planner.launch.dialects.hf import said
from planner.launch.dialects.hf.arguments import Named, Program, is_switched, value_of
from planner.launch.read.document import LIMIT_ALONE
from planner.launch.read.found import Found, Problem, Setting
from planner.launch.read.names import meanings

_PACKED = (
    "packing", "sample_packing", "neat_packing", "packed", "use_packing", "use_packed_sequences",
    "pack_sequences", "dataset.packed", "multipack", "enable_packing",
)  # fmt: skip
_PADDED = ("pad_to_sequence_len", "pad_to_max_length")
# Lengths of rows cut from one text (transformers' run_clm.py, and train.py as written here).
_BLOCKS = ("block_size", "seq_length")
_BY_LENGTH = ("group_by_length", "length_grouped")
_UNPADDED = ("padding_free", "batch_flattening", "dpo_padding_free")


def lengths_assumed(
    named: Named, program: Program, seq: int | None, lengths: str | None = None
) -> str:
    """The assumption about sample lengths, and the setting that it is based on. `lengths`: stated
    by the caller."""
    if lengths is not None:
        rule = packing_of(named, program)
        return f"samples of --lengths {lengths}, {PACKING_WORDS[rule] if rule else 'as they come'}"
    return _every_row(named, program, seq)


def _every_row(named: Named, program: Program, seq: int | None) -> str:
    """What is assumed about rows if sample lengths are unknown."""
    length = f"{seq:,} tokens" if seq else "as many tokens as the model was pretrained with"
    limit = next((_said(named[key]) for key in named if _is_length(named, key)), "")
    length += f" ({limit})" if limit else ""
    packed = _first(named, _PACKED)
    if packed or _packs(named, program):
        why = _said(packed) if packed else "stage: pt packs"
        return f"samples are packed, so every sequence is full: {length}; {why}"
    if padded := _padding(named):
        return f"samples are padded to the longest allowed: {length}; {_said(padded)}"
    why = "samples are not packed, and shorter ones need less"
    if unpadded := _first(named, _UNPADDED):
        why = f"{_said(unpadded)} joins samples without padding, and shorter ones need less"
    elif grouped := _first(named, _BY_LENGTH):
        why = f"{_said(grouped)} puts samples of like length together, and they are shorter"
    return f"every sequence as long as the longest allowed: {length}; {why}"


def packing_of(named: Named, program: Program) -> Packing | None:
    """How samples become rows; None if rows are cut from one text.

    LLaMA-Factory packs in data/processor/supervised.py; `neat_packing` keeps attention within
    samples (data/collator.py), and pretraining cuts a text. TRL: packing_strategy bfd packs without
    padding, `wrapped` cuts (trl/trainer/sft_trainer.py). axolotl's sample_packing and ms-swift's
    packing pass cu_seqlens to attention (utils/collators/batching.py; swift/template).
    """
    if _first(named, ("neat_packing", "sample_packing")):
        return "pack-varlen"
    if _packs(named, program):
        within = program in ("trl", "unsloth", "swift")
        wraps = value_of(named, "packing_strategy") == "wrapped"
        return "pack-varlen" if within and not wraps else "pack"
    if _padding(named) is not None or _pads_to(named):
        return "limit"
    plain: Packing | None = None if any(key in named for key in _BLOCKS) else "longest"
    return "padding-free" if _first(named, _UNPADDED) else plain


def _packs(named: Named, program: Program) -> bool:
    """Whether samples are packed, in whichever way."""
    pretrains = program == "llamafactory" and value_of(named, "stage") == "pt"
    return _first(named, _PACKED) is not None or (pretrains and "packing" not in named)


def below_limit(named: Named, program: Program) -> Iterator[tuple[Setting, str]]:
    """The limit of samples whose lengths are unknown. Without packing, they are padded to the
    longest of their micro-batch, which may be far below the limit."""
    packs = program == "llamafactory" and value_of(named, "stage") == "pt"
    key = next((key for key in named if _is_length(named, key)), "")
    limit = named.get(key)
    full = key in _BLOCKS or packs or _first(named, _PACKED) or _padding(named)
    if limit is None or full or _pads_to(named):
        return
    why = f"{_said(limit)} is their limit, and shorter ones need less: less memory than predicted"
    yield replace(limit, key=LIMIT_ALONE), why


def position_problems(found: Found) -> Iterator[Problem]:
    """Rows longer than the model's table of positions, at which torch stops (`IndexError: index out
    of range in self`, or a device-side assert). Rotary positions have no such limit."""
    spec = None if found.model is None else load_model(found.model).spec
    if spec is None or found.seq is None or found.seq <= spec.longest_seq or found.lengths:
        return
    full = found.packing in ("pack", "limit", None)
    places = [found.where["seq"].place] if "seq" in found.where else []
    yield from said("positions", *places, found=found, spec=spec, full=full)


def _first(named: Named, names: tuple[str, ...]) -> Setting | None:
    return next((named[name] for name in names if name in named and is_switched(named, name)), None)


def _padding(named: Named) -> Setting | None:
    """The setting that pads samples to the limit."""
    if value_of(named, "padding") == "max_length":
        return named["padding"]
    return _first(named, _PADDED)


def _pads_to(named: Named) -> bool:
    """Whether rows are padded to a multiple that equals the limit."""
    multiple = value_of(named, "pad_to_multiple_of")
    limit = next((value_of(named, key) for key in named if _is_length(named, key)), "")
    return bool(multiple) and multiple == limit


def _is_length(named: Named, key: str) -> bool:
    setting = named[key]
    is_named = meanings("hf", "names").get(key) == "seq"
    return is_named and setting.value is not None and not setting.unknown


def _said(setting: Setting) -> str:
    """`packing: true`, as in the file or the command."""
    value = str(setting.value).lower() if isinstance(setting.value, bool) else setting.value
    return f"{setting.key}: {value}"
