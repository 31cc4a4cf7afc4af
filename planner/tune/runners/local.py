"""`--on local`: the folder's own start script on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planner.launch.contract import NodesAs
from planner.tune.runners import process
from planner.tune.runners.contract import LOG, Job


class LocalRunner:
    """One node: torchrun, accelerate, or what the folder starts."""

    nodes_as: NodesAs = "torchrun"

    def submit(self, folder: Path, job_name: str, limit_s: float) -> str:  # noqa: ARG002
        """Start `launch.sh`; the driver ends it at its limit."""
        return process.start(folder, job_name, ["bash", "launch.sh"])

    def find(self, folder: Path, job_name: str) -> Job:
        """By what the script left."""
        return process.find(folder, job_name)

    def cancel(self, folder: Path, job_name: str, *, force: bool = False) -> None:
        """End its processes."""
        process.cancel(folder, job_name, force=force)

    def logs(self, folder: Path, job_name: str) -> Sequence[Path]:  # noqa: ARG002
        """The one log."""
        return (folder / LOG,)
