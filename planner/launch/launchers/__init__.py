"""What starts the processes on the nodes: one module a way, all around the same shell lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from planner.launch.contract import Command, Files, Launch, NodesAs
from planner.launch.launchers import kubernetes, skypilot, slurm, torchrun


class Launcher(Protocol):
    """A module of this folder; `SCRIPT`: the file that starts the job."""

    SCRIPT: str

    def launcher_files(self, launch: Launch, command: Command, configuration: Files, /) -> Files:
        """Its files. `configuration`: the framework's own."""

    def how_to_start(self, launch: Launch) -> str:
        """How a person starts the job, in a sentence."""


_WAYS: Mapping[NodesAs, Launcher] = {
    "slurm": slurm,
    "k8s": kubernetes,
    "skypilot": skypilot,
    "torchrun": torchrun,
}


def launcher_files(launch: Launch, command: Command, configuration: Files) -> Files:
    """The script of `launch.nodes_as`. `configuration`: the framework's own files."""
    return _WAYS[launch.nodes_as].launcher_files(launch, command, configuration)


def how_to_start(launch: Launch) -> str:
    """How a person starts the job, in a sentence."""
    return _WAYS[launch.nodes_as].how_to_start(launch)


def start_script(launch: Launch) -> str:
    """File that starts the job."""
    return _WAYS[launch.nodes_as].SCRIPT
