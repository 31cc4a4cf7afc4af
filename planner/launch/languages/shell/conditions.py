"""Conditions of a script: true, false, or beyond what reading can tell."""

from __future__ import annotations

import fnmatch
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from planner.launch.languages.shell.state import NO_ARGUMENT, NOT_SET
from planner.launch.languages.shell.words import Words
from planner.launch.languages.text import HOLE, Text, join

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
        value = self.value(children[-1])
        if operator in ("-f", "-e", "-r", "-s"):
            at = self.source.first()
            # One that is not beside the script may be there where it runs.
            return self.shell.has_file(value.value, at.file.path if at else "") or None
        if operator not in ("-z", "-n"):
            return None
        if value.unknown and NOT_SET not in value.unknown and NO_ARGUMENT not in value.unknown:
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
