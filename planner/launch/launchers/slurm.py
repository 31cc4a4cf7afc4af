"""An sbatch script: one task a node, which starts a process a GPU."""

from __future__ import annotations

import re

from planner.launch.contract import Command, Files, Launch
from planner.launch.launchers.shell import PORT, Rendezvous, headline, program_lines, variable_lines

SCRIPT = "launch.sbatch"
_TIME = "04:00:00"


def launcher_files(launch: Launch, command: Command) -> Files:
    """`launch.sbatch`."""
    # SLURM_NODEID differs on each node: the body runs inside srun's own shell.
    meeting = Rendezvous('"${SLURM_NODEID}"', '"${MASTER_ADDR}"', '"${MASTER_PORT}"')
    if launch.nodes == 1:
        meeting = Rendezvous("0", "127.0.0.1")
    lines = [
        "#!/usr/bin/env bash",
        f"# {headline(launch)}.",
        f"# Written by planner launch; README.md says what to expect. {how_to_start(launch)}",
        f"#SBATCH --job-name={job_name(launch)}",
        f"#SBATCH --nodes={launch.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={launch.gpus_per_node}",
        "#SBATCH --exclusive",
        # A job that is put back in the queue goes on from its last checkpoint.
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --time={_TIME}",
        "#SBATCH --output=%x-%j.log",
        "# Your cluster may want more: --partition, --account, --container-image (pyxis).",
        "set -euo pipefail",
        'cd "${SLURM_SUBMIT_DIR:-.}"',
        'export MODE="${1:-${MODE:-}}"',
        "",
        *variable_lines(command),
        'if [[ "${MODE}" == --dry-run ]]; then',
        "    # Outside of a job: one node's command.",
        "    export SLURM_NODEID=0 SLURM_JOB_ID=0 SLURM_JOB_NODELIST=",
        "    scontrol() { echo FIRST_NODE; }",
        "    srun() { one_node; }",
        "fi",
        "",
    ]
    if launch.nodes > 1:
        lines += [
            # Not through head: scontrol, cut short, would end the job under pipefail.
            'mapfile -t NODES < <(scontrol show hostnames "${SLURM_JOB_NODELIST}")',
            'MASTER_ADDR="${NODES[0]}"',
            # Jobs that share a node's address must not share its port.
            f"MASTER_PORT=$(({PORT} + SLURM_JOB_ID % 1000))",
            "export MASTER_ADDR MASTER_PORT",
            "",
        ]
    lines += _within_srun(program_lines(launch, command, meeting))
    return {SCRIPT: "\n".join(lines) + "\n"}


def _within_srun(body: list[str]) -> list[str]:
    """The lines of a node in a function that every task of srun calls."""
    indented = [f"    {line}" if line else "" for line in body]
    return [
        "one_node() {",
        *indented,
        "}",
        "",
        "export -f one_node",
        "# A node that fails ends the job instead of leaving it to wait; all CPUs for its tasks.",
        'srun --kill-on-bad-exit=1 --cpu-bind=none bash -c "set -euo pipefail; one_node"',
    ]


def job_name(launch: Launch) -> str:
    """Letters, digits and dashes: also a Kubernetes name."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{launch.job.model.name}-{launch.target}".lower())
    return name.strip("-")[:40].strip("-")


def how_to_start(launch: Launch) -> str:  # noqa: ARG001 (as the other launchers)
    """The command, in a sentence."""
    return f"Run in this folder: sbatch {SCRIPT}"
