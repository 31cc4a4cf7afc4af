"""The communicators of a plan that use reductions in the switches (SHARP), and reasons that prevent
it.

NCCL's plugin serves one kind of communicator: the first one made with NCCL_COLLNET_ENABLE=1.
Frameworks must arrange for that: Megatron's --use-sharp does so for its data-parallel groups (`dp`)
or, with several instances of the distributed optimizer, for those between the instances
(`dp_replica`) (megatron/core/parallel_state.py @00caa53a, initialize_model_parallel). The compiled
core derives the same from the links: `planner.cost.in_network`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from hardware.link_curves import load_curve_table
from planner.cost.placement import touched_domains
from planner.job.job import Job
from planner.job.quantities import share
from planner.predict.links import link_inputs
from planner.predict.plan import Degrees, Interval

SharpGroup = Literal["dp", "dp_replica"]
NOTE = (
    "switches reduce as NCCL's and SHARP's authors describe; no measured run was compared, and "
    "without a plugin, an aggregation manager or a free tree NCCL reduces on the hosts"
)


@dataclass(frozen=True, slots=True)
class SharpUse:
    """The communicators of a plan that may reduce in the switches. `group`: their kind; `size`:
    ranks in each; `groups`: number of such communicators. `reason`: why the switches do not reduce
    for them all the same; empty if they do."""

    group: SharpGroup
    size: int
    groups: int
    reason: str = ""


def sharp_use(job: Job, degrees: Degrees) -> SharpUse | None:
    """The communicators of a plan that may use the switches, and whether they do; None if the
    cluster is given without SHARP."""
    if not job.cluster.sharp:
        return None
    ranks = degrees.dp * degrees.cp
    shard = degrees.shard if degrees.zero and degrees.shard else ranks
    group: SharpGroup = "dp" if shard >= ranks else "dp_replica"
    size, stride = (ranks, degrees.tp) if group == "dp" else (ranks // shard, degrees.tp * shard)
    use = SharpUse(group, size, degrees.gpus // max(1, size))
    return replace(use, reason=_reason(job, degrees, use, stride))


def _reason(job: Job, degrees: Degrees, use: SharpUse, stride: int) -> str:
    links = link_inputs(job.cluster)
    domain = int(links.scale_up_domain)
    if use.size <= 1 or touched_domains(use.size, stride, domain, degrees.gpus) == 1:
        return "its data-parallel groups stay inside a scale-up domain"
    most = int(load_curve_table().in_network[job.cluster.sharp].groups.value)
    if use.groups > most:
        return (
            f"{use.groups} data-parallel groups; switches of SHARP{job.cluster.sharp} reduce for "
            f"{most} of them, the hosts for the others"
        )
    if use.group == "dp" and degrees.zero >= 1 and links.in_network_gathers == 0.0:
        return (
            "under ZeRO gradients are reduce-scattered, which the switches do only if each GPU has "
            "a NIC"
        )
    return ""


def sharp_notes(job: Job, degrees: Degrees) -> tuple[str, ...]:
    """Assumptions about switches that reduce, or the reason why they reduce nothing of the plan."""
    use = sharp_use(job, degrees)
    if use is None:
        return ()
    return (
        f"the switches (SHARP) reduce none of the plan's traffic: {use.reason}"
        if use.reason
        else NOTE,
    )


def or_by_hosts(
    interval: Interval, step_time_s: float, by_hosts: Interval, by_hosts_s: float
) -> Interval:
    """80 % interval of a step with SHARP. No measured run uses SHARP, so if the plan is slower
    without it, the interval reaches at least to the upper end of the interval without SHARP.
    `by_hosts`, `by_hosts_s`: interval and step time, s, without SHARP."""
    ratio = by_hosts_s / step_time_s
    if ratio <= 1.0 + 1e-9:
        return interval
    beyond = (*interval.beyond, f"SHARP, {share(ratio - 1.0)} of the step")
    high = max(interval.high, by_hosts.high)
    return interval.model_copy(update={"high": high, "beyond": beyond})
