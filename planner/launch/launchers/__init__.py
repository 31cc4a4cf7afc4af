"""What starts the processes on the nodes: one module a way, all around the same shell lines."""

from __future__ import annotations

from planner.launch.contract import Command, Files, Launch
from planner.launch.launchers import kubernetes, skypilot, slurm, torchrun


def launcher_files(launch: Launch, command: Command, configuration: Files) -> Files:
    """The script of `launch.nodes_as`. `configuration`: the framework's own files."""
    match launch.nodes_as:
        case "slurm":
            return slurm.launcher_files(launch, command)
        case "k8s":
            return kubernetes.launcher_files(launch, command, configuration)
        case "skypilot":
            return skypilot.launcher_files(launch, command)
        case "torchrun":
            return torchrun.launcher_files(launch, command)


def how_to_start(launch: Launch) -> str:
    """How a person starts the job, in a sentence."""
    match launch.nodes_as:
        case "slurm":
            return slurm.how_to_start(launch)
        case "k8s":
            return kubernetes.how_to_start(launch)
        case "skypilot":
            return skypilot.how_to_start(launch)
        case "torchrun":
            return torchrun.how_to_start(launch)


def start_script(launch: Launch) -> str:
    """File that starts the job."""
    return {
        "slurm": slurm.SCRIPT,
        "k8s": kubernetes.SCRIPT,
        "skypilot": skypilot.SCRIPT,
        "torchrun": torchrun.SCRIPT,
    }[launch.nodes_as]
