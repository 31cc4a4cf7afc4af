"""A job as a process group of this machine that a later driver can find again.

The folder's `trial.sh` runs it. The script makes the folder `started`, which succeeds for one start
only, writes its process id there, and at the end the exit status. All processes of a job carry its
name in their environment, by which they are ended, even if they left the group, as torchrun's
workers do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from planner.tune.runners.contract import UNKNOWN, Job

STARTED, JOB_VARIABLE = "started", "PLANNER_TUNE_JOB"
TRIAL_SCRIPT = "trial.sh"
# Longest time from the fork until the script has made its folder.
_STARTS_S = 10.0
# Number of searches for processes to end, and seconds between them.
_ROUNDS, _ROUND_S = 4, 0.05


def start(folder: Path, job_name: str, words: Sequence[str]) -> str:
    """Run a command under the folder's script, which writes the log; return the process group."""
    process = subprocess.Popen(
        ["bash", TRIAL_SCRIPT, *words], cwd=folder, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env={**os.environ, JOB_VARIABLE: job_name},
    )  # fmt: skip
    # The folder's record decides, now and for a later driver; this driver only reaps its child.
    _CHILDREN.append(process)
    until = time.monotonic() + _STARTS_S
    while not (folder / STARTED / "pid").is_file() and process.poll() is None:
        if time.monotonic() > until:
            break
        time.sleep(0.01)
    return str(process.pid)


_CHILDREN: list[subprocess.Popen[bytes]] = []


def find(folder: Path, job_name: str) -> Job:
    """The job, from the files that its script left in the folder and the processes that carry its
    name."""
    _CHILDREN[:] = [one for one in _CHILDREN if one.poll() is None]
    claim = folder / STARTED
    if not claim.is_dir():
        return UNKNOWN
    pid = _text(claim / "pid")
    # The script writes its status before it ends, so look for the status after its processes.
    if any(processes(job_name)) and not _text(claim / "status"):
        return Job("running", pid)
    if status := _text(claim / "status"):
        return Job("done" if status == "0" else "failed", pid, f"exit status {status}")
    return Job("failed", pid, "its processes are gone, without an exit status", lost=True)


def cancel(folder: Path, job_name: str, *, force: bool = False) -> None:  # noqa: ARG001 (a runner's)
    """Ask every process of the job to end (`force`: kill it), including processes that were started
    meanwhile."""
    asked: set[int] = set()
    for _ in range(_ROUNDS):
        new = {*processes(job_name)} - asked
        for pid in new:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if force else signal.SIGTERM)
        asked |= new
        time.sleep(_ROUND_S)


def exit_status(folder: Path) -> int | None:
    """The exit status that the script left; None while there is none."""
    text = _text(folder / STARTED / "status")
    return int(text) if text.isdecimal() else None


def processes(job_name: str) -> Iterator[int]:
    """Processes of this machine that carry the name of a job, whether or not they are children of
    this one."""
    wanted = f"{JOB_VARIABLE}={job_name}".encode()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (place / "environ").read_bytes().split(b"\0") and not _is_dead(place):
                yield int(place.name)


def _is_dead(place: Path) -> bool:
    # The state follows the name in parentheses, which may contain anything.
    return (place / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "ZX"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
