"""Here-documents of a script: their body, its text, and the file that they are kept in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.launch.read.shell_output import Words
from planner.launch.read.text import Text

if TYPE_CHECKING:
    from tree_sitter import Node


def heredoc_body(node: Node) -> Node | None:
    """What lies between the marks of a here-document."""
    return _first(node.named_children, "heredoc_body")


def heredoc_text(node: Node, body: Node, words: Words) -> Text:
    """The body with its expansions replaced, unless the mark is quoted."""
    start = next(item for item in node.named_children if item.type == "heredoc_start")
    raw = words.piece(start).value[:1] in ("'", '"')
    return words.piece(body) if raw else words.inside(body)


def kept_in(node: Node) -> Node | None:
    """The file's name in `cat <<EOF > file`, which stands before the mark or behind it."""
    beside = node.parent.named_children if node.parent else []
    target = _first(node.named_children, "file_redirect") or _first(beside, "file_redirect")
    return None if target is None else target.named_children[-1]


def piped_to(node: Node) -> list[Node]:
    """The commands after the mark: `cat <<EOF | sbatch`."""
    pipeline = _first(node.named_children, "pipeline")
    return [] if pipeline is None else [c for c in pipeline.named_children if c.type == "command"]


def _first(nodes: list[Node], kind: str) -> Node | None:
    return next((item for item in nodes if item.type == kind), None)
