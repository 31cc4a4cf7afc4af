"""Conditions of a script, and statements with branches: the branch that would run, or advice if
reading cannot determine it."""

from __future__ import annotations

import fnmatch
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from planner.launch.languages.shell.state import NO_ARGUMENT, NOT_SET, Site, Undecided
from planner.launch.languages.shell.syntax import operator_of
from planner.launch.languages.shell.words import Words
from planner.launch.languages.text import HOLE, Text, join

if TYPE_CHECKING:
    from tree_sitter import Node


# Variables in a test, and the value that one is compared with.
_NAMED = re.compile(r"\$\{?(\w+)")
_COMPARED = r"\$\{?%s\b[^\s=!]*\s*(?:==?|=~|!=|-eq|-ne|-ge|-gt|-le|-lt)\s*[\"'*^]*([\w.+/:-]+)"
# Longer quotations of a test or a branch add no information.
_LONGEST_SHOWN, _MOST_ADVISED = 60, 3
# Statements of a branch that rejects wrong settings.
_SAYS, _ENDS = re.compile(r"(echo|printf)\b(?!.*[|`]|.*\$\()"), re.compile(r"exit\s+[1-9]\d{0,2}")

_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt, "-lt": operator.lt,
    "-ge": operator.ge, "-le": operator.le,
}  # fmt: skip
_EITHER, _BOTH = ("||", "-o"), ("&&", "-a")
_OPERATORS = ("=", "==", "!=", "<", ">", "=~", *_NUMBERS, *_EITHER, *_BOTH)


class Branch(NamedTuple):
    """One branch of a statement: its test (None for `else`) and its statements."""

    test: Node | None
    body: list[Node]


