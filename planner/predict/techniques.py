"""The techniques of a job that a plan uses, and their flags."""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.frameworks.switches import site_of, technique_conditions, technique_refusal
from planner.job.frameworks.techniques import Technique
from planner.job.job import Job
from planner.predict.configuration import degree_columns
from planner.predict.plan import Degrees
from planner.predict.shapes import rule_context


def used_techniques(job: Job, degrees: Degrees) -> tuple[str, ...]:
    """Names of the job's techniques that are compatible with these degrees: the plan uses them."""
    return tuple(name for name in job.techniques if works_with(job, degrees, name))


def works_with(job: Job, degrees: Degrees, name: str) -> bool:
    """Whether a technique of the job's framework is compatible with these degrees."""
    columns, sizes = degree_columns([degrees]), rule_context(job)
    conditions = technique_conditions(job.framework, (name,))
    return all(bool(condition.mask(columns, sizes)[0]) for condition in conditions)


def further_techniques(job: Job, degrees: Degrees, recompute: str) -> Iterator[Technique]:
    """Techniques of the framework that a configuration could use and does not."""
    inside = degrees.tp <= job.cluster.scale_up_domain_gpus
    site = site_of(
        job.framework, job.model, job.cluster, inside=inside, tuning=job.tuning, samples=job.samples
    )
    mode = job.framework.recompute_mode(recompute)
    for technique in job.framework.techniques:
        name = technique.name
        if name in job.techniques or site.obstacle(technique):
            continue
        if works_with(job, degrees, name) and not technique_refusal(job.framework, (name,), mode):
            yield technique


def technique_flags(job: Job, names: tuple[str, ...]) -> str:
    """The flags of some techniques on one line."""
    found = (job.framework.technique(name) for name in names)
    return " ".join(flags_for(job, one) for one in found if one and one.flags)


def flags_for(job: Job, technique: Technique) -> str:
    """The flags of a technique for a job."""
    backend = job.cluster.gpu.traits.dispatcher
    return technique.flags.format(dispatcher=backend, graphed=_graphed(job))


def _graphed(job: Job) -> str:
    """Modules that CUDA graphs capture: not experts, whose number of tokens varies, nor the padding
    of that number for quantised products (Megatron's transformer_config.py)."""
    modules = ["attn", *(["mamba"] if job.model.has_states else [])]
    if job.model.moe is None:
        modules.append("mlp")
    else:
        unpadded = job.precision in ("bf16", "fp16")
        modules += ["moe_router", *(["moe_preprocess"] if unpadded else [])]
    return (" " if job.framework.name == "megatron-core" else ",").join(modules)
