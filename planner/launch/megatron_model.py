"""A model in Megatron's flags and in Megatron-Bridge's fields, out of `megatron_table`."""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.specs import ModelSpec
from planner.launch.architecture import refusals, settings
from planner.launch.contract import Refusal
from planner.launch.megatron_flags import Flag, Group, flag, switches
from planner.launch.megatron_states import is_hybrid
from planner.launch.megatron_table import GROUPS, MEGATRON, linear_bias, option
from planner.launch.options import MEGATRON as OPTIONS
from planner.launch.settings_text import Value, yaml_value

_OTHERS = "--framework accelerate, which trains Hugging Face's own model"


def model_refusals(model: ModelSpec, seq: int, *, bridge: bool = False) -> Iterator[Refusal]:
    """What Megatron's GPT model cannot be made into; `bridge`: by overrides, not by flags."""
    yield from refusals(MEGATRON, model, "Megatron's GPT model", _OTHERS)
    if model.position == "learned" and seq > model.max_positions:
        yield Refusal(
            f"{model.name} has {model.max_positions:,} learned positions, fewer than a sequence "
            f"of {seq:,} tokens",
            f"--seq {model.max_positions}",
        )
    if bridge and model.position == "learned" and seq != model.max_positions:
        yield Refusal(
            f"Megatron-Bridge makes {seq:,} learned positions, one a token of the sequence; "
            f"{model.name} has {model.max_positions:,}",
            "--framework megatron-core",
        )
    if bridge and (model.has_states or is_hybrid(model)):
        yield Refusal(
            f"Megatron-Bridge has a provider of its own for {model.name}, which is not written",
            "--framework megatron-core",
        )
    # What only Megatron-Bridge's fields reach.
    for row in MEGATRON if not bridge else ():
        if row.when(model) and (phrase := row.no_flag(model)):
            text = f"Megatron-LM's flags cannot express {model.name}: {phrase}"
            yield Refusal(text, "--framework megatron-bridge")


def model_groups(model: ModelSpec, seq: int, *, dropout: bool, low: bool) -> tuple[Group, ...]:
    """The model's flags in titled groups. Only for models without refusals.

    `low`: products in 8 or 4 bits.
    """
    run = {"model": _lengths(model, seq, dropout), "experts": dispatch_flags(model, low=low)}
    groups = []
    for title, rows in GROUPS:
        flags = [
            Flag(name) if value is True else flag(name, value)
            for name, value in settings(rows, model).items()
        ]
        shown = f"model: {model.name}" if title == "model" else title
        groups.append(Group(shown, (*flags, *run.get(title, ()))))
    return tuple(groups)


def _lengths(model: ModelSpec, seq: int, dropout: bool) -> tuple[Flag, ...]:
    longest = () if model.position == "learned" else (flag(f"--{option('max_positions')}", seq),)
    if dropout:
        return longest
    return (*longest, flag(OPTIONS["dropout"].key, 0), flag(OPTIONS["attention-dropout"].key, 0))


def dispatch_flags(model: ModelSpec, *, low: bool) -> tuple[Flag, ...]:
    """How tokens go to the experts and through them."""
    if model.moe is None:
        return ()
    return (
        flag(OPTIONS["dispatcher"].key, "alltoall"),
        flag(OPTIONS["grouped-gemm"].key),
        # Quantised products want multiples of 16 or 32 tokens an expert.
        *switches(
            ("--moe-router-padding-for-quantization", low),
            # experts.py, TEGroupedMLP: not with biases.
            ("--no-bias-dropout-fusion", bool(linear_bias(model))),
        ),
    )


def model_overrides(model: ModelSpec, title: str) -> dict[str, str]:
    """The fields of Megatron-Bridge in a group of the table, all of them."""
    rows = dict(GROUPS)[title]
    return {
        f"model.{row.field}": override_text(row.override(model))
        for row in rows
        if row.field and row.when(model)
    }


def override_text(value: Value) -> str:
    """A value as Hydra reads it: lists without blanks."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(str(item) for item in value) + "]"
    return yaml_value(value)
