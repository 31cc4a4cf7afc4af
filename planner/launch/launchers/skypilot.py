"""A SkyPilot task: nodes of a cloud, the folder copied to each, one start a node."""

from __future__ import annotations

import json

from planner.launch.contract import Command, Files, Launch
from planner.launch.launchers.shell import Rendezvous, headline, program_lines, variable_lines
from planner.launch.launchers.slurm import job_name

SCRIPT = "sky.yaml"
# Catalogue names that SkyPilot spells differently (`sky show-gpus`).
_NAMES = {
    "A100-SXM4-80GB": "A100-80GB",
    "A100-PCIe-80GB": "A100-80GB",
    "A100-SXM4-40GB": "A100",
    "H100-SXM5-80GB": "H100",
    "H200-SXM-141GB": "H200",
    "B200-SXM-180GB": "B200",
    "V100-SXM2-32GB": "V100-32GB",
    "V100-SXM2-16GB": "V100",
}


def launcher_files(launch: Launch, command: Command) -> Files:
    """`sky.yaml`."""
    meeting = Rendezvous('"${SKYPILOT_NODE_RANK}"', '"${MASTER_ADDR}"')
    if launch.nodes == 1:
        meeting = Rendezvous("0", "127.0.0.1")
    accelerator = accelerators(launch)
    lines = [
        f"# {headline(launch)}.",
        f"# Written by planner launch; README.md says what to expect. {how_to_start(launch)}",
        f"name: {job_name(launch)}",
        f"num_nodes: {launch.nodes}",
        "resources:",
        f"  accelerators: {accelerator}",
        *_network(launch),
        "# This folder, on every node.",
        "workdir: .",
    ]
    if command.demands:
        lines.append("envs:")
        for name, what in command.demands.items():
            lines += [f"  # {what}", f"  {name}: {json.dumps('')}"]
    lines += [
        "# Add a `setup: |` section that installs what README.md lists.",
        "run: |",
        "  set -euo pipefail",
        "  cd ~/sky_workdir",
    ]
    if launch.nodes > 1:
        lines.append('  MASTER_ADDR=$(head -n 1 <<< "${SKYPILOT_NODE_IPS}")')
    body = [*variable_lines(command), *program_lines(launch, command, meeting)]
    lines += [f"  {line}" if line else "" for line in body]
    return {SCRIPT: "\n".join(lines) + "\n"}


def _network(launch: Launch) -> list[str]:
    if launch.nodes == 1:
        return []
    return ["  # The step time counts on the full network between nodes.", "  network_tier: best"]


def accelerators(launch: Launch) -> str:
    """`H100:8`: SkyPilot's name of the GPU, and how many a node."""
    name = launch.job.cluster.gpu.name
    return f"{_NAMES.get(name, name)}:{launch.gpus_per_node}"


def how_to_start(launch: Launch) -> str:
    """The command, in a sentence."""
    return f"Run in this folder: sky launch -c {job_name(launch)} {SCRIPT}"
