"""What programs of Hugging Face do unless they are told otherwise, and what they ask for besides:
lengths, recomputation, kernels, how weights are trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.job.frameworks.profile import load_framework
from planner.launch.dialects.hf.arguments import HfArguments, Program, is_on, value_of
from planner.launch.dialects.hf.objectives import minimised
from planner.launch.dialects.hf.python import TRL_TRAINER
from planner.launch.dialects.hf.tuned import Tuned
from planner.launch.read.command import LaunchCommand
from planner.launch.read.document import Source
from planner.launch.read.found import Found, Setting

# Longest samples where nothing is stated: cutoff_len of LLaMA-Factory (hparams/data_args.py), TRL's
# max_length (trl/trainer/sft_config.py and its neighbours), axolotl's sequence_len
# (utils/schemas/config.py).
_LENGTHS: Mapping[Program, int] = {"llamafactory": 2048, "trl": 1024, "axolotl": 512}


def with_length(script: HfArguments, named: Mapping[str, Setting], program: Program) -> HfArguments:
    """With the longest samples that the program allows, where nobody states them."""
    whose: Program = "trl" if TRL_TRAINER in named else program
    length = _LENGTHS.get(whose)
    if script.hints.seq is not None or length is None:
        return script
    note = f"sequences of at most {length:,} ({_said_by(whose)})"
    hints = replace(script.hints, seq=length)
    return replace(script, hints=hints, assumed=(*script.assumed, note))


def _said_by(program: Program) -> str:
    names = {"llamafactory": "LLaMA-Factory", "axolotl": "axolotl", "trl": "TRL"}
    return f"{names.get(program, program)}'s own, none is stated"


def checkpointed(
    script: HfArguments, named: Mapping[str, Setting], program: Program
) -> HfArguments:
    """With the recomputation of programs that checkpoint unless told otherwise.

    TRL 1.10 does (trl/trainer/base_config.py); its older releases left it to the Trainer, which
    does not. peft's preparation of weights in 4 or 8 bits switches it on
    (src/peft/utils/other.py, prepare_model_for_kbit_training, at 5d602fdbf).
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


def by_unsloth(found: Found, named: Mapping[str, Setting], program: Program) -> Found:
    """A launch under unsloth's profile, where its kernels run: on one GPU, or several without
    sharding.

    It copies checkpoints to the host where it is told `unsloth`, as it is by default, and as
    LLaMA-Factory tells it (model/model_utils/unsloth.py).
    """
    runs = program == "unsloth" or is_on(named, "use_unsloth")
    if not runs or found.framework != "hf-transformers":
        return found
    on_host = value_of(named, "gradient_checkpointing") not in ("true", "false")
    offload = "checkpoints" if found.recompute == "full" and on_host else "off"
    return replace(found, framework="unsloth", dtype="bf16", activation_offload=offload)


# Profiles under which a loss by chunks is counted (planner/evidence/runs/variants.toml).
_CHUNKED = {"hf-fsdp2", "hf-transformers"}


def by_trl(found: Found, named: Mapping[str, Setting], source: Source, *, fused: bool) -> Found:
    """What TRL does on its own: its loss takes a chunk of tokens at a time (loss_type chunked_nll,
    trl/trainer/sft_trainer.py), but where Liger's does (`fused`). Which release it is, no file
    says: its recomputation is open."""
    opened = "gradient_checkpointing" not in named and not source.hints.recompute
    left_open = (*found.left_open, "recompute") if opened else found.left_open
    chunked = value_of(named, "loss_type") in ("", "chunked_nll") and not fused
    chunked = chunked and found.objective == "lm"
    plain = chunked and found.framework in _CHUNKED
    why = "chunks of tokens at a time (TRL's chunked_nll): less memory than predicted"
    left_out = ((Setting("loss_type", None, source.path), why),) if chunked and not plain else ()
    note = "the loss by chunks of tokens (TRL's own today; older releases hold all logits)"
    return replace(
        found,
        left_open=left_open,
        unmodelled=(*found.unmodelled, *left_out),
        variations=(*found.variations, "chunked-head") if plain else found.variations,
        assumed=(*found.assumed, note) if plain else found.assumed,
    )


def with_tuning(
    found: Found, named: Mapping[str, Setting], launch: LaunchCommand | None, how: Tuned
) -> Found:
    """A launch with how its weights are trained, and what training minimises."""
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
