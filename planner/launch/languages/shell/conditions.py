"""Conditions of a script: true, false, or beyond what reading can tell."""

from __future__ import annotations

import fnmatch
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from planner.launch.languages.shell.outputs import Outputs
from planner.launch.languages.shell.state import NO_ARGUMENT, NOT_SET
from planner.launch.languages.shell.syntax import operator_of
from planner.launch.languages.text import HOLE, Text, join

if TYPE_CHECKING:
    from tree_sitter import Node

_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt, "-lt": operator.lt,
    "-ge": operator.ge, "-le": operator.le,
}  # fmt: skip
_EITHER, _BOTH = ("||", "-o"), ("&&", "-a")
_OPERATORS = ("=", "==", "!=", "<", ">", "=~", *_NUMBERS, *_EITHER, *_BOTH)


class Tests(Outputs, ABC):
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
            case "list":
                return _joined(operator_of(node), self.test(children[0]), self.test(children[-1]))
            case "unary_expression" | "negated_command":
                return self._test_unary(self.piece(node.children[0]).value, children[-1])
            case "binary_expression":
                return self._test_binary(node, children)
            case "command":
                if (name := self.name(node)) not in ("[", "test"):
                    self.run(node)
                return {"true": True, ":": True, "false": False}.get(name)
        return self._test_value(node)

    def _test_value(self, node: Node) -> bool | None:
        """An arithmetic command, or a word that counts as true if it is not empty."""
        is_number = node.type == "compound_statement"
        value = self.calculated(self.piece(node).value[2:-2]) if is_number else self.value(node)
        return None if value.unknown else value.value != ("0" if is_number else "")

    def _test_unary(self, sign: str, operand: Node) -> bool | None:
        if sign == "!":
            return _negated(self.test(operand))
        value = self.value(operand)
        if sign in ("-f", "-e", "-r", "-s"):
            at = self.source.first()
            # One that is not beside the script may be there where it runs.
            return self.shell.around.has_file(value.value, at.file.path if at else "") or None
        if sign not in ("-z", "-n"):
            return None
        if value.unknown and NOT_SET not in value.unknown and NO_ARGUMENT not in value.unknown:
            return None
        # A variable that nothing sets is empty.
        return bool(value.known) == (sign == "-n")

    def _test_binary(self, node: Node, children: list[Node]) -> bool | None:
        written = (self.piece(child).value for child in node.children)
        sign = next((text for text in written if text in _OPERATORS), "")
        if sign in _EITHER or sign in _BOTH:
            either = "||" if sign in _EITHER else "&&"
            return _joined(either, self.test(children[0]), self.test(children[-1]))
        # A pattern in parts, as `*"fsdp"*`, is several nodes.
        parts = (self.value(child) for child in children[1:] if child.type != "test_operator")
        left, right = self.value(children[0]), join(parts)
        if sign == "!=":
            left, right = _as_given(left), _as_given(right)
        return None if left.unknown or right.unknown else _compare(sign, left.value, right.value)

    def name(self, node: Node) -> str:
        """Name of a command."""
        name = node.child_by_field_name("name")
        return self.piece(name).value if name else ""


def _as_given(value: Text) -> Text:
    """A value; an argument that nobody gives is empty: `[[ $1 != slurm ]]` holds."""
    absent = value.value == HOLE and NO_ARGUMENT in value.unknown
    return Text("") if absent else value


def _negated(outcome: bool | None) -> bool | None:
    return None if outcome is None else not outcome


def _joined(sign: str, left: bool | None, right: bool | None) -> bool | None:
    """Three-valued `and` and `or`."""
    decisive = sign == "||"
    if decisive in (left, right):
        return decisive
    return None if left is None or right is None else not decisive


def _compare(sign: str, left: str, right: str) -> bool | None:
    if sign in ("=", "==", "!="):
        return fnmatch.fnmatchcase(left, right) == (sign != "!=")
    try:
        return _NUMBERS[sign](int(left or 0), int(right or 0))
    except (LookupError, ValueError):
        return None
