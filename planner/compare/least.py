"""What no plan on a cluster gets below, without a search: which limit that breaks, and whether a
plan that was found is better all the same. No plan can beat these bounds, so what they leave out
changes neither the choice nor the front.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from planner.compare.choice import Choice, Limits, Objective
from planner.compare.comparison import Entry
from planner.compare.energy import facility_kw, power_of, racks_of
from planner.compare.goodput import DAY_S
from planner.compare.interval import bound
from planner.compare.quotes import choose
from planner.compare.run import HOURS_PER_DAY, owned_price
from planner.compare.settings import CostBasis, Settings
from planner.job.job import Job
from planner.predict.cost_model import CostModel
from planner.predict.ops import flop_per_token

# What the bound of a time assumes.
EVEN_SO = "even if the GPUs only multiplied matrices"
KW_PER_MW = 1e3

Beyond = Literal["", "deadline", "budget", "power", "racks", "another"]


@dataclass(frozen=True)
class Least:
    """What no plan on a cluster gets below; `cost` None without a price."""

    time: float
    cost: float | None
    energy: float
    power: float
    racks: int

    @property
    def promise(self) -> float:
        """Clusters with small ones are searched first: they rule others out."""
        return self.time * (self.time if self.cost is None else self.cost)


def least_of(entry: Entry, tokens: int, settings: Settings, kinds: Iterable[CostBasis]) -> Least:
    """The bounds of a job on a cluster, its GPUs at the lowest of these kinds of price."""
    gpus, price = entry.cluster.num_gpus, gpu_hour(entry, settings, kinds)
    days = least_days(entry.job, tokens) if entry.job is not None else 0.0
    power_kw = facility_kw(power_of(entry.cluster, settings).drawn_w, gpus)
    hours = days * HOURS_PER_DAY
    cost = None if price is None else hours * gpus * price
    racks = racks_of(entry.cluster, gpus, settings)
    return Least(days, cost, hours * power_kw / KW_PER_MW, power_kw, racks)


def over_a_limit(least: Least, limits: Limits, currency: str) -> tuple[Beyond, str]:
    """Which limit no plan of a cluster can keep; empty: a search has to tell."""
    if limits.power_kw is not None and least.power > limits.power_kw:
        return "power", f"draws {least.power:,.0f} kW"
    if limits.racks is not None and least.racks > limits.racks:
        return "racks", f"fills {least.racks:,} racks"
    if limits.deadline_days is not None and least.time > limits.deadline_days:
        return "deadline", f"takes {least.time:,.3g} days {EVEN_SO}"
    if limits.budget is not None and (least.cost or 0.0) > limits.budget:
        return "budget", f"costs {least.cost:,.0f} {currency} {EVEN_SO}"
    return "", ""


def counting(limits: Limits, objective: Objective) -> tuple[str, ...]:
    """Sums in which a cluster must be worse to be left out: the front's, and what is asked for."""
    asked = {
        "power": limits.power_kw is not None,
        "racks": limits.racks is not None,
        "energy": objective == "energy",
    }
    return ("time", "cost", *(name for name, wanted in asked.items() if wanted))


def better(least: Least, found: Iterable[Choice], sums: Iterable[str], limits: Limits) -> str:
    """The cluster of a choice that is no worse in any sum than `least` at best; empty: none.

    A choice counts with its bounds at the certainty asked for, which are never below its plan's
    figures.
    """
    for choice in found:
        if (choice.cost is None) != (least.cost is None):
            continue
        figures = {
            "time": bound(choice.days, limits.certainty),
            "cost": 0.0 if choice.cost is None else bound(choice.cost, limits.certainty),
            "energy": bound(choice.mwh, limits.certainty),
            "power": choice.power_kw,
            "racks": choice.racks,
        }
        if all(figures[name] <= (getattr(least, name) or 0.0) for name in sums):
            return choice.cluster
    return ""


def gpu_hour(entry: Entry, settings: Settings, kinds: Iterable[CostBasis]) -> float | None:
    """The lowest price of a GPU hour of these kinds; None where there is none."""
    prices = (_gpu_hour(entry, settings, kind) for kind in kinds)
    return min((price for price in prices if price is not None), default=None)


def _gpu_hour(entry: Entry, settings: Settings, kind: CostBasis) -> float | None:
    if kind == "owned":
        power = power_of(entry.cluster, settings)
        owned = owned_price(entry.offer, entry.cluster, power, settings)
        return None if owned is None else owned[1].total * settings.converted(1.0, "USD")
    choice = choose(entry.offer, entry.cluster, kind, settings)
    return None if choice is None else choice.amount


def least_days(job: Job, tokens: int) -> float:
    """Days below which no plan gets: the model's products at the rate that the largest sustain
    (attention at its kernel's, where that is higher), nothing recomputed, nothing exchanged."""
    gpu = CostModel(job).gpu_inputs
    rate = max(
        gpu.matmul_flop_per_s * gpu.gemm_max_efficiency,
        gpu.matmul16_flop_per_s
        * max(
            gpu.gemm16_max_efficiency,
            gpu.attention_forward_efficiency,
            gpu.attention_backward_efficiency,
        ),
    )
    flop = tokens * flop_per_token(job.model, job.seq, causal=True)
    return flop / (rate * job.cluster.num_gpus) / DAY_S
