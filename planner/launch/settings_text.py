"""Settings of a configuration with the reason for each, as Python or YAML text; and texts of
`templates/` with a plan's values in them."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeGuard

from hardware.files import shipped_text
from planner.launch.contract import ExplainedSetting

if TYPE_CHECKING:
    from yaml import SafeDumper


LINE_WIDTH = 88


Value = str | int | float | bool | None | Sequence["Value"] | Mapping[str, "Value"]


@dataclass(frozen=True, slots=True)
class WrittenSetting:
    """One key with its value; `why`: the comment above it. `told`: also said in the README."""

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
    """The settings that have a reason, as sentences for the README."""
    for section in sections:
        for setting in section.settings:
            if setting.why and setting.told:
                text = json.dumps(setting.value)
                shown = text if len(text) < 60 else f"{text[:56]} ..."
                yield ExplainedSetting(f"{section.title}.{setting.key} = {shown}", setting.why)


def comment(text: str, indent: int = 0) -> list[str]:
    """Comment lines no wider than `LINE_WIDTH`."""
    pad = " " * indent + "# "
    return textwrap.wrap(
        text, LINE_WIDTH, initial_indent=pad, subsequent_indent=pad, break_on_hyphens=False
    )


# --- Python ---------------------------------------------------------------------------------


def python_arguments(settings: Sequence[WrittenSetting], indent: int) -> list[str]:
    """Keyword arguments of a call, one a line, each below its comment."""
    lines: list[str] = []
    for setting in settings:
        lines += comment(setting.why, indent) if setting.why else []
        lines += _python_argument(setting, indent)
    return lines


def _python_argument(setting: WrittenSetting, indent: int) -> list[str]:
    pad = " " * indent
    line = f"{pad}{setting.key}={python_value(setting.value)},"
    if len(line) <= LINE_WIDTH or not _is_list(setting.value):
        return [line]
    inside = [f"{pad}    {python_value(item)}," for item in setting.value]
    wrapped = [part for item in inside for part in _wrap_list(item, indent + 4)]
    return [f"{pad}{setting.key}=[", *wrapped, f"{pad}],"]


def _wrap_list(line: str, indent: int) -> list[str]:
    """A list that is an item of a list, broken where it is too long."""
    return textwrap.wrap(
        line.strip(),
        LINE_WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
        break_on_hyphens=False,
    )


def python_value(value: Value) -> str:
    """A Python literal; double quotes."""
    if isinstance(value, str):
        return json.dumps(value)
    if _is_list(value):
        return "[" + ", ".join(python_value(item) for item in value) + "]"
    return repr(value)


def _is_list(value: Value) -> TypeGuard[Sequence[Value]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


# --- YAML -----------------------------------------------------------------------------------


def yaml_text(sections: Sequence[SettingsSection]) -> str:
    """Sections in order; a section without title has its keys at the top."""
    return "\n".join(line for section in sections for line in _yaml_section(section)) + "\n"


def _yaml_section(section: SettingsSection) -> Iterator[str]:
    indent = 0
    if section.title:
        yield f"{section.title}:"
        indent = 2
    for setting in section.settings:
        yield from comment(setting.why, indent) if setting.why else []
        yield textwrap.indent(_dumped({setting.key: setting.value}), " " * indent)


def yaml_value(value: Value) -> str:
    """A YAML scalar, or a flow list of them."""
    return _dumped([value])[1:-1]


@cache
def _dumper() -> type[SafeDumper]:
    """Lists of scalars in a line, everything else in lines of its own."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """YAML's, with representers of its own."""

    def in_a_line(dumper: SafeDumper, data: Sequence[Value]) -> yaml.Node:
        flow = not any(isinstance(item, Mapping) for item in data)
        return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)

    for kind in (list, tuple):
        Dumper.add_representer(kind, in_a_line)
    return Dumper


def _dumped(value: Value) -> str:
    import yaml

    text: str = yaml.dump(
        value, Dumper=_dumper(), sort_keys=False, width=math.inf, allow_unicode=True
    )
    return text.rstrip()


# A line that holds one name alone, or a name in a line; the shell's own names are capitals.
_NAME = re.compile(r"(?m)^( *)\$\{([a-z_]+)\}\n|\$\{([a-z_]+)\}")


@cache
def _text(name: str) -> str:
    return shipped_text("planner.launch", f"templates/{name}")


def filled(name: str, /, **values: object) -> str:
    """A template with each `${value}` filled in.

    A line of one name alone becomes the value's lines, indented as the line is, and goes where the
    value has none. KeyError for a name without a value.
    """

    def fill(match: re.Match[str]) -> str:
        if match[3]:
            return str(values[match[3]])
        value = values[match[2]]
        lines = value if isinstance(value, list | tuple) else str(value).splitlines()
        return "".join(f"{match[1]}{line}\n" if line else "\n" for line in lines)

    return _NAME.sub(fill, _text(name))
