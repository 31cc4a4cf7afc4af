"""Settings of a configuration, each with a reason, as Python or YAML text; and templates filled
with a plan's values."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath

from hardware.files import shipped_text
from planner.launch.contract import ExplainedSetting
from planner.launch.quoting import (
    LANGUAGES,
    Code,
    Value,
    comment_text,
    is_list,
    markdown_text,
    python_value,
    yaml_dumped,
)
from planner.launch.registry import package_of

LINE_WIDTH = 88


@dataclass(frozen=True, slots=True)
class WrittenSetting:
    """A key with its value, to be written. `why`: the comment above it, empty for none; `told`:
    whether the README repeats the comment."""

    key: str
    value: Value
    why: str = ""
    told: bool = True


@dataclass(frozen=True, slots=True)
class SettingsSection:
    """Settings that belong together: a table, or the arguments of a class."""

    title: str
    settings: tuple[WrittenSetting, ...]


def section_choices(sections: Sequence[SettingsSection]) -> Iterator[ExplainedSetting]:
    """The settings to explain in the README: those with a comment, unless `told` is False."""
    for section in sections:
        for setting in section.settings:
            if setting.why and setting.told:
                text = json.dumps(setting.value)
                shown = text if len(text) < 60 else f"{text[:56]} ..."
                name = f"{section.title}.{setting.key}".lstrip(".")
                yield ExplainedSetting(f"{name} = {shown}", setting.why)


def comment(text: str, indent: int = 0) -> list[str]:
    """A text as comment lines (`# ...`), wrapped at `LINE_WIDTH`."""
    pad = " " * indent + "# "
    return textwrap.wrap(
        comment_text(text),
        LINE_WIDTH,
        initial_indent=pad,
        subsequent_indent=pad,
        break_on_hyphens=False,
    )


# --- Python ---------------------------------------------------------------------------------


def python_arguments(settings: Sequence[WrittenSetting], indent: int) -> list[str]:
    """Keyword arguments of a call, one per line, each below its comment."""
    lines: list[str] = []
    for setting in settings:
        lines += comment(setting.why, indent) if setting.why else []
        lines += _python_argument(setting, indent)
    return lines


def _python_argument(setting: WrittenSetting, indent: int) -> list[str]:
    pad = " " * indent
    line = f"{pad}{setting.key}={python_value(setting.value)},"
    if len(line) <= LINE_WIDTH or not is_list(setting.value):
        return [line]
    inside = [f"{pad}    {python_value(item)}," for item in setting.value]
    wrapped = [part for item in inside for part in _wrap_list(item, indent + 4)]
    return [f"{pad}{setting.key}=[", *wrapped, f"{pad}],"]


def _wrap_list(line: str, indent: int) -> list[str]:
    """A line of text wrapped at `LINE_WIDTH`, for a list inside a list."""
    return textwrap.wrap(
        line.strip(),
        LINE_WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
        break_on_hyphens=False,
    )


# --- YAML -----------------------------------------------------------------------------------


def yaml_text(sections: Sequence[SettingsSection]) -> str:
    """The sections as YAML text, in order. Settings of a section without title are at the top
    level."""
    return "\n".join(line for section in sections for line in _yaml_section(section)) + "\n"


def _yaml_section(section: SettingsSection) -> Iterator[str]:
    indent = 0
    if section.title:
        yield f"{section.title}:"
        indent = 2
    for setting in section.settings:
        yield from comment(setting.why, indent) if setting.why else []
        yield textwrap.indent(yaml_dumped({setting.key: setting.value}), " " * indent)


# A name alone on its line, or within a line; the shell's own variables are upper case.
_NAME = re.compile(r"(?m)^(?P<indent> *)\$\{(?P<lines>[a-z_]+)\}\n|\$\{(?P<name>[a-z_]+)\}")


@cache
def _text(name: str) -> str:
    dialect, _, file = name.rpartition("/")
    package = package_of(dialect) if dialect else "planner.launch"
    return shipped_text(package, f"templates/{file}")


def filled(name: str, /, **values: Value) -> str:
    """A template with each `${value}` filled in and quoted for the template's language. A dialect's
    template is named `dialect/file.txt`.

    A name alone on its line is replaced by the value's lines of code, indented alike, or by nothing
    if the value is empty. In a comment a value is plain text; in Python, YAML or shell it is a
    literal or a word, unless it is `Code`. KeyError for a missing value.
    """
    template = _text(name)
    literal = LANGUAGES[PurePath(name.removesuffix(".txt")).suffix]

    def fill(match: re.Match[str]) -> str:
        if match["name"]:
            start = template.rfind("\n", 0, match.start()) + 1
            before = template[start : match.start()].lstrip()
            value = values[match["name"]]
            if before.startswith("#") and literal is not markdown_text:
                return comment_text(value)
            return value if isinstance(value, Code) else literal(value)
        value = values[match["lines"]]
        lines = value if is_list(value) else str(value).split("\n")
        texts = [] if not value else [str(line) for line in lines]
        return "".join(f"{match['indent']}{line}\n" if line else "\n" for line in texts)

    return _NAME.sub(fill, template)


def piece(name: str, /, **values: Value) -> str:
    """A filled template without its last line break, for use in another template."""
    return filled(name, **values).rstrip("\n")
