"""Gains of a plan from techniques that a search only uses on request.

A search uses nothing that changes the numbers of a training. Each technique left out for that
reason, or costed only on request, is costed once on the recommended plan, so that the user knows
what it is worth.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from constraints.errors import ConstraintError
from hardware.frozen import Frozen
from planner.job.errors import UsageError
from planner.job.frameworks.profile import load_framework
from planner.job.frameworks.switches import site_of
from planner.job.frameworks.techniques import Technique
from planner.job.job import Job
from planner.job.quantities import GIB, plural, share
from planner.predict.configuration import decided_job
from planner.predict.plan import Degrees, Plan

# Smaller gains in speed are not worth a line.
LEAST_GAIN = 0.001
# Savings from this share of the peak on are worth a line too.
LEAST_SAVING = 0.02


class UnusedTechnique(Frozen):
    """A technique that a plan does not use, and its gain.

    `effect`: what it changes, as in `planner.job.frameworks.techniques.Technique`. `faster_by`:
    tokens/s over the plan's, minus one. `saved_bytes`: reduction of the peak. `degrees`: other
    changes, in words. `needs`: packages besides the framework's.
    """

    name: str
    words: str
    effect: Literal["speed", "memory", "numerics"]
    faster_by: float
    saved_bytes: float
    fit_probability: float
    degrees: str = ""
    needs: str = ""


def unused_techniques(
    job: Job, plan: Plan, excluded: tuple[str, ...] = ()
) -> tuple[UnusedTechnique, ...]:
    """Techniques that the search did not use because they were not requested, and that would make
    the plan faster or lighter, fastest first. `excluded`: techniques that the user does not want.
    """
    wanted = [one for one in _left_out(job, plan) if one.name not in excluded]
    gains = [gain for one in wanted if (gain := _gain(job, plan, one)) is not None]
    return tuple(sorted(gains, key=lambda one: -one.faster_by))


def _left_out(job: Job, plan: Plan) -> Iterator[Technique]:
    """Techniques that are used only on request and would work for this job. None beside a technique
    that replaces the framework's profile, which has its own."""
    inside = not job.allow_tp_across_domains
    sites = [
        site_of(
            on.framework, on.model, on.cluster, inside=inside, tuning=on.tuning, samples=on.samples
        )
        for on in job.machines
    ]
    if any(one.profile for one in job.framework.techniques if one.name in plan.techniques):
        return
    for technique in job.framework.techniques:
        asked = technique.use == "asked" and technique.name not in plan.techniques
        if asked and not any(site.obstacle(technique) for site in sites):
            yield technique


def _gain(job: Job, plan: Plan, technique: Technique) -> UnusedTechnique | None:
    """The gain of a technique at the plan's own degrees and layers, with the best sharding stage if
    its profile shards differently. None if a rule forbids it or it gains nothing."""
    costed = _plans(job, plan, technique)
    if not costed:
        return None
    best = max(costed, key=lambda other: other.tokens_per_s)
    faster_by = best.tokens_per_s / plan.tokens_per_s - 1.0
    saved_bytes = plan.peak_bytes - best.peak_bytes
    lighter = faster_by > -LEAST_GAIN and saved_bytes >= LEAST_SAVING * plan.peak_bytes
    if faster_by < LEAST_GAIN and not lighter:
        return None
    return UnusedTechnique(
        name=technique.name,
        words=technique.words,
        effect=technique.effect,
        faster_by=faster_by,
        saved_bytes=saved_bytes,
        fit_probability=best.fit_probability,
        degrees="" if best.degrees == plan.degrees else f"zero {best.degrees.zero}",
        needs=technique.needs,
    )


def mtp_note(job: Job, plan: Plan) -> tuple[str, ...]:
    """A note on the cost of the model's own multi-token prediction, which the framework leaves out
    by default."""
    published = job.published_mtp
    if job.model.mtp_layers or not published:
        return ()
    said = (
        f"no multi-token prediction, which is {job.framework.name}'s default; {job.model.name} was "
        f"published with {plural(published, 'layer')} of it"
    )
    if job.framework.mtp == "never":
        return (f"{said}, and {job.framework.name} has none",)
    decided = decided_job(job, plan)
    changed = replace(decided, model=job.model.with_mtp(published))
    option = f"--mtp-layers {published}"
    try:
        other = _again(changed, plan, plan.degrees)
    except (UsageError, ConstraintError) as error:
        why = str(error).rpartition("- ")[2]
        return (f"{said}. {option} trains it, but not with this plan: {why}",)
    slower = plan.tokens_per_s / other.tokens_per_s - 1.0
    more = (other.peak_bytes - plan.peak_bytes) / GIB
    return (
        f"{said}. {option} makes this plan {share(slower)} slower, {more:+.1f} GiB at the peak",
    )


def _plans(job: Job, plan: Plan, technique: Technique) -> list[Plan]:
    """The plan with the technique, for each sharding stage of its profile; empty if a rule forbids
    it."""
    degrees, plans = [plan.degrees], list[Plan]()
    if technique.profile:
        stages = load_framework(technique.profile).parallelism.zero_stages
        degrees = [plan.degrees.model_copy(update={"zero": one, "shard": 0}) for one in stages]
    for each in degrees:
        with suppress(UsageError, ConstraintError):
            changed = decided_job(job, plan).at_choice(
                plan.optimizer_offload, plan.activation_offload, plan.activation_offload_fraction,
                (technique.name,),
            )  # fmt: skip
            plans.append(_again(changed, plan, each))
    return plans


def _again(job: Job, plan: Plan, degrees: Degrees) -> Plan:
    """A plan's layers and recomputation for another job or other degrees. UsageError if a rule
    forbids it."""
    from planner.predict.configuration import Configuration, place_of
    from planner.predict.evaluate import checked, evaluated

    modes = tuple(map(job.framework.recompute_mode, plan.modes))
    decided = replace(job, recompute=modes)
    place = place_of(job, degrees.pp, plan.stage_gpus)
    return evaluated(checked(Configuration(decided, degrees, modes[0], plan.layout, place=place)))
