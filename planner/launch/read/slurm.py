"""What Slurm puts into a script's environment: its `#SBATCH` lines as variables."""

from __future__ import annotations

import re

from planner.launch.read.arithmetic import evaluate_arithmetic
from planner.launch.read.text import Text

_SBATCH = re.compile(r"^#SBATCH\s+--?([\w-]+)(?:[=\s]+(\S+))?", re.MULTILINE)
# What Slurm sets from its options.
_VARIABLES = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "gres": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "n": ("SLURM_NTASKS", "SLURM_NPROCS"),
}


def slurm_variables(source: Text) -> dict[str, Text]:
    """Variables that a script's `#SBATCH` lines bring, each with its place."""
    found: dict[str, Text] = {}
    for match in _SBATCH.finditer(source.value):
        if match[2] is None:
            continue
        # gres=gpu:a100:8 ends with the number.
        at = match.start(2) + (match[2].rfind(":") + 1)
        for name in _VARIABLES.get(match[1], ()):
            found[name] = source[at : match.end(2)]
    nodes, per_node = (found.get(name) for name in ("SLURM_NNODES", "SLURM_NTASKS_PER_NODE"))
    if "SLURM_NTASKS" not in found and nodes and per_node:
        product = evaluate_arithmetic(f"{nodes.value}*{per_node.value}", {})
        if product is not None:
            found["SLURM_NTASKS"] = Text.made(str(product))
    return found
