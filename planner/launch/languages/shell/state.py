"""The state of a shell while scripts are read, the result, and the surroundings of the scripts."""

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

# The value of a variable: a text, or the words of an array.
Value = Text | list[Text]
# The place where a statement with branches begins: path of its file, and offset.
Site = tuple[str, int]
# Variables that every shell sets: paths and names that do not affect the programs started.
_ALWAYS_SET = ("PWD", "OLDPWD", "HOME", "USER", "HOSTNAME")
# More notes on a script add no information.
MOST_NOTES = 50
# Reasons why a variable or an argument is unknown.
NOT_SET, NO_ARGUMENT = "which the files do not set", "an argument of the script"
# How the reason for an unknown count ends.
OF_THE_MACHINE = "which depends on the machine"
# The name under which a user gives all arguments of a script.
_EVERY_ARGUMENT = "@"


def may_set(file: str) -> str:
    """The reason why a variable is unknown: `file` may set it and was not read."""
    return f"which {file} may set, and that was not read"  # plain: `telling` looks for it


class EndedError(Exception):
    """Raised if a script ends before its last line."""


@dataclass(frozen=True)
class Undecided:
    """A statement with branches for which reading cannot tell which one runs.

    `taken`: the branch that was read, counted from 1; 0 for none. `why`: the unknown part of the
    test; `advice`: for each branch, the options that would make it run. `unset`: the test only
    needs an environment variable that no file sets, and which is assumed to stay unset.
    """

    place: str
    taken: int
    why: str
    advice: tuple[str, ...]
    unset: bool = False


@dataclass(frozen=True)
class Command:
    """A command that would run, with the environment variables that it would see."""

    words: tuple[Word, ...]
    environment: Mapping[str, Text]
    file: str
    line: int


@dataclass(frozen=True, kw_only=True)
class Around:
    """The surroundings of scripts, as far as the caller knows them.

    `given`: variables that override those of the scripts; `option`: the option with which a user
    gives one; `machine`: values of variables that no script sets. `directives`: function from a
    script to the variables that its first lines set, such as a scheduler's. `counted_by`: function
    from a counting command in `$(...)` to variables with the same number, the preferred first.
    `open_file`: function from the name in a script and the script's path to the file's text, None
    if there is none; `has_file`: from the same to whether the file exists. `given_files`: names of
    the files that the user gives; `starters`: programs that start others.
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
    """The effect of scripts that are read one after another in one shell.

    `written`: files that they would write, by path; `submitted`: scripts that they pass to a
    scheduler, with the options of its command as directives; `undecided`: statements whose branch
    reading could not determine; `notes`: parts that are not followed; `errors`: place and words of
    each syntax error.
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

    `chosen`: the branches to take in undecided statements, 0 for none; `hopeful`: whether undecided
    tests count as true. `active`: functions and scripts being read; `positional`: arguments of the
    innermost one; `is_called`: whether all of them are known; `shifted`: how many unknown ones
    `shift` has removed. `doubts`: the number of enclosing statements that may not run;
    `ends_on_failure`: `set -e` is on; `missed`: a sourced file that was not available and may have
    set any variable.
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
        """Add a note on a part of the script that is not followed, unless there are 50 already."""
        if len(self.notes) < MOST_NOTES:
            self.notes.append(text)

    def lookup(self, name: str) -> Value | None:
        """A variable's value: from the user, otherwise as set by the scripts so far, otherwise from
        the machine. None if there is none."""
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
        """The arguments `$@` of the script or function being read. If they are unknown, those that
        the user gives, or a single unknown word."""
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
        """The environment variables that a command started now would see, by name."""
        seen = {name: self.lookup(name) for name in (*self.exported, *self.around.given)}
        return {name: item for name, item in seen.items() if isinstance(item, Text)}

    def export(self, variables: Mapping[str, Text]) -> None:
        """Set variables and export them to commands."""
        self.variables |= variables
        self.exported |= variables.keys()

    @contextmanager
    def having(self, **values: Any) -> Iterator[None]:
        """Set fields to other values inside this context."""
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)

    def called(self, arguments: Sequence[Text]) -> AbstractContextManager[None]:
        """A context inside a script or function that is called with these arguments."""
        return self.having(positional=arguments, shifted=0, is_called=True)

    def carrying(self, variables: Mapping[str, Text]) -> AbstractContextManager[None]:
        """A context in which these variables are also in the environment."""
        if not variables:
            return nullcontext()
        exported = self.exported | variables.keys()
        return self.having(variables={**self.variables, **variables}, exported=exported)

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """A context for reading a function or script, whose description is `what`. LimitError if
        calls are nested too deep."""
        with self.limits.call(what), self.having(active=self.active | {what}):
            yield

    @contextmanager
    def process(self) -> Iterator[None]:
        """A context for a separate process: its `exit` ends only the process, not the script."""
        with suppress(EndedError), self.having(ends_on_failure=False):
            yield


def array_words(text: str) -> list[Text]:
    """The words of an array that a user gives as one text, split as the shell does."""
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    try:
        words = shlex.split(inner)
    except ValueError:  # a quote that is left open
        words = inner.split()
    return [Text.made(word) for word in words]
