"""Runners of short runs with one contract: on this machine, Slurm, Kubernetes, or by any command.

A job is known by its name, which the study stores before anything is submitted, so that a later
driver finds the job again if the first was killed. A runner looks up, and ends, only jobs with the
given names.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from planner.job.errors import UsageError
from planner.launch.contract import NodesAs

State = Literal["pending", "running", "done", "failed", "unknown"]
LOG = "train.log"
# Time limit for an answer of a scheduler's command.
_ANSWER_S = 60.0
# Words that their programs print if the scheduler does not answer.
_AWAY = (
    "unable to contact slurm", "connection refused", "timed out", "timeout", "unable to connect",
    "connection reset", "zero bytes were transmitted", "no route to host", "i/o timeout",
    "temporarily unavailable", "service unavailable", "etcdserver", "tls handshake",
    "network is unreachable", "slurm backup controller in standby mode",
)  # fmt: skip


class AwayError(Exception):
    """The scheduler does not answer now, but may later."""


class RefusedError(Exception):
    """The scheduler answers but refuses the request; the message is the scheduler's."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job with a name. `handle`: the scheduler's name for it; `reason`: its words on the state;
    `lost`: it ended through no fault of its own, for example because a node failed; `never`: it
    waits for resources that this cluster does not have."""

    state: State
    handle: str = ""
    reason: str = ""
    lost: bool = False
    never: bool = False

    @property
    def is_alive(self) -> bool:
        """Whether it waits or runs."""
        return self.state in ("pending", "running")


UNKNOWN = Job("unknown")


class Runner(Protocol):
    """Starts, finds and ends jobs. Every method may raise `AwayError`, `submit` and `cancel` also
    `RefusedError`."""

    nodes_as: NodesAs

    def submit(self, folder: Path, job_name: str, limit_s: float) -> str:
        """Start the folder's job, which ends at the limit, and return the scheduler's name for
        it."""

    def find(self, folder: Path, job_name: str) -> Job:
        """The job with a name, whoever started it and however long ago."""

    def cancel(self, folder: Path, job_name: str, *, force: bool = False) -> None:
        """Ask the job to end; `force`: it was asked before and did not end."""

    def logs(self, folder: Path, job_name: str) -> Sequence[Path]:
        """Files with its output so far."""


def called(
    words: Sequence[str], cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """The output of a scheduler's command. UsageError if there is no such command, AwayError if the
    scheduler does not answer, RefusedError if it refuses."""
    try:
        done = subprocess.run(
            words, cwd=cwd, env={**os.environ, **(environment or {})}, timeout=_ANSWER_S,
            capture_output=True, check=False, encoding="utf-8", errors="replace",
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        raise UsageError(f"{words[0]} is not on the PATH of this machine") from None
    except subprocess.TimeoutExpired:
        raise AwayError(f"{words[0]} has not answered in {_ANSWER_S:.0f} s") from None
    if done.returncode == 0:
        return done.stdout
    said = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}")[-500:]
    if any(sign in said.lower() for sign in _AWAY):
        raise AwayError(f"{words[0]}: {said}")
    raise RefusedError(f"{words[0]}: {said}")
