"""What a script has done so far while it is read: variables, functions, commands, files, notes."""

from __future__ import annotations

import bisect
import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from planner.launch.languages.limits import Limits
from planner.launch.languages.text import Files, Text, Word, digits, join

if TYPE_CHECKING:
    from tree_sitter import Node


Value = Text | list[Text]
# What every shell sets: paths and names, without effect on a launch.
_ALWAYS_SET = ("PWD", "OLDPWD", "HOME", "USER", "HOSTNAME")
# More of a kind tell no more.
MOST_NOTES = 50


# Where a statement with branches begins: path of its file, and offset.
Site = tuple[str, int]
# Why the value of a variable or of an argument is not known, where nobody gives it.
NOT_SET, NO_ARGUMENT = "which the files do not set", "an argument of the script"
# All arguments of the script, as `--env` names them.
EVERY_ARGUMENT = "@"


def may_set(file: str) -> str:
    """Why a variable is not known that a file may set which was not there."""
    return f"which {file} may set, and that was not read"


class EndedError(Exception):
    """The end of a script before its last line."""


@dataclass(frozen=True)
class Undecided:
    """A statement of whose branches reading cannot tell which one runs.

    `taken`: the branch that was read, counted from 1, 0 for none. `why`: what is not known;
    `advice`: for each branch the options of the command line that would have it run; `unset`: the
    test only asks for a variable of the environment, which is taken as unset.
    """

    place: str
    taken: int
    why: str
    advice: tuple[str, ...]
    unset: bool = False


class Branch(NamedTuple):
    """One branch of a statement: its test, None where it needs none, and its statements."""

    test: Node | None
    body: list[Node]


@dataclass(frozen=True)
class Command:
    """A command that would run, with the variables that it would see."""

    words: tuple[Word, ...]
    environment: Mapping[str, Text]
    file: str
    line: int


@dataclass
class Shell:
    """The state of a script while it is read; scripts may follow each other in one shell."""

    files: Files
    given: Mapping[str, str]
    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: dict[str, tuple[Text, Node]] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    # Files that the script would write: path -> content.
    written: dict[str, Text] = field(default_factory=dict)
    # Scripts given to sbatch, with the options of its command as directives.
    submitted: list[Text] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    errors: list[tuple[str, str]] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)
    # Functions and scripts that are being read.
    active: set[str] = field(default_factory=set)
    # Whether tests that reading cannot decide are taken as met.
    hopeful: bool = False
    # Branches that are taken where reading cannot decide, 0 for none of them.
    chosen: Mapping[Site, int] = field(default_factory=dict)
    # Statements that reading could not decide.
    undecided: dict[Site, Undecided] = field(default_factory=dict)
    # Arguments of the script or function that is read.
    positional: list[Text] = field(default_factory=list)
    # Whether what is read was called with its arguments, which then are all known.
    is_called: bool = False
    # How many of them `shift` has taken away that nobody gave.
    shifted: int = 0
    # Statements around what is read now, of which reading is not sure that they run.
    doubts: int = 0
    # `set -e`.
    ends_on_failure: bool = False
    # A sourced file that was not there: it may have set any variable.
    missed: str = ""
    # What a scheduler would say of the machine, where the files do not say it.
    machine: Mapping[str, str] = field(default_factory=dict)
    # Variables that the first lines of a script bring, such as a scheduler's.
    directives: Callable[[Text], Mapping[str, Text]] = lambda _script: {}
    # The variables, first come, that say the number which a command in `$(...)` counts.
    counted_by: Callable[[str], Sequence[str]] = lambda _command: ()
    # The text of a file that a script names, by that name and the script's own path.
    open_file: Callable[[str, str], Text | None] = lambda _name, _script: None
    # Whether it is there.
    has_file: Callable[[str, str], bool] = lambda _name, _script: False

    def note(self, text: str) -> None:
        """Remember what is not followed."""
        if len(self.notes) < MOST_NOTES:
            self.notes.append(text)

    def lookup(self, name: str) -> Value | None:
        """A variable's value: as given by the user, else as set so far."""
        if (number := digits(name)) is not None:
            at = number - 1
            if 0 <= at < len(self.positional):
                return self.positional[at]
            name = str(number + self.shifted)
            return Text.made(self.given[name]) if name in self.given else None
        if name in self.given:
            return self._given(name)
        value = self.variables.get(name)
        if value is None and name in self.machine:
            return Text.made(self.machine[name])
        return Text.made(f"${name}") if value is None and name in _ALWAYS_SET else value

    def _given(self, name: str) -> Value:
        """What the user says of a variable; of an array its words."""
        text = self.given[name]
        if isinstance(self.variables.get(name), list) or text.startswith("("):
            return [Text.made(word) for word in shell_words(text)]
        return Text.made(text)

    @contextmanager
    def called(self, arguments: Sequence[Text]) -> Iterator[None]:
        """Inside a script or function with these arguments."""
        before = self.positional, self.shifted, self.is_called
        self.positional, self.shifted, self.is_called = list(arguments), 0, True
        try:
            yield
        finally:
            self.positional, self.shifted, self.is_called = before

    def arguments(self) -> list[Text]:
        """`$@`: the arguments as given; one that is not known where nobody says whether there are
        any."""
        if self.is_called or self.positional:
            return self.positional
        if EVERY_ARGUMENT in self.given:
            return [Text.made(word) for word in shell_words(self.given[EVERY_ARGUMENT])]
        numbers = itertools.takewhile(lambda number: str(number) in self.given, itertools.count(1))
        named = [Text.made(self.given[str(number)]) for number in numbers]
        every = Text.not_known(f"${EVERY_ARGUMENT}, the arguments of the script")
        return named[self.shifted :] or [every]

    @contextmanager
    def carrying(self, variables: Mapping[str, Text]) -> Iterator[None]:
        """Inside what is started with further variables in its environment, if any."""
        if not variables:
            yield
            return
        before, exported = dict(self.variables), set(self.exported)
        self.variables |= variables
        self.exported |= variables.keys()
        try:
            yield
        finally:
            self.variables, self.exported = before, exported

    @contextmanager
    def reading(self, name: str, what: str) -> Iterator[None]:
        """Inside a function or file, by the name under which it is active."""
        self.active.add(name)
        try:
            with self.limits.call(what):
                yield
        finally:
            self.active.remove(name)

    @contextmanager
    def doubting(self, *, doubted: bool) -> Iterator[None]:
        """Inside a statement that runs for sure, or one that may not."""
        self.doubts += doubted
        try:
            yield
        finally:
            self.doubts -= doubted

    @contextmanager
    def process(self) -> Iterator[None]:
        """Inside a process of its own, which its `exit` ends."""
        before, self.ends_on_failure = self.ends_on_failure, False
        with suppress(EndedError):
            yield
        self.ends_on_failure = before

    def environment(self) -> dict[str, Text]:
        """What a command started now would see."""
        seen = {name: self.lookup(name) for name in (*self.exported, *self.given)}
        return {name: item for name, item in seen.items() if isinstance(item, Text)}


