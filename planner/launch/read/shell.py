"""A shell script read without running it: variables, arrays, defaults, arithmetic, simple tests.

tree-sitter's grammar of bash makes the tree; `Shell` walks it in order and collects the commands
that would run, each word with the places its characters come from. What only running could tell
(output of commands, tests on files, variables that nobody sets) is unknown, and said to be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from planner.launch.read.limits import Limits
from planner.launch.read.shell_calls import (
    ScriptCall,
    counts_processes,
    inline_script,
    reads_a_script,
    script_call,
)
from planner.launch.read.shell_heredocs import heredoc_body, heredoc_text, kept_in, piped_to
from planner.launch.read.shell_syntax import (
    ENVIRONMENTS,
    broken_nodes,
    parse_shell,
    without_placeholders,
)
from planner.launch.read.shell_tests import Tests, matches
from planner.launch.read.shell_words import Value, appended
from planner.launch.read.slurm import slurm_variables
from planner.launch.read.text import HOLE, Files, Text, Word, digits, spaced

if TYPE_CHECKING:
    from tree_sitter import Node

# What every shell sets: paths and names, without effect on a launch.
_ALWAYS_SET = ("PWD", "OLDPWD", "HOME", "USER", "HOSTNAME")
# More of a kind tell no more.
_MOST_NOTES = 50


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
    notes: list[str] = field(default_factory=list)
    errors: list[tuple[str, int, str]] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)
    # Functions and scripts that are being read.
    active: set[str] = field(default_factory=set)
    # Whether tests that reading cannot decide are taken as met.
    hopeful: bool = False
    # Arguments of the script or function that is read.
    positional: list[Text] = field(default_factory=list)
    # How many of them `shift` has taken away that nobody gave.
    shifted: int = 0
    # A sourced file that was not there: it may have set any variable.
    missed: str = ""
    # The text of a file that a script names, by that name and the script's own path.
    open_file: Callable[[str, str], Text | None] = lambda _name, _script: None

    def read(self, source: Text, *, nested: bool = False) -> None:
        """Walk a script. Errors of syntax are collected, with file and line.

        CannotTellError for a script that goes beyond the limits of reading.
        """
        if not nested:
            self.variables |= slurm_variables(source)
            source = without_placeholders(source)
        tree = parse_shell(source.value)
        if tree.has_error:
            self._note_errors(source, tree)
        _Walk(self, source).run(tree)

    def _note_errors(self, source: Text, tree: Node) -> None:
        for node in islice(broken_nodes(tree), _MOST_NOTES):
            place = source[node.start_byte : node.end_byte + 1].first()
            words = source.value[node.start_byte : node.end_byte].split("\n")[0].strip()
            missing = f"{node.type} missing" if node.is_missing else f"cannot read {words!r}"
            self.errors.append((place[0] if place else "", self.files.line(place), missing))

    def note(self, text: str) -> None:
        """Remember what is not followed."""
        if len(self.notes) < _MOST_NOTES:
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
            return Text.made(self.given[name])
        value = self.variables.get(name)
        return Text.made(f"${name}") if value is None and name in _ALWAYS_SET else value

    @contextmanager
    def called(self, arguments: Sequence[Text]) -> Iterator[None]:
        """Inside a script or function with these arguments."""
        before = self.positional, self.shifted
        self.positional, self.shifted = list(arguments), 0
        try:
            yield
        finally:
            self.positional, self.shifted = before

    def environment(self) -> dict[str, Text]:
        """What a command started now would see."""
        seen = {name: self.lookup(name) for name in (*self.exported, *self.given)}
        return {name: item for name, item in seen.items() if isinstance(item, Text)}


class _ReturnedError(Exception):
    """A function's `return`."""


