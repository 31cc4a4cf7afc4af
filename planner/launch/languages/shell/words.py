"""Words of a script as the shell expands them: variables, defaults, quotes, arithmetic, and the
output of commands inside words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from planner.launch.languages.shell.builtins import formatted
from planner.launch.languages.shell.expansions import edited, evaluate_arithmetic
from planner.launch.languages.shell.state import (
    NO_ARGUMENT,
    NOT_SET,
    OF_THE_MACHINE,
    Shell,
    Value,
    array_words,
    may_set,
)
from planner.launch.languages.shell.syntax import first_of
from planner.launch.languages.text import HOLE, Text, Word, digits, join, spaced

if TYPE_CHECKING:
    from tree_sitter import Node


# In double quotes, a backslash is removed before a line's end, $, ", ` or another backslash.
_CONTINUED = r"\\\n|\\(?=[$`\"\\])"
_ESCAPED = r"(?s)\\(.?)"
_EVERY_WORD = re.compile(r"\$\{(\w+)\[[@*]\]\}|\$(@|\*)")
_LENGTH = re.compile(r"\$\{#(\w+)(?:\[([@*])\])?\}")
_POINTED = re.compile(r"\$\{!(\w+)\}")
_EXPANSION = re.compile(
    r"\$\{(?P<name>\w+|[@*#?])(?:\[(?P<index>[^\]]*)\])?(?P<operator>:?[-=+?])?(?P<rest>.*)\}"
    r"|\$(?P<plain>\w+|[@*#?$!])",
    re.DOTALL,
)

# Filters that only change blanks.
_BLANKS = re.compile(
    r"xargs|tr\s+-s\s.*|tr\s+(-d\s+)?['\"]?\\n['\"]?.*|sed\s+(-e\s+)?['\"]s/ +\*?/ ?/g['\"]"
)
_FIELDS = re.compile(r"awk\s+-F\s*(['\"]?)(.)\1\s+'\{\s*print NF\s*\}'")
_PARTS = re.compile(r"tr\s+(['\"]?)([,;: ])\1\s+(['\"]?)(\\n| )\3")
_COUNTS = re.compile(r"wc\s+-[lw]|grep\s+-c\s+(['\"]?)\.?\1")
_CALCULATOR = re.compile(r"bc(\s+-l)?")
# A test for an Ascend machine, with a yes and a no branch. The answer is no, because the planner
# knows no Ascend GPU.
_ASKS_FOR_ASCEND = re.compile(
    r"\$\(\s*python3?\s+-c\s+[\"']import torch_npu[\"'][^|]*?"
    r"&&\s*echo\s+\w+\s*\|\|\s*echo\s+(\w+)\s*\)"
)
# Kubernetes' syntax for a container's variable; no program has such a name.
_OF_A_CONTAINER = re.compile(r"\$\(([A-Z][A-Z0-9_]*)\)")
_REDIRECTIONS = ("file_redirect", "herestring_redirect")


class Words:
    """Expands the nodes of one script. `source`: its text."""

    def __init__(self, shell: Shell, source: Text) -> None:
        self.shell, self.source = shell, source

    def piece(self, node: Node) -> Text:
        """A node's text as written."""
        return self.source[node.start_byte : node.end_byte]

    def words(self, node: Node) -> list[Word]:
        """The words into which the shell expands a node: none, one or several."""
        words = self._split(node)
        for word in words:
            self.shell.limits.step(len(word.text.value))
        return words

    def _split(self, node: Node) -> list[Word]:
        used = self.piece(node).span()
        if node.type == "comment":
            return []
        listed = self._listed(node)
        if listed is not None:
            return [Word(text, text.span()) for text in listed]
        value = self.value(node)
        if value.value == HOLE or not _is_unquoted(node):
            return [Word(value, used)]
        parts = list(value.split())
        return [Word(part, used if len(parts) == 1 else part.span()) for part in parts]

    def _listed(self, node: Node) -> Sequence[Text] | None:
        """The words of an array in `"${ARGS[@]}"`; None if the node is anything else."""
        node = _without_name(node)
        inner = node
        if node.type == "string" and node.named_child_count == 1:
            inner = node.named_children[0]
            if self.piece(inner).value != self.piece(node).value[1:-1]:
                return None
        if inner.type not in ("expansion", "simple_expansion"):
            return None
        match = _EVERY_WORD.fullmatch(self.piece(inner).value)
        if not match:
            return None
        listed = self._array(match[1]) if match[1] else self.shell.arguments()
        if node.type == "string":
            return listed
        # Without quotes, the shell splits each element at blanks.
        return [part for item in listed for part in item.split()]

    def _array(self, name: str) -> list[Text]:
        """The words of an array; a single unknown word if nothing sets it."""
        given = self.shell.around.given
        if name in given:
            return array_words(given[name])
        value = self.shell.lookup(name)
        return value if isinstance(value, list) else [self.variable(name)]

    def value(self, node: Node) -> Text:
        """A node's text after expansion, as one word."""
        with self.shell.limits.deeper():
            value = self._value(node)
        self.shell.limits.step(len(value.value))
        return value

    def _value(self, node: Node) -> Text:
        text = self.piece(node).value
        match node.type:
            case "string" | "heredoc_body" | "concatenation" | "command_name":
                return self.inside(node, quoted=node.type == "string")
            case "raw_string" | "ansi_c_string":
                return self.piece(node)[1 + (node.type == "ansi_c_string") : -1]
            case "simple_expansion" | "expansion":
                return self._expanded(node)
            # In a here-document the grammar mistakes `$((1 + 1))` for a command.
            case "arithmetic_expansion" | "command_substitution" if text.startswith(("$((", "$[")):
                return self.calculated(text[3:-2] if text.startswith("$((") else text[2:-1])
            case "command_substitution" | "process_substitution":
                return self.output(node)
        return self.piece(node).cut(_ESCAPED)

    def inside(self, node: Node, *, quoted: bool = False) -> Text:
        """The text of a node, with its children replaced by their values."""
        start, end = node.start_byte + quoted, node.end_byte - quoted
        quoted = quoted or node.type == "heredoc_body"
        parts: list[Text] = []
        for child in node.named_children:
            if child.type in ("string_content", "heredoc_content"):
                continue
            # In a string, the grammar includes the blanks between two expansions in the second one.
            blanks = _blanks_before(self.piece(child).value)
            parts += [self._plain(start, child.start_byte + blanks, quoted), self.value(child)]
            start = child.end_byte
        return join([*parts, self._plain(start, end, quoted)])

    def _plain(self, start: int, end: int, quoted: bool) -> Text:
        piece = self.source[start:end]
        return piece.cut(_CONTINUED) if quoted else piece

    def _expanded(self, node: Node) -> Text:
        text = self.piece(node).value
        text = text[_blanks_before(text) :]
        if measured := _LENGTH.fullmatch(text):
            return self._length(*measured.groups())
        if pointed := _POINTED.fullmatch(text):
            target = self.variable(pointed[1])
            return target if target.unknown else self.variable(target.value)
        match = _EXPANSION.fullmatch(text)
        if match is None or match["plain"]:
            return self.variable(match["plain"]) if match else Text.not_known(text)
        name, index, operator = match["name"], match["index"], match["operator"]
        value = self.variable(name) if index is None else self._element(name, index)
        if operator is None and match["rest"]:
            return value if value.unknown else edited(value, match["rest"]) or Text.not_known(text)
        if operator is None or operator.endswith("?"):
            return value
        return self._default(node, operator, name, value)

    def _length(self, name: str, every: str | None) -> Text:
        """The value of `${#X}` or `${#X[@]}`."""
        value = self.shell.lookup(name)
        if every and isinstance(value, list):
            return Text.made(str(len(value)))
        value = self.variable(name)
        return value if value.unknown else Text.made("1" if every else str(len(value.value)))

    def _default(self, node: Node, operator: str, name: str, value: Text) -> Text:
        """The value of `${X:-8}`, `${X:=8}` or `${X:+8}`."""
        unset = bool(value.unknown) or (operator.startswith(":") and not value.value)
        at = self.piece(node).value.index(operator) + len(operator) + node.start_byte
        if operator.endswith("+"):
            return Text("") if unset else self._between(node, at)
        if not unset:
            return value
        default = self._between(node, at)
        if operator.endswith("="):
            self.shell.variables[name] = default
        return default

    def _between(self, node: Node, start: int) -> Text:
        """The expanded text from `start` to the closing brace of an expansion."""
        parts: list[Text] = []
        for child in node.named_children:
            if child.start_byte >= start:
                parts += [self.source[start : child.start_byte], self.value(child)]
                start = child.end_byte
        return join([*parts, self.source[start : node.end_byte - 1]])

    def variable(self, name: str) -> Text:
        """A variable's value; for an array, its first element."""
        if name in ("@", "*"):
            return spaced(self.shell.arguments())
        if name == "#":
            given = [text for text in self.shell.arguments() if not text.unknown]
            return Text.made(str(len(given)))
        value = self.shell.lookup(name)
        if value is None and (number := digits(name)) is not None:
            number += self.shell.shifted
            told = f"{self.shell.around.option} {number}=VALUE"
            return Text.not_known(f"${number}, {NO_ARGUMENT} ({told})")
        return self._absent(name) if value is None else _first(value)

    def _absent(self, name: str) -> Text:
        """The unknown value of a variable that no script sets."""
        missed = self.shell.missed
        return Text.not_known(f"${name}, {may_set(missed) if missed else NOT_SET}")

    def _element(self, name: str, index: str) -> Text:
        entry = self.shell.variables.get(f"{name}[{self.entry_name(index)}]")
        if isinstance(entry, Text):
            return entry
        value = self.shell.lookup(name)
        if not isinstance(value, list):
            return self._absent(name) if value is None else value
        if index in ("@", "*"):
            return spaced(value)
        at = self.calculated(index)
        if at.unknown or not -len(value) <= int(at.value) < len(value):
            return Text.not_known(f"${{{name}[{index}]}}")
        return value[int(at.value)]

    def entry_name(self, index: str) -> str:
        """The key of a table's entry, such as `"$k"` in `M["$k"]`, after expansion."""
        plain = re.sub(r"[\"']", "", index)
        return re.sub(r"\$\{?(\w+)\}?", lambda match: self.variable(match[1]).value, plain)

    def calculated(self, text: str) -> Text:
        """The value of an arithmetic expression."""
        values: dict[str, str] = {}
        for name in re.findall(r"\$?\{?([A-Za-z_]\w*|(?<=\$)\d)", text):
            value = self.variable(name)
            if value.unknown:
                return value
            values[name] = value.value
        number = evaluate_arithmetic(text, values)
        return Text.not_known(f"$(({text}))") if number is None else Text.made(str(number))

    def output(self, node: Node) -> Text:
        """The output of `$(...)`; unknown if only running it could determine it."""
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
        if other := _ASKS_FOR_ASCEND.fullmatch(written):
            return Text.made(other[1])
        printed = self._printed(inside[0])
        return unknown if printed is None else printed

    def words_of(self, node: Node) -> list[Word]:
        """A command's words, without the assignments before it and its redirections."""
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
        """The output of `echo`, `printf`, `expr`, `basename`, `dirname` or `cat FILE`; None for
        other commands."""
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
        """The output of a filter such as `tr` or `wc` for a text; None for an unsupported
        filter."""
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
        """The text in `$(cat <<EOF ... EOF)`."""
        body = first_of(first_of(node, "heredoc_redirect"), "heredoc_body")
        is_shown = self.piece(node.named_children[0]).value.strip() in ("cat", "cat -")
        return self.inside(body) if is_shown and body is not None else None


