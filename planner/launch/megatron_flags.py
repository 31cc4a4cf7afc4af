"""Megatron-LM flags in titled groups: how a writer collects them, and how they become `argv`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flag:
    """One option with its values; no value for a switch."""

    name: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Flags that belong together, under the comment `title`."""

    title: str
    flags: tuple[Flag, ...]


def flag(name: str, *values: object) -> Flag:
    """`--name value...`; numbers become text."""
    return Flag(name, tuple(str(value) for value in values))


def switches(*named: tuple[str, bool]) -> tuple[Flag, ...]:
    """The switches whose condition holds."""
    return tuple(Flag(name) for name, wanted in named if wanted)


def from_text(text: str) -> tuple[Flag, ...]:
    """Flags of a profile's template, as `--recompute-modules mlp moe_act`."""
    flags: list[Flag] = []
    for word in text.split():
        if word.startswith("--"):
            flags.append(Flag(word))
        elif flags:
            flags[-1] = Flag(flags[-1].name, (*flags[-1].values, word))
    return tuple(flags)


def as_argv(groups: Iterable[Group]) -> tuple[tuple[str, ...], Mapping[int, str]]:
    """All words in order, and the index of each group's first word with its title."""
    words: list[str] = []
    comments: dict[int, str] = {}
    for group in groups:
        if group.flags:
            comments[len(words)] = group.title
        for flag in group.flags:
            words += [flag.name, *flag.values]
    return tuple(words), comments
