"""What a plan should say where the GPU waits for the CPU to issue kernels."""

from __future__ import annotations

from planner.job.job import Job
from planner.job.quantities import share
from planner.predict.uncertainty.measured_range import Conditions

# From this share of a step on, waiting is worth a line.
_WORTH_SAYING = 0.1


def waiting_notes(job: Job, at: Conditions) -> tuple[str, ...]:
    """How much of a step the GPU waits for the CPU, which host that takes for granted, and the
    flags that avoid it, where the framework has some; `at`: of the plan."""
    if at.waiting < _WORTH_SAYING:
        return ()
    graphs = job.framework.technique("cuda-graphs")
    cure = "; CUDA graphs (--with cuda-graphs) avoid that" if graphs else ""
    return (
        f"the GPU waits for the CPU to issue kernels in {share(at.waiting, 0)} of the step, on a "
        f"host core {job.cluster.host_speed:g} times as fast as a DGX A100's (host_speed of a "
        f"cluster file){cure}",
    )
