"""What the environment of a launch's command says, whatever the framework."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hardware.files import shipped_toml
from hardware.transport import VARIABLES
from planner.launch.languages.shell import Starters
from planner.launch.languages.text import digits
from planner.launch.read.command import LaunchCommand, setting_of
from planner.launch.read.found import Found, Problem, Setting

_BLOCKING = "CUDA_LAUNCH_BLOCKING"


def with_blocking(found: Found, launch: LaunchCommand | None) -> Found:
    """With launches that the CPU waits for, where CUDA is asked for them."""
    given = None if launch is None else launch.command.environment.get(_BLOCKING)
    if given is None or not digits(given.value.strip()):
        return found
    problem = Problem(
        "blocking-launches",
        f"{_BLOCKING}={given.value} is for debugging: the CPU waits for each kernel to end",
        "warning",
        places=tuple(span.place for span in [given.first()] if span),
        fix=f"unset {_BLOCKING}",
    )
    variations = (*found.variations, "blocking-launches")
    return replace(found, variations=variations, problems=(*found.problems, problem))


def with_network(
    found: Found, launch: LaunchCommand | None, given: Mapping[str, str] | None = None
) -> Found:
    """With the variables of NCCL and libfabric that the command sees; `given`: by the user, who is
    right. One whose value is not known is noted, and counts as not set."""
    environment = {} if launch is None else launch.command.environment
    stated = given or {}
    settings = {
        name: setting_of(name, environment[name]) for name in VARIABLES if name in environment
    }
    settings |= {name: Setting(name, stated[name]) for name in VARIABLES if name in stated}
    unknown = [setting for setting in settings.values() if setting.unknown]
    notes = tuple(
        Problem(
            "network-unknown",
            f"{setting.key} is {setting.unknown}: counted as not set",
            "note",
            (setting.place,),
            fix=f"--env {setting.key}=VALUE",
        )
        for setting in unknown
    )
    known = tuple(setting for setting in settings.values() if not setting.unknown)
    return replace(found, network=known, problems=(*found.problems, *notes))


def as_unread_may_set(
    problems: Sequence[Problem], launch: LaunchCommand | None, noted: Sequence[Problem]
) -> Iterator[Problem]:
    """A variable that is not set may be in a file of them that was not there, which is `noted`."""
    words = () if launch is None else launch.command.words
    unread = [item.text for item in noted if item.text.startswith("source ")]
    unread += [one.text.value for one in words if one.text.value.startswith("--env-file")]
    for problem in problems:
        is_absent = problem.rule == "cuda-device-max-connections" and "not set" in problem.text
        if not (unread and is_absent):
            yield problem
            continue
        text = f"{problem.text}; {unread[0].partition(':')[0]} may set it, and was not read"
        yield replace(problem, severity="warning", text=text)


_TABLES = shipped_toml("planner.launch.read", "counts.toml")
# Launchers and schedulers as programs that start others.
STARTERS = Starters(**_TABLES["starters"])
# What a script counts, and the variables that say the same.
_COUNTED = tuple(
    (re.compile(row["command"], re.DOTALL), row["variables"]) for row in _TABLES["counted"]
)


def machine_variables(nodes: int | None, gpus_per_node: int | None) -> dict[str, str]:
    """Variables that a scheduler sets on such a machine, by name; none for what is not known."""
    numbers = {"nodes": nodes, "gpus a node": gpus_per_node}
    return {
        name: str(number)
        for kind, number in numbers.items()
        if number is not None
        for name in _TABLES["machine"][kind]
    }


def counted_by(command: str) -> Sequence[str]:
    """The variables, first come, that say the number which `$(...)` counts; none for another."""
    return next((names for what, names in _COUNTED if what.match(command)), ())
