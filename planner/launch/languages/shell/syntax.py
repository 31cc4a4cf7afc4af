"""The syntax tree of a shell script, with corrections where the grammar is wrong."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from planner.launch.languages.text import Text

if TYPE_CHECKING:
    from tree_sitter import Node

_HERE = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)([A-Za-z_]\w*)\1")
# Placeholders of templates: `{{ LAYERS }}`, `__LAYERS__`.
_TEMPLATED = re.compile(
    r"(?<!\$)\{\{\s*([A-Za-z_]\w*)\s*\}\}|(?<=[\s\"'=])__([A-Z][A-Z0-9_]*)__(?=[\s\"']|$)",
    re.MULTILINE,
)
# Placeholders such as `DATA=<path to your data>` or `SEQ=# TODO`, which are not a redirection or a
# comment.
_TO_FILL_IN = re.compile(
    r"(?<==)<[A-Za-z][^<>\n\"']*>|(?<=[\s\"'])<\w+ [^<>\n\"']*>(?=[\s\"'])|(?<==)#[ \t][^\n]*"
)


def parse_shell(text: str) -> Node:
    """The syntax tree of a script; offsets count characters."""
    import tree_sitter
    import tree_sitter_bash

    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
    # One byte per character, so that offsets agree; characters outside ASCII are never syntax.
    plain = re.sub(r"[^\x00-\x7f]", "?", text)
    # A final backslash with no line after it: bash runs the command, but the grammar finds no end.
    end = len(plain.rstrip(" \t\n\\"))
    plain = plain[:end] + plain[end:].replace("\\", " ")
    return parser.parse(_with_other_marks(plain).encode()).root_node


def _with_other_marks(text: str) -> str:
    """The text with changed marks of some here-documents: if a line of the body begins with the
    mark, the grammar would take it for the end. The new marks have the same length and begin no
    line of the body."""
    lines = text.split("\n")
    places: dict[str, list[int]] = {}
    for at, line in enumerate(lines):
        places.setdefault(line.lstrip("\t"), []).append(at)
    at = 0
    while at < len(lines):
        here = _HERE.search(lines[at])
        ends = places.get(here[2], []) if here else []
        after = bisect.bisect_right(ends, at)
        if here is None or after == len(ends):
            at += 1
            continue
        end, other = ends[after], "Z" * len(here[2])
        body = "\n".join(line.lstrip("\t") for line in lines[at:end])
        if f"\n{here[2]}" in body and f"\n{other}" not in body:
            lines[at] = lines[at][: here.start(2)] + other + lines[at][here.end(2) :]
            lines[end] = lines[end].replace(here[2], other)
        at = end + 1
    return "\n".join(lines)


def filled_in(source: Text, given: Mapping[str, str]) -> Text:
    """A template with its placeholders replaced by the user's values; the others are unknown."""

    def filled(match: re.Match[str]) -> Text:
        name = match[1] or match[2]
        return Text.made(given[name]) if name in given else _to_fill(f"${name}")

    filled_source = source.replaced(_TEMPLATED, filled)
    return filled_source.replaced(_TO_FILL_IN, lambda match: _to_fill(match[0]))


def _to_fill(written: str) -> Text:
    return Text.not_known(f"{written}, a placeholder")


def first_of(node: Node | None, kind: str) -> Node | None:
    """The first child of a kind; None if there is none."""
    return next((item for item in node.named_children if item.type == kind), None) if node else None


def operator_of(node: Node) -> str:
    """The operator of a list, `&&` or `||`."""
    return next(child.type for child in node.children if child.type in ("&&", "||"))


def broken_nodes(tree: Node) -> Iterator[Node]:
    """Nodes that the grammar could not read, in order."""
    ahead = [tree]
    while ahead:
        node = ahead.pop()
        if node.type == "ERROR" or node.is_missing:
            yield node
            continue
        ahead += [child for child in reversed(node.children) if child.has_error or child.is_missing]
