"""A request for GPUs of several types, as one job for each type."""

from __future__ import annotations

from dataclasses import replace

from hardware.schema import Cluster
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.pool import Pool, SeveralTypes, parse_pool
from planner.job.request import Request

_SCHEDULES = (None, "1f1b", "interleaved")


def pool_jobs(request: Request) -> tuple[Pool, tuple[Job, ...]]:
    """(pool, the job on each part as if all GPUs were of its type). UsageError.

    Everything but the cluster is alike, so all parts must offer the precision that was asked for.
    """
    pool = parse_pool(request.gpus or "")
    if request.optimizer_offload == "search":
        raise UsageError(
            f"--optimizer-offload search: with GPUs of several types ({request.gpus}) the share is "
            "given; a number from 0 to 1"
        )
    if request.activation_offload != "off":
        raise UsageError(
            f"--activation-offload {request.activation_offload}: not with GPUs of several types "
            f"({request.gpus}); leave it out  [activation-offload-pool]"
        )
    if request.batch_ramp is not None:
        raise UsageError(
            f"--batch-ramp: not with GPUs of several types ({request.gpus}); leave it out"
        )
    if request.sharp:
        raise UsageError(
            f"--sharp: not with GPUs of several types ({request.gpus}), whose nodes need not share "
            "switches; leave it out"
        )
    jobs = tuple(
        _on_part(request.model_copy(update={"gpus": text}).resolve(), world)
        for text, world in zip(pool.texts, pool.worlds(), strict=True)
    )
    first = jobs[0]
    if first.schedule not in _SCHEDULES:
        raise UsageError(
            f"--schedule {first.schedule}: GPUs of several types run 1f1b or interleaved"
        )
    if not first.framework.parallelism.pipeline:
        raise UsageError(
            f"--gpus {request.gpus}: GPUs of several types share a job as pipeline stages, and "
            f"{first.framework.name} has no pipeline; give one type"
        )
    return pool, jobs


def _on_part(job: Job, world: Cluster) -> Job:
    """The job on one part, without techniques that a search decides; its context parallelism
    exchanges in the usual way, on all parts."""
    return replace(job.decided()[0], cluster=world, context_kinds=job.context_kinds[:1])


def first_job(request: Request) -> Job:
    """The job, of a pool the one on its first part. UsageError."""
    return (
        pool_jobs(request)[1][0]
        if isinstance(request.gpu_words, SeveralTypes)
        else request.resolve()
    )
