"""Options that a request leaves out, and the defaults that take their place."""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.job import Job
from planner.job.request_fields import RequestFields


def defaults_taken(request: RequestFields, job: Job) -> tuple[str, ...]:
    """The options that a request leaves out or sets to their defaults, with the job's values:
    `--seq 8192`. Empty for a run that launch files describe, because the files decide there."""
    return () if request.overrides.launched is not None else tuple(_taken(request, job))


def _taken(request: RequestFields, job: Job) -> Iterator[str]:
    usual = type(request).model_fields
    if request.seq is None and request.lengths is None:
        yield f"--seq {job.seq}"
    if request.framework == usual["framework"].default:
        yield f"--framework {job.framework.name}"
    if request.precision == usual["precision"].default:
        yield f"--precision {job.precision}"
    if request.dtype is None and len(job.framework.modes) > 1:
        yield f"--dtype {job.dtype}"
    if request.optimizer == usual["optimizer"].default:
        yield f"--optimizer {request.optimizer}"
    if request.attention is None:
        yield f"--attention {job.attention}"
    if request.schedule is None and job.framework.parallelism.pipeline:
        yield f"--schedule {job.schedule or '1f1b'}"
