"""Reader of commands with Megatron's options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hardware.errors import HardwareError
from hardware.files import json_content
from planner.job.errors import UsageError
from planner.launch.dialects.megatron.arguments import options, other_options
from planner.launch.dialects.megatron.attributes import flags_of, is_swift_megatron, words_of
from planner.launch.dialects.megatron.options import MEGATRON
from planner.launch.dialects.megatron.reader import MegatronReader
from planner.launch.dialects.megatron.table import option
from planner.launch.languages.text import HOLE, Files, SourceFile, Text, Word
from planner.launch.read.beside import source_beside
from planner.launch.read.command import LaunchCommand
from planner.launch.read.document import yaml_document
from planner.launch.read.found import Found, Hints, Problem, Setting, telling
from planner.launch.read.opened import Opened

# Options that name a file of options; `@file` is argparse's way.
_NAMES_A_FILE = re.compile(
    r"--(?:[a-z]+[-_])*(?:config|conf|cfg|args|arguments|hparams)(?:[-_](?:file|path|yaml|json))?$"
)
# Options that name other files: of DeepSpeed, Hugging Face, tokenizers, user buffers or layers.
_OTHERS = re.compile(
    r"deepspeed|ds[-_]|hf[-_]|tokenizer|tp-comm|heterogeneous|quant|data[-_]args|-data-"
)


def with_options_files(launch: LaunchCommand, files: Files) -> tuple[LaunchCommand, list[Problem]]:
    """The launch with the options of the option files that it names, and problems for missing
    files."""
    words, problems, rest = list[Word](), list[Problem](), launch.arguments
    while rest:
        text, taken = _named(rest)
        if text is None:
            words.append(rest[0])
        else:
            file = None if text.unknown else source_beside(text.value, launch.folder, files)
            read = [] if file is None else list(_words_of(file))
            # Options on the command line override those of the file.
            words[:0] = read
            problems += [] if read else [_unread(rest[0], text)]
        rest = rest[taken:]
    return replace(launch, arguments=tuple(words)), problems


def _named(words: Sequence[Word]) -> tuple[Text | None, int]:
    """(path, words): the option file that the first word names (`@FILE`, or an option such as
    `--args-file FILE`), and the number of words that this takes, 1 or 2. The path is None if the
    word names no file."""
    word, value = words[0], words[0].text.value
    if value.startswith("@") and len(value) > 1:
        return word.text[1:], 1
    name, equals, _ = value.partition("=")
    is_known = name[2:] in options() or name[2:] in other_options()
    if not _NAMES_A_FILE.match(name) or _OTHERS.search(name) or is_known:
        return None, 1
    if equals:
        return word.text[len(name) + 1 :], 1
    if len(words) > 1 and not words[1].text.value.startswith("--"):
        return words[1].text, 2
    return None, 1


def _words_of(file: SourceFile) -> Iterator[Word]:
    """The options in a file: a plain list, or YAML or JSON with option names as keys."""
    if file.text.lstrip().startswith("--"):
        yield from (Word(Text.made(word)) for word in shlex.split(file.text, comments=True))
        return
    try:
        content = json_content(file.text, file.path) if file.path.endswith(".json") else None
        if isinstance(content, dict):
            settings = {key: Setting(key, value, file.path) for key, value in content.items()}
        else:
            settings = yaml_document(file.as_text(), file.path).settings
    except (UsageError, HardwareError):
        return
    plain = {key.rpartition(".")[2].replace("-", "_"): one for key, one in settings.items()}
    yield from words_of(dict(flags_of(plain)))


def _unread(word: Word, text: Text) -> Problem:
    name = text.known or text.unknown.partition(",")[0]
    shown = f"{word.text.value.partition('=')[0]} {name}".strip()
    said = f"{shown}, a file of options that was not read"
    fix = telling(text.unknown) if text.unknown else f"the file {name} beside the script"
    return Problem("unresolved", said, "missing", (word.used.place,) if word.used else (), fix)


# Options that identify a Megatron command.
MEGATRON_SIGNS = (f"--{option('heads')}", MEGATRON["tp"].key, MEGATRON["mbs"].key)
# This many options unknown to every Megatron mean another program; a fork's parser adds only a few.
_FOREIGN = 5


def read_megatron(launch: LaunchCommand, read: Opened, hints: Hints) -> Found:
    """The launch that options describe, including those in option files."""
    launch, unread = with_options_files(launch, read.files)
    return MegatronReader(launch, hints, unread).found()


def is_megatron(launch: LaunchCommand) -> bool:
    """Whether a command takes Megatron's options, judged by the program's name or by the
    options."""
    words = [word.text.value.partition("=")[0] for word in launch.arguments]
    if is_swift_megatron(launch):
        return False
    # Judge a file by its name and a module by its full path, because folders may have any name.
    named = "pretrain_" in launch.name or "megatron" in launch.name
    if named and any(word.startswith(("--", HOLE)) for word in words):
        # Other programs have such names too; NeMo's take `trainer.devices=8`.
        return not _has_foreign_options(words) or any(sign in words for sign in MEGATRON_SIGNS)
    signs = [sign for sign in MEGATRON_SIGNS if sign in words]
    # Megatron-LLM's spelling, except for the last sign, which many programs have with underscores.
    signs += [sign for sign in MEGATRON_SIGNS[:-1] if f"--{sign[2:].replace('-', '_')}" in words]
    # Other programs have the last sign too.
    return bool(signs) and (signs != [MEGATRON_SIGNS[-1]] or not _has_foreign_options(words))


def _has_foreign_options(words: Sequence[str]) -> bool:
    """Whether at least five options belong to no known Megatron."""
    known = options().keys() | other_options().keys()
    names = {word[2:] for word in words if re.fullmatch(r"--[a-z][a-z0-9_-]+", word)}
    return len(names - known) >= _FOREIGN
