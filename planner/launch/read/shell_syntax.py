"""The syntax tree of a shell script, by tree-sitter's grammar of bash, and what is no syntax."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from planner.launch.read.text import Text, join

if TYPE_CHECKING:
    from tree_sitter import Node

# Sourced files that prepare a shell for programs, and say nothing of what is trained.
ENVIRONMENTS = ("activate", "conda.sh", ".bashrc", ".bash_profile", ".profile", "setvars.sh")
_PLACEHOLDER = re.compile(r"(?<==)<[A-Za-z][^<>\n\"']*>|(?<=\s)<\w+ [^<>\n\"']*>(?=\s)")


def parse_shell(text: str) -> Node:
    """Syntax tree; offsets in characters."""
    import tree_sitter
    import tree_sitter_bash

    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
    # One byte a character, so that offsets agree; nothing outside ASCII is syntax.
    plain = re.sub(r"[^\x00-\x7f]", "?", text)
    # A last command that goes on on no line: bash runs it, the grammar knows no end of it.
    end = len(plain.rstrip(" \t\n\\"))
    plain = plain[:end] + plain[end:].replace("\\", " ")
    return parser.parse(plain.encode()).root_node


def broken_nodes(tree: Node) -> Iterator[Node]:
    """Nodes that the grammar could not read, in order."""
    ahead = [tree]
    while ahead:
        node = ahead.pop()
        if node.type == "ERROR" or node.is_missing:
            yield node
            continue
        ahead += [child for child in reversed(node.children) if child.has_error or child.is_missing]


def without_placeholders(source: Text) -> Text:
    """`DATA=<path to your data>` as a value that is not known, not as a redirection."""
    parts, at = [], 0
    for match in _PLACEHOLDER.finditer(source.value):
        parts += [source[at : match.start()], Text.not_known(f"{match[0]}, a placeholder")]
        at = match.end()
    return join([*parts, source[at:]]) if parts else source
