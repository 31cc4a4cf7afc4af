"""`--on kubernetes`: create the folder's JobSet with kubectl. It has the job's name, which the
cluster accepts only once.

The image and the claim of the shared disk come from the environment: IMAGE and CLAIM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from planner.job.written import write_bytes
from planner.launch.contract import NodesAs
from planner.launch.launchers import JOB_SET
from planner.tune.runners.contract import LOG, UNKNOWN, Job, RefusedError, State, called

# Most bytes of a pod's log, which is read as a whole; a short run prints far less.
_MOST_BYTES = 16 * 2**20


class KubernetesRunner:
    """JobSets in the namespace of kubectl's context."""

    nodes_as: NodesAs = "k8s"

    def submit(self, folder: Path, job_name: str, limit_s: float) -> str:  # noqa: ARG002
        """Create the JobSet and its configuration; the cluster refuses a second one with the same
        name."""
        try:
            called(["kubectl", "create", "-f", JOB_SET], folder.resolve())
        except RefusedError as error:
            if "AlreadyExists" not in str(error) and "already exists" not in str(error):
                raise
        return job_name

    def find(self, folder: Path, job_name: str) -> Job:  # noqa: ARG002
        """The state of the JobSet and of its pods."""
        try:
            told = json.loads(called(["kubectl", "get", "jobset", job_name, "-o", "json"]))
        except RefusedError as error:
            if "NotFound" in str(error) or "not found" in str(error):
                return UNKNOWN
            raise
        status = told.get("status", {})
        for condition in status.get("conditions", []):
            if condition.get("status") == "True" and condition.get("type") in _ENDS:
                reason = f"{condition['type']}: {condition.get('message', '')}".rstrip(": ")
                return Job(_ENDS[condition["type"]], job_name, reason)
        active = any(one.get("ready") for one in status.get("replicatedJobsStatus", []))
        return Job("running" if active else "pending", job_name, "" if active else _waits(job_name))

    def cancel(self, folder: Path, job_name: str, *, force: bool = False) -> None:  # noqa: ARG002
        """Delete the JobSet and its configuration; the log was read before."""
        words = ["kubectl", "delete", "jobset,configmap", job_name, "--ignore-not-found"]
        called([*words, "--wait=false", *(("--grace-period=1",) if force else ())])

    def logs(self, folder: Path, job_name: str) -> Sequence[Path]:
        """The output of the pods, fetched now."""
        label = f"jobset.sigs.k8s.io/jobset-name={job_name}"
        words = [
            "kubectl",
            "logs",
            "--selector",
            label,
            "--tail=-1",
            f"--limit-bytes={_MOST_BYTES}",
        ]
        path = folder / LOG
        try:
            text = called([*words, "--max-log-requests=1024"])
        except RefusedError:
            text = ""  # no pod has begun to print
        if text:
            write_bytes(path, text.encode(), force=True)
        return (path,)


_ENDS: Mapping[str, State] = {"Completed": "done", "Failed": "failed"}


def _waits(job_name: str) -> str:
    """Why pods wait, in the scheduler's words."""
    label = f"jobset.sigs.k8s.io/jobset-name={job_name}"
    pods = json.loads(called(["kubectl", "get", "pods", "--selector", label, "-o", "json"]))
    said = (
        condition.get("message", "")
        for pod in pods.get("items", [])
        for condition in pod.get("status", {}).get("conditions", [])
        if condition.get("status") == "False"
    )
    return next(filter(None, said), "")
