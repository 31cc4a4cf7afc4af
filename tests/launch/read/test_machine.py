"""Counts of the machine come from the GPUs that the user names, not from a question."""

from __future__ import annotations

import pytest

from planner.launch.check.assess import assess
from planner.launch.check.given import read_given
from planner.launch.read.found import Found, Hints
from tests.launch.check.conftest import SMALL, Write, write  # noqa: F401

GPUS_OF_A_NODE = [
    "$(nvidia-smi -L | wc -l)",
    "`nvidia-smi --list-gpus | wc -l`",
    "$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)",
    "$(nvidia-smi --query-gpu=index --format=csv,noheader,nounits | wc --lines)",
    "$(nvidia-smi -L | grep -c GPU)",
    "$(ls /dev/nvidia[0-9]* | wc -l)",
    "$(python -c 'import torch; print(torch.cuda.device_count())')",
    '$(python3 -c "import torch; print(torch.cuda.device_count())")',
    "$SLURM_GPUS_ON_NODE",
    "${SLURM_GPUS_ON_NODE:-8}",
    "$SLURM_GPUS_PER_NODE",
]
NODES = [
    "$SLURM_NNODES",
    "${SLURM_JOB_NUM_NODES}",
    '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | wc -l)',
    "$(scontrol show hostname $SLURM_NODELIST | wc -l)",
    "$(sort -u $PBS_NODEFILE | wc -l)",
]


def launched(write: Write, nodes: str, per_node: str, gpus: str | None) -> Found:  # noqa: F811
    text = (
        f"export CUDA_DEVICE_MAX_CONNECTIONS=1\nN={nodes}\nG={per_node}\n"
        f"torchrun --nnodes $N --nproc-per-node $G pretrain_gpt.py {SMALL} "
        "--tensor-model-parallel-size $G --sequence-parallel\n"
    )
    return read_given([str(write("run.sh", text))], Hints(), 1, gpus, None).found


@pytest.mark.parametrize("per_node", GPUS_OF_A_NODE)
def test_gpus_of_a_node(write: Write, per_node: str) -> None:  # noqa: F811
    found = launched(write, "2", per_node, "2x4xH100")
    assert (found.world, found.tp) == (8, 4)
    assert not [problem for problem in found.problems if problem.severity == "missing"]


@pytest.mark.parametrize("nodes", NODES)
def test_nodes(write: Write, nodes: str) -> None:  # noqa: F811
    found = launched(write, nodes, "4", "2x4xH100")
    assert found.world == 8


def test_files_that_say_it_are_right(write: Write) -> None:  # noqa: F811
    """The directives count, and what they leave idle is warned of."""
    text = (
        "#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n"
        "torchrun --nnodes $SLURM_NNODES --nproc-per-node $(nvidia-smi -L | wc -l) "
        f"pretrain_gpt.py {SMALL}\n"
    )
    found = read_given([str(write("run.sh", text))], Hints(), 1, "8xH100", None).found
    assert found.world == 4


@pytest.mark.parametrize("per_node", GPUS_OF_A_NODE[:7])
def test_without_gpus_they_are_asked_for(write: Write, per_node: str) -> None:  # noqa: F811
    """`--gpus` is the option that is named, and nothing else."""
    found = launched(write, "2", per_node, None)
    assessment = assess(found)
    assert assessment.verdict == "cannot tell"
    missing = [problem for problem in assessment.problems if problem.severity == "missing"]
    assert missing and all(problem.fix.startswith("--gpus") for problem in missing)
