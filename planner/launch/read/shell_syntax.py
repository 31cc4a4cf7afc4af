"""The syntax tree of a shell script, by tree-sitter's grammar of bash."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node


def parse_shell(text: str) -> Node:
    """Syntax tree; offsets in characters."""
    import tree_sitter
    import tree_sitter_bash

    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
    # One byte a character, so that offsets agree; nothing outside ASCII is syntax.
    return parser.parse(re.sub(r"[^\x00-\x7f]", "?", text).encode()).root_node


def broken_nodes(tree: Node) -> Iterator[Node]:
    """Nodes that the grammar could not read, in order."""
    ahead = [tree]
    while ahead:
        node = ahead.pop()
        if node.type == "ERROR" or node.is_missing:
            yield node
            continue
        ahead += [child for child in reversed(node.children) if child.has_error or child.is_missing]
