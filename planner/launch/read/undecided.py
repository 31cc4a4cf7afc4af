"""Branches of scripts that reading cannot decide: whether they matter to the launch.

The scripts are read again for each such branch. If all readings agree, the branch does not matter.
Where they differ, a problem that only one reading has is not certain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice

from hardware.errors import HardwareError
from planner.job.errors import CannotTellError, UsageError
from planner.launch.languages.shell import Site, Undecided
from planner.launch.read.found import Found, Problem

RULE = "undecided-branch"
# Limits for reading a launch again: how often, and for how many seconds.
_MOST_READINGS, _MOST_SECONDS = 24, 4.0
# Fields that may differ between two readings of the same launch.
_APART = {
    "files", "settings", "unused", "where", "document", "main_file", "problems", "counts",
    "environment", "unknown", "unmodelled", "assumed", "left_open",
}  # fmt: skip
_MOST_NAMED = 4

# A launch with some branches chosen, and the program that it starts; None if nothing that trains is
# started.
Reading = tuple[Found | None, str]
ReadAgain = Callable[[Mapping[Site, int]], Reading]


@dataclass(frozen=True)
class _Other:
    """A reading with another branch taken; `found` is None if it cannot be read."""

    undecided: Undecided
    branch: int
    found: Found | None
    program: str = ""


def settled(
    found: Found, program: str, undecided: Mapping[Site, Undecided], again: ReadAgain
) -> Found:
    """The launch, with a problem for each undecided branch that would change it. Unchanged if none
    would."""
    gist = _gist(found)
    others = [
        other
        for other in _others(undecided, again)
        if other.found is None or _gist(other.found) != gist
    ]
    if not others:
        return found
    said = {other.undecided.place: _said(found, program, other) for other in reversed(others)}
    asked = any(problem.severity == "missing" for problem in said.values())
    problems = _certain(found.problems, others, asked=asked)
    return replace(found, problems=(*reversed(said.values()), *problems))


def first_readable(
    error: CannotTellError, undecided: Mapping[Site, Undecided], again: ReadAgain
) -> Found:
    """The launch of the first reading with another branch that can be read. If there is none,
    `error` is raised."""
    for other in _others(undecided, again):
        if other.found is not None:
            text = f"whether it is started depends on {other.undecided.why}"
            problem = _problem(text, other)
            return replace(other.found, problems=(problem, *other.found.problems))
    raise error


def _others(undecided: Mapping[Site, Undecided], again: ReadAgain) -> Iterator[_Other]:
    """Other readings of the launch, each with one branch changed, within limits of number and time.
    Those that start no training are left out."""
    started = time.monotonic()
    choices = (
        (site, one, branch)
        for site, one in undecided.items()
        for branch in range(len(one.advice) + 1)
        if branch != one.taken
    )
    for site, one, branch in islice(choices, _MOST_READINGS):
        if time.monotonic() - started > _MOST_SECONDS:
            return
        try:
            found, program = again({site: branch})
        except (CannotTellError, UsageError, HardwareError):
            yield _Other(one, branch, None)
            continue
        if found is not None:
            yield _Other(one, branch, found, program)


def _gist(found: Found) -> tuple[object, ...]:
    """The facts that make two readings the same launch: everything but the places and notes."""
    told = tuple(getattr(found, field.name) for field in fields(found) if field.name not in _APART)
    counts = tuple((count.kind, count.number) for count in found.counts)
    left_out = tuple((setting.key, setting.value, why) for setting, why in found.unmodelled)
    return (*told, counts, left_out, frozenset(_broken(found.problems)))


def _broken(problems: Sequence[Problem]) -> Iterator[tuple[str, str]]:
    """Rule and text of each problem that prevents the launch or its prediction."""
    for problem in problems:
        if problem.severity in ("error", "missing") or problem.rule == "not-predictable":
            yield problem.rule, problem.text


def _certain(
    problems: Sequence[Problem], others: Sequence[_Other], *, asked: bool
) -> Iterator[Problem]:
    """The problems, as far as they are certain whichever branch runs. An error that another branch
    would remove becomes a missing value.

    `asked`: the user is asked about a branch. Questions that the other reading does not have are
    then left out: the answer would settle them, and giving only their variable would hide the other
    settings of the branch.
    """
    readings = [other.found.problems for other in others if other.found is not None]
    said = [{(problem.rule, problem.text) for problem in reading} for reading in readings]
    broken = [set(_broken(reading)) for reading in readings]
    for problem in problems:
        name = (problem.rule, problem.text)
        is_question = problem.severity == "missing" or problem.rule == "unresolved"
        if asked and is_question and not all(name in reading for reading in said):
            continue
        is_certain = problem.severity != "error" or all(name in reading for reading in broken)
        yield problem if is_certain else replace(problem, severity="missing", edits=())


def _said(found: Found, program: str, other: _Other) -> Problem:
    """The problem that asks the user about a branch: its effect, and the value that decides whether
    it runs. Only a warning if the test asks for an unset variable and the other reading has at
    least the same problems."""
    text = f"{_differing(found, program, other)} depends on {other.undecided.why}"
    is_soft = other.found and set(_broken(found.problems)) <= set(_broken(other.found.problems))
    if is_soft and other.undecided.unset:
        return replace(_problem(f"{text}: taken as unset", other), severity="warning")
    return _problem(text, other)


def _differing(found: Found, program: str, other: _Other) -> str:
    """How two readings differ, in words."""
    if other.found is None:
        return "the launch"
    if program != other.program:
        return f"which program runs, {program} or {other.program},"
    one, two = ({item.key: item.value for item in each.settings} for each in (found, other.found))
    idle = {item.key for each in (found, other.found) for item in each.unused}
    keys = [key for key in {**one, **two} if one.get(key) != two.get(key) and key not in idle]
    more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
    return f"the value of {', '.join(keys[:_MOST_NAMED])}{more}" if keys else "the launch"


def _problem(text: str, other: _Other) -> Problem:
    undecided = other.undecided
    advised = undecided.advice[max(other.branch, 1) - 1] if undecided.advice else ""
    fix = advised or "give the arguments of its training command in a file of their own"
    return Problem(RULE, text, "missing", (undecided.place,), fix)
