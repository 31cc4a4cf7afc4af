"""How certain it is that one plan is faster than another: the error of the ratio of two step times.

Two plans of one job on one cluster share most of their error: host, links, software versions and
kernel rates are the same for both. The rest grows with the differences between them. ln(measured
ratio / predicted ratio) is assumed normal with

    sd² = mixture² · Σ (scale · difference)²,

one term for each kind of difference (`TERMS`). Each doubling of a degree, of the micro-batch or of
the number of GPUs adds an independent error, so the variance is linear in the doublings. The scales
ship in `differences.toml`; `tests.fit.difference_fit` fits them to pairs of measured runs of one
source, and judges them with that source left out.

Ignores other differences between plans of the same degrees, switches and micro-batch, for example
in the split of layers: their ratio is as certain as their predicted times are alike.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from math import exp, hypot, log, log2, sqrt
from operator import ne
from typing import NamedTuple

from hardware.files import shipped_toml
from hardware.frozen import Frozen
from planner.cost.terms import TRAFFIC_TERMS
from planner.predict.plan import Plan
from planner.predict.uncertainty.residuals import DEVIATIONS
from planner.predict.uncertainty.sample_spread import SAMPLES_DEVIATION

# Kinds of difference, in the order of `squares`: within one cluster, then between clusters.
INSIDE = ("configuration", "degrees", "micro_batch", "switches", "exposed", "pace")
BETWEEN = ("gpus", "gpu")
TERMS = (*INSIDE, *BETWEEN)
# Degrees whose doublings count; chunks of a stage hardly affect the error.
_DEGREES = ("tp", "pp", "cp", "ep")


class Standing(NamedTuple):
    """Facts about a run that determine how much of its error it shares with another run.

    `degrees`: tp, pp, cp and ep; `tokens`: of a micro-batch on one GPU; `switches`: choices without
    a size, for example the sharding stage and the recompute mode; `techniques`: names of those in
    use; `exposed`: share of the step that is exposed communication; `pace`: predicted GPU seconds
    per token; `mixture`: whether the model has experts.
    """

    gpu: str
    gpus: int
    degrees: tuple[int, ...]
    tokens: float
    switches: tuple[Hashable, ...]
    techniques: frozenset[str]
    exposed: float
    pace: float
    mixture: bool


class Ratio(Frozen):
    """One step time over another, with the ends of its 80 % interval."""

    value: float
    low: float
    high: float

    @property
    def is_sure(self) -> bool:
        """Whether the whole interval is on one side of 1, so that it is certain which of the two is
        faster."""
        return self.low > 1.0 or self.high < 1.0


@dataclass(frozen=True)
class DifferenceScales:
    """Standard deviations by kind of difference between two plans, for dense models. `mixture`:
    factor on them for mixtures of experts; `flattering`: share of the errors' variance that makes a
    plan look better than it is when the plan with the best prediction is chosen."""

    scales: dict[str, float]
    mixture: float = 1.0
    flattering: float = 1.0

    def deviation(self, one: Standing, other: Standing) -> float:
        """Standard deviation of ln(measured ratio / predicted ratio) of the step times of two
        runs."""
        parts = zip(TERMS, squares(one, other), strict=True)
        variance = sum(self.scales.get(term, 0.0) ** 2 * size for term, size in parts)
        return sqrt(variance) * (self.mixture if one.mixture or other.mixture else 1.0)


def degrees_of(degrees: object) -> tuple[int, ...]:
    """The values of tp, pp, cp and ep, the degrees whose doublings add to the error."""
    return tuple(int(getattr(degrees, name)) for name in _DEGREES)


def squares(one: Standing, other: Standing) -> tuple[float, ...]:
    """Size of the difference of two runs for each of `TERMS`. Multiplied by the square of the
    term's scale, it is the variance that this difference adds."""
    doublings = sum(map(_doublings, one.degrees, other.degrees))
    micro_batch = _doublings(one.tokens, other.tokens)
    switches = sum(map(ne, one.switches, other.switches))
    switches += len(one.techniques ^ other.techniques)
    gpus, gpu = _doublings(one.gpus, other.gpus), float(one.gpu != other.gpu)
    return (
        float(any((doublings, micro_batch, switches, gpus, gpu))),
        doublings,
        micro_batch,
        float(switches),
        (one.exposed - other.exposed) ** 2,
        log(one.pace / other.pace) ** 2,
        gpus,
        gpu,
    )