def _first(value: Value) -> Text:
    """The value of a variable as one text."""
    if isinstance(value, Text):
        return value
    return value[0] if value else Text("")


def _blanks_before(written: str) -> int:
    """The number of characters of blanks and line continuations at the start of an expansion."""
    found = re.match(r"(?:\s|\\\n)*", written)
    return found.end() if found else 0


def _without_name(node: Node) -> Node:
    """The node, or the single expansion that is a command's whole name: `$LAUNCHER`,
    `"${CMD[@]}"`."""
    is_lone = node.type == "command_name" and node.named_child_count == 1
    return node.named_children[0] if is_lone else node


def _is_unquoted(node: Node) -> bool:
    """Whether the shell splits the expansion of a node at blanks."""
    inner = _without_name(node)
    if inner.type == "concatenation":
        quoted = ("string", "raw_string", "ansi_c_string")
        return not any(child.type in quoted for child in inner.named_children)
    return inner.type in ("simple_expansion", "expansion", "command_substitution")


def _path(name: str, texts: Sequence[Text]) -> Text | None:
    """The output of `basename` or `dirname`; None if it is unknown."""
    if name in ("realpath", "readlink"):
        return None if texts[-1].unknown else texts[-1]
    if name not in ("basename", "dirname") or texts[0].unknown:
        return None
    path = PurePosixPath(texts[0].value)
    ending = texts[1].value if len(texts) > 1 else ""
    return Text.made(path.name.removesuffix(ending) if name == "basename" else str(path.parent))
