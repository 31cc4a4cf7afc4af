"""Which of a job's techniques a plan of it uses, and how they are launched."""

from __future__ import annotations

from planner.job.frameworks.techniques import technique_of
from planner.job.job import Job
from planner.job.technique_rules import technique_conditions
from planner.predict.plan import Degrees
from planner.predict.shapes import given_columns, rule_context

# Who brings the fused dispatcher: DeepEP's kernels for NVLink domains of a node, HybridEP's for
# those of a rack (Megatron-LM, docs of the flex dispatcher).
_RACK = "blackwell"


def used_techniques(job: Job, degrees: Degrees) -> tuple[str, ...]:
    """Those of the job's techniques that work with the degrees."""
    if not job.techniques:
        return ()
    columns, sizes = given_columns(degrees), rule_context(job)
    return tuple(
        name
        for name in job.techniques
        if all(one.mask(columns, sizes)[0] for one in technique_conditions(job.framework, (name,)))
    )


def technique_flags(job: Job, names: tuple[str, ...]) -> str:
    """The flags of techniques, in a line."""
    backend = "hybridep" if job.cluster.gpu.architecture == _RACK else "deepep"
    found = (technique_of(job.framework, name) for name in names)
    return " ".join(one.flags.format(dispatcher=backend) for one in found if one and one.flags)