class Branches(Words, ABC):
    """Evaluates conditions, and reads the branches of `if` and `case`."""

    @abstractmethod
    def run(self, node: Node) -> None:
        """Run a statement, or each statement in a list."""

    def test(self, node: Node) -> bool | None:
        """The outcome of a condition; None if reading cannot determine it."""
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
        """The outcome of an arithmetic command, or of a word, which is true unless empty. None if
        unknown."""
        is_number = node.type == "compound_statement"
        value = self.calculated(self.piece(node).value[2:-2]) if is_number else self.value(node)
        return None if value.unknown else value.value != ("0" if is_number else "")

    def _test_unary(self, sign: str, operand: Node) -> bool | None:
        if sign == "!":
            return _negated(self.test(operand))
        value = self.value(operand)
        if sign in ("-f", "-e", "-r", "-s"):
            at = self.source.first()
            # A file that is missing here may exist where the script runs.
            return self.shell.around.has_file(value.value, at.file.path if at else "") or None
        if sign not in ("-z", "-n"):
            return None
        if value.unknown and NOT_SET not in value.unknown and NO_ARGUMENT not in value.unknown:
            return None
        # A variable that is never set is empty.
        return bool(value.known) == (sign == "-n")

    def _test_binary(self, node: Node, children: list[Node]) -> bool | None:
        written = (self.piece(child).value for child in node.children)
        sign = next((text for text in written if text in _OPERATORS), "")
        if sign in _EITHER or sign in _BOTH:
            either = "||" if sign in _EITHER else "&&"
            return _joined(either, self.test(children[0]), self.test(children[-1]))
        # A pattern with several parts, such as `*"fsdp"*`, is several nodes.
        parts = (self.value(child) for child in children[1:] if child.type != "test_operator")
        left, right = self.value(children[0]), join(parts)
        if sign == "!=":
            left, right = _as_given(left), _as_given(right)
        return None if left.unknown or right.unknown else _compare(sign, left.value, right.value)

    def name(self, node: Node) -> str:
        """The name of a command as written; empty if it has none."""
        name = node.child_by_field_name("name")
        return self.piece(name).value if name else ""

    def note(self, node: Node, what: str) -> None:
        """Note a part of the script that is not followed, with its line."""
        self.shell.note(f"line {self.line(node)}: {what}")

    def line(self, node: Node) -> int:
        """The line where a node begins; 0 if it is not in a file."""
        place = self.piece(node).first()
        return place.line if place else 0

    def run_all(self, statements: Sequence[Node]) -> None:
        """Run statements in order."""
        for statement in statements:
            self.run(statement)

    def _run_if_statement(self, node: Node) -> None:
        """Run the first clause whose test is true. If an earlier test is undecided, the clause that
        `choose` selects is run instead; if it selects none, the first one whose test is true."""
        doubted: list[Branch] = []
        otherwise: list[Node] = []
        for clause in self._clauses(node):
            met = True if clause.test is None else self.test(clause.test)
            if met:
                otherwise = clause.body
                break
            doubted += [clause] if met is None else []
        taken = 0
        if doubted and doubted[0].test is not None:
            taken = self.choose(doubted[0].test, doubted, hopeful=self.shell.hopeful)
        self.run_all(doubted[taken - 1].body if taken else otherwise)

    def choose(self, node: Node, branches: Sequence[Branch], *, hopeful: bool) -> int:
        """The undecided branch to run, counted from 1; 0 for none. Branches that only end the
        script with an error are never taken, because a script that runs has passed them."""
        if all(self._is_guard(branch) for branch in branches):
            return 0
        taken = self.shell.chosen.get(self._site(node), int(hopeful))
        how = "met" if taken else "not met"
        self.note(node, f"a test that reading cannot decide; taken as {how}")
        unknown = self._deciding(node)
        shown = " ".join(self.piece(node).known.split())[:_LONGEST_SHOWN]
        why = self.variable(unknown).unknown if unknown else f"`{shown}`"
        self._remember(node, taken, why, [self._advice(node, one, unknown) for one in branches])
        return taken

    def _is_guard(self, branch: Branch) -> bool:
        """Whether a branch only prints something and ends the script with a failure."""
        said = [self.piece(one).value.strip() for one in branch.body if one.type != "comment"]
        return bool(said) and bool(_ENDS.fullmatch(said[-1])) and all(map(_SAYS.match, said[:-1]))

    def _site(self, node: Node) -> Site:
        place = self.piece(node).first()
        return (place.file.path, place.start) if place else ("", node.start_byte)

    def _remember(self, node: Node, taken: int, why: str, advice: Sequence[str]) -> None:
        """Record an undecided statement, only the first time that it is met."""
        place = self.piece(node).first()
        why = why.partition(f" ({self.shell.around.option}")[0]  # the advice says it
        unset = NOT_SET in why and not self.shell.missed
        found = Undecided(place.place if place else "", taken, why, tuple(advice), unset)
        self.shell.undecided.setdefault(self._site(node), found)

    def _deciding(self, node: Node) -> str:
        """The first unknown variable that a test compares; empty if there is none."""
        written = self.piece(node).value
        names = (name for name in _NAMED.findall(written) if _compared(name, written))
        return next((name for name in names if self.variable(name).unknown), "")

    def _advice(self, node: Node, branch: Branch, unknown: str) -> str:
        """Advice for a branch: the value of the unknown variable that would make it run, or options
        for the variables that it sets."""
        if unknown:
            test = node if branch.test is None else branch.test
            compared = _compared(unknown, self.piece(test).value)
            return self._given(unknown, compared or "VALUE")
        names = dict.fromkeys(name for one in branch.body for name in self.assigned_in(one))
        return " ".join(self._given(name, "VALUE") for name in list(names)[:_MOST_ADVISED])

    def _given(self, name: str, value: str) -> str:
        return f"{self.shell.around.option} {name}={value}"

    def assigned_in(self, node: Node) -> Iterator[str]:
        """Variables set by a statement or anything inside it."""
        below = [node]
        while below:
            self.shell.limits.step()
            one = below.pop()
            below += reversed(one.named_children)
            if one.type == "variable_assignment" and one.named_children[0].type == "variable_name":
                yield self.piece(one.named_children[0]).value

    def _clauses(self, node: Node) -> Iterator[Branch]:
        """The branches of if, elif and else; else has no test."""
        others = ("elif_clause", "else_clause", "comment")
        first = [item for item in node.named_children if item.type not in others]
        yield Branch(first[0], first[1:])
        for item in node.named_children:
            inner = item.named_children
            if item.type == "elif_clause":
                yield Branch(inner[0], inner[1:])
            elif item.type == "else_clause":
                yield Branch(None, inner)

    def _run_case_statement(self, node: Node) -> None:
        """Run the item whose pattern matches the word. If the word is unknown, run the chosen item,
        if any."""
        word, *items = node.named_children
        value = self.value(word)
        read = (self._patterns(item) for item in items if item.type == "case_item")
        if not value.unknown:
            for patterns, body in read:
                if any(fnmatch.fnmatchcase(value.value, pattern) for pattern in patterns):
                    self.run_all(body)
                    return
            return
        taken = self.shell.chosen.get(self._site(node), 0)
        if not taken:
            self.note(node, f"a case that reading cannot decide ({value.unknown}); skipped")
        name = next(iter(_NAMED.findall(self.piece(word).value)), "")
        every = list(read)
        advice = [self._given(name, patterns[0] if patterns else "VALUE") for patterns, _ in every]
        self._remember(node, taken, value.unknown, advice)
        if taken:
            self.run_all(every[taken - 1][1])

    def _patterns(self, item: Node) -> tuple[list[str], list[Node]]:
        """The patterns of a case item, and its statements."""
        patterns = item.children_by_field_name("value")
        return [self.value(one).value for one in patterns], item.named_children[len(patterns) :]


def _compared(name: str, test: str) -> str:
    """The value that a test compares a variable with; empty if there is none."""
    found = re.search(_COMPARED % re.escape(name), test)
    return found[1] if found else ""


def _as_given(value: Text) -> Text:
    """The value, except that a script argument that was not given counts as empty: `[[ $1 != slurm
    ]]` is true."""
    absent = value.value == HOLE and NO_ARGUMENT in value.unknown
    return Text("") if absent else value


def _negated(outcome: bool | None) -> bool | None:
    return None if outcome is None else not outcome


def _joined(sign: str, left: bool | None, right: bool | None) -> bool | None:
    """Three-valued `&&` or `||`."""
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
