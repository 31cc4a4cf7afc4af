"""What a command that a script runs is: Megatron's, or one that names its configuration file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from planner.launch.megatron_table import option
from planner.launch.options import MEGATRON
from planner.launch.read.command import OF_TORCHTITAN, TRAINER_COMMANDS, LaunchCommand
from planner.launch.read.megatron_arguments import options, other_options
from planner.launch.read.megatron_attributes import is_swift_megatron
from planner.launch.read.text import HOLE, Text

_REGISTRY = "torchtitan/{}/{}/config_registry.py"
# Options by which Megatron's command is told from other programs.
MEGATRON_SIGNS = (f"--{option('heads')}", MEGATRON["tp"].key, MEGATRON["mbs"].key)
# Options that no Megatron is known to have: a fork's parser adds a few, another program many.
_FOREIGN = 5
# Arguments that name a configuration file.
_CONFIG_OPTIONS = (
    "--job.config_file", "--job.config-file", "--config-file", "--config_file", "--deepspeed",
    "--deepspeed_config", "--config",
)  # fmt: skip


def is_megatron(launch: LaunchCommand) -> bool:
    """Whether a command has Megatron's options, by its program's name or by theirs."""
    words = [word.text.value.partition("=")[0] for word in launch.arguments]
    # A file by its name, a module by all of it: folders may be called anything.
    name = launch.name
    if is_swift_megatron(launch):
        return False
    named = "pretrain_" in name or "megatron" in name
    if named and any(word.startswith(("--", HOLE)) for word in words):
        # Others call their programs so, too; NeMo's take `trainer.devices=8`.
        return not _has_foreign_options(words) or any(sign in words for sign in MEGATRON_SIGNS)
    signs = [sign for sign in MEGATRON_SIGNS if sign in words]
    # The last is a name that other programs have, too.
    return bool(signs) and (signs != [MEGATRON_SIGNS[-1]] or not _has_foreign_options(words))


def _has_foreign_options(words: Sequence[str]) -> bool:
    """Whether several options are those of no Megatron."""
    known = options().keys() | other_options().keys()
    names = {word[2:] for word in words if re.fullmatch(r"--[a-z][a-z0-9_-]+", word)}
    return len(names - known) >= _FOREIGN


def names_config(launch: LaunchCommand) -> bool:
    """Whether what it trains stands in a file that it or its launcher names."""
    return any(True for _ in named_configs(launch)) or launch.launcher in (
        "accelerate", "deepspeed",
    )  # fmt: skip


def _registries(module: Text) -> Iterator[Text]:
    """Files that may hold the configurations of a module of torchtitan 0.3."""
    folder = module.value.replace(".", "/")
    for part in ("models", "experiments"):
        yield Text.made(_REGISTRY.format(part, folder))


def named_configs(launch: LaunchCommand) -> Iterator[Text]:
    """Files that arguments and environment name as configuration."""
    words = [*launch.command.words]
    # Behind the program; before it, it is the launcher's own switch (`deepspeed --module`).
    first_argument = len(words) - len(launch.arguments)
    for at, word in enumerate(words):
        name, equals, _ = word.text.value.partition("=")
        value = word.text[len(name) + 1 :]
        if not equals and at + 1 < len(words):
            value = words[at + 1].text
        if name == "--module" and at >= first_argument:  # torchtitan 0.3's
            yield from _registries(value)
        if name in _CONFIG_OPTIONS and value.value:
            yield value
    by_name = launch.name in TRAINER_COMMANDS
    for word in launch.arguments[:2]:
        is_hidden = by_name and bool(word.text.unknown) and not word.text.value.startswith("-")
        if is_hidden or re.fullmatch(r"[^-=].*\.ya?ml", word.text.value):
            yield word.text
    environment = launch.command.environment
    if "CONFIG_FILE" in environment:
        yield environment["CONFIG_FILE"]
    if "MODULE" in environment and launch.program.endswith(OF_TORCHTITAN):
        yield from _registries(environment["MODULE"])
