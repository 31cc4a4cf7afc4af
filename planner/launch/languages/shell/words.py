"""Words of a script as the shell expands them: variables, defaults, quotes, arithmetic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from planner.launch.languages.shell.expansions import edited, evaluate_arithmetic, formatted
from planner.launch.languages.shell.state import (
    NO_ARGUMENT,
    NOT_SET,
    Shell,
    Value,
    first_of,
    may_set,
    shell_words,
)
from planner.launch.languages.text import HOLE, Text, Word, digits, join, spaced

if TYPE_CHECKING:
    from tree_sitter import Node


# In double quotes a backslash before a line's end, $, ", ` or itself goes.
_CONTINUED = r"\\\n|\\(?=[$`\"\\])"


class Words:
    """Expansion of one script's nodes. `source`: its text."""

    def __init__(self, shell: Shell, source: Text) -> None:
        self.shell, self.source = shell, source

    def piece(self, node: Node) -> Text:
        """A node's text as written."""
        return self.source[node.start_byte : node.end_byte]

    def words(self, node: Node) -> list[Word]:
        """What a node becomes when the shell expands it: none, one or several words."""
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
        if value.value == HOLE:
            return [Word(value, used)]
        if _is_unquoted(node):
            parts = list(value.split())
            whole = len(parts) == 1
            return [Word(part, used if whole else part.span()) for part in parts]
        return [Word(value, used)]

    def _listed(self, node: Node) -> list[Text] | None:
        """`"${ARGS[@]}"`: the words of an array; None if the node is something else."""
        node = node.named_children[0] if _is_lone_name(node) else node
        inner = node
        if node.type == "string" and node.named_child_count == 1:
            inner = node.named_children[0]
            if self.piece(inner).value != self.piece(node).value[1:-1]:
                return None
        if inner.type not in ("expansion", "simple_expansion"):
            return None
        match = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}|\$(@|\*)", self.piece(inner).value)
        if not match:
            return None
        listed = self._array(match[1]) if match[1] else self.shell.arguments()
        if node.type == "string":
            return listed
        # Without quotes around it, the shell splits each element at blanks.
        return [part for item in listed for part in item.split()]

    def _array(self, name: str) -> list[Text]:
        """The words of an array; one that is not known where nothing sets it."""
        if name in self.shell.given:
            return [Text.made(word) for word in shell_words(self.shell.given[name])]
        value = self.shell.lookup(name)
        if value is None:
            return [self.variable(name)]
        return value if isinstance(value, list) else [value]

    def value(self, node: Node) -> Text:
        """A node's text once expanded, as one word."""
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
            # In a here-document the grammar takes `$((1 + 1))` for a command.
            case "arithmetic_expansion" | "command_substitution" if text.startswith(("$((", "$[")):
                return self.calculated(text[3:-2] if text.startswith("$((") else text[2:-1])
            case "command_substitution" | "process_substitution":
                return output_of(node, self)
        return self.piece(node).cut(r"\\(.?)")

    def inside(self, node: Node, *, quoted: bool = False) -> Text:
        """Text between and of a node's children, with expansions replaced."""
        start, end = node.start_byte + quoted, node.end_byte - quoted
        quoted = quoted or node.type == "heredoc_body"
        parts: list[Text] = []
        for child in node.named_children:
            if child.type in ("string_content", "heredoc_content"):
                continue
            # The grammar counts blanks between two expansions in a string to the second.
            written = self.piece(child).value
            blanks = _blanks_before(written)
            parts.append(self._plain(start, child.start_byte + blanks, quoted))
            parts.append(self.value(child))
            start = child.end_byte
        parts.append(self._plain(start, end, quoted))
        return join(parts)

    def _plain(self, start: int, end: int, quoted: bool) -> Text:
        piece = self.source[start:end]
        return piece.cut(_CONTINUED) if quoted else piece

    def _expanded(self, node: Node) -> Text:
        text = self.piece(node).value
        text = text[_blanks_before(text) :]
        if measured := re.fullmatch(r"\$\{#(\w+)(?:\[([@*])\])?\}", text):
            return self._length(*measured.groups())
        if pointed := re.fullmatch(r"\$\{!(\w+)\}", text):
            target = self.variable(pointed[1])
            return target if target.unknown else self.variable(target.value)
        match = re.fullmatch(r"\$\{(\w+|[@*#?])(?:\[([^\]]*)\])?(:?[-=+?])?(.*)\}", text, re.DOTALL)
        if not match:
            match = re.fullmatch(r"\$(\w+|[@*#?$!])", text)
            return self.variable(match[1]) if match else Text.not_known(text)
        name, index, operator, _ = match.groups()
        value = self._element(name, index) if index is not None else self.variable(name)
        if operator is None and match[4]:
            return value if value.unknown else edited(value, match[4]) or Text.not_known(text)
        if operator in (":-", "-", ":=", "=", ":+", "+"):
            return self._default(node, operator, name, value)
        return value

    def _length(self, name: str, every: str | None) -> Text:
        """`${#X}`, `${#X[@]}`."""
        value = self.shell.lookup(name)
        if every and isinstance(value, list):
            return Text.made(str(len(value)))
        value = self.variable(name)
        return value if value.unknown else Text.made("1" if every else str(len(value.value)))

    def _default(self, node: Node, operator: str, name: str, value: Text) -> Text:
        """`${X:-8}`: the value, or what stands for it."""
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
        """What stands from `start` to the closing brace of an expansion."""
        children = [child for child in node.named_children if child.start_byte >= start]
        parts: list[Text] = []
        for child in children:
            parts += [self.source[start : child.start_byte], self.value(child)]
            start = child.end_byte
        return join([*parts, self.source[start : node.end_byte - 1]])

    def variable(self, name: str) -> Text:
        """A variable's value, of an array the first."""
        if name in ("@", "*"):
            return spaced(self.shell.arguments())
        if name == "#":
            given = [text for text in self.shell.arguments() if not text.unknown]
            return Text.made(str(len(given)))
        value = self.shell.lookup(name)
        if value is None and (number := digits(name)) is not None:
            number += self.shell.shifted
            return Text.not_known(f"${number}, {NO_ARGUMENT} (--env {number}=VALUE)")
        if value is None:
            return self._absent(name)
        if isinstance(value, list):
            return value[0] if value else Text("")
        return value

    def _absent(self, name: str) -> Text:
        """A variable that nothing sets that was read."""
        missed = self.shell.missed
        return Text.not_known(f"${name}, {may_set(missed) if missed else NOT_SET}")

    def _element(self, name: str, index: str) -> Text:
        entry = self.shell.variables.get(f"{name}[{self.entry_name(index)}]")
        if isinstance(entry, Text):
            return entry
        value = self.shell.lookup(name)
        if value is None:
            return self._absent(name)
        if isinstance(value, Text):
            return value
        if index in ("@", "*"):
            return spaced(value)
        at = self.calculated(index)
        if at.unknown or not -len(value) <= int(at.value) < len(value):
            return Text.not_known(f"${{{name}[{index}]}}")
        return value[int(at.value)]

    def entry_name(self, index: str) -> str:
        """Which entry of a table `M["$k"]` means."""
        plain = re.sub(r"[\"']", "", index)
        return re.sub(r"\$\{?(\w+)\}?", lambda match: self.variable(match[1]).value, plain)

    def calculated(self, text: str) -> Text:
        """An arithmetic expression."""
        values: dict[str, str] = {}
        for name in re.findall(r"\$?\{?([A-Za-z_]\w*|(?<=\$)\d)", text):
            value = self.variable(name)
            if value.unknown:
                return value
            values[name] = value.value
        number = evaluate_arithmetic(text, values)
        return Text.not_known(f"$(({text}))") if number is None else Text.made(str(number))


