"""What the environment of a launch's command says, whatever the framework."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hardware.files import shipped_toml
from hardware.transport import VARIABLES
from planner.launch.languages.shell import Starters
from planner.launch.languages.text import Text, digits
from planner.launch.read.command import LaunchCommand
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
        name: _variable(name, environment[name]) for name in VARIABLES if name in environment
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


def _variable(name: str, text: Text) -> Setting:
    place = text.first()
    where = (place.file.path, place.line) if place else ("", 0)
    return Setting(name, text.value, *where, unknown=text.unknown)


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
_VARIABLES: Mapping[str, list[str]] = _TABLES["machine"]
# Launchers and schedulers as programs that start others.
STARTERS = Starters(**_TABLES["starters"])
_COUNTS_LINES = r".*\b(wc\s+(-l|--lines)\b|grep\s+(-\w*c|--count)\b)"
# What a script counts, and the variables that say the same. PBS_NODEFILE names a node once for each
# of its processes.
_COUNTED = tuple(
    (re.compile(pattern, re.DOTALL), names)
    for pattern, names in (
        (rf"(?=.*\b(uniq|sort -u)\b).*\bPBS_NODEFILE\b{_COUNTS_LINES}", ("PBS_NUM_NODES",)),
        (rf"(?=.*\bPBS_NODEFILE\b){_COUNTS_LINES}", ("PBS_NP",)),
        (rf".*\bscontrol show hostnames?\b{_COUNTS_LINES}", ("SLURM_NNODES",)),
        (
            r".*\b(nvidia-smi (-L|--list-gpus|--query-gpu=\S+ --format=csv,noheader\S*)|"
            rf"ls (-\w+ )?/dev/nvidia\[0-9\]\S*){_COUNTS_LINES}",
            ("SLURM_GPUS_PER_NODE", "PBS_NGPUS"),
        ),
        (
            r".*\bpython[\d.]* .*\btorch\.cuda\.device_count\(\)",
            ("SLURM_GPUS_PER_NODE", "PBS_NGPUS"),
        ),
    )
)


def machine_variables(nodes: int | None, gpus_per_node: int | None) -> dict[str, str]:
    """Variables that a scheduler sets on such a machine, by name; none for what is not known."""
    numbers = {"nodes": nodes, "gpus a node": gpus_per_node}
    return dict(_named(numbers))


def _named(numbers: Mapping[str, int | None]) -> Iterator[tuple[str, str]]:
    for kind, number in numbers.items():
        if number is not None:
            yield from ((name, str(number)) for name in _VARIABLES[kind])


def counted_by(command: str) -> tuple[str, ...]:
    """The variables, first come, that say the number which `$(...)` counts; none for another."""
    return next((names for what, names in _COUNTED if what.match(command)), ())
