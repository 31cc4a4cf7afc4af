"""Launches under other outcomes of the branches that reading cannot decide.

The scripts are read again for each such branch. If all readings agree, the branch does not matter.
Where they differ, nothing that only one of them has is certain.
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
    """A launch with notes about what is uncertain, because of branches that could change it."""
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
    """The first launch that an untaken branch starts; the error if there is none."""
    for other in _others(undecided, again):
        if other.found is not None:
            text = f"whether it is started depends on {other.undecided.why}"
            problem = _problem(text, other)
            return replace(other.found, problems=(problem, *other.found.problems))
    raise error


def _others(undecided: Mapping[Site, Undecided], again: ReadAgain) -> Iterator[_Other]:
    """Readings with one branch changed, except those that start no training."""
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
    """The facts that determine a launch's behaviour, without places."""
    told = tuple(getattr(found, field.name) for field in fields(found) if field.name not in _APART)
    counts = tuple((count.kind, count.number) for count in found.counts)
    left_out = tuple((setting.key, setting.value, why) for setting, why in found.unmodelled)
    return (*told, counts, left_out, frozenset(_broken(found.problems)))


def _broken(problems: Sequence[Problem]) -> Iterator[tuple[str, str]]:
    """Problems that prevent a launch or a prediction."""
    for problem in problems:
        if problem.severity in ("error", "missing") or problem.rule == "not-predictable":
            yield problem.rule, problem.text


def _certain(
    problems: Sequence[Problem], others: Sequence[_Other], *, asked: bool
) -> Iterator[Problem]:
    """Problems, as far as they are certain whichever branch runs.

    An error that a branch would remove is not certain. `asked`: the user is asked about a branch;
    questions that the answer would also settle are left out, since the value of a variable alone
    would hide what else the branch sets.
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
    """The question about a branch: its effect, and the value that decides whether it runs. A
    reading with at least the same problems is not worth a question."""
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