def shell_words(text: str) -> list[str]:
    """The words of `--env NAME="..."`, as the shell splits those of an array."""
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    try:
        return shlex.split(inner)
    except ValueError:  # a quote that is left open
        return inner.split()


# Sourced files that prepare a shell for programs, and say nothing of what is trained.
ENVIRONMENTS = ("activate", "conda.sh", ".bashrc", ".bash_profile", ".profile", "setvars.sh")
_PLACEHOLDER = re.compile(
    r"(?<==)<[A-Za-z][^<>\n\"']*>|(?<=[\s\"'])<\w+ [^<>\n\"']*>(?=[\s\"'])|(?<==)#[ \t][^\n]*"
)


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
    plain = _with_other_marks(plain)
    return parser.parse(plain.encode()).root_node


_HERE = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)([A-Za-z_]\w*)\1")


def _with_other_marks(text: str) -> str:
    """Here-documents in whose body a line begins with their mark, which the grammar takes for
    their end: with marks as long that no line of the body begins with."""
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


def first_of(node: Node | None, kind: str) -> Node | None:
    """A node's first child of a kind."""
    return next((item for item in node.named_children if item.type == kind), None) if node else None


def broken_nodes(tree: Node) -> Iterator[Node]:
    """Nodes that the grammar could not read, in order."""
    ahead = [tree]
    while ahead:
        node = ahead.pop()
        if node.type == "ERROR" or node.is_missing:
            yield node
            continue
        ahead += [child for child in reversed(node.children) if child.has_error or child.is_missing]


_TEMPLATED = r"(?<!\$)\{\{\s*([A-Za-z_]\w*)\s*\}\}|(?<=[\s\"'=])__([A-Z][A-Z0-9_]*)__(?=[\s\"']|$)"


def filled_in(source: Text, given: Mapping[str, str]) -> Text:
    """`{{ LAYERS }}` and `__LAYERS__` with what the user gives for them, else not known."""
    parts, at = [], 0
    for match in re.finditer(_TEMPLATED, source.value, re.MULTILINE):
        name = match[1] or match[2]
        value = Text.made(given[name]) if name in given else Text.not_known(_to_fill(name))
        parts += [source[at : match.start()], value]
        at = match.end()
    return join([*parts, source[at:]]) if parts else source


def _to_fill(name: str) -> str:
    return f"${name}, a placeholder"


def without_placeholders(source: Text) -> Text:
    """`DATA=<path to your data>` as a value that is not known, not as a redirection; so is
    `SEQ=# TODO`."""
    parts, at = [], 0
    for match in _PLACEHOLDER.finditer(source.value):
        parts += [source[at : match.start()], Text.not_known(f"{match[0]}, a placeholder")]
        at = match.end()
    return join([*parts, source[at:]]) if parts else source
