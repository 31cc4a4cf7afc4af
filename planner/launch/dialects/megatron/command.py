"""Commands with Megatron's options."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planner.launch.dialects.megatron.arguments import options, other_options
from planner.launch.dialects.megatron.attributes import is_swift_megatron
from planner.launch.dialects.megatron.options_file import with_options_files
from planner.launch.dialects.megatron.reader import MegatronReader
from planner.launch.dialects.megatron.table import option
from planner.launch.languages.text import HOLE
from planner.launch.options import MEGATRON
from planner.launch.read.command import LaunchCommand
from planner.launch.read.found import Found, Hints
from planner.launch.read.opened import Opened

# Options by which Megatron's command is told from other programs.
MEGATRON_SIGNS = (f"--{option('heads')}", MEGATRON["tp"].key, MEGATRON["mbs"].key)
# Options that no Megatron is known to have: a fork's parser adds a few, another program many.
_FOREIGN = 5


def read_megatron(launch: LaunchCommand, read: Opened, hints: Hints) -> Found:
    """The launch that options describe, with the files of options that they name."""
    launch, unread = with_options_files(launch, read.files)
    return MegatronReader(launch, hints, unread).found()


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
    # Megatron-LLM's spelling; the last sign is a name that many programs have in it.
    signs += [sign for sign in MEGATRON_SIGNS[:-1] if _underscored(sign) in words]
    # The last is a name that other programs have, too.
    return bool(signs) and (signs != [MEGATRON_SIGNS[-1]] or not _has_foreign_options(words))


def _underscored(name: str) -> str:
    return "--" + name[2:].replace("-", "_")


def _has_foreign_options(words: Sequence[str]) -> bool:
    """Whether several options are those of no Megatron."""
    known = options().keys() | other_options().keys()
    names = {word[2:] for word in words if re.fullmatch(r"--[a-z][a-z0-9_-]+", word)}
    return len(names - known) >= _FOREIGN
