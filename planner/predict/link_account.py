"""Which link binds: the one account of what a step waits for its links, by bandwidth and latency.

Each figure is a difference of predictions. The bandwidth of a link is worth what the step loses
when that link alone is infinitely fast; a link that is twice as fast saves about half of that to
all of it: the step is a sum of the larger of two times, so nearly convex in the time of a byte (a
collective that may go two ways takes the faster, which is not). Latency is worth what is saved
beyond infinite bandwidth when no hop takes time; what is left of exposed communication is its
start: launches, kernels that send tokens, the CPU that posts them. Exchanges that run while the CPU
launches kernels count with these launches, for faster links would leave the step as long.

`planner compare`, `planner explain` and the pages show this account; `planner explain --what-if`
changes the same numbers of the cost core (`RATES_OUT`, `RATES_UP`, `LATENCIES`).
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
from planner.predict.mixture import cost_layout
from planner.predict.plan import Plan

# Rates of what leaves a scale-up domain, of what stays inside, and times of every hop, by their
# names in the cost core. A link is faster whichever way it is used.
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
# Terms of a step that are exposed communication, as they are called.
TRAFFIC = {term.field: term.traffic for term in TRAFFIC_TERMS}
# The part of compute in which the GPU waits for the CPU to launch kernels; exchanges hide in it.
LAUNCHES = "launches_s"
# Traffic that makes less than this share of a figure is not named with it.
_LEAST_TRAFFIC = 0.2

Part = Literal["bandwidth", "latency", "start", "term"]


class LinkShare(Frozen):
    """A part of the step: `resource` names it, `traffic` whose exchanges wait for it; `part`:
    bandwidth of one link, latency of all, the start of exchanges, or a term beside communication
    (its field in `planner.predict.plan.TimeTerms`, or `LAUNCHES`)."""

    resource: str
    traffic: str
    part: Part
    seconds: float
    share: float
    term: str = ""


def scale_up_name(cluster: Cluster) -> str:
    """The link between GPUs of a node or rack."""
    if not cluster.peer_to_peer:
        return "host memory"
    if cluster.scale_up_domain_gpus == 1:
        return "PCIe"
    return "NVLink" if cluster.gpu.vendor == "nvidia" else "xGMI"


def scale_out_name(cluster: Cluster) -> str:
    """The network between nodes."""
    return FABRIC_TITLES.get(cluster.fabric, cluster.fabric)


def link_account(job: Job, plan: Plan) -> tuple[LinkShare, ...]:
    """The parts of a plan's step, the largest first; their shares add up to one.

    `job`: on the GPUs that the plan uses. Empty on GPUs of several types, whose links differ.
    """
    if plan.stage_gpus:
        return ()
    terms = _Altered(job, plan)
    now = terms.under({})
    out, inside = (terms.under(_fast(names)) for names in (RATES_OUT, RATES_UP))
    both = terms.under(_fast((*RATES_OUT, *RATES_UP)))
    instant = terms.under(
        {**_fast((*RATES_OUT, *RATES_UP)), **dict.fromkeys(LATENCIES, 1.0 / _INFINITE)}
    )
    total = _total(now)
    out_name, up_name = scale_out_name(job.cluster), scale_up_name(job.cluster)
    of_both = total - _total(both)
    of_out = _within(total - _total(out), of_both)
    of_inside = _within(total - _total(inside), of_both - of_out)
    rest = of_both - of_out - of_inside
    rows: list[tuple[str, str, Part, float, str]] = [
        (f"{out_name} bandwidth", _waiting(now, out), "bandwidth", of_out, ""),
        (f"{up_name} bandwidth", _waiting(now, inside), "bandwidth", of_inside, ""),
        (f"{out_name} and {up_name} bandwidth", _waiting(now, both), "bandwidth", rest, ""),
        ("latency", _waiting(both, instant), "latency", _total(both) - _total(instant), ""),
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


class _Altered:
    """A plan, costed with factors on the numbers of its links."""

    def __init__(self, job: Job, plan: Plan) -> None:
        self.configuration = Configuration.of_plan(job, plan)

    def under(self, factors: Factors) -> Mapping[str, float]:
        """Seconds of each term of the step."""
        configuration = self.configuration
        model = CostModel(configuration.job, factors, compiled=False)
        priced = model.price_shapes(configuration.columns)
        step = cost_layout(model, priced, 0, configuration).step
        terms = {name: float(step[column]) for name, column in f.TIME_COLUMNS.items()}
        waiting = min(float(step[f.STEP_ISSUE]), terms["compute_s"])
        return {**terms, "compute_s": terms["compute_s"] - waiting, LAUNCHES: waiting}


def _fast(names: tuple[str, ...]) -> Factors:
    return dict.fromkeys(names, _INFINITE)


def _total(terms: Mapping[str, float]) -> float:
    return sum(terms.values())


def _within(seconds: float, most: float) -> float:
    """No less than nothing, and no more than what is there."""
    return min(max(0.0, seconds), max(0.0, most))


def _waiting(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """The groups whose exchanges make most of a difference, as `EP` or `EP, DP`."""
    gains = {TRAFFIC[name]: before[name] - after[name] for name in TRAFFIC}
    whole = sum(gain for gain in gains.values() if gain > 0.0)
    named = [one for one, gain in gains.items() if whole and gain >= _LEAST_TRAFFIC * whole]
    return ", ".join(sorted(named, key=lambda one: -gains[one]))
