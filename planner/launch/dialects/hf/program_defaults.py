"""Defaults and settings of Hugging Face's programs: lengths of samples and how they become
rows, recomputation, kernels, the objective.

Objectives: TRL (1.10, trl/trainer/dpo_trainer.py and kto_trainer.py): with adapters the reference
is the model with its adapters off, unless one is given; without adapters it is a copy;
`precompute_ref_log_probs` evaluates it before training. LLaMA-Factory (ff6d4d12e,
src/llamafactory/train/trainer_utils.py, create_ref_model), axolotl (067b021c8, core/builders/rl.py)
and ms-swift (3602360a5, swift/arguments/rlhf_args.py) do the same. ORPO, SimPO and CPO have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from planner.job.frameworks.profile import load_framework
from planner.job.models.catalog import load_model
from planner.job.samples import PACKING_WORDS, Packing
from planner.launch.dialects.hf import said
from planner.launch.dialects.hf.arguments import (
    HfArguments,
    Named,
    Program,
    is_on,
    is_switched,
    place_of,
    value_of,
)
from planner.launch.dialects.hf.modules import adapter_table
from planner.launch.dialects.hf.python import TRL_TRAINER
from planner.launch.dialects.hf.tuned import Tuned
from planner.launch.languages.text import digits
from planner.launch.read.command import LaunchCommand
from planner.launch.read.document import LIMIT_ALONE, Source
from planner.launch.read.found import Found, Problem, Setting
from planner.launch.read.names import meanings
from planner.launch.registry import dialect_toml


def with_length(script: HfArguments, named: Named, program: Program) -> HfArguments:
    """The arguments with the program's default limit for sample lengths, in tokens, and a note
    about it. Unchanged if a length is stated or the program has no default."""
    whose: Program = "trl" if TRL_TRAINER in named else program
    table = adapter_table("programs")[whose]
    length = table.get("length")
    if script.hints.seq is not None or length is None:
        return script
    note = f"sequences of at most {length:,} ({table['called']}'s own, none is stated)"
    hints = replace(script.hints, seq=length)
    return replace(script, hints=hints, assumed=(*script.assumed, note))


def checkpointed(script: HfArguments, named: Named, program: Program) -> HfArguments:
    """The arguments with full recomputation if the program uses it by default. Unchanged if a mode
    is stated or the settings switch it off.

    TRL 1.10 does (trl/trainer/base_config.py); older releases leave it to the Trainer, which does
    not. peft switches it on when it prepares weights in 4 or 8 bits (src/peft/utils/other.py,
    prepare_model_for_kbit_training, at 5d602fdbf).
    """
    stays = {
        "llamafactory": not is_on(named, "disable_gradient_checkpointing"),
        "swift": value_of(named, "gradient_checkpointing") != "false",
        "trl": value_of(named, "gradient_checkpointing") != "false",
    }
    on = stays.get(program) or is_on(named, "prepare_kbit")
    if script.hints.recompute is not None or not on:
        return script
    note = "every layer recomputed (TRL's own today; older releases leave it off: --recompute none)"
    stated = "gradient_checkpointing" in named
    assumed = (*script.assumed, note) if program == "trl" and not stated else script.assumed
    return replace(script, hints=replace(script.hints, recompute="full"), assumed=assumed)


def by_unsloth(found: Found, named: Named, program: Program) -> Found:
    """A launch under unsloth's profile if its kernels run, which they do without sharding.

    It copies checkpoints to the host if told `unsloth`: its default, and what LLaMA-Factory passes
    (model/model_utils/unsloth.py).
    """
    runs = program == "unsloth" or is_on(named, "use_unsloth")
    if not runs or found.framework != "hf-transformers":
        return found
    on_host = value_of(named, "gradient_checkpointing") not in ("true", "false")
    offload = "checkpoints" if found.recompute == "full" and on_host else "off"
    return replace(found, framework="unsloth", dtype="bf16", activation_offload=offload)


# The setting by which programs written by `planner launch` demand a release of TRL, and the first
# release whose preference losses compute logits in chunks (trl/trainer/utils.py,
# add_fused_lm_head).
TRL_RELEASE, _CHUNKS_SINCE = "trl_release", (1, 16)
_CHUNKED = "logits=chunked"


def by_trl(found: Found, named: Named, source: Source, *, fused: bool) -> Found:
    """The launch with TRL's own defaults. The loss takes a chunk of tokens at a time (loss_type
    chunked_nll, trl/trainer/sft_trainer.py) unless Liger's kernel computes it (`fused`). Few files
    state TRL's release, on which two things depend: without a stated setting, recomputation is
    listed as an open fact, and without a stated release, preference losses are assumed to hold all
    logits."""
    opened = "gradient_checkpointing" not in named and not source.hints.recompute
    left_open = (*found.left_open, "recompute") if opened else found.left_open
    note = "the loss by chunks of tokens (TRL's own today; older releases hold all logits)"
    assumed = found.assumed
    if _makes_chunks(found.objective, named, fused=fused):
        joint = "," if ":" in found.objective else ":"
        stated = TRL_RELEASE in named or value_of(named, "loss_type") == "chunked_nll"
        assumed = assumed if stated else (*assumed, note)
        found = replace(found, objective=f"{found.objective}{joint}{_CHUNKED}")
    return replace(found, left_open=left_open, assumed=assumed)


def _makes_chunks(objective: str, named: Named, *, fused: bool) -> bool:
    """Whether the loss of an objective computes logits in chunks."""
    kind, stated = objective.partition(":")[0], _release(named) >= _CHUNKS_SINCE
    if kind == NEXT_TOKEN:
        chunked = value_of(named, "loss_type") in ("", "chunked_nll")
        return stated or (chunked and not fused)
    return kind in compared() and stated


def _release(named: Named) -> tuple[int, ...]:
    """The numbers of the oldest TRL release that a program accepts, such as (1, 10); empty if the
    program does not say."""
    parts = (digits(part) for part in value_of(named, TRL_RELEASE).split("."))
    return tuple(part for part in parts if part is not None)


def with_tuning(found: Found, named: Named, launch: LaunchCommand | None, how: Tuned) -> Found:
    """A launch, with how its weights are trained and its objective."""
    what = minimised(named, launch, how.has_adapters)
    profile = load_framework(found.framework)
    offered = (name for name in how.techniques if profile.technique(name) is not None)
    return replace(
        found,
        variations=(*found.variations, *offered),
        train=how.train,
        freeze=how.freeze,
        objective=what.text,
        problems=(*how.problems, *what.problems, *found.problems),
        unmodelled=(*found.unmodelled, *how.effects),
        assumed=(*found.assumed, *how.assumed),
    )


# --- rows -----------------------------------------------------------------------------------------

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
    """The assumption about the length of rows if sample lengths are unknown, as a sentence: every
    row is as long as allowed, and why."""
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
    """The setting that limits sample lengths, with the note that shorter samples need less memory
    than predicted. Without packing, samples are padded only to the longest of their micro-batch.
    Nothing if no limit is stated, or if samples are packed or padded to it."""
    packs = program == "llamafactory" and value_of(named, "stage") == "pt"
    key = next((key for key in named if _is_length(named, key)), "")
    limit = named.get(key)
    full = key in _BLOCKS or packs or _first(named, _PACKED) or _padding(named)
    if limit is None or full or _pads_to(named):
        return
    why = f"{_said(limit)} is their limit, and shorter ones need less: less memory than predicted"
    yield replace(limit, key=LIMIT_ALONE), why


def position_problems(found: Found) -> Iterator[Problem]:
    """A problem if rows are longer than the model's table of positions, at which torch stops
    (`IndexError: index out of range in self`, or a device-side assert). No problem for rotary
    positions, which have no such limit."""
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
    """Whether `pad_to_multiple_of` equals the limit for samples, so that every row is padded to
    that limit."""
    multiple = value_of(named, "pad_to_multiple_of")
    limit = next((value_of(named, key) for key in named if _is_length(named, key)), "")
    return bool(multiple) and multiple == limit


def _is_length(named: Named, key: str) -> bool:
    setting = named[key]
    is_named = meanings("hf", "names").get(key) == "seq"
    return is_named and setting.value is not None and not setting.unknown


def _said(setting: Setting) -> str:
    """A setting and its value in one text for messages, such as `packing: true`."""
    value = str(setting.value).lower() if isinstance(setting.value, bool) else setting.value
    return f"{setting.key}: {value}"


# --- what training minimises ----------------------------------------------------------------------

NEXT_TOKEN = "lm"


@dataclass(frozen=True)
class Minimised:
    """The objective: `text` as for `--objective`; `problems` as in `Found`."""

    text: str = NEXT_TOKEN
    problems: tuple[Problem, ...] = ()


@cache
def _objectives(name: str) -> Mapping[str, Any]:
    table: Mapping[str, Any] = dialect_toml("hf", "objectives.toml")[name]
    return table


@cache
def objective_names() -> frozenset[str]:
    """Every setting that is read here."""
    return frozenset(name for names in _objectives("names").values() for name in names)


def compared() -> tuple[str, ...]:
    """Objectives that need a reference model."""
    return tuple(_objectives("compares")["names"].split())


def minimised(named: Named, launch: LaunchCommand | None, adapters: bool) -> Minimised:
    """The objective, from the settings, else from the subcommand or the name of the program."""
    where, word = _stated(named)
    kind = next((kind for kind, words in _objectives("kinds").items() if word in words), None)
    if word in _objectives("refused") or kind is None:
        what = _objectives("refused").get(word, f"{where.key}: {word}")
        return Minimised(NEXT_TOKEN, said("other_objective", *_places(where), what=what))
    if is_on(named, "reward_model") and value_of(named, "reward_model") == "true":
        kind = "reward"  # axolotl's switch; elsewhere it names a model that rewards
    if not word and kind == NEXT_TOKEN and launch is not None:
        kind = _by_program(launch)
    return Minimised(_with_reference(named, _by_loss(named, kind), adapters))


def _stated(named: Named) -> tuple[Setting, str]:
    for name in _objectives("names")["kinds"]:
        if word := value_of(named, name):
            return place_of(named, name), word
    return Setting("", ""), ""


def _by_program(launch: LaunchCommand) -> str:
    """The objective that a command implies by its subcommand (`trl dpo`, `swift rlhf`) or by the
    name of its program (`train_dpo.py`); next-token prediction if neither says."""
    first = launch.arguments[0].text.value if launch.arguments else ""
    if first in _objectives("kinds") or first == "reward":
        return first
    if first == "rlhf":
        return "dpo"  # ms-swift's own
    for kind, words in _objectives("programs").items():
        if re.search(rf"(^|[_.-])({words})([_.-]|$)", launch.name.lower()):
            return str(kind)
    return NEXT_TOKEN


def _by_loss(named: Named, kind: str) -> str:
    """The objective: for `dpo` and `cpo` the variant that the stated loss names, if any; every
    other `kind` unchanged."""
    if kind not in ("dpo", "cpo"):
        return kind
    stated = (value_of(named, name) for name in _objectives("names")["losses"])
    loss = next(filter(None, stated), "").strip("[]'\" ")
    return next((one for one, words in _objectives("losses").items() if loss in words), kind)


def _with_reference(named: Named, kind: str, adapters: bool) -> str:
    if kind not in compared():
        return kind
    names = _objectives("names")
    if any(is_on(named, name) for name in names["precomputed"]):
        return f"{kind}:reference=precomputed"
    if any(is_on(named, name) for name in names["references"]) or not adapters:
        return f"{kind}:reference=copied"
    return f"{kind}:reference=adapters-off"


def _places(where: Setting) -> Iterator[str]:
    if where.key:
        yield where.place