def _doublings(one: float, other: float) -> float:
    return abs(log2(one / other))


@cache
def shipped_scales() -> DifferenceScales:
    """The scales of `planner/predict/uncertainty/differences.toml`."""
    content = shipped_toml("planner.predict", "uncertainty/differences.toml")
    return DifferenceScales(content["scales"], content["mixture"], content["flattering"])


def switches_of(
    zero: int, recompute: str, schedule: str | None, offloaded: Hashable, exchange: str
) -> tuple[Hashable, ...]:
    """The plan's choices that have no size, in a fixed order, so that two plans can be compared one
    by one. Interleaving follows from the number of chunks per stage, so it is no choice of its own
    here. `exchange`: the form of context parallelism's exchange, empty without context parallelism.
    """
    usual = schedule in (None, "1f1b", "interleaved")
    return zero, recompute, "" if usual else schedule, offloaded, exchange


def standing_of(plan: Plan, gpu: str, mixture: bool) -> Standing:
    """The `Standing` of a plan; `gpu`: the type or types of GPU on which it runs."""
    degrees = plan.degrees
    exposed_s = sum(getattr(plan.time, term.field) for term in TRAFFIC_TERMS)
    return Standing(
        gpu=gpu,
        gpus=degrees.gpus,
        degrees=degrees_of(degrees),
        tokens=degrees.mbs * computed_row(plan) / degrees.cp,
        switches=switches_of(
            degrees.zero, plan.recompute, plan.schedule,
            (plan.optimizer_offload, plan.activation_offload), plan.cp_comm_type,
        ),
        techniques=frozenset(plan.techniques),
        exposed=exposed_s / plan.step_time_s,
        pace=degrees.gpus * seconds_a_token(plan),
        mixture=mixture,
    )  # fmt: skip


def plan_ratio(first: Plan, other: Plan, mixture: bool, gpus: tuple[str, str] = ("", "")) -> Ratio:
    """Seconds per token of the plan `other` divided by those of the plan `first`, with its
    interval. `gpus`: the GPU types of the two plans, in this order, if they differ.

    The interval is never wider than for two independent errors: own runs may have taught more about
    both plans than is known about differences.
    """
    standings = standing_of(first, gpus[0], mixture), standing_of(other, gpus[1], mixture)
    samples = SAMPLES_DEVIATION if _rules(first) != _rules(other) else 0.0
    half = half_width(hypot(shipped_scales().deviation(*standings), samples))
    (first_below, first_above), (below, above) = map(_sides, (first, other))
    return ratio_between(
        seconds_a_token(other) / seconds_a_token(first),
        min(half, hypot(below, first_above)),
        min(half, hypot(above, first_below)),
    )


def _rules(plan: Plan) -> tuple[str, ...]:
    """The rules by which a plan pads or packs its samples, and balances them."""
    return () if plan.samples is None else (plan.samples.packing, plan.samples.balance)


def half_width(deviation: float) -> float:
    """Half width of the 80 % interval of a normal error in ln."""
    return DEVIATIONS * deviation


def ratio_between(value: float, below: float, above: float) -> Ratio:
    """The ratio `value` with its interval, whose lower end is `below` and whose upper end is
    `above` away from it, in ln."""
    return Ratio(value=value, low=value * exp(-below), high=value * exp(above))


def computed_row(plan: Plan) -> float:
    """Mean number of tokens that a row of a micro-batch computes."""
    samples = plan.samples
    if samples is None:
        return plan.seq
    return samples.computed_tokens_per_s * plan.step_time_s / plan.gbs


def seconds_a_token(plan: Plan) -> float:
    """Predicted seconds per token of the global batch."""
    return 1.0 / plan.tokens_per_s


def _sides(plan: Plan) -> tuple[float, float]:
    """Distances of a plan's prediction from the lower and the upper end of its interval, in ln."""
    bar, value = plan.step_time, plan.step_time_s
    return log(value / bar.low), log(bar.high / value)