def _blanks_before(written: str) -> int:
    """Characters of blanks and continued lines at the start of an expansion."""
    found = re.match(r"(?:\s|\\\n)*", written)
    return found.end() if found else 0


def _is_lone_name(node: Node) -> bool:
    """A command's name that is one expansion: `$LAUNCHER`, `"${CMD[@]}"`."""
    return node.type == "command_name" and node.named_child_count == 1


def _is_unquoted(node: Node) -> bool:
    """Whether the shell splits what a node becomes at blanks."""
    inner = node.named_children[0] if _is_lone_name(node) else node
    if inner.type == "concatenation":
        quoted = ("string", "raw_string", "ansi_c_string")
        return not any(child.type in quoted for child in inner.named_children)
    return inner.type in ("simple_expansion", "expansion", "command_substitution")


def appended(old: Value | None, more: Value) -> Value:
    """`X+=more`."""
    if isinstance(old, list) or isinstance(more, list):
        first = old if isinstance(old, list) else [old] if old is not None else []
        return [*first, *(more if isinstance(more, list) else [more])]
    return join([old or Text(""), more])


# How the reason ends for which a count is not known.
OF_THE_MACHINE = "which counts what the machine has"
# Filters that only change blanks.
_BLANKS = re.compile(
    r"xargs|tr\s+-s\s.*|tr\s+(-d\s+)?['\"]?\\n['\"]?.*|sed\s+(-e\s+)?['\"]s/ +\*?/ ?/g['\"]"
)
_FIELDS = re.compile(r"awk\s+-F\s*(['\"]?)(.)\1\s+'\{\s*print NF\s*\}'")
_PARTS = re.compile(r"tr\s+(['\"]?)([,;: ])\1\s+(['\"]?)(\\n| )\3")
_COUNTS = re.compile(r"wc\s+-[lw]|grep\s+-c\s+(['\"]?)\.?\1")
_CALCULATOR = re.compile(r"bc(\s+-l)?")


