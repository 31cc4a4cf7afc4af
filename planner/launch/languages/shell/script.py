"""Reads a shell script without running it.

tree-sitter's grammar of bash gives its syntax tree, which is walked in order. The commands that
would run are collected; each word keeps the places that its characters come from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from planner.launch.languages.shell.branches import Branch, Branches
from planner.launch.languages.shell.builtins import FILLING, ends_on_failure, filled
from planner.launch.languages.shell.calls import ScriptCall
from planner.launch.languages.shell.state import (
    MOST_NOTES,
    Around,
    Command,
    EndedError,
    Scripts,
    Shell,
    Site,
    Value,
    may_set,
)
from planner.launch.languages.shell.syntax import (
    broken_nodes,
    filled_in,
    first_of,
    operator_of,
    parse_shell,
)
from planner.launch.languages.text import HOLE, Text, Word, digits, join, spaced

if TYPE_CHECKING:
    from tree_sitter import Node

# Sourced files that prepare a shell and start nothing.
_PREPARING = ("activate", "conda.sh", ".bashrc", ".bash_profile", ".profile", "setvars.sh")
# How the description of a function that is being read begins.
_FUNCTION = "the function"

_CONTAINERS = ("program", "pipeline", "subshell", "do_group", "negated_command")
# Statements inside these may not run, may run in another process, or may fail without ending the
# script.
_DOUBTED = (
    "if_statement", "case_statement", "while_statement", "list", "pipeline", "subshell",
    "negated_command",
)  # fmt: skip


@dataclass(frozen=True)
class Script:
    """A script to read, with the variables (`environment`) and files (`files`) that exist before it
    runs."""

    text: Text
    environment: Mapping[str, Text] = field(default_factory=dict)
    files: Mapping[str, Text] = field(default_factory=dict)


def read_scripts(
    scripts: Iterable[Script],
    around: Around,
    chosen: Mapping[Site, int] | None = None,
    *,
    hopeful: bool = False,
) -> Scripts:
    """Read scripts one after another in one shell.

    `chosen`: the branch to take, counted from 1 (0: none), of statements that reading cannot
    decide; `hopeful`: whether other undecided tests count as true. LimitError for scripts that
    exceed the limits of reading.
    """
    shell = Shell(around=around, chosen=chosen or {}, hopeful=hopeful)
    for script in scripts:
        shell.export(script.environment)
        shell.written |= script.files
        with shell.process():
            _read(shell, script.text)
    return shell


def _read(shell: Shell, source: Text, *, is_word: bool = False) -> None:
    """Read a script; `is_word`: one inside a word. EndedError if it ends before its last line."""
    if not is_word:
        shell.export(shell.around.directives(source))
        source = filled_in(source, shell.around.given)
    tree = parse_shell(source.value)
    if tree.has_error:
        for node in islice(broken_nodes(tree), MOST_NOTES):
            place = source[max(0, node.start_byte - 1) : node.end_byte + 1].first()
            words = source.value[node.start_byte : node.end_byte].split("\n")[0].strip()
            missing = f"{node.type} missing" if node.is_missing else f"cannot read {words!r}"
            shell.errors.append((place.place if place else ":0", missing))
    _Walk(shell, source).run(tree)


class _ReturnedError(Exception):
    """Raised at a function's `return`."""


