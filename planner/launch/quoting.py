"""How a value becomes text in shell, Python, YAML, comments and Markdown: one function each. Only
these functions put names into launch files."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeGuard

from hardware.plain_text import CONTROL

if TYPE_CHECKING:
    from yaml import SafeDumper

Value = str | int | float | bool | None | Sequence["Value"] | Mapping[str, "Value"]


class Code(str):
    """Text that is already in the language of its file."""

    __slots__ = ()


# --- shell ----------------------------------------------------------------------------------

# The user's variables; nothing else in a word is expanded.
_VARIABLE = re.compile(r"\$\{[A-Z_]+\}")


def shell_word(word: str) -> str:
    """A word for bash. ${NAME} remains a variable, all else is literal."""
    if not _VARIABLE.search(word):
        return shlex.quote(word)
    texts, names = _VARIABLE.split(word), _VARIABLE.findall(word)
    inner = [re.sub(r'([\\"$`])', r"\\\1", text) for text in texts]
    return f'"{inner[0]}{"".join(map("".join, zip(names, inner[1:], strict=True)))}"'


def kubernetes_script(line: str) -> str:
    """A line of a script in a container's `args`, where Kubernetes expands $(NAME) and $$."""
    return re.sub(r"\$(?=[$(])", "$$", line)


# --- Python ---------------------------------------------------------------------------------


def python_value(value: Value) -> str:
    """A Python literal with double quotes; `Code` is unchanged."""
    if isinstance(value, Code):
        return value
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if is_list(value):
        return "[" + ", ".join(python_value(item) for item in value) + "]"
    return repr(value)


def is_list(value: Value) -> TypeGuard[Sequence[Value]]:
    """Whether a value is a list and not a text."""
    return isinstance(value, Sequence) and not isinstance(value, str)


# --- YAML -----------------------------------------------------------------------------------


def yaml_value(value: Value) -> str:
    """A YAML scalar, or a flow list of them."""
    return yaml_dumped([value])[1:-1]


def yaml_dumped(value: Value) -> str:
    """YAML text of a value, without a trailing line break."""
    import yaml

    text: str = yaml.dump(
        value, Dumper=_dumper(), sort_keys=False, width=math.inf, allow_unicode=True
    )
    return text.rstrip()


@cache
def _dumper() -> type[SafeDumper]:
    """Lists of scalars in one line, everything else in block style."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """YAML's dumper, with its own representers."""

    def in_a_line(dumper: SafeDumper, data: Sequence[Value]) -> yaml.Node:
        flow = not any(isinstance(item, Mapping) for item in data)
        return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)

    for kind in (list, tuple):
        Dumper.add_representer(kind, in_a_line)
    return Dumper


# --- comments and Markdown ------------------------------------------------------------------


def comment_text(value: object) -> str:
    """A text for a comment in any language: a single line."""
    return CONTROL.sub(" ", str(value))


# What Markdown interprets as markup: anywhere, or only in certain places.
_MARKS = re.compile(r"[\\`*\[\]<|]|(?<!\w)_|_(?!\w)|^[>#+-]|~(?=~)|&(?=#?\w+;)")


def markdown_text(value: object) -> str:
    """A name in Markdown, shown literally."""
    return _MARKS.sub(lambda mark: f"\\{mark[0]}", comment_text(value))


# Code, which Markdown shows literally; or the start of an element, or the end of a link's text.
_HTML = re.compile(r"(`[^`]*`)|<(?=[A-Za-z/!?])|\](?=\()")


def markdown_prose(text: str) -> str:
    """A sentence of ours that may contain names: no HTML or links result from them."""
    return _HTML.sub(lambda found: found[1] or f"\\{found[0]}", comment_text(text))


# Suffix of a template's name -> how a value outside comments is written.
LANGUAGES: Mapping[str, Callable[[Value], str]] = {
    ".py": python_value,
    ".yaml": yaml_value,
    ".sh": lambda value: shell_word(str(value)),
    "": lambda value: shell_word(str(value)),
    ".sbatch": lambda value: shell_word(str(value)),
    ".md": markdown_text,
}
