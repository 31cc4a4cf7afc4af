"""Options of a Megatron launch that stand in a file which its command names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hardware.errors import HardwareError
from hardware.files import json_content
from planner.job.errors import UsageError
from planner.launch.dialects.megatron.arguments import options, other_options
from planner.launch.dialects.megatron.attributes import flags_of, words_of
from planner.launch.languages.text import Files, SourceFile, Text, Word
from planner.launch.read.beside import source_beside
from planner.launch.read.command import LaunchCommand
from planner.launch.read.document import yaml_document
from planner.launch.read.found import Problem, Setting, telling

# Options by which programs name a file of options; `@file` is argparse's.
_NAMES_A_FILE = re.compile(
    r"--(?:[a-z]+[-_])*(?:config|conf|cfg|args|arguments|hparams)(?:[-_](?:file|path|yaml|json))?$"
)
# Files of other kinds: DeepSpeed's, Hugging Face's, a tokenizer's, of user buffers or layers.
_OTHERS = re.compile(
    r"deepspeed|ds[-_]|hf[-_]|tokenizer|tp-comm|heterogeneous|quant|data[-_]args|-data-"
)


def with_options_files(launch: LaunchCommand, files: Files) -> tuple[LaunchCommand, list[Problem]]:
    """A launch whose options files are read in their places, and those that were not there."""
    words, problems, at = list[Word](), list[Problem](), 0
    while at < len(launch.arguments):
        named = _named(launch.arguments, at)
        if named is None:
            words.append(launch.arguments[at])
            at += 1
            continue
        word, text, at = named
        file = None if text.unknown else source_beside(text.value, launch.folder, files)
        read = [] if file is None else list(_words_of(file))
        # What stands on the command line wins over the file.
        words[:0] = read
        problems += [] if read else [_unread(word, text)]
    return replace(launch, arguments=tuple(words)), problems


def _named(words: Sequence[Word], at: int) -> tuple[Word, Text, int] | None:
    """The options file that a word names: the word, the name, and where the next word stands."""
    word, value = words[at], words[at].text.value
    if value.startswith("@") and len(value) > 1:
        return word, word.text[1:], at + 1
    name, equals, _ = value.partition("=")
    is_known = name[2:] in options() or name[2:] in other_options()
    if not _NAMES_A_FILE.match(name) or _OTHERS.search(name) or is_known:
        return None
    if equals:
        return word, word.text[len(name) + 1 :], at + 1
    if at + 1 < len(words) and not words[at + 1].text.value.startswith("--"):
        return word, words[at + 1].text, at + 2
    return None


def _words_of(file: SourceFile) -> Iterator[Word]:
    """The options of a file: a list of them, or YAML or JSON with their names as keys."""
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
