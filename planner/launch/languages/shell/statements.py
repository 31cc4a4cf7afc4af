"""Statements of a script that set variables, or hang on conditions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from planner.launch.languages.shell.branches import Branches
from planner.launch.languages.shell.state import Branch, Value, may_set
from planner.launch.languages.shell.words import appended
from planner.launch.languages.text import HOLE, Text

if TYPE_CHECKING:
    from tree_sitter import Node


_CONTAINERS = (
    "program", "pipeline", "subshell", "do_group", "negated_command",
)  # fmt: skip
_LOOPS = ("c_style_for_statement",)
# What is inside may not run, or not in this process, or may fail without an end.
_DOUBTED = (
    "if_statement", "case_statement", "while_statement", "list", "pipeline", "subshell",
    "negated_command",
)  # fmt: skip


class Statements(Branches):
    """Tests, and the statements that hang on them; a subclass says what a command does."""

    def run(self, node: Node) -> None:
        """A statement, or each of a list of them."""
        self.shell.limits.step()
        doubted = node.type in _DOUBTED
        with self.shell.limits.deeper(), self.shell.doubting(doubted=doubted):
            self._run(node)

    def _run(self, node: Node) -> None:
        handler = getattr(self, f"_run_{node.type}", None)
        if handler is not None:
            handler(node)
        elif node.type in _CONTAINERS:
            for child in node.named_children:
                self.run(child)
        elif node.type in _LOOPS:
            self._skip_loop(node)

    def _run_for_statement(self, node: Node) -> None:
        """The first round: sweeps train once for each word."""
        variable, *rest = node.named_children
        listed = [word.text for item in rest[:-1] for word in self.words(item)]
        if not listed:
            self._skip_loop(node)
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
            self._skip_loop(node)

    def _skip_loop(self, node: Node) -> None:
        """What is assigned in a loop that is not followed is not known after it."""
        self._note(node, "a loop is not followed")
        line = self._line(node)
        below = [node]
        while below:
            self.shell.limits.step()
            one = below.pop()
            below += one.named_children
            if one.type == "variable_assignment" and one.named_children[0].type == "variable_name":
                name = self.piece(one.named_children[0]).value
                why = f"${name}, which a loop at line {line} sets that is not followed"
                self.shell.variables[name] = Text.not_known(why)

    def _run_list(self, node: Node) -> None:
        """`a && b`, `a || b`: b only where a's outcome, if known, lets it run."""
        left, right = node.named_children[0], node.named_children[-1]
        outcome = self._outcome(left)
        operator = next(child.type for child in node.children if child.type in ("&&", "||"))
        if outcome is None and left.type == "test_command":
            # Met, `a && b` runs b; not met, `a || b` does.
            if self._choose(left, [Branch(left, [right])], hopeful=False):
                self.run(right)
        elif outcome is None or outcome == (operator == "&&"):
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
        value: Value = self._assigned(value_node[0]) if value_node else Text("")
        if target.type == "subscript":
            table, _, index = name.partition("[")
            name = f"{table}[{self.entry_name(index.removesuffix(']'))}]"
        if isinstance(value, list):
            self._fill(name, value)
        if appends:
            before = self.shell.variables.get(name)
            if before is None and self.shell.missed:
                before = Text.not_known(f"${name}, {may_set(self.shell.missed)}")
            value = appended(before, value)
            self.shell.limits.step(0 if isinstance(value, list) else len(value.value))
        self.shell.limits.grown(value)
        self.shell.variables[name] = _named(name, value)
        return name

    def _fill(self, name: str, items: list[Text]) -> None:
        """The entries that `M=([a]=1 [b]=2)` names."""
        for item in items:
            match = re.match(r"\[([^\]]*)\]=", item.value)
            if match:
                value = item[match.end() :]
                self.shell.variables[f"{name}[{match[1]}]"] = value

    def _assigned(self, node: Node) -> Value:
        if node.type == "array":
            return [word.text for child in node.named_children for word in self.words(child)]
        return self.value(node)


def _named(name: str, value: Value) -> Value:
    """What a variable holds; of an output that is not known, that the variable holds it."""
    if isinstance(value, list) or value.value != HOLE or not value.unknown.startswith("output"):
        return value
    return Text.not_known(f"${name}, {value.unknown}")
