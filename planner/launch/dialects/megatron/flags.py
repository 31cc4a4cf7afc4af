"""Megatron-LM flags in titled groups, which become `argv`, and the flags that place layers on
pipeline stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from constraints.rule import Layout
from planner.launch.dialects.megatron.options import MEGATRON_LAYOUT
from planner.predict.plan import Plan


@dataclass(frozen=True, slots=True)
class Flag:
    """An option with its values; a switch has none."""

    name: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FlagGroup:
    """Flags that belong together; `title` becomes a comment."""

    title: str
    flags: tuple[Flag, ...]


def flag(name: str, *values: object) -> Flag:
    """`--name value...`; numbers become text."""
    return Flag(name, tuple(str(value) for value in values))


def from_text(text: str) -> tuple[Flag, ...]:
    """The flags in a text of a command line, such as `--recompute-modules mlp moe_act` from a
    profile."""
    flags: list[Flag] = []
    for word in text.split():
        if word.startswith("--"):
            flags.append(Flag(word))
        elif flags:
            flags[-1] = Flag(flags[-1].name, (*flags[-1].values, word))
    return tuple(flags)


def as_argv(groups: Iterable[FlagGroup]) -> tuple[tuple[str, ...], Mapping[int, str]]:
    """All words in order, and the title of each group by the index of its first word."""
    words: list[str] = []
    comments: dict[int, str] = {}
    for group in groups:
        if group.flags:
            comments[len(words)] = group.title
        for flag in group.flags:
            words += [flag.name, *flag.values]
    return tuple(words), comments


def layout_flags(layout: Layout, mtp_layers: int) -> tuple[Flag, ...]:
    """The shortest flags that give every block its layers.

    Even blocks need no flag, or the number of layers per virtual stage. If only the first and last
    stages differ, their layer counts are enough. Everything else needs the layout string.
    """
    blocks = layout.block_layers
    vpp = layout.vpp
    if layout.pp == 1:
        return ()
    if layout.is_even and blocks[0] > 0:
        return (flag(MEGATRON_LAYOUT["chunk-layers"].key, blocks[0]),) if vpp > 1 else ()
    # All stages between the first and the last have the same number of layers, and none is empty.
    only_ends_differ = len(blocks) > 2 and len(set(blocks[1:-1])) == 1 and min(blocks) > 0
    if vpp == 1 and only_ends_differ:
        return (
            flag(MEGATRON_LAYOUT["first-layers"].key, blocks[0]),
            flag(MEGATRON_LAYOUT["last-layers"].key, blocks[-1]),
        )
    text = layout_text(blocks, mtp_layers, layout.mtp_standalone)
    return (flag(MEGATRON_LAYOUT["blocks"].key, text),)


def layout_text(blocks: tuple[int, ...], mtp_layers: int, mtp_standalone: bool = False) -> str:
    """A layout such as `Et*19|(t*20|)*2t*21L`: E embedding, t a layer, m multi-token prediction, L
    head and loss.

    `mtp_standalone`: m is in the block before the last, as in `Et*30|t*31m|L`. Blocks are in
    pipeline order: block b is chunk b // pp of stage b mod pp. Megatron unrolls repeats in brackets
    before repeated letters (`PipelineParallelLayerLayout`).
    """
    texts = [("t" * count if count < 3 else f"t*{count}") for count in blocks]
    texts[0] = "E" + texts[0]
    texts[-2 if mtp_standalone else -1] += "m" * mtp_layers
    texts[-1] += "L"
    parts: list[str] = []
    for text, run in groupby(texts[:-1]):
        count = len(list(run))
        parts.append(f"{text}|" if count == 1 else f"({text}|)*{count}")
    return "".join(parts) + texts[-1]


def schedule_text(plan: Plan) -> str:
    """A batch schedule such as `0:768,250000000000:1536`: pairs of a start in tokens and the batch
    in sequences from there on."""
    starts = (0, *(batch.until_tokens for batch in plan.ramp))
    sizes = (*(batch.gbs for batch in plan.ramp), plan.gbs)
    return ",".join(f"{at}:{gbs}" for at, gbs in zip(starts, sizes, strict=True))
