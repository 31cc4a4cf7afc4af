"""A shell script read without running it: variables, arrays, defaults, arithmetic, simple tests.

tree-sitter's grammar of bash makes the tree; `Shell` walks it in order and collects the commands
that would run, each word with the places its characters come from. What only running could tell
(output of commands, tests on files, variables that nobody sets) is unknown, and said to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from planner.launch.languages.shell.calls import (
    FILLING,
    ScriptCall,
    as_submitted,
    carried_variables,
    counts_processes,
    ends_on_failure,
    filled,
    inline_script,
    reads_a_script,
    script_call,
)
from planner.launch.languages.shell.state import (
    ENVIRONMENTS,
    MOST_NOTES,
    Command,
    EndedError,
    Shell,
    broken_nodes,
    filled_in,
    first_of,
    parse_shell,
    without_placeholders,
)
from planner.launch.languages.shell.statements import Statements
from planner.launch.languages.text import HOLE, Text, Word, digits, join, spaced

if TYPE_CHECKING:
    from tree_sitter import Node


def read_script(shell: Shell, source: Text, *, nested: bool = False) -> None:
    """Walk a script in a shell. Errors of syntax are collected, with file and line.

    EndedError where it ends before its last line (`Shell.process` catches it); LimitError for
    a script that goes beyond the limits of reading.
    """
    if not nested:
        variables = shell.directives(source)
        shell.variables |= variables
        shell.exported |= variables.keys()
        source = without_placeholders(filled_in(source, shell.given))
    tree = parse_shell(source.value)
    if tree.has_error:
        _note_errors(shell, source, tree)
    _Walk(shell, source).run(tree)


def _note_errors(shell: Shell, source: Text, tree: Node) -> None:
    for node in islice(broken_nodes(tree), MOST_NOTES):
        place = source[max(0, node.start_byte - 1) : node.end_byte + 1].first()
        words = source.value[node.start_byte : node.end_byte].split("\n")[0].strip()
        missing = f"{node.type} missing" if node.is_missing else f"cannot read {words!r}"
        shell.errors.append((place.place if place else ":0", missing))


class _ReturnedError(Exception):
    """A function's `return`."""


