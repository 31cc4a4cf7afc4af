"""The state of a shell while scripts are read, its result, and the surroundings of the scripts."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from planner.launch.languages.limits import Limits
from planner.launch.languages.shell.calls import Starters
from planner.launch.languages.text import Text, Word, digits

if TYPE_CHECKING:
    from tree_sitter import Node

# What a variable holds: a text, or the words of an array.
Value = Text | list[Text]
# Where a statement with branches begins: path of its file, and offset.
Site = tuple[str, int]
# Variables that every shell sets: paths and names, without effect on what is started.
_ALWAYS_SET = ("PWD", "OLDPWD", "HOME", "USER", "HOSTNAME")
# More notes of a script tell no more.
MOST_NOTES = 50
# Reasons for which the value of a variable or of an argument is unknown.
NOT_SET, NO_ARGUMENT = "which the files do not set", "an argument of the script"
# How the reason ends for which a count is not known.
OF_THE_MACHINE = "which counts what the machine has"
# The name by which all arguments of a script are given.
_EVERY_ARGUMENT = "@"


def may_set(file: str) -> str:
    """The reason for an unknown variable that a missing file may set."""
    return f"which {file} may set, and that was not read"  # plain: `telling` looks for it


class EndedError(Exception):
    """The end of a script before its last line."""


@dataclass(frozen=True)
class Undecided:
    """A statement whose branches reading cannot decide between.

    `taken`: the branch that was read, counted from 1, 0 for none. `why`: what is not known;
    `advice`: for each branch, how its variables would be given so that it runs; `unset`: the test
    only asks for a variable of the environment, which is taken as unset.
    """

    place: str
    taken: int
    why: str
    advice: tuple[str, ...]
    unset: bool = False


@dataclass(frozen=True)
class Command:
    """A command that would run, with the variables that it would see."""

    words: tuple[Word, ...]
    environment: Mapping[str, Text]
    file: str
    line: int


@dataclass(frozen=True, kw_only=True)
class Around:
    """The surroundings of scripts, as far as the caller knows them.

    `given`: variables that win over those of the scripts, and `option`: how a user gives one;
    `machine`: variables that hold where no script sets them; `directives`: variables that the first
    lines of a script bring, such as a scheduler's; `counted_by`: the variables, first come, that
    hold the number which a command in `$(...)` counts; `open_file`: the text of a file by the name
    that a script gives it, and the path of that script; `has_file`: whether it is there;
    `given_files`: names of the files that the user gives; `starters`: programs that start others.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    option: str = "--env"
    machine: Mapping[str, str] = field(default_factory=dict)
    directives: Callable[[Text], Mapping[str, Text]] = lambda _script: {}
    counted_by: Callable[[str], Sequence[str]] = lambda _command: ()
    open_file: Callable[[str, str], Text | None] = lambda _name, _script: None
    has_file: Callable[[str, str], bool] = lambda _name, _script: False
    given_files: Callable[[], Iterable[str]] = lambda: ()
    starters: Starters = field(default_factory=Starters)


@dataclass(kw_only=True)
class Scripts:
    """The effect of scripts, read one after another in one shell.

    `written`: files that they would write, by path; `submitted`: scripts that they hand to a
    scheduler, with the options of its command as directives; `undecided`: statements of which
    reading could not tell which branch runs; `notes`: what is not followed; `errors`: place and
    words of each slip of syntax.
    """

    commands: list[Command] = field(default_factory=list)
    written: dict[str, Text] = field(default_factory=dict)
    submitted: list[Text] = field(default_factory=list)
    undecided: dict[Site, Undecided] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    errors: list[tuple[str, str]] = field(default_factory=list)


@dataclass(kw_only=True)
class Shell(Scripts):
    """The state of the shell while scripts are read.

    `chosen`: branches to take where reading cannot decide, 0 for none; `hopeful`: tests that
    reading cannot decide are taken as met. `active`: functions and scripts that are being read;
    `positional`: arguments of the innermost, which `is_called` if all of them are known, and
    `shifted` the number of unknown ones that `shift` has taken away. `doubts`: statements around
    what is read now, of which reading is not sure that they run; `ends_on_failure`: `set -e`;
    `missed`: a sourced file that was not there, and may have set any variable.
    """

    around: Around
    chosen: Mapping[Site, int]
    hopeful: bool
    limits: Limits = field(default_factory=Limits)
    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: dict[str, tuple[Text, Node]] = field(default_factory=dict)
    active: frozenset[str] = frozenset()
    positional: Sequence[Text] = ()
    is_called: bool = False
    shifted: int = 0
    doubts: int = 0
    ends_on_failure: bool = False
    missed: str = ""

    def note(self, text: str) -> None:
        """Remember a part of the script that is not followed."""
        if len(self.notes) < MOST_NOTES:
            self.notes.append(text)

    def lookup(self, name: str) -> Value | None:
        """A variable's value: as given by the user, else as set so far."""
        given = self.around.given
        if (number := digits(name)) is not None:
            if 0 < number <= len(self.positional):
                return self.positional[number - 1]
            name = str(number + self.shifted)
            return Text.made(given[name]) if name in given else None
        if name in given:
            is_array = isinstance(self.variables.get(name), list) or given[name].startswith("(")
            return array_words(given[name]) if is_array else Text.made(given[name])
        if name in self.variables:
            return self.variables[name]
        known = f"${name}" if name in _ALWAYS_SET else None
        value = self.around.machine.get(name, known)
        return None if value is None else Text.made(value)

    def arguments(self) -> Sequence[Text]:
        """`$@`: the arguments as given; one unknown argument where it is open whether there are
        any."""
        if self.is_called or self.positional:
            return self.positional
        given = self.around.given
        if _EVERY_ARGUMENT in given:
            return array_words(given[_EVERY_ARGUMENT])
        numbers = itertools.takewhile(lambda number: str(number) in given, itertools.count(1))
        named = [Text.made(given[str(number)]) for number in numbers]
        every = Text.not_known(f"${_EVERY_ARGUMENT}, the arguments of the script")
        return named[self.shifted :] or [every]

    def environment(self) -> dict[str, Text]:
        """The variables that a command started now would see."""
        seen = {name: self.lookup(name) for name in (*self.exported, *self.around.given)}
        return {name: item for name, item in seen.items() if isinstance(item, Text)}

    def export(self, variables: Mapping[str, Text]) -> None:
        """Set variables that commands see."""
        self.variables |= variables
        self.exported |= variables.keys()

    @contextmanager
    def having(self, **values: Any) -> Iterator[None]:
        """Within this context some fields have other values."""
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)

    def called(self, arguments: Sequence[Text]) -> AbstractContextManager[None]:
        """Inside a script or function with these arguments."""
        return self.having(positional=arguments, shifted=0, is_called=True)

    def carrying(self, variables: Mapping[str, Text]) -> AbstractContextManager[None]:
        """Inside what is started with further variables in its environment, if any."""
        if not variables:
            return nullcontext()
        exported = self.exported | variables.keys()
        return self.having(variables={**self.variables, **variables}, exported=exported)

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Inside a function or script, by the words for it."""
        with self.limits.call(what), self.having(active=self.active | {what}):
            yield

    @contextmanager
    def process(self) -> Iterator[None]:
        """Inside a process of its own, which its `exit` ends."""
        with suppress(EndedError), self.having(ends_on_failure=False):
            yield


def array_words(text: str) -> list[Text]:
    """The words of an array that a user gives as one text, as the shell splits them."""
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    try:
        words = shlex.split(inner)
    except ValueError:  # a quote that is left open
        words = inner.split()
    return [Text.made(word) for word in words]
