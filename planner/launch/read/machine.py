"""What a script learns of the machine that it runs on: its nodes, and the GPUs of a node.

The GPUs that the user names answer what a scheduler's variables say and what commands count, so
that nobody has to give the same numbers again. Files that say them themselves are right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hardware.files import shipped_toml
from planner.launch.languages.shell import Starters

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
