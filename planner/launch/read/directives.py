"""What a script asks Slurm, PBS or Grid Engine for, and the variables that these set."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from planner.launch.read.arithmetic import evaluate_arithmetic
from planner.launch.read.text import Text

_LINE = re.compile(r"(?m)^[ \t]*#SBATCH[ \t]+([^#\n]*)")
# `-l select=2:ncpus=36:ngpus=8`, `-l nodes=2:ppn=8`; ABCI's Grid Engine: `#$ -l rt_AF=2`.
_PBS_LINE = re.compile(r"(?m)^[ \t]*#(?:PBS|\$)[ \t]+([^#\n]*)")
_RESOURCES = re.compile(r"(?<!\S)-l[ \t]*(\S+)")
_RESOURCE = re.compile(r"(\w+)=([^:,]+)")
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

# What PBS and ABCI's Grid Engine (rt_F, rt_AF: whole nodes) call nodes.
PBS_NODES = ("select", "nodes", "rt_F", "rt_AF")


def slurm_options(source: Text) -> Mapping[str, Text]:
    """Options with a value that `#SBATCH` lines state, the last of each; none of a job of several
    components."""
    found: dict[str, Text] = {}
    if "#SBATCH hetjob" in source.value or "#SBATCH packjob" in source.value:
        return found
    for line in _LINE.finditer(source.value):
        for option in _OPTION.finditer(line[1]):
            if option[3]:
                at, name = line.start(1), option[1] or option[2]
                found[name] = source[at + option.start(3) : at + option.end(3)]
    return found


def pbs_resources(source: Text) -> Iterator[tuple[str, Text]]:
    """Resources and amounts of `#PBS -l` lines; none of those that ask for nodes of two kinds."""
    for line in _PBS_LINE.finditer(source.value):
        for asked in _RESOURCES.finditer(line[1]):
            at = line.start(1) + asked.start(1)
            for resource in _RESOURCE.finditer(asked[1]) if "+" not in asked[1] else ():
                yield resource[1], source[at + resource.start(2) : at + resource.end(2)]


def scheduler_variables(source: Text) -> dict[str, Text]:
    """Variables that a script's directives bring, each with its place."""
    return _of_pbs(source) | _of_slurm(source)


def _of_pbs(source: Text) -> dict[str, Text]:
    """PBS_NP counts the lines of PBS_NODEFILE; PBS Pro itself sets only the file. PBS_NGPUS is no
    variable of PBS: the GPUs of a node, which scripts count."""
    found: dict[str, Text] = {}
    asked = dict(pbs_resources(source))
    nodes = next((asked[name] for name in PBS_NODES if name in asked), None)
    if nodes is None:
        return found
    each = asked.get("mpiprocs") or asked.get("ppn") or Text.made("1")
    lines = evaluate_arithmetic(f"{nodes.value}*{each.value}", {})
    found |= {"PBS_NGPUS": asked["ngpus"]} if "ngpus" in asked else {}
    found |= {"NHOSTS": nodes, "PBS_NUM_NODES": nodes, "PBS_NUM_PPN": each}
    return found if lines is None else found | {"PBS_NP": Text.made(str(lines))}


def _of_slurm(source: Text) -> dict[str, Text]:
    found: dict[str, Text] = {}
    for option, value in slurm_options(source).items():
        # gres=gpu:a100:8 ends with the number.
        for name in _VARIABLES.get(option, ()):
            found[name] = value[value.value.rfind(":") + 1 :]
    nodes, per_node = (found.get(name) for name in ("SLURM_NNODES", "SLURM_NTASKS_PER_NODE"))
    if "SLURM_NTASKS" not in found and nodes and per_node:
        product = evaluate_arithmetic(f"{nodes.value}*{per_node.value}", {})
        if product is not None:
            found["SLURM_NTASKS"] = Text.made(str(product))
    return found