def output_of(node: Node, words: Words) -> Text:
    """What `$(...)` stands for; not known where only running it could tell."""
    written = words.piece(node).value
    unknown = Text.not_known(f"output of {written}")
    if wanted := words.shell.counted_by(written):
        counts = (words.calculated(name) for name in wanted)
        unknown = Text.not_known(f"output of {written}, {OF_THE_MACHINE}")
        return next((text for text in counts if not text.unknown), unknown)
    inside = [child for child in node.named_children if child.type != "comment"]
    if len(inside) != 1:
        return unknown
    # Kubernetes' spelling of a container's variable; no program is named like that.
    named = re.fullmatch(r"\$\(([A-Z][A-Z0-9_]*)\)", written)
    if named:
        return words.variable(named[1])
    printed = _printed(inside[0], words)
    return unknown if printed is None else printed


def _printed(node: Node, words: Words) -> Text | None:
    if node.type == "pipeline":
        return _piped(node, words)
    if node.type == "file_redirect":  # `$(< args.txt)`
        return _of_command("cat", words.words(node.named_children[-1]), words)
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
    """`echo`, `printf`, `expr`, `basename`, `dirname`, `cat FILE`, and paths as they are named."""
    texts = [word.text for word in given]
    if name == "echo":
        while texts and re.fullmatch(r"-[neE]+", texts[0].value):
            texts = texts[1:]
        return spaced(texts)
    if name == "printf":
        return formatted(texts)
    if name == "expr":
        return words.calculated(" ".join(text.value for text in texts))
    if name == "cat" and len(given) == 1 and not texts[0].unknown:
        file, at = texts[0].value, words.source.first()
        written = words.shell.written.get(file)
        return written or words.shell.open_file(file, at.file.path if at else "")
    return _path(name, texts) if texts else None


def _path(name: str, texts: Sequence[Text]) -> Text | None:
    """What a command prints of the path that it is given."""
    if name in ("realpath", "readlink"):
        return None if texts[-1].unknown else texts[-1]
    if name not in ("basename", "dirname") or texts[0].unknown:
        return None
    path = PurePosixPath(texts[0].value)
    ending = texts[1].value if len(texts) > 1 else ""
    shown = path.name.removesuffix(ending) if name == "basename" else str(path.parent)
    return Text.made(shown)


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
        elif (parts := _PARTS.fullmatch(written)) and not text.unknown:
            text = Text.made(text.value.replace(parts[2], "\n" if parts[4] == "\\n" else " "))
        elif _COUNTS.fullmatch(written) and not text.unknown:
            split = text.value.split() if "-w" in written else text.value.split("\n")
            text = Text.made(str(len([part for part in split if part])))
        elif not _BLANKS.fullmatch(written):
            return None
        elif "\\n" in written or written == "xargs":
            text = Text(text.value.replace("\n", " "), text.origin)
    return text


def _here(node: Node, words: Words) -> Text | None:
    """`$(cat <<EOF ... EOF)`."""
    here = first_of(node, "heredoc_redirect")
    if words.piece(node.named_children[0]).value.strip() not in ("cat", "cat -"):
        return None
    body = first_of(here, "heredoc_body")
    return None if body is None else words.inside(body)
