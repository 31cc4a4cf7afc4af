"""Hydra's overrides on a command line: `key=value`, `+key=value`, `++key=value`, `~key`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from planner.launch.dialects.rl.settings import with_its_end
from planner.launch.languages.text import Text, Word
from planner.launch.read.command import LaunchCommand, setting_of
from planner.launch.read.document import leaves
from planner.launch.read.found import Setting
from planner.launch.read.yaml_text import documents_of

_OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w.@/]*)(=|$)")


def overrides(launch: LaunchCommand) -> dict[str, Setting]:
    """The settings that a command overrides; for a repeated key, the last one counts."""
    found: dict[str, Setting] = {}
    for word in launch.arguments:
        for setting in _settings(word):
            found[setting.key] = setting
    return found


def paths_given(launch: LaunchCommand, *names: str) -> dict[str, Setting]:
    """The options of a command that begin with `--`. Those in `names` give a model as a path: if
    only its folder is unknown, as in `$MODELS/NAME`, the value becomes the known end of the path.
    """
    found = launch.given
    for word, following in pairwise(launch.arguments):
        name = word.text.value[2:].replace("-", "_")
        if word.text.value.startswith("--") and name in names and name in found:
            found[name] = with_its_end(found[name], following.text)
    return found


def _settings(word: Word) -> Iterator[Setting]:
    """The settings in one word; a table gives one for each of its keys."""
    match = _OVERRIDE.match(word.text.value)
    if match is None or not (match[3] or match[1] == "~"):
        return
    key, value = match[2], word.text[match.end() :]
    if match[1] == "~":
        yield setting_of(key, Text.made("null"), word.used)
        return
    setting = setting_of(key, value, word.used)
    if key.endswith((".path", ".model_path", ".model_name")):
        setting = with_its_end(setting, value)
    inside = None if setting.unknown else _table(value.value)
    if inside is None:
        yield setting
        return
    for name, one in leaves({key: inside}):
        yield Setting(name, one, setting.file, setting.line)


def _table(value: str) -> dict[str, Any] | None:
    """A table such as `{enable:true,len:512}`; None if the value is not a table."""
    text = value.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    # Hydra accepts `a:1`; YAML needs a blank after the colon.
    contents = documents_of(re.sub(r":(?=\S)", ": ", text)).contents
    content = contents[0] if len(contents) == 1 else None
    return content if isinstance(content, dict) else None
