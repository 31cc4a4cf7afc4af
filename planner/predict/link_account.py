"""The only account of the time that a step waits for its links, by bandwidth and latency.

Each figure is a difference of predictions. The bandwidth of a link accounts for the time that the
step loses against one in which only that link is infinitely fast. A link twice as fast saves at
least about half of that: the step is a sum of maxima of two times, so it is nearly convex in the
time per byte (except where a collective chooses the faster of two algorithms). Latency accounts for
what zero time per hop saves beyond infinite bandwidth. The rest of exposed communication is
start-up: launches, kernels that dispatch tokens, the CPU that posts them. Exchanges that run while
the CPU launches kernels count as launches, since faster links would not shorten the step.

`planner compare`, `planner explain` and the pages show this account; `planner explain --what-if`
changes the same inputs of the cost core (`RATES_OUT`, `RATES_UP`, `LATENCIES`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from hardware.frozen import Frozen
from hardware.schema import FABRIC_TITLES, Cluster
from planner.cost import fields as f
from planner.cost.terms import TRAFFIC_TERMS
from planner.job.job import Job
from planner.predict.calibrated import Factors
from planner.predict.configuration import Configuration
from planner.predict.cost_model import CostModel
from planner.predict.mixture import cost_configuration
from planner.predict.plan import Plan

# Inputs of the cost core: rates between scale-up domains, rates inside one, and times per hop. A
# faster link is faster in every use.
RATES_OUT = (
    "scale_out_bytes_per_s", "scale_out_pair_bytes_per_s", "scale_out_exchange_bytes_per_s",
    "scale_out_dispatch_bytes_per_s", "in_network_bytes_per_s",
)  # fmt: skip
RATES_UP = (
    "scale_up_bytes_per_s", "scale_up_mesh_bytes_per_s", "scale_up_exchange_bytes_per_s",
    "scale_up_pair_bytes_per_s", "scale_up_dispatch_bytes_per_s", "root_bytes_per_s",
)  # fmt: skip
LATENCIES = (
    "scale_up_latency_s", "scale_up_start_s", "scale_out_latency_s", "in_network_latency_s",
    "in_network_tier_s", "scale_up_reduction_latency_s",
)  # fmt: skip
_INFINITE = 1e12
# Terms of a step that are exposed communication, with the group that communicates.
TRAFFIC = {term.field: term.traffic for term in TRAFFIC_TERMS}
# The part of compute in which the GPU waits for the CPU to launch kernels.
LAUNCHES = "launches_s"
# Traffic with less than this share of a figure is not named with it.
_LEAST_TRAFFIC = 0.2

Part = Literal["bandwidth", "latency", "start", "term"]


class LinkShare(Frozen):
    """A part of the step. `resource`: the link or activity for which the step waits; `traffic`: the
    groups whose exchanges wait; `part`: bandwidth of one link, latency of all, the start of
    exchanges, or a term other than communication (`term`: its field in
    `planner.predict.plan.TimeTerms`, or `LAUNCHES`)."""

    resource: str
    traffic: str
    part: Part
    seconds: float
    share: float
    term: str = ""


def scale_up_name(cluster: Cluster) -> str:
    """Name of the link between GPUs of a node or rack."""
    if not cluster.peer_to_peer:
        return "host memory"
    if cluster.scale_up_domain_gpus == 1:
        return "PCIe"
    return "NVLink" if cluster.gpu.vendor == "nvidia" else "xGMI"


def scale_out_name(cluster: Cluster) -> str:
    """Name of the network between nodes."""
    return FABRIC_TITLES.get(cluster.fabric, cluster.fabric)


def link_account(job: Job, plan: Plan) -> tuple[LinkShare, ...]:
    """The parts of a plan's step with their seconds, the largest first; their shares add up to one.
    Parts of almost no time are left out.

    `job`: the job on the GPUs that the plan uses. Empty if the plan's stages run on several GPU
    types, because their links differ.
    """
    if plan.stage_gpus:
        return ()
    configuration = Configuration.of_plan(job, plan)
    both_rates, hops = (*RATES_OUT, *RATES_UP), dict.fromkeys(LATENCIES, 1.0 / _INFINITE)
    now = _terms_under(configuration, {})
    out, inside, both = (
        _terms_under(configuration, dict.fromkeys(names, _INFINITE))
        for names in (RATES_OUT, RATES_UP, both_rates)
    )
    instant = _terms_under(configuration, dict.fromkeys(both_rates, _INFINITE) | hops)
    total, total_both = sum(now.values()), sum(both.values())
    out_name, up_name = scale_out_name(job.cluster), scale_up_name(job.cluster)
    both_s = total - total_both
    out_s = _clipped(total - sum(out.values()), both_s)
    inside_s = _clipped(total - sum(inside.values()), both_s - out_s)
    rest = both_s - out_s - inside_s
    rows: list[tuple[str, str, Part, float, str]] = [
        (f"{out_name} bandwidth", _waiting(now, out), "bandwidth", out_s, ""),
        (f"{up_name} bandwidth", _waiting(now, inside), "bandwidth", inside_s, ""),
        (f"{out_name} and {up_name} bandwidth", _waiting(now, both), "bandwidth", rest, ""),
        ("latency", _waiting(both, instant), "latency", total_both - sum(instant.values()), ""),
    ]
    for name, seconds in instant.items():
        if name in TRAFFIC:
            rows.append(("starting exchanges", TRAFFIC[name], "start", seconds, name))
        else:
            rows.append((name, "", "term", seconds, name))
    fields = ("resource", "traffic", "part", "seconds", "term")
    found = [
        LinkShare(**dict(zip(fields, row, strict=True)), share=row[3] / total)
        for row in rows
        if abs(row[3]) > 1e-9 * total
    ]
    return tuple(sorted(found, key=lambda one: -one.seconds))


def _terms_under(configuration: Configuration, factors: Factors) -> Mapping[str, float]:
    """Seconds of each term of the step, with factors on inputs of the core."""
    model = CostModel(configuration.job, factors, compiled=False)
    step = cost_configuration(model, configuration).step
    terms = {name: float(step[column]) for name, column in f.TIME_COLUMNS.items()}
    waiting = min(float(step[f.STEP_ISSUE]), terms["compute_s"])
    return {**terms, "compute_s": terms["compute_s"] - waiting, LAUNCHES: waiting}


def _clipped(seconds: float, most: float) -> float:
    return min(max(0.0, seconds), max(0.0, most))


def _waiting(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Names of the communication groups that account for most of the seconds by which the terms in
    `before` exceed those in `after`, the largest first: `EP` or `EP, DP`. Empty if no group gains.
    """
    gains = {TRAFFIC[name]: before[name] - after[name] for name in TRAFFIC}
    whole = sum(gain for gain in gains.values() if gain > 0.0)
    named = [one for one, gain in gains.items() if whole and gain >= _LEAST_TRAFFIC * whole]
    return ", ".join(sorted(named, key=lambda one: -gains[one]))