class _Walk(Tests):
    """One script (or text of one) walked in a shell."""

    def __init__(self, shell: Shell, source: Text) -> None:
        super().__init__(shell, source)
        self.shell = shell

    # --- statements -----------------------------------------------------------------------------

    def run(self, node: Node) -> None:
        """A statement, or each of a list of them."""
        self.shell.limits.step()
        with self.shell.limits.deeper():
            self._run(node)

    def _run(self, node: Node) -> None:
        handler = getattr(self, f"_run_{node.type}", None)
        if handler is not None:
            handler(node)
        elif node.type in _CONTAINERS:
            for child in node.named_children:
                self.run(child)
        elif node.type in _LOOPS:
            self._note(node, "a loop is not followed")

    def _run_for_statement(self, node: Node) -> None:
        """The first round: sweeps train once for each word."""
        variable, *rest = node.named_children
        listed = [word.text for item in rest[:-1] for word in self.words(item)]
        if not listed:
            self._note(node, "a loop is not followed")
            return
        if len(listed) > 1:
            self._note(node, f"a loop over {len(listed)} words: its first round is read")
        self.shell.variables[self.piece(variable).value] = listed[0]
        self.run(rest[-1])

    def _run_while_statement(self, node: Node) -> None:
        """One round, where it is sure to begin."""
        test, body = node.named_children[0], node.named_children[-1]
        met = self.test(test)
        if met or (met is None and self.shell.hopeful):
            self.run(body)
        elif met is None:
            self._note(node, "a loop is not followed")

    def _note(self, node: Node, what: str) -> None:
        place = self.piece(node).first()
        self.shell.note(f"line {self.shell.files.line(place)}: {what}")

    def _run_list(self, node: Node) -> None:
        """`a && b`, `a || b`: b only where a's outcome, if known, lets it run."""
        left, right = node.named_children[0], node.named_children[-1]
        outcome = self._outcome(left)
        operator = next(child.type for child in node.children if child.type in ("&&", "||"))
        if outcome is None or outcome == (operator == "&&"):
            if outcome is None and left.type == "test_command":
                self._note(node, "a test that reading cannot decide; taken as not met")
                return
            self.run(right)

    def _outcome(self, node: Node) -> bool | None:
        """Whether a statement succeeds; it is run, if it is one that is run."""
        if node.type in ("test_command", "negated_command", "list") or self._is_arithmetic(node):
            return self.test(node)
        if node.type == "command" and self.name(node) in ("[", "test"):
            return None
        self.run(node)
        return None

    def _is_arithmetic(self, node: Node) -> bool:
        return node.type == "compound_statement" and self.piece(node).value.startswith("((")

    def _run_compound_statement(self, node: Node) -> None:
        if self._is_arithmetic(node):
            self._assign_arithmetic(self.piece(node).value[2:-2])
            return
        for child in node.named_children:
            self.run(child)

    def _assign_arithmetic(self, text: str) -> None:
        """`(( X = Y * 2 ))`, `let`."""
        match = re.fullmatch(r"\s*(\w+)\s*=(?!=)(.*)", text, re.DOTALL)
        if match:
            self.shell.variables[match[1]] = self.calculated(match[2])

    def _run_if_statement(self, node: Node) -> None:
        clauses = self._clauses(node)
        for test, body in clauses:
            met = True if test is None else self.test(test)
            if met is None and test is not None:
                how = "met" if self.shell.hopeful else "not met"
                self._note(test, f"a test that reading cannot decide; taken as {how}")
                met = self.shell.hopeful
            if met:
                for statement in body:
                    self.run(statement)
                return

    def _clauses(self, node: Node) -> list[tuple[Node | None, list[Node]]]:
        """(test, statements) of if, elif and else; no test for else."""
        items: list[Node] = []
        rest: list[tuple[Node | None, list[Node]]] = []
        for child in node.named_children:
            if child.type == "elif_clause":
                rest.append((child.named_children[0], child.named_children[1:]))
            elif child.type == "else_clause":
                rest.append((None, child.named_children))
            elif child.type != "comment":
                items.append(child)
        return [(items[0], items[1:]), *rest]

    def _run_case_statement(self, node: Node) -> None:
        word, *items = node.named_children
        value = self.value(word)
        if value.unknown:
            self._note(node, f"a case that reading cannot decide ({value.unknown}); skipped")
            return
        for item in items:
            patterns = item.children_by_field_name("value")
            if any(matches(value.value, self.value(pattern).value) for pattern in patterns):
                for statement in item.named_children[len(patterns) :]:
                    self.run(statement)
                return

    def _run_function_definition(self, node: Node) -> None:
        name = self.piece(node.named_children[0]).value
        self.shell.functions[name] = (self.source, node.named_children[-1])

    def _run_declaration_command(self, node: Node) -> None:
        exports = node.children[0].type == "export"
        for child in node.named_children:
            if child.type == "variable_assignment":
                name = self._assign(child)
            elif child.type == "variable_name":
                name = self.piece(child).value
            else:
                continue
            if exports:
                self.shell.exported.add(name)

    def _run_variable_assignment(self, node: Node) -> None:
        self._assign(node)

    def _assign(self, node: Node) -> str:
        target, value_node = node.named_children[0], node.named_children[1:]
        name = self.piece(target).value
        appends = any(child.type == "+=" for child in node.children)
        if target.type == "subscript":
            return name
        value: Value = self._assigned(value_node[0]) if value_node else Text("")
        if appends:
            before = self.shell.variables.get(name)
            if before is None and self.shell.missed:
                why = f"${name}, which {self.shell.missed} may set, and that was not read"
                before = Text.not_known(why)
            value = appended(before, value)
            self.shell.limits.step(0 if isinstance(value, list) else len(value.value))
        self.shell.limits.grown(value)
        self.shell.variables[name] = value
        return name

    def _assigned(self, node: Node) -> Value:
        if node.type == "array":
            return [word.text for child in node.named_children for word in self.words(child)]
        return self.value(node)

    def _run_redirected_statement(self, node: Node) -> None:
        statements = [
            child
            for child in node.named_children
            if child.type not in ("file_redirect", "herestring_redirect", "heredoc_redirect")
        ]
        for child in node.named_children:
            if child.type == "heredoc_redirect":
                self._read_heredoc(child, statements)
        for child in statements:
            self.run(child)

    def _read_heredoc(self, node: Node, statements: list[Node]) -> None:
        """`sbatch <<EOF`: a script; `cat <<EOF > file`: a file."""
        commands = [item for item in statements if item.type == "command"]
        words = [word for item in commands for word in self._words_of(item)]
        body, file = heredoc_body(node), kept_in(node)
        if body is None:
            return
        if words and words[0].text.value == "read":
            self.shell.variables[words[-1].text.value] = heredoc_text(node, body, self)
        elif reads_a_script(words) or any(
            reads_a_script(self._words_of(command)) for command in piped_to(node)
        ):
            self._nested(heredoc_text(node, body, self))
        elif file is not None:
            self.shell.written[self.value(file).value] = heredoc_text(node, body, self)

    # --- commands -------------------------------------------------------------------------------

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
        if name == "let":
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
        elif name == "unset":
            for word in words[1:]:
                shell.variables.pop(word.text.value, None)
        elif name in shell.functions:
            self._call(name, words[1:], *shell.functions[name])
        elif (inner := inline_script(words)) is not None:
            before, script = inner
            with self._started_by(before):
                self._nested(script)
        elif (call := script_call(words)) is None or not self._read_file(call, node):
            at = self.piece(node).first()
            file = at[0] if at else ""
            shell.commands.append(Command(tuple(words), environment, file, shell.files.line(at)))

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
            self.shell.read(script, nested=True)

    def _call(self, name: str, given: list[Word], source: Text, body: Node) -> None:
        shell = self.shell
        if name in shell.active:
            shell.note(f"the function {name} calls itself: not followed")
            return
        shell.active.add(name)
        arguments = [word.text for word in given]
        reading = shell.limits.call(f"the function {name}")
        with reading, shell.called(arguments), suppress(_ReturnedError):
            _Walk(shell, source).run(body)
        shell.active.remove(name)

    def _read_file(self, call: ScriptCall, node: Node) -> bool:
        """Read another file in this shell; whether it was there."""
        shell, name = self.shell, call.name.value
        place = self.piece(node).first()
        text = shell.written.get(name) or shell.open_file(name, place[0] if place else "")
        if text is None:
            return False
        file = f"the script {name.replace(HOLE, '')}"
        if file in shell.active:
            shell.note(f"{file} calls itself: not followed")
            return True
        shell.active.add(file)
        reading = shell.limits.call(file)
        with reading, shell.called(call.arguments), self._started_by(call.before):
            shell.read(text)
        shell.active.remove(file)
        return True

    def _source(self, words: list[Word]) -> None:
        """`source config.sh`; one that is not where it is named may have been given, and read."""
        if not words:
            return
        named, written = words[0].text, self._as_written(words[0])
        shown = (written if named.unknown else "") or named.known or written
        name = shown.rsplit("/", 1)[-1]
        origin = words[0].text.first()
        script = words[0].used.file if words[0].used else origin[0] if origin else ""
        text = self.shell.open_file(words[0].text.value, script)
        file = f"the script {shown}"
        if text is None:
            given = (path.rsplit("/", 1)[-1] for path in self.shell.files.by_path)
            if name not in (*ENVIRONMENTS, *given):
                self.shell.note(f"source {shown}: not read; give that file too, before this one")
                self.shell.missed = shown
        elif file not in self.shell.active:
            self.shell.active.add(file)
            with self.shell.limits.call(file):
                self.shell.read(text)
            self.shell.active.remove(file)

    def _as_written(self, word: Word) -> str:
        """A word as its script spells it."""
        if word.used is None:
            return ""
        text = self.shell.files.by_path[word.used.file].text
        return text[word.used.start : word.used.end].strip("\"'")


_CONTAINERS = (
    "program", "pipeline", "subshell", "do_group", "negated_command",
)  # fmt: skip
_LOOPS = ("c_style_for_statement",)
