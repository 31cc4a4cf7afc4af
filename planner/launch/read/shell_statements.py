"""Conditions of a script: true, false, or beyond what reading can tell."""

from __future__ import annotations

import fnmatch
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from planner.launch.read.shell_state import Value
from planner.launch.read.shell_words import NO_ARGUMENT, Words, appended
from planner.launch.read.text import HOLE, Text, join

if TYPE_CHECKING:
    from tree_sitter import Node


_OPERATORS = (
    "=", "==", "!=", "-eq", "-ne", "-gt", "-lt", "-ge", "-le", "<", ">", "&&", "||", "-a", "-o",
    "=~",
)  # fmt: skip


class Tests(Words, ABC):
    """Words, and the tests made of them."""

    @abstractmethod
    def run(self, node: Node) -> None:
        """A statement, or each of a list of them."""

    def test(self, node: Node) -> bool | None:
        """Outcome of a condition; None where reading cannot tell."""
        self.shell.limits.step()
        with self.shell.limits.deeper():
            return self._test(node)

    def _test(self, node: Node) -> bool | None:
        children = [item for item in node.named_children if item.type != "comment"]
        match node.type:
            case "test_command" | "parenthesized_expression":
                return self.test(children[0]) if len(children) == 1 else None
            case "list" | "negated_command":
                return self._test_joined(node, children)
            case "unary_expression":
                return self._test_unary(node, children)
            case "binary_expression":
                return self._test_binary(node, children)
            case "command":
                if (name := self.name(node)) not in ("[", "test"):
                    self.run(node)
                return {"true": True, ":": True, "false": False}.get(name)
        return self._test_value(node)

    def _test_joined(self, node: Node, children: list[Node]) -> bool | None:
        """`a && b`, `a || b`, `! a`."""
        first = self.test(children[0])
        if node.type == "negated_command":
            return None if first is None else not first
        operator = next(c.type for c in node.children if c.type in ("&&", "||"))
        return _both(operator, first, self.test(children[-1]))

    def _test_value(self, node: Node) -> bool | None:
        """An arithmetic command, or a word that counts as true if it is not empty."""
        if node.type == "compound_statement":
            value, false = self.calculated(self.piece(node).value[2:-2]), "0"
        else:
            value, false = self.value(node), ""
        return None if value.unknown else value.value != false

    def _test_unary(self, node: Node, children: list[Node]) -> bool | None:
        operator = self.piece(node.children[0]).value
        if operator == "!":
            inner = self.test(children[-1])
            return None if inner is None else not inner
        if operator not in ("-z", "-n"):
            return None
        value = self.value(children[-1])
        if value.unknown and not value.unknown.startswith("$"):
            return None
        # A variable that nothing sets is empty.
        return bool(value.known) == (operator == "-n")

    def _test_binary(self, node: Node, children: list[Node]) -> bool | None:
        operator = next(
            (self.piece(c).value for c in node.children if self.piece(c).value in _OPERATORS), ""
        )
        if operator in ("&&", "||", "-a", "-o"):
            either = "||" if operator in ("||", "-o") else "&&"
            return _both(either, self.test(children[0]), self.test(children[-1]))
        # A pattern in parts, as `*"fsdp"*`, is several nodes.
        left, right = (
            self.value(children[0]),
            join(self.value(child) for child in children[1:] if child.type != "test_operator"),
        )
        if operator == "!=":
            left, right = _as_given(left), _as_given(right)
        if left.unknown or right.unknown:
            return None
        return _compare(operator, left.value, right.value)

    def name(self, node: Node) -> str:
        """Name of a command."""
        name = node.child_by_field_name("name")
        return self.piece(name).value if name else ""


def _as_given(value: Text) -> Text:
    """A value; an argument that nobody gives is empty: `[[ $1 != slurm ]]` holds."""
    absent = value.value == HOLE and NO_ARGUMENT in value.unknown
    return Text("") if absent else value


def matches(value: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(value, pattern)


def _both(operator: str, left: bool | None, right: bool | None) -> bool | None:
    """Three-valued `and` and `or`."""
    decisive = operator == "||"
    if decisive in (left, right):
        return decisive
    return None if left is None or right is None else not decisive


def _compare(operator: str, left: str, right: str) -> bool | None:
    if operator in ("=", "=="):
        return matches(left, right)
    if operator == "!=":
        return not matches(left, right)
    try:
        one, two = int(left or 0), int(right or 0)
    except ValueError:
        return None
    return {
        "-eq": one == two, "-ne": one != two, "-gt": one > two, "-lt": one < two,
        "-ge": one >= two, "-le": one <= two,
    }.get(operator)  # fmt: skip


_CONTAINERS = (
    "program", "pipeline", "subshell", "do_group", "negated_command",
)  # fmt: skip
_LOOPS = ("c_style_for_statement",)
# What is inside may not run, or not in this process, or may fail without an end.
_DOUBTED = (
    "if_statement", "case_statement", "while_statement", "list", "pipeline", "subshell",
    "negated_command",
)  # fmt: skip


class Statements(Tests):
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

    def _note(self, node: Node, what: str) -> None:
        self.shell.note(f"line {self._line(node)}: {what}")

    def _line(self, node: Node) -> int:
        place = self.piece(node).first()
        return place.line if place else 0

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