class _Walk(Branches):
    """Walks one script (or a text within one) in a shell; `_run_KIND` handles one kind of node."""

    def run(self, node: Node) -> None:
        """Run a statement, or each statement in a list."""
        self.shell.limits.step()
        doubts = self.shell.doubts + (node.type in _DOUBTED)
        with self.shell.limits.deeper(), self.shell.having(doubts=doubts):
            handler = getattr(self, f"_run_{node.type}", None)
            if handler is not None:
                handler(node)
            elif node.type in _CONTAINERS:
                self.run_all(node.named_children)

    def _run_for_statement(self, node: Node) -> None:
        """Run the first round; in a sweep, the other rounds do the same for other words."""
        variable, *rest = node.named_children
        listed = [word.text for item in rest[:-1] for word in self.words(item)]
        if not listed:
            self._skip_loop(node)
            return
        if len(listed) > 1:
            self.note(node, f"a loop over {len(listed)} words: its first round is read")
        self.shell.variables[self.piece(variable).value] = listed[0]
        self.run(rest[-1])

    def _run_while_statement(self, node: Node) -> None:
        """Run one round if the loop is sure to start, or may start and `hopeful` is set."""
        met = self.test(node.named_children[0])
        if met or (met is None and self.shell.hopeful):
            self.run(node.named_children[-1])
        elif met is None:
            self._skip_loop(node)

    def _skip_loop(self, node: Node) -> None:
        """Skip a loop; the variables that it sets are unknown afterwards."""
        self.note(node, "a loop is not followed")
        line = self.line(node)
        for name in self.assigned_in(node):
            why = f"${name}, which a loop at line {line} sets that is not followed"
            self.shell.variables[name] = Text.not_known(why)

    _run_c_style_for_statement = _skip_loop

    def _run_list(self, node: Node) -> None:
        """Run `a && b` or `a || b`. b is run unless the known outcome of a prevents it."""
        left, right = node.named_children[0], node.named_children[-1]
        if self._assigns_either(node):
            return
        outcome = self._outcome(left)
        if outcome is None and left.type == "test_command":
            # If the test is true, `a && b` runs b; if it is false, `a || b` does.
            if self.choose(left, [Branch(left, [right])], hopeful=False):
                self.run(right)
        elif outcome is None or outcome == (operator_of(node) == "&&"):
            self.run(right)

    def _assigns_either(self, node: Node) -> bool:
        """Run `test && a=1 || a=2` if the outcome of the test is known. Returns whether the node
        was run."""
        left, right = node.named_children[0], node.named_children[-1]
        if left.type != "list" or (operator_of(left), operator_of(node)) != ("&&", "||"):
            return False
        first, then = left.named_children[0], left.named_children[-1]
        if not then.type.startswith("variable_assignment"):
            return False
        met = self._outcome(first)
        if met is None:
            return False
        self.run(then if met else right)
        return True

    def _outcome(self, node: Node) -> bool | None:
        """Whether a statement succeeds; None if unknown. Statements other than tests are also
        run."""
        if node.type in ("test_command", "negated_command", "list") or self._is_arithmetic(node):
            return self.test(node)
        if node.type != "command" or self.name(node) not in ("[", "test"):
            self.run(node)
        return None

    def _is_arithmetic(self, node: Node) -> bool:
        return node.type == "compound_statement" and self.piece(node).value.startswith("((")

    def _run_compound_statement(self, node: Node) -> None:
        if self._is_arithmetic(node):
            self.assign_arithmetic(self.piece(node).value[2:-2])
        else:
            self.run_all(node.named_children)

    def assign_arithmetic(self, text: str) -> None:
        """Run an assignment in `(( X = Y * 2 ))` or `let`."""
        match = re.fullmatch(r"\s*(\w+)\s*=(?!=)(.*)", text, re.DOTALL)
        if match:
            self.shell.variables[match[1]] = self.calculated(match[2])

    def _run_unset_command(self, node: Node) -> None:
        for child in node.named_children:
            if child.type == "variable_name":
                name = self.piece(child).value
                self.shell.variables[name] = Text("")
                self.shell.exported.discard(name)

    def _run_declaration_command(self, node: Node) -> None:
        options = [self.piece(child).value for child in node.named_children if child.type == "word"]
        # `declare -x` also exports.
        exports = node.children[0].type == "export" or any("x" in one for one in options)
        for child in node.named_children:
            if child.type == "variable_assignment":
                name = self._run_variable_assignment(child)
            elif child.type == "variable_name":
                name = self.piece(child).value
            else:
                continue
            if exports:
                self.shell.exported.add(name)

    def _run_variable_assignment(self, node: Node) -> str:
        """Run an assignment and return the variable's name."""
        shell = self.shell
        target, *given = node.named_children
        name = self.piece(target).value
        value: Value = self._assigned(given[0]) if given else Text("")
        if target.type == "subscript":
            table, _, index = name.partition("[")
            name = f"{table}[{self.entry_name(index.removesuffix(']'))}]"
        # Entries of a table such as `M=([a]=1 [b]=2)`.
        for item in value if isinstance(value, list) else ():
            if match := re.match(r"\[([^\]]*)\]=", item.value):
                shell.variables[f"{name}[{match[1]}]"] = item[match.end() :]
        if any(child.type == "+=" for child in node.children):
            before = shell.variables.get(name)
            if before is None and shell.missed:
                before = Text.not_known(f"${name}, {may_set(shell.missed)}")
            value = _appended(before, value)
            shell.limits.step(0 if isinstance(value, list) else len(value.value))
        shell.limits.grown(value)
        shell.variables[name] = _named(name, value)
        return name

    def _assigned(self, node: Node) -> Value:
        if node.type == "array":
            return [word.text for child in node.named_children for word in self.words(child)]
        return self.value(node)

    def _run_function_definition(self, node: Node) -> None:
        name = self.piece(node.named_children[0]).value
        self.shell.functions[name] = (self.source, node.named_children[-1])

    def _run_redirected_statement(self, node: Node) -> None:
        redirections = ("file_redirect", "herestring_redirect", "heredoc_redirect")
        statements = [child for child in node.named_children if child.type not in redirections]
        heres = [child for child in node.named_children if child.type == "heredoc_redirect"]
        taken = [self._read_heredoc(child, statements) for child in heres]
        if not any(taken):
            self.run_all(statements)

    def _read_heredoc(self, node: Node, statements: list[Node]) -> bool:
        """Handle a here-document: run a script (`sbatch <<EOF`), write a file (`cat <<EOF > file`)
        or set a variable (`read X <<EOF`). Returns whether it was the latter."""
        shell = self.shell
        body, start = first_of(node, "heredoc_body"), first_of(node, "heredoc_start")
        if body is None or start is None:
            return False
        # Also the commands after the mark: `cat <<EOF | sbatch`.
        pipeline = first_of(node, "pipeline")
        started = [*statements, *(pipeline.named_children if pipeline else ())]
        commands = [self.words_of(item) for item in started if item.type == "command"]
        # If the mark is in quotes, nothing in the body is expanded.
        is_raw = self.piece(start).value[:1] in ("'", '"')
        text = self.piece(body) if is_raw else self.inside(body)
        if commands and commands[0] and commands[0][0].text.value == "read":
            shell.variables[commands[0][-1].text.value] = text
            return True
        # The file name may come before or after the mark.
        file = first_of(node, "file_redirect") or first_of(node.parent, "file_redirect")
        if any(map(shell.around.starters.reads_a_script, commands)):
            with shell.process():
                self._nested(text)
        elif file is not None:
            name = self.value(file.named_children[-1]).value
            before = shell.written.get(name) if ">>" in self.piece(file).value else None
            shell.written[name] = text if before is None else join([before, text])
            shell.limits.step(len(text.value))
        return False

    def _run_command(self, node: Node) -> None:
        before = {
            self.piece(item.named_children[0]).value: item
            for item in node.named_children
            if item.type == "variable_assignment"
        }
        words = self.words_of(node)
        name = words[0].text.value if words else ""
        if name == "return" and any(what.startswith(_FUNCTION) for what in self.shell.active):
            raise _ReturnedError
        self._end_where_it_does(node, name, words)
        environment = self.shell.environment()
        for value in environment.values():
            self.shell.limits.step(len(value.value))
        for variable, item in before.items():
            given = item.named_children[1:]
            environment[variable] = self.value(given[0]) if given else Text("")
        self._collect(node, name, words, environment)

    def _collect(
        self, node: Node, name: str, words: list[Word], environment: dict[str, Text]
    ) -> None:
        """Apply a command of the shell itself; collect any other."""
        shell = self.shell
        if name in FILLING:
            here = first_of(node, "herestring_redirect")
            given = None if here is None else self.value(here.named_children[0])
            shell.variables |= filled(words, given, environment)
        elif name == "let":
            for word in words[1:]:
                self.assign_arithmetic(word.text.value)
        elif name == "eval":
            self._nested(spaced(word.text for word in words[1:]))
        elif name in (".", "source"):
            self._source(words[1:])
        elif name == "shift":
            number = digits(words[1].text.value) if len(words) > 1 else 1
            number = 1 if number is None else number
            shell.shifted += max(0, number - len(shell.positional))
            shell.positional = shell.positional[number:]
        elif name in shell.functions:
            self._call(name, words[1:], *shell.functions[name])
        else:
            self._start(node, words, environment)

    def _start(self, node: Node, words: list[Word], environment: dict[str, Text]) -> None:
        """Handle a command that starts a program: read the script that it starts if the text is
        available, otherwise collect the command."""
        shell, starters = self.shell, self.shell.around.starters
        carried = starters.carried_variables(words)
        if (inner := starters.inline_script(words)) is not None:
            before, script = inner
            with self._started_by(before), shell.carrying(carried), shell.process():
                self._nested(script)
            return
        call = starters.script_call(words)
        if call is not None and self._read_file(call, node):
            return
        at = self.piece(node).first()
        file, line = (at.file.path, at.line) if at else ("", 0)
        shell.commands.append(Command(tuple(words), environment | carried, file, line))

    def _end_where_it_does(self, node: Node, name: str, words: list[Word]) -> None:
        """Raise EndedError if an `exit`, or a failure under `set -e`, is sure to be reached."""
        shell = self.shell
        if name == "set":
            shell.ends_on_failure = ends_on_failure(words, before=shell.ends_on_failure)
        fails = name == "false" and shell.ends_on_failure
        if shell.doubts or not (fails or name == "exit"):
            return
        what = "false, under set -e," if fails else name
        rest = self.source.value[node.end_byte :].splitlines()
        if any(line.strip() and not line.strip().startswith("#") for line in rest):
            self.note(node, f"{what} ends the script; nothing below it is reached")
        raise EndedError

    @contextmanager
    def _started_by(self, before: Sequence[Word]) -> Iterator[None]:
        """Put the srun or mpirun that starts a script, and counts its processes, before each of the
        script's commands."""
        shell = self.shell
        first = len(shell.commands)
        yield
        if shell.around.starters.counts_processes(before):
            shell.commands[first:] = [
                replace(each, words=(*before, *each.words)) for each in shell.commands[first:]
            ]

    def _nested(self, script: Text) -> None:
        """Read a script inside a word: `eval`, `bash -c`."""
        with self.shell.limits.call("a command in a word"):
            _read(self.shell, script, is_word=True)

    def _is_active(self, what: str) -> bool:
        """Whether a function or script is already being read, so that it calls itself."""
        if what in self.shell.active:
            self.shell.note(f"{what} calls itself: not followed")
            return True
        return False

    def _call(self, name: str, given: list[Word], source: Text, body: Node) -> None:
        shell, what = self.shell, f"{_FUNCTION} {name}"
        if not self._is_active(what):
            arguments = [word.text for word in given]
            with shell.reading(what), shell.called(arguments), suppress(_ReturnedError):
                _Walk(shell, source).run(body)

    def _read_file(self, call: ScriptCall, node: Node) -> bool:
        """Read another file in this shell. Returns whether it is available."""
        shell, name = self.shell, call.name.value
        place = self.piece(node).first()
        text = shell.written.get(name)
        text = text or shell.around.open_file(name, place.file.path if place else "")
        if text is None:
            return False
        what = f"the script {name.replace(HOLE, '')}"
        if self._is_active(what):
            return True
        if (submitted := shell.around.starters.as_submitted(call, text)) is not None:
            shell.submitted.append(submitted)
        started = self._started_by(call.before)
        with shell.reading(what), shell.called(call.arguments), started, shell.process():
            _read(shell, submitted or text)
        return True

    def _source(self, words: list[Word]) -> None:
        """Read the file in `source config.sh`. A missing one is not reported if it only prepares a
        shell (`.bashrc`) or the user gives a file of that name."""
        if not words:
            return
        shell, named, written = self.shell, words[0].text, words[0].written
        shown = (written if named.unknown else "") or named.known or written
        name = shown.rsplit("/", 1)[-1]
        place = words[0].used or named.first()
        text = shell.around.open_file(named.value, place.file.path if place else "")
        what = f"the script {shown}"
        if text is None:
            given = (path.rsplit("/", 1)[-1] for path in shell.around.given_files())
            if name not in (*_PREPARING, *given):
                shell.note(f"source {shown}: not read; give that file too, before this one")
                shell.missed = shown
        elif what not in shell.active:
            with shell.reading(what):
                _read(shell, text)


def _appended(old: Value | None, more: Value) -> Value:
    """The value of a variable after `X+=more`."""
    if isinstance(old, list) or isinstance(more, list):
        first = old if isinstance(old, list) else [old] if old is not None else []
        return [*first, *(more if isinstance(more, list) else [more])]
    return join([old or Text(""), more])


def _named(name: str, value: Value) -> Value:
    """The value of a variable. If it is the unknown output of a command, the reason names the
    variable."""
    if isinstance(value, list) or value.value != HOLE or not value.unknown.startswith("output"):
        return value
    return Text.not_known(f"${name}, {value.unknown}")
