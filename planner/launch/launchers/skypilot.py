"""A SkyPilot task: nodes of a cloud, the folder copied to each, one start a node."""

from __future__ import annotations

import json

from planner.launch.contract import Command, Files, Launch
from planner.launch.launchers.shell import Rendezvous, job_name, script_text

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


def launcher_files(launch: Launch, command: Command, _configuration: Files) -> Files:
    """`sky.yaml`."""
    environment = [
        line
        for name, what in command.demands.items()
        for line in (f"  # {what}", f"  {name}: {json.dumps('')}")
    ]
    wants = "# The step time counts on the full network between nodes.", "network_tier: best"
    text = script_text(
        launch,
        command,
        SCRIPT,
        Rendezvous('"${SKYPILOT_NODE_RANK}"', '"${MASTER_ADDR}"'),
        how_to_start(launch),
        ['MASTER_ADDR=$(head -n 1 <<< "${SKYPILOT_NODE_IPS}")'],
        accelerators=accelerators(launch),
        network=wants if launch.nodes > 1 else "",
        environment=["envs:", *environment] if environment else "",
    )
    return {SCRIPT: text}


def accelerators(launch: Launch) -> str:
    """`H100:8`: SkyPilot's name of the GPU, and how many a node."""
    name = launch.job.cluster.gpu.name
    return f"{_NAMES.get(name, name)}:{launch.gpus_per_node}"


def how_to_start(launch: Launch) -> str:
    """The command, in a sentence."""
    return f"Run in this folder: sky launch -c {job_name(launch)} {SCRIPT}"
