"""Which statements of a script run: lists, conditions, loops, cases; and what they assign."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from planner.launch.read.shell_state import Value
from planner.launch.read.shell_tests import Tests, matches
from planner.launch.read.shell_words import appended
from planner.launch.read.text import Text

if TYPE_CHECKING:
    from tree_sitter import Node

_CONTAINERS = (
    "program", "pipeline", "subshell", "do_group", "negated_command",
)  # fmt: skip
_LOOPS = ("c_style_for_statement",)


class Statements(Tests):
    """Tests, and the statements that hang on them; a subclass says what a command does."""

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
        line = self.shell.files.line(self.piece(node).first())
        below = [node]
        while below:
            self.shell.limits.step()
            one = below.pop()
            below += one.named_children
            if one.type == "variable_assignment" and one.named_children[0].type == "variable_name":
                name = self.piece(one.named_children[0]).value
                why = f"${name}, which a loop at line {line} sets that is not followed"
                self.shell.variables[name] = Text.not_known(why)

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
        value: Value = self._assigned(value_node[0]) if value_node else Text("")
        if target.type == "subscript":
            table, _, index = name.partition("[")
            name = f"{table}[{self.entry_name(index.removesuffix(']'))}]"
        if isinstance(value, list):
            self._fill(name, value)
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
