"""Defaults of Hugging Face's programs: lengths, recomputation, kernels, how weights are trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.job.frameworks.profile import load_framework
from planner.launch.dialects.hf.arguments import HfArguments, Program, is_on, value_of
from planner.launch.dialects.hf.modules import adapter_table
from planner.launch.dialects.hf.objectives import NEXT_TOKEN, compared, minimised
from planner.launch.dialects.hf.python import TRL_TRAINER
from planner.launch.dialects.hf.tuned import Tuned
from planner.launch.languages.text import digits
from planner.launch.read.command import LaunchCommand
from planner.launch.read.document import Source
from planner.launch.read.found import Found, Setting


def with_length(script: HfArguments, named: Mapping[str, Setting], program: Program) -> HfArguments:
    """Adds the program's default limit for samples if none is stated."""
    whose: Program = "trl" if TRL_TRAINER in named else program
    table = adapter_table("programs")[whose]
    length = table.get("length")
    if script.hints.seq is not None or length is None:
        return script
    note = f"sequences of at most {length:,} ({table['called']}'s own, none is stated)"
    hints = replace(script.hints, seq=length)
    return replace(script, hints=hints, assumed=(*script.assumed, note))


def checkpointed(
    script: HfArguments, named: Mapping[str, Setting], program: Program
) -> HfArguments:
    """Adds recomputation for programs that use it by default.

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


def by_unsloth(found: Found, named: Mapping[str, Setting], program: Program) -> Found:
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


def by_trl(found: Found, named: Mapping[str, Setting], source: Source, *, fused: bool) -> Found:
    """TRL's own defaults: the loss takes a chunk of tokens at a time (loss_type chunked_nll,
    trl/trainer/sft_trainer.py) unless Liger's kernel does it (`fused`). Few files state the
    release, so recomputation stays open, and preference losses are assumed to hold all logits."""
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


def _makes_chunks(objective: str, named: Mapping[str, Setting], *, fused: bool) -> bool:
    """Whether the loss of an objective computes logits in chunks."""
    kind, stated = objective.partition(":")[0], _release(named) >= _CHUNKS_SINCE
    if kind == NEXT_TOKEN:
        chunked = value_of(named, "loss_type") in ("", "chunked_nll")
        return stated or (chunked and not fused)
    return kind in compared() and stated


def _release(named: Mapping[str, Setting]) -> tuple[int, ...]:
    """The oldest TRL that a program accepts; empty if it does not say."""
    parts = (digits(part) for part in value_of(named, TRL_RELEASE).split("."))
    return tuple(part for part in parts if part is not None)


def with_tuning(
    found: Found, named: Mapping[str, Setting], launch: LaunchCommand | None, how: Tuned
) -> Found:
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
