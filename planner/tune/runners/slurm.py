"""`--on slurm`: sbatch, squeue, sacct and scancel, by job name.

sbatch takes options of your cluster, such as a partition and an account, from the environment:
SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_QOS.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from planner.launch.contract import NodesAs
from planner.tune.runners import process
from planner.tune.runners.contract import (
    LOG,
    UNKNOWN,
    AwayError,
    Job,
    RefusedError,
    State,
    called,
)

_PENDING = (
    "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD",
    "SPECIAL_EXIT",
)  # fmt: skip
_RUNNING = (
    "RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "SUSPENDED", "RESIZING",
)  # fmt: skip
# Ends that say nothing about the plan.
_LOST = ("NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REVOKED", "CANCELLED", "DEADLINE")
# Reasons of jobs that wait for resources that the cluster does not have (job_reason_codes of
# Slurm).
_NEVER = (
    "PartitionNodeLimit", "PartitionConfig", "BadConstraints", "AssocMaxNodePerJobLimit",
    "AssocMaxGRESPerJob", "QOSMaxNodePerJobLimit", "QOSMaxGRESPerJob", "PartitionTimeLimit",
    "AssocMaxWallDurationPerJobLimit", "QOSMaxWallDurationPerJobLimit", "AccountNotAllowed",
    "InvalidAccount", "InvalidQOS", "QOSNotAllowed",
)  # fmt: skip
BATCH = "trial.sbatch"


class SlurmRunner:
    """Jobs of the user who runs the driver."""

    nodes_as: NodesAs = "slurm"

    def submit(self, folder: Path, job_name: str, limit_s: float) -> str:
        """Submit the folder's batch script with sbatch and return the job's number."""
        options = [
            "--parsable", "--no-requeue", f"--job-name={job_name}", f"--output={LOG}",
            "--open-mode=append", f"--time={max(1, math.ceil(limit_s / 60))}",
        ]  # fmt: skip
        environment = {process.JOB_VARIABLE: job_name}
        answer = called(["sbatch", *options, BATCH], folder.resolve(), environment)
        return answer.strip().partition(";")[0]

    def find(self, folder: Path, job_name: str) -> Job:
        """The job from the queue, else from the accounting, else from the files of its own
        script."""
        found = _queued(job_name) or _accounted(job_name)
        ended = process.exit_status(folder)
        if ended is not None and (found is None or found.is_alive):
            # The script itself has ended, whatever the scheduler still says.
            state: State = "done" if ended == 0 else "failed"
            return Job(state, found.handle if found else "", f"exit status {ended}")
        return found or UNKNOWN

    def cancel(self, folder: Path, job_name: str, *, force: bool = False) -> None:  # noqa: ARG002
        """Run scancel with the job's name, for this user's jobs only."""
        words = ["scancel", "--me", f"--name={job_name}"]
        called([*words, "--signal=KILL", "--full"] if force else words)

    def logs(self, folder: Path, job_name: str) -> Sequence[Path]:  # noqa: ARG002
        """The one log file."""
        return (folder / LOG,)


def _queued(job_name: str) -> Job | None:
    words = ["squeue", "--me", "--noheader", f"--name={job_name}", "--states=all"]
    return _job(called([*words, "--format=%i|%T|%r"]))


def _accounted(job_name: str) -> Job | None:
    """The job from sacct; None if sacct does not know it or accounting is disabled."""
    words = ["sacct", "--noheader", "--parsable2", "--allocations", f"--name={job_name}"]
    try:
        return _job(called([*words, "--starttime=now-30days", "--format=JobID,State,ExitCode"]))
    except RefusedError as error:
        if "disabled" in str(error).lower() or "not enabled" in str(error).lower():
            return None
        raise AwayError(str(error)) from None


def _job(answer: str) -> Job | None:
    """The job in an answer: the one that is alive if there are several with the name, else the
    last; None if there is none."""
    found = [line.split("|") for line in answer.splitlines() if line.count("|") == 2]
    jobs = [_told(*map(str.strip, words)) for words in found]
    return next((job for job in jobs if job.is_alive), jobs[-1] if jobs else None)


def _told(handle: str, state: str, reason: str) -> Job:
    # sacct prints, for example, `CANCELLED by 1000`.
    word = (state.split() or [""])[0].rstrip("+")
    words = state if reason in ("", "None") else f"{state} ({reason})"
    if word in _PENDING:
        return Job("pending", handle, words, never=reason.startswith(_NEVER))
    if word in _RUNNING:
        return Job("running", handle, words)
    return Job("done" if word == "COMPLETED" else "failed", handle, words, lost=word in _LOST)
