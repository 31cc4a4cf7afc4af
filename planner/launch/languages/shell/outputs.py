"""What commands print that stand in a word, `$(echo 8)`, as far as reading can tell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from planner.launch.languages.shell.builtins import formatted
from planner.launch.languages.shell.state import OF_THE_MACHINE
from planner.launch.languages.shell.syntax import first_of
from planner.launch.languages.shell.words import Words
from planner.launch.languages.text import Text, Word, spaced

if TYPE_CHECKING:
    from tree_sitter import Node

# Filters that only change blanks.
_BLANKS = re.compile(
    r"xargs|tr\s+-s\s.*|tr\s+(-d\s+)?['\"]?\\n['\"]?.*|sed\s+(-e\s+)?['\"]s/ +\*?/ ?/g['\"]"
)
_FIELDS = re.compile(r"awk\s+-F\s*(['\"]?)(.)\1\s+'\{\s*print NF\s*\}'")
_PARTS = re.compile(r"tr\s+(['\"]?)([,;: ])\1\s+(['\"]?)(\\n| )\3")
_COUNTS = re.compile(r"wc\s+-[lw]|grep\s+-c\s+(['\"]?)\.?\1")
_CALCULATOR = re.compile(r"bc(\s+-l)?")
# Kubernetes' spelling of a container's variable; no program is named like that.
_OF_A_CONTAINER = re.compile(r"\$\(([A-Z][A-Z0-9_]*)\)")
_REDIRECTIONS = ("file_redirect", "herestring_redirect")


class Outputs(Words):
    """Words, with what commands in them print."""

    def output(self, node: Node) -> Text:
        """What `$(...)` stands for; not known where only running it could tell."""
        written = self.piece(node).value
        unknown = Text.not_known(f"output of {written}")
        if wanted := self.shell.around.counted_by(written):
            counts = (self.calculated(name) for name in wanted)
            unknown = Text.not_known(f"output of {written}, {OF_THE_MACHINE}")
            return next((text for text in counts if not text.unknown), unknown)
        inside = [child for child in node.named_children if child.type != "comment"]
        if len(inside) != 1:
            return unknown
        if named := _OF_A_CONTAINER.fullmatch(written):
            return self.variable(named[1])
        printed = self._printed(inside[0])
        return unknown if printed is None else printed

    def words_of(self, node: Node) -> list[Word]:
        """A command's words, without the variables before it and its redirections."""
        return [
            word
            for child in node.named_children
            if child.type not in ("variable_assignment", *_REDIRECTIONS)
            for word in self.words(child)
        ]

    def _printed(self, node: Node) -> Text | None:
        match node.type:
            case "pipeline":
                return self._piped(node)
            case "file_redirect":  # `$(< args.txt)`
                return self._of_command("cat", self.words(node.named_children[-1]))
            case "redirected_statement":
                return self._here(node)
            case "command" if first_of(node, "variable_assignment") is None:
                name, *given = self.words_of(node) or [Word(Text(""))]
                return self._of_command(name.text.value, given)
        return None

    def _of_command(self, name: str, given: Sequence[Word]) -> Text | None:
        """`echo`, `printf`, `expr`, `basename`, `dirname`, `cat FILE`, and paths as named."""
        texts = [word.text for word in given]
        match name:
            case "echo":
                while texts and re.fullmatch(r"-[neE]+", texts[0].value):
                    texts = texts[1:]
                return spaced(texts)
            case "printf":
                return formatted(texts)
            case "expr":
                return self.calculated(" ".join(text.value for text in texts))
            case "cat" if len(texts) == 1 and not texts[0].unknown:
                file, at = texts[0].value, self.source.first()
                written = self.shell.written.get(file)
                return written or self.shell.around.open_file(file, at.file.path if at else "")
        return _path(name, texts) if texts else None

    def _piped(self, node: Node) -> Text | None:
        first, *filters = node.named_children
        text = self._printed(first)
        for item in filters:
            text = None if text is None else self._filtered(text, self.piece(item).value.strip())
        return text

    def _filtered(self, text: Text, by: str) -> Text | None:
        """What a filter makes of a text; None for another filter."""
        if _CALCULATOR.fullmatch(by):
            return self.calculated(text.value)
        if not text.unknown:
            if fields := _FIELDS.fullmatch(by):
                return Text.made(str(text.value.count(fields[2]) + 1))
            if parts := _PARTS.fullmatch(by):
                separator = "\n" if parts[4] == "\\n" else " "
                return Text.made(text.value.replace(parts[2], separator))
            if _COUNTS.fullmatch(by):
                split = text.value.split() if "-w" in by else text.value.split("\n")
                return Text.made(str(len([part for part in split if part])))
        if not _BLANKS.fullmatch(by):
            return None
        joins = "\\n" in by or by == "xargs"
        return Text(text.value.replace("\n", " "), text.origin) if joins else text

    def _here(self, node: Node) -> Text | None:
        """`$(cat <<EOF ... EOF)`."""
        body = first_of(first_of(node, "heredoc_redirect"), "heredoc_body")
        is_shown = self.piece(node.named_children[0]).value.strip() in ("cat", "cat -")
        return self.inside(body) if is_shown and body is not None else None


def _path(name: str, texts: Sequence[Text]) -> Text | None:
    """What a command prints of the path that it is given."""
    if name in ("realpath", "readlink"):
        return None if texts[-1].unknown else texts[-1]
    if name not in ("basename", "dirname") or texts[0].unknown:
        return None
    path = PurePosixPath(texts[0].value)
    ending = texts[1].value if len(texts) > 1 else ""
    return Text.made(path.name.removesuffix(ending) if name == "basename" else str(path.parent))
