"""Configuration files that a command names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from planner.launch.languages.text import Text
from planner.launch.read.command import TRAINER_COMMANDS, LaunchCommand
from planner.launch.registry import Dialect, dialects, function

# A program's first arguments that are its configuration: Trainer scripts take YAML and JSON.
CONFIG_NAME = r"[^-=].*\.(ya?ml|json)"


def names_config(launch: LaunchCommand) -> bool:
    """Whether what it trains stands in a file that it or its launcher names."""
    return any(True for _ in named_configs(launch)) or launch.launcher in (
        "accelerate", "deepspeed",
    )  # fmt: skip


def named_configs(launch: LaunchCommand) -> Iterator[Text]:
    """Files that arguments and environment name as configuration."""
    words = launch.command.words
    options = {option for one in dialects().values() for option in one.config_options}
    for at, word in enumerate(words):
        name, equals, _ = word.text.value.partition("=")
        value = word.text[len(name) + 1 :]
        if not equals and at + 1 < len(words):
            value = words[at + 1].text
        if name in options and value.value:
            yield value
    by_name = launch.name in TRAINER_COMMANDS
    for word in launch.arguments[:2]:
        is_hidden = by_name and bool(word.text.unknown) and not word.text.value.startswith("-")
        if is_hidden or re.fullmatch(CONFIG_NAME, word.text.value):
            yield word.text
    for one in dialects().values():
        yield from _named_by(one, launch)


def _named_by(dialect: Dialect, launch: LaunchCommand) -> Iterator[Text]:
    """Files that a command names in a way of the dialect's own."""
    if dialect.names_files:
        yield from function(dialect.name, dialect.names_files)(launch)
