"""What simple commands print: the outputs that reading alone can tell."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol

from planner.launch.read.shell_expansions import formatted
from planner.launch.read.text import Text, Word, spaced

if TYPE_CHECKING:
    from tree_sitter import Node


class Words(Protocol):
    """What expands a script's words."""

    def piece(self, node: Node) -> Text:
        """A node's text as written."""

    def words(self, node: Node) -> list[Word]:
        """The words that a node becomes."""

    def inside(self, node: Node) -> Text:
        """A node's text with its expansions replaced."""

    def calculated(self, text: str) -> Text:
        """The value of an arithmetic expression."""


# Filters that only change blanks.
_BLANKS = re.compile(
    r"xargs|tr\s+-s\s.*|tr\s+(-d\s+)?['\"]?\\n['\"]?.*|sed\s+(-e\s+)?['\"]s/ +\*?/ ?/g['\"]"
)
_FIELDS = re.compile(r"awk\s+-F\s*(['\"]?)(.)\1\s+'\{\s*print NF\s*\}'")
_COUNTS_LINES = re.compile(r"\bwc\s+(-l|--lines)\b")
# What a script counts, and the variables that the scheduler's directives set to the same.
# PBS_NODEFILE names a node once for each of its processes.
_COUNTED = (
    (re.compile(r"(?=.*\b(uniq|sort -u)\b).*\bPBS_NODEFILE\b"), ("PBS_NUM_NODES",)),
    (re.compile(r"\bPBS_NODEFILE\b"), ("PBS_NP",)),
    (re.compile(r"\bscontrol show hostnames?\b"), ("SLURM_NNODES",)),
    (re.compile(r"\bnvidia-smi (-L|--list-gpus|--query-gpu=name --format=csv,noheader)\s*\|"),
     ("SLURM_GPUS_PER_NODE", "PBS_NGPUS")),
)  # fmt: skip
_CALCULATOR = re.compile(r"bc(\s+-l)?")


def output_of(node: Node, words: Words) -> Text:
    """What `$(...)` stands for; not known where only running it could tell."""
    written = words.piece(node).value
    unknown = Text.not_known(f"output of {written}")
    if _COUNTS_LINES.search(written):
        wanted = next((names for what, names in _COUNTED if what.search(written)), ())
        lines = (words.calculated(name) for name in wanted)
        return next((text for text in lines if not text.unknown), unknown)
    inside = [child for child in node.named_children if child.type != "comment"]
    if len(inside) != 1:
        return unknown
    printed = _printed(inside[0], words)
    return unknown if printed is None else printed


def _printed(node: Node, words: Words) -> Text | None:
    if node.type == "pipeline":
        return _piped(node, words)
    if node.type == "redirected_statement":
        return _here(node, words)
    if node.type != "command":
        return None
    given = [
        word
        for child in node.named_children
        if child.type not in ("file_redirect", "herestring_redirect")
        for word in words.words(child)
    ]
    name = given[0].text.value if given else ""
    return _of_command(name, given[1:], words)


def _of_command(name: str, given: list[Word], words: Words) -> Text | None:
    """`echo`, `printf`, `expr`, `basename` and `dirname`."""
    texts = [word.text for word in given]
    if name == "echo":
        while texts and re.fullmatch(r"-[neE]+", texts[0].value):
            texts = texts[1:]
        return spaced(texts)
    if name == "printf":
        return formatted(texts)
    if name == "expr":
        return words.calculated(" ".join(text.value for text in texts))
    if name in ("basename", "dirname") and texts and not texts[0].unknown:
        path = PurePosixPath(texts[0].value)
        ending = texts[1].value if len(texts) > 1 else ""
        shown = path.name.removesuffix(ending) if name == "basename" else str(path.parent)
        return Text.made(shown)
    return None


def _piped(node: Node, words: Words) -> Text | None:
    first, *filters = node.named_children
    text = _printed(first, words)
    for item in filters:
        written = words.piece(item).value.strip()
        if text is None:
            return None
        if _CALCULATOR.fullmatch(written):
            text = words.calculated(text.value)
        elif (fields := _FIELDS.fullmatch(written)) and not text.unknown:
            text = Text.made(str(text.value.count(fields[2]) + 1))
        elif not _BLANKS.fullmatch(written):
            return None
        elif "\\n" in written or written == "xargs":
            text = Text(text.value.replace("\n", " "), text.origin)
    return text


def _here(node: Node, words: Words) -> Text | None:
    """`$(cat <<EOF ... EOF)`."""
    command, *rest = node.named_children
    here = next((item for item in rest if item.type == "heredoc_redirect"), None)
    if here is None or words.piece(command).value.strip() not in ("cat", "cat -"):
        return None
    body = next((item for item in here.named_children if item.type == "heredoc_body"), None)
    return None if body is None else words.inside(body)