class _Walk(Statements):
    """One script (or text of one) walked in a shell: what its commands do."""

    def _run_function_definition(self, node: Node) -> None:
        name = self.piece(node.named_children[0]).value
        self.shell.functions[name] = (self.source, node.named_children[-1])

    def _run_redirected_statement(self, node: Node) -> None:
        statements = [
            child
            for child in node.named_children
            if child.type not in ("file_redirect", "herestring_redirect", "heredoc_redirect")
        ]
        filled_before: set[int] = set()
        for child in node.named_children:
            if child.type == "heredoc_redirect" and self._read_heredoc(child, statements):
                filled_before |= {item.id for item in statements}
        for child in statements:
            if child.id not in filled_before:
                self.run(child)

    def _read_heredoc(self, node: Node, statements: list[Node]) -> bool:
        """`sbatch <<EOF`: a script; `cat <<EOF > file`: a file; whether `read X <<EOF` took it."""
        body, start = first_of(node, "heredoc_body"), first_of(node, "heredoc_start")
        if body is None or start is None:
            return False
        # The words after the mark too: `cat <<EOF | sbatch`.
        pipeline = first_of(node, "pipeline")
        started = [*statements, *(pipeline.named_children if pipeline else ())]
        commands = [self._words_of(item) for item in started if item.type == "command"]
        # A mark in quotes: nothing in the body is expanded.
        is_raw = self.piece(start).value[:1] in ("'", '"')
        text = self.piece(body) if is_raw else self.inside(body)
        if commands and commands[0] and commands[0][0].text.value == "read":
            self.shell.variables[commands[0][-1].text.value] = text
            return True
        # The file stands before the mark or behind it.
        file = first_of(node, "file_redirect") or first_of(node.parent, "file_redirect")
        if any(map(reads_a_script, commands)):
            with self.shell.process():
                self._nested(text)
        elif file is not None:
            name = self.value(file.named_children[-1]).value
            before = self.shell.written.get(name) if ">>" in self.piece(file).value else None
            self.shell.written[name] = text if before is None else join([before, text])
            self.shell.limits.step(len(text.value))
        return False

    def _words_of(self, node: Node) -> list[Word]:
        """A command's words, without the variables before it and its redirections."""
        return [
            word
            for child in node.named_children
            if child.type not in ("variable_assignment", "file_redirect", "herestring_redirect")
            for word in self.words(child)
        ]

    def _run_command(self, node: Node) -> None:
        before = {
            self.piece(item.named_children[0]).value: item
            for item in node.named_children
            if item.type == "variable_assignment"
        }
        words = self._words_of(node)
        called = self.shell.active & self.shell.functions.keys()
        if called and words and words[0].text.value == "return":
            raise _ReturnedError
        self._end_where_it_does(node, words)
        environment = self.shell.environment()
        for value in environment.values():
            self.shell.limits.step(len(value.value))
        for name, item in before.items():
            value = self.value(item.named_children[1]) if item.named_child_count > 1 else Text("")
            environment[name] = value
        self._collect(node, words, environment)

    def _collect(self, node: Node, words: list[Word], environment: dict[str, Text]) -> None:
        """What a command means to the shell, else a command to keep."""
        name = words[0].text.value if words else ""
        shell = self.shell
        if name in FILLING:
            given = [self.value(item.named_children[0]) for item in node.named_children
                     if item.type == "herestring_redirect"]  # fmt: skip
            shell.variables |= filled(words, given[0] if given else None, environment)
        elif name == "let":
            for word in words[1:]:
                self._assign_arithmetic(word.text.value)
        elif name == "eval":
            self._nested(spaced(word.text for word in words[1:]))
        elif name in (".", "source"):
            self._source(words[1:])
        elif name == "shift":
            count = words[1].text.value if len(words) > 1 else "1"
            number = digits(count)
            number = 1 if number is None else number
            shell.shifted += max(0, number - len(shell.positional))
            shell.positional = shell.positional[number:]
        elif name in shell.functions:
            self._call(name, words[1:], *shell.functions[name])
        elif (inner := inline_script(words)) is not None:
            before, script = inner
            carried = shell.carrying(carried_variables(words))
            with self._started_by(before), carried, shell.process():
                self._nested(script)
        elif (call := script_call(words)) is None or not self._read_file(call, node):
            environment = environment | carried_variables(words)
            at = self.piece(node).first()
            file, line = (at.file.path, at.line) if at else ("", 0)
            shell.commands.append(Command(tuple(words), environment, file, line))

    def _end_where_it_does(self, node: Node, words: list[Word]) -> None:
        """EndedError after an `exit`, or what fails under `set -e`, that is sure to be reached."""
        name, shell = words[0].text.value if words else "", self.shell
        if name == "set":
            shell.ends_on_failure = ends_on_failure(words, before=shell.ends_on_failure)
        fails = name == "false" and shell.ends_on_failure
        if shell.doubts or not (fails or name == "exit"):
            return
        what = "false, under set -e," if fails else name
        rest = self.source.value[node.end_byte :].splitlines()
        if any(line.strip() and not line.strip().startswith("#") for line in rest):
            self._note(node, f"{what} ends the script; what stands below is never reached")
        raise EndedError

    @contextmanager
    def _started_by(self, before: Sequence[Word]) -> Iterator[None]:
        """Commands of a script with the srun or mpirun before it, whose options count them."""
        shell = self.shell
        first = len(shell.commands)
        yield
        if counts_processes(before):
            for place, each in enumerate(shell.commands[first:], first):
                shell.commands[place] = replace(each, words=(*before, *each.words))

    def _nested(self, script: Text) -> None:
        """A script in a word: `eval`, `bash -c`."""
        with self.shell.limits.call("a command in a word"):
            read_script(self.shell, script, nested=True)

    def _call(self, name: str, given: list[Word], source: Text, body: Node) -> None:
        shell = self.shell
        if name in shell.active:
            shell.note(f"the function {name} calls itself: not followed")
            return
        reading = shell.reading(name, f"the function {name}")
        arguments = [word.text for word in given]
        with reading, shell.called(arguments), suppress(_ReturnedError):
            _Walk(shell, source).run(body)

    def _read_file(self, call: ScriptCall, node: Node) -> bool:
        """Read another file in this shell; whether it was there."""
        shell, name = self.shell, call.name.value
        place = self.piece(node).first()
        text = shell.written.get(name) or shell.open_file(name, place.file.path if place else "")
        if text is None:
            return False
        file = f"the script {name.replace(HOLE, '')}"
        if file in shell.active:
            shell.note(f"{file} calls itself: not followed")
            return True
        if (submitted := as_submitted(call, text)) is not None:
            shell.submitted.append(submitted)
        reading = shell.reading(file, file)
        started = self._started_by(call.before)
        with reading, shell.called(call.arguments), started, shell.process():
            read_script(shell, submitted or text)
        return True

    def _source(self, words: list[Word]) -> None:
        """`source config.sh`; one that is not where it is named may have been given, and read."""
        if not words:
            return
        named, written = words[0].text, words[0].written
        shown = (written if named.unknown else "") or named.known or written
        name = shown.rsplit("/", 1)[-1]
        place = words[0].used or named.first()
        text = self.shell.open_file(named.value, place.file.path if place else "")
        file = f"the script {shown}"
        if text is None:
            given = (path.rsplit("/", 1)[-1] for path in self.shell.files.by_path)
            if name not in (*ENVIRONMENTS, *given):
                self.shell.note(f"source {shown}: not read; give that file too, before this one")
                self.shell.missed = shown
        elif file not in self.shell.active:
            with self.shell.reading(file, file):
                read_script(self.shell, text)
