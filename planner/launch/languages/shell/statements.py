"""Statements of a script that set variables, or hang on conditions."""

from __future__ import annotations

import re
from abc import ABC
from typing import TYPE_CHECKING

from planner.launch.languages.shell.branches import Branch, Branches
from planner.launch.languages.shell.state import Value, may_set
from planner.launch.languages.shell.syntax import operator_of
from planner.launch.languages.text import HOLE, Text, join

if TYPE_CHECKING:
    from tree_sitter import Node


_CONTAINERS = ("program", "pipeline", "subshell", "do_group", "negated_command")
# What is inside may not run, or not in this process, or may fail without an end.
_DOUBTED = (
    "if_statement", "case_statement", "while_statement", "list", "pipeline", "subshell",
    "negated_command",
)  # fmt: skip


class Statements(Branches, ABC):
    """Statements: `_run_KIND` does what a kind of node says."""

    def run(self, node: Node) -> None:
        """A statement, or each of a list of them."""
        self.shell.limits.step()
        doubts = self.shell.doubts + (node.type in _DOUBTED)
        with self.shell.limits.deeper(), self.shell.having(doubts=doubts):
            handler = getattr(self, f"_run_{node.type}", None)
            if handler is not None:
                handler(node)
            elif node.type in _CONTAINERS:
                self.run_all(node.named_children)

    def _run_for_statement(self, node: Node) -> None:
        """The first round: sweeps train once for each word."""
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
        """One round, where it is sure to begin."""
        met = self.test(node.named_children[0])
        if met or (met is None and self.shell.hopeful):
            self.run(node.named_children[-1])
        elif met is None:
            self._skip_loop(node)

    def _skip_loop(self, node: Node) -> None:
        """What is assigned in a loop that is not followed is not known after it."""
        self.note(node, "a loop is not followed")
        line = self.line(node)
        for name in self.assigned_in(node):
            why = f"${name}, which a loop at line {line} sets that is not followed"
            self.shell.variables[name] = Text.not_known(why)

    _run_c_style_for_statement = _skip_loop

    def _run_list(self, node: Node) -> None:
        """`a && b`, `a || b`: b only where a's outcome, if known, lets it run."""
        left, right = node.named_children[0], node.named_children[-1]
        outcome = self._outcome(left)
        if outcome is None and left.type == "test_command":
            # Met, `a && b` runs b; not met, `a || b` does.
            if self.choose(left, [Branch(left, [right])], hopeful=False):
                self.run(right)
        elif outcome is None or outcome == (operator_of(node) == "&&"):
            self.run(right)

    def _outcome(self, node: Node) -> bool | None:
        """Whether a statement succeeds; it is run, if it is one that is run."""
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
        """`(( X = Y * 2 ))`, `let`."""
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
        # `declare -x` too.
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
        """The name that was assigned."""
        shell = self.shell
        target, *given = node.named_children
        name = self.piece(target).value
        value: Value = self._assigned(given[0]) if given else Text("")
        if target.type == "subscript":
            table, _, index = name.partition("[")
            name = f"{table}[{self.entry_name(index.removesuffix(']'))}]"
        # The entries that `M=([a]=1 [b]=2)` names.
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


def _appended(old: Value | None, more: Value) -> Value:
    """`X+=more`."""
    if isinstance(old, list) or isinstance(more, list):
        first = old if isinstance(old, list) else [old] if old is not None else []
        return [*first, *(more if isinstance(more, list) else [more])]
    return join([old or Text(""), more])


def _named(name: str, value: Value) -> Value:
    """What a variable holds; of an output that is not known, that the variable holds it."""
    if isinstance(value, list) or value.value != HOLE or not value.unknown.startswith("output"):
        return value
    return Text.not_known(f"${name}, {value.unknown}")
