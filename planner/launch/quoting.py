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
    """Text that is already code in the language of its file, and is written unchanged."""

    __slots__ = ()


# --- shell ----------------------------------------------------------------------------------

# The user's variables; nothing else in a word is expanded.
_VARIABLE = re.compile(r"\$\{[A-Z_]+\}")


def shell_word(word: str) -> str:
    """A word quoted for bash. ${NAME} is still expanded as a variable; everything else is
    literal."""
    if not _VARIABLE.search(word):
        return shlex.quote(word)
    texts, names = _VARIABLE.split(word), _VARIABLE.findall(word)
    inner = [re.sub(r'([\\"$`])', r"\\\1", text) for text in texts]
    return f'"{inner[0]}{"".join(map("".join, zip(names, inner[1:], strict=True)))}"'


def kubernetes_script(line: str) -> str:
    """A script's line for a container's `args`, escaped because Kubernetes itself expands $(NAME)
    and $$ there."""
    return re.sub(r"\$(?=[$(])", "$$", line)


# --- Python ---------------------------------------------------------------------------------


def python_value(value: Value) -> str:
    """A value as a Python literal, texts in double quotes; `Code` is unchanged."""
    if isinstance(value, Code):
        return value
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if is_list(value):
        return "[" + ", ".join(python_value(item) for item in value) + "]"
    return repr(value)


def is_list(value: Value) -> TypeGuard[Sequence[Value]]:
    """Whether a value is a list, which a text is not."""
    return isinstance(value, Sequence) and not isinstance(value, str)


# --- YAML -----------------------------------------------------------------------------------


def yaml_value(value: Value) -> str:
    """A value as YAML in one line: a scalar, or a list such as `[1, 2]`."""
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
    """A YAML dumper class that writes lists in one line unless they hold tables, and all else in
    block style."""
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
    """A value as text on a single line, so that it cannot leave a comment: control characters
    become blanks."""
    return CONTROL.sub(" ", str(value))


# What Markdown interprets as markup: anywhere, or only in certain places.
_MARKS = re.compile(r"[\\`*\[\]<|]|(?<!\w)_|_(?!\w)|^[>#+-]|~(?=~)|&(?=#?\w+;)")


def markdown_text(value: object) -> str:
    """A name in Markdown, shown literally."""
    return _MARKS.sub(lambda mark: f"\\{mark[0]}", comment_text(value))


# Code, which Markdown shows literally; or the start of an element, or the end of a link's text.
_HTML = re.compile(r"(`[^`]*`)|<(?=[A-Za-z/!?])|\](?=\()")


def markdown_prose(text: str) -> str:
    """A sentence of ours for Markdown. Names in it cannot become HTML or links."""
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
