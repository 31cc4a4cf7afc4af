"""Trials as processes of this machine: the folder's start script, or a user's command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from planner.job.errors import UsageError
from planner.launch.contract import NodesAs
from planner.tune.runners import process
from planner.tune.runners.contract import LOG, Job

_FOLDER, _NAME = "{folder}", "{name}"


def command_words(text: str) -> list[str]:
    """The words of a command, split as a shell does but without expansion. UsageError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--run {text!r}: {error}; write the words as in a shell") from None
    if not words or not any(_FOLDER in word for word in words):
        raise UsageError(
            f"--run {text!r}: say where the folder of a trial goes, as --run 'my-train {_FOLDER}'"
        )
    return words


class LocalRunner:
    """`--on local`: the folder's own start script, on this machine."""

    nodes_as: NodesAs = "torchrun"

    def submit(self, folder: Path, job_name: str, limit_s: float) -> str:  # noqa: ARG002
        """Start `launch.sh`; the driver ends it at its limit."""
        return process.start(folder, job_name, ["bash", "launch.sh"])

    def find(self, folder: Path, job_name: str) -> Job:
        """The job, from the files that its script left in the folder."""
        return process.find(folder, job_name)

    def cancel(self, folder: Path, job_name: str, *, force: bool = False) -> None:
        """End its processes."""
        process.cancel(folder, job_name, force=force)

    def logs(self, folder: Path, job_name: str) -> Sequence[Path]:  # noqa: ARG002
        """The one log file."""
        return (folder / LOG,)


class CommandRunner(LocalRunner):
    """`--run 'COMMAND {folder}'`: a user's program and its arguments, not a line for a shell."""

    def __init__(self, text: str, nodes_as: NodesAs = "torchrun") -> None:
        self.words, self.nodes_as = command_words(text), nodes_as

    def submit(self, folder: Path, job_name: str, limit_s: float) -> str:  # noqa: ARG002
        """Start the command with the folder and the job's name filled in."""
        places = {_FOLDER: str(folder.resolve()), _NAME: job_name}
        words = list(self.words)
        for place, value in places.items():
            words = [word.replace(place, value) for word in words]
        return process.start(folder, job_name, words)

    def logs(self, folder: Path, job_name: str) -> Sequence[Path]:  # noqa: ARG002
        """The output of the command, and the logs that it writes to the folder."""
        others = chain(folder.glob("*.log"), folder.glob("*.out"))
        return (folder / LOG, *sorted(path for path in others if path.name != LOG))
