"""Words of scripts that a scheduler's directives tell."""

from __future__ import annotations

import pytest

from planner.launch.languages.shell import Around, Script, read_scripts
from planner.launch.languages.text import SourceFile
from planner.launch.read.world import counted_by, scheduler_variables


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("#SBATCH --nodes=4\n#SBATCH --gres=gpu:a100:8\nrun $SLURM_NNODES $SLURM_GPUS_ON_NODE",
         ["run", "4", "8"]),
        # An option without a value takes nothing of the next line.
        ("#SBATCH --exclusive\n#SBATCH --nodes=4\nrun $SLURM_NNODES", ["run", "4"]),
        ("#SBATCH -N4 --exclusive --ntasks-per-node 8 # all\nrun $SLURM_NNODES $SLURM_NTASKS",
         ["run", "4", "32"]),
        ("##SBATCH --nodes=4\nrun $SLURM_NNODES", ["run", "?"]),
        ("#SBATCH --nodes=4\n#SBATCH hetjob\n#SBATCH --nodes=1\nrun $SLURM_NNODES", ["run", "?"]),
        # A file of nodes names each once for each of its processes.
        ("#PBS -l select=4:ncpus=32:mpiprocs=8:ngpus=8 -q x\nN=$(wc -l < \"$PBS_NODEFILE\")\n"
         "M=$(sort -u $PBS_NODEFILE | wc -l)\nrun $N $M", ["run", "32", "4"]),
        ("#PBS -l nodes=2:ppn=4\nrun $(cat ${PBS_NODEFILE} | wc -l) $PBS_NUM_PPN",
         ["run", "8", "4"]),
        ("#$ -l rt_AF=16\n#$ -l h_rt=1:00:00\nrun $NHOSTS", ["run", "16"]),
        ("#PBS -l select=2:ngpus=8+1:ngpus=4\nrun $(wc -l < $PBS_NODEFILE)", ["run", "?"]),
        ("run $(wc -l < $PBS_NODEFILE)", ["run", "?"]),
    ],
)  # fmt: skip
def test_words(script: str, words: list[str]) -> None:
    around = Around(directives=scheduler_variables, counted_by=counted_by)
    text = SourceFile("x.sh", script).as_text()
    command = read_scripts([Script(text)], around).commands[-1]
    assert [word.text.value if not word.text.unknown else "?" for word in command.words] == words
