"""Statements with branches: which one runs, and what would tell where reading cannot."""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from planner.launch.languages.shell.conditions import Tests, matches
from planner.launch.languages.shell.state import NOT_SET, Branch, Site, Undecided
from planner.launch.languages.text import Text

if TYPE_CHECKING:
    from tree_sitter import Node


# Variables of a test, and what it compares one with.
_NAMED = re.compile(r"\$\{?(\w+)")
_COMPARED = r"\$\{?%s\b[^\s=!]*\s*(?:==?|=~|!=|-eq|-ne|-ge|-gt|-le|-lt)\s*[\"'*^]*([\w.+/:-]+)"
# More of a test or of what a branch sets tells no more.
_LONGEST_SHOWN, _MOST_ADVISED = 60, 3


# What a test of settings does where they are wrong.
_SAYS, _ENDS = re.compile(r"(echo|printf)\b(?!.*[|`]|.*\$\()"), re.compile(r"exit\s+[1-9]\d{0,2}")


class Branches(Tests, ABC):
    """`if`, `case`, and the branches of them that are read."""

    def _note(self, node: Node, what: str) -> None:
        self.shell.note(f"line {self._line(node)}: {what}")

    def _line(self, node: Node) -> int:
        place = self.piece(node).first()
        return place.line if place else 0

    def _run_if_statement(self, node: Node) -> None:
        """The first clause whose test is met; from one on that reading cannot decide, the one that
        is chosen."""
        clauses = self._clauses(node)
        for at, (test, body) in enumerate(clauses):
            met = True if test is None else self.test(test)
            if met is None and test is not None:
                self._run_chosen(test, clauses[at:])
                return
            if met:
                self._run_all(body)
                return

    def _run_all(self, statements: Sequence[Node]) -> None:
        for statement in statements:
            self.run(statement)

    def _run_chosen(self, test: Node, clauses: list[Branch]) -> None:
        """Clauses of which the first is not decided: one with a test as chosen, or what follows."""
        doubted = clauses[:1]
        otherwise: list[Node] = []
        for clause in clauses[1:]:
            met = True if clause.test is None else self.test(clause.test)
            if met:
                otherwise = clause.body
                break
            doubted += [clause] if met is None else []
        taken = self._choose(test, doubted, hopeful=self.shell.hopeful)
        self._run_all(doubted[taken - 1].body if taken else otherwise)

    def _choose(self, node: Node, branches: Sequence[Branch], *, hopeful: bool) -> int:
        """Which branch is read where reading cannot decide, counted from 1; 0 for none. A script
        that runs has passed the tests that only end it."""
        if all(self._is_guard(branch) for branch in branches):
            return 0
        taken = self.shell.chosen.get(self._site(node), int(hopeful))
        how = "met" if taken else "not met"
        self._note(node, f"a test that reading cannot decide; taken as {how}")
        unknown = self._deciding(node)
        why = self.variable(unknown).unknown if unknown else f"`{self._shown(node)}`"
        self._remember(node, taken, why, [self._advice(node, one, unknown) for one in branches])
        return taken

    def _is_guard(self, branch: Branch) -> bool:
        """Whether a branch does no more than say something and end the script with a failure."""
        body = [one for one in branch.body if one.type != "comment"]
        said = [self.piece(one).value.strip() for one in body]
        return bool(said) and all(
            _SAYS.match(one) if at < len(said) - 1 else _ENDS.fullmatch(one)
            for at, one in enumerate(said)
        )

    def _site(self, node: Node) -> Site:
        place = self.piece(node).first()
        return (place.file.path, place.start) if place else ("", node.start_byte)

    def _remember(self, node: Node, taken: int, why: str, advice: Sequence[str]) -> None:
        """Note a statement that is not decided, as it is first met."""
        place = self.piece(node).first()
        why = why.partition(" (--env")[0]  # the advice says it
        unset = NOT_SET in why and not self.shell.missed
        found = Undecided(place.place if place else "", taken, why, tuple(advice), unset)
        self.shell.undecided.setdefault(self._site(node), found)

    def _shown(self, node: Node) -> str:
        """A test as its script has it, on one line."""
        return " ".join(self.piece(node).known.split())[:_LONGEST_SHOWN]

    def _deciding(self, node: Node) -> str:
        """The first variable that a test compares and whose value is not known."""
        written = self.piece(node).value
        names = [name for name in _NAMED.findall(written) if _compared(name, written)]
        return next((name for name in names if self.variable(name).unknown), "")

    def _advice(self, node: Node, branch: Branch, unknown: str) -> str:
        """The option that would have a branch run, or would say what it sets."""
        test = node if branch.test is None else branch.test
        if unknown:
            return f"--env {unknown}={_compared(unknown, self.piece(test).value) or 'VALUE'}"
        names = dict.fromkeys(name for one in branch.body for name in self._assigned_in(one))
        return " ".join(f"--env {name}=VALUE" for name in list(names)[:_MOST_ADVISED])

    def _assigned_in(self, node: Node) -> Iterator[str]:
        """Variables that a statement, or one inside it, sets."""
        below = [node]
        while below:
            self.shell.limits.step()
            one = below.pop()
            below += reversed(one.named_children)
            if one.type == "variable_assignment" and one.named_children[0].type == "variable_name":
                yield self.piece(one.named_children[0]).value

    def _clauses(self, node: Node) -> list[Branch]:
        """Those of if, elif and else; no test for else."""
        items: list[Node] = []
        rest: list[Branch] = []
        for child in node.named_children:
            if child.type == "elif_clause":
                rest.append(Branch(child.named_children[0], child.named_children[1:]))
            elif child.type == "else_clause":
                rest.append(Branch(None, child.named_children))
            elif child.type != "comment":
                items.append(child)
        return [Branch(items[0], items[1:]), *rest]

    def _run_case_statement(self, node: Node) -> None:
        """The item whose pattern the word matches; where the word is not known, the chosen one."""
        word, *items = node.named_children
        items = [item for item in items if item.type == "case_item"]
        value = self.value(word)
        if value.unknown:
            self._run_chosen_item(node, word, items, value)
            return
        for item in items:
            patterns, body = self._patterns(item)
            if any(matches(value.value, pattern) for pattern in patterns):
                self._run_all(body)
                return

    def _patterns(self, item: Node) -> tuple[list[str], list[Node]]:
        """Patterns of a case, and its statements."""
        patterns = item.children_by_field_name("value")
        return [self.value(one).value for one in patterns], item.named_children[len(patterns) :]

    def _run_chosen_item(self, node: Node, word: Node, items: list[Node], value: Text) -> None:
        """One item of a case whose word is not known; none where none is chosen."""
        taken = self.shell.chosen.get(self._site(node), 0)
        if not taken:
            self._note(node, f"a case that reading cannot decide ({value.unknown}); skipped")
        name = next(iter(_NAMED.findall(self.piece(word).value)), "")
        read = [self._patterns(item) for item in items]
        advice = [f"--env {name}={patterns[0] if patterns else 'VALUE'}" for patterns, _ in read]
        self._remember(node, taken, value.unknown, advice)
        if taken:
            self._run_all(read[taken - 1][1])


def _compared(name: str, test: str) -> str:
    """What a test compares a variable with; empty where it compares it with nothing."""
    found = re.search(_COMPARED % re.escape(name), test)
    return found[1] if found else ""
