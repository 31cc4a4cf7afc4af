"""What a script asks Slurm for in its `#SBATCH` lines, and the variables that Slurm sets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from planner.launch.read.arithmetic import evaluate_arithmetic
from planner.launch.read.text import Text

_LINE = re.compile(r"(?m)^[ \t]*#SBATCH[ \t]+([^#\n]*)")
# `--nodes=8`, `--nodes 8`, `-N 8` and `-N8`, of which a line may hold several.
_OPTION = re.compile(r"(?<!\S)(?:(--[\w-]+)(?:[= \t]+|$)|(-[A-Za-z])[= \t]*)([^\s-]\S*)?")
_VARIABLES = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "-N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "--gres": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "-n": ("SLURM_NTASKS", "SLURM_NPROCS"),
}


def slurm_options(source: Text) -> Iterator[tuple[str, Text]]:
    """Options with a value that `#SBATCH` lines state; none of a job of several components."""
    if "#SBATCH hetjob" in source.value or "#SBATCH packjob" in source.value:
        return
    for line in _LINE.finditer(source.value):
        for option in _OPTION.finditer(line[1]):
            if option[3]:
                at = line.start(1)
                yield option[1] or option[2], source[at + option.start(3) : at + option.end(3)]


def slurm_variables(source: Text) -> dict[str, Text]:
    """Variables that a script's `#SBATCH` lines bring, each with its place."""
    found: dict[str, Text] = {}
    for option, value in slurm_options(source):
        # gres=gpu:a100:8 ends with the number.
        for name in _VARIABLES.get(option, ()):
            found[name] = value[value.value.rfind(":") + 1 :]
    nodes, per_node = (found.get(name) for name in ("SLURM_NNODES", "SLURM_NTASKS_PER_NODE"))
    if "SLURM_NTASKS" not in found and nodes and per_node:
        product = evaluate_arithmetic(f"{nodes.value}*{per_node.value}", {})
        if product is not None:
            found["SLURM_NTASKS"] = Text.made(str(product))
    return found
