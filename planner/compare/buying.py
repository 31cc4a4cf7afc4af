"""`buy`: which GPUs, how many and at which price, for one or several training runs.

Every job is searched on every cluster that may be worth it, and CP-SAT chooses among the results
(`planner.compare.decision`). A cluster is not searched if it would break a limit even if its GPUs
always computed at their peak, or if a plan found elsewhere beats even that bound. No plan can beat
the bound, so leaving such clusters out changes neither the choice nor the front.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from multiprocessing.pool import Pool
from typing import TYPE_CHECKING, Any, Literal

from hardware.frozen import Frozen
from planner._version import __version__
from planner.compare.comparison import (
    EnteredOffer,
    check_currencies,
    check_tokens,
    enter,
    run_of,
    with_batch,
)
from planner.compare.decision import choice_of, decide
from planner.compare.interval import columns
from planner.compare.offers import Offer, check_providers, demand_distinct
from planner.compare.results import (
    COMPARISON_VERSION,
    Choice,
    ChoiceLimits,
    Decision,
    Objective,
    Order,
)
from planner.compare.run import HOURS_PER_DAY, facility_kw, gpu_hour, power_of, racks_of
from planner.compare.searches import (
    ONE_BY_ONE,
    How,
    Outcome,
    Prepare,
    Progress,
    run_searches,
    workers,
)
from planner.compare.settings import CostBasis, Settings
from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.quantities import DAY_S
from planner.job.request import Request
from planner.predict.cost_model import CostModel
from planner.predict.ops.trained import trained_flop
from planner.predict.plan_text import configuration_text

if TYPE_CHECKING:
    import pandas as pd


MOST_SEARCHES = 1_000
# Searches per process in one wave; between waves, clusters that cannot win any more are dropped.
_AHEAD = 2


@dataclass(frozen=True)
class TrainingRun:
    """A job without a cluster, and the number of tokens to train on."""

    name: str
    request: Request
    tokens: int


class BuyRow(Frozen):
    """A job on a cluster: the figures of its best plan, or the reason why there are none.

    `plan`: its degrees, in words. `searched`: False if a bound ruled the cluster out before a
    search; `beyond`: the limit that the bound breaks, or `another` if a cluster that was searched
    is at least as good in everything that counts.
    """

    job: str
    cluster: str
    choice: Choice | None = None
    plan: str = ""
    reason: str = ""
    searched: bool = True
    beyond: Beyond = ""
    # No configuration obeys the request, whatever its memory.
    refused: bool = False


class Buying(Frozen):
    """The clusters to take, and the table that the choice was made from."""

    version: int = COMPARISON_VERSION
    planner_version: str
    currency: str = "USD"
    basis: CostBasis = "on_demand"
    rows: tuple[BuyRow, ...]
    decision: Decision | None
    reason: str = ""

    def to_frame(self) -> pd.DataFrame:
        """One row per job and cluster; empty cells if there is no plan. Days, MWh, kW."""
        import pandas as pd

        return pd.DataFrame([_flat(row) for row in self.rows])


def _flat(row: BuyRow) -> dict[str, Any]:
    flat: dict[str, Any] = row.model_dump(exclude={"choice", "refused"})
    one = row.choice
    if one is not None:
        flat |= {"num_gpus": one.num_gpus, "power_kw": one.power_kw, "racks": one.racks}
        flat |= columns("days", one.days) | columns("cost", one.cost) | columns("mwh", one.mwh)
    return flat


def buy(
    runs: Sequence[TrainingRun],
    offers: Sequence[Offer],
    limits: ChoiceLimits,
    settings: Settings | None = None,
    *,
    objective: Objective = "cost",
    order: Order = "side-by-side",
    how: How = ONE_BY_ONE,
    or_owned: bool = False,
) -> Buying:
    """The clusters to take for some training runs, after a full search on each cluster that no
    bound rules out.

    `or_owned`: also consider buying a cluster if that is cheaper than the settings' kind of price.
    UsageError for input that is wrong for every cluster.
    """
    chosen = settings or Settings()
    owned: tuple[CostBasis, ...] = ("owned",) if or_owned else ()
    kinds = tuple(dict.fromkeys((chosen.basis, *owned)))
    _check(runs, offers, chosen)
    told = how.progress or _silent
    cases = [
        _Case(run, entry, chosen, kinds)
        for run in runs
        for entry in _entries(run, offers, how.prepare, chosen, told)
    ]
    rows: list[BuyRow | None] = [None] * len(cases)

    # If jobs share a cluster, they cannot be moved from it one at a time, so no cluster is beaten
    # alone.
    shares = order == "one-after-another" or (
        order == "mixed" and not (limits.power_kw is None and limits.racks is None)
    )
    together = shares and len(runs) > 1
    sums = counting(limits, objective)

    def fill(kept: ChoiceLimits, pool: Pool | None) -> Buying:
        """Search the clusters whose bounds keep these limits, most promising first, then choose."""
        for number, case in enumerate(cases):
            told("ruling out clusters by their fastest possible time", number, len(cases))
            row = rows[number]
            if row is None or not row.searched:
                rows[number] = case.ruled_out(kept, objective)
        left = [number for number, row in enumerate(rows) if row is None]
        left.sort(key=lambda number: cases[number].least.promise)
        total = len(left)
        while left:
            wave = [cases[number] for number in left[: 1 if pool is None else _AHEAD * how.jobs]]
            requests = ((one.entry.request, one.run.tokens) for one in wave)
            outcomes = run_searches(
                [how.task(one, only_plans=True, tokens=tokens) for one, tokens in requests],
                [f"{one.run.name} on {one.entry.offer.label}" for one in wave],
                progress=_shifted(how.progress, total - len(left), total),
                pool=pool,
            )
            for number, case, outcome in zip(left, wave, outcomes, strict=False):
                rows[number] = case.searched(outcome)
            left = left[len(wave) :]
            for number in () if together else left:
                rows[number] = cases[number].beaten(rows, sums, limits)
            left = [number for number in left if rows[number] is None]
        return _answer(runs, [row for row in rows if row is not None], limits, objective, order)

    with workers(min(how.jobs, len(cases))) as pool:
        answer = fill(limits, pool)
        if (answer.decision is None or answer.decision.best is None) and limits.given:
            # The limits that would have to give may lie with clusters beyond the limits, so search
            # those too.
            answer = fill(ChoiceLimits(certainty=limits.certainty), pool)
    return answer.model_copy(update={"currency": chosen.currency, "basis": chosen.basis})


@dataclass(frozen=True)
class _Case:
    """A job on a cluster, priced at the cheapest of some kinds of price."""

    run: TrainingRun
    entry: EnteredOffer
    settings: Settings
    kinds: tuple[CostBasis, ...]

    @cached_property
    def least(self) -> Least:
        return least_of(self.entry, self.run.tokens, self.settings, self.kinds)

    def row(self, **fields: Any) -> BuyRow:
        return BuyRow(job=self.run.name, cluster=self.entry.offer.label, **fields)

    def ruled_out(self, limits: ChoiceLimits, objective: Objective) -> BuyRow | None:
        """The row of a cluster that its bound rules out; None if it must be searched."""
        if self.entry.job is None:
            return self.row(searched=False, reason=str(self.entry.problem))
        if self.least.cost is None and (objective == "cost" or limits.budget is not None):
            names = " or ".join(self.kinds).replace("_", "-")
            return self.row(searched=False, reason=f"no {names} price")
        beyond, reason = over_a_limit(self.least, limits, self.settings.currency)
        return self.row(searched=False, reason=reason, beyond=beyond) if reason else None

    def beaten(
        self, rows: Sequence[BuyRow | None], sums: Sequence[str], limits: ChoiceLimits
    ) -> BuyRow | None:
        """The row of a cluster that needs no search: a plan already found for the same job is at
        least as good, even if this cluster reached its bound. None if it must be searched."""
        alike = (row.choice for row in rows if row and row.job == self.run.name)
        cluster = better(self.least, (one for one in alike if one is not None), sums, limits)
        reason = f"takes {self.least.time:,.3g} days {EVEN_SO}: {cluster} is better"
        return self.row(searched=False, beyond="another", reason=reason) if cluster else None

    def searched(self, outcome: Outcome) -> BuyRow:
        found, reason = run_of(self.entry, outcome, self.run.tokens, self.settings)
        if found is None:
            return self.row(reason=reason, refused=outcome.refused)
        name, gpus = self.entry.offer.label, self.entry.cluster.num_gpus
        choices = (choice_of(self.run.name, name, gpus, found, kind) for kind in self.kinds)
        choice = min(choices, key=lambda one: inf if one.cost is None else one.cost.value)
        return self.row(choice=choice, plan=configuration_text(found.plan))


def _answer(
    runs: Sequence[TrainingRun],
    rows: Sequence[BuyRow],
    limits: ChoiceLimits,
    objective: Objective,
    order: Order,
) -> Buying:
    choices = [row.choice for row in rows if row.choice is not None]
    lost = [run.name for run in runs if not any(one.job == run.name for one in choices)]
    return Buying(
        planner_version=__version__,
        rows=tuple(rows),
        decision=None if lost else decide(choices, limits, objective, order),
        reason=f"no cluster offered can run {', '.join(lost)}" if lost else "",
    )


def _check(runs: Sequence[TrainingRun], offers: Sequence[Offer], settings: Settings) -> None:
    if not runs:
        raise UsageError("no training run to buy for: give --model and --tokens, or --jobs FILE")
    if not offers:
        raise UsageError("no cluster to choose from: give --gpus 64..1024xH100, or --clusters FILE")
    if len(runs) * len(offers) > MOST_SEARCHES:
        raise UsageError(
            f"{len(runs)} jobs on {len(offers)} clusters are {len(runs) * len(offers):,} searches; "
            f"at most {MOST_SEARCHES:,}: give fewer sizes or clusters"
        )
    for run in runs:
        check_tokens(run.tokens)
    demand_distinct(tuple(offers))
    check_providers(settings, offers)


def _entries(
    run: TrainingRun,
    offers: Sequence[Offer],
    prepare: Prepare | None,
    settings: Settings,
    told: Progress,
) -> list[EnteredOffer]:
    """The job on each cluster. Raise UsageError if every cluster has a problem, since it then lies
    with the job."""
    base, _ = with_batch(run.request)
    entries = []
    for number, offer in enumerate(offers):
        told("preparing the clusters on offer", number, len(offers))
        entries.append(enter(offer, base, None, prepare))
    problems = [entry.problem for entry in entries if entry.problem is not None]
    if len(problems) == len(entries):
        raise UsageError(f"{run.name}: {problems[0]}") from problems[0]
    check_currencies(entries, settings)
    return entries


def _silent(_what: str, _done: int, _total: int) -> None:
    """Ignore a report on progress."""


def _shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    """A progress callback for a later wave of searches: it counts on from the `before` searches
    that are done, up to `total` of all waves. None without a callback."""
    if progress is None:
        return None
    return lambda what, done, _total: progress(what, before + done, total)


# The assumption behind a lower bound on time.
EVEN_SO = "even if the GPUs only multiplied matrices"

Beyond = Literal["", "deadline", "budget", "power", "racks", "another"]


@dataclass(frozen=True)
class Least:
    """Lower bounds on every plan of a cluster; `cost` is None without a price."""

    time: float
    cost: float | None
    energy: float
    power: float
    racks: int

    @property
    def promise(self) -> float:
        """Sort key: clusters with small values are searched first, because they rule others out."""
        return self.time * (self.time if self.cost is None else self.cost)


def least_of(
    entry: EnteredOffer, tokens: int, settings: Settings, kinds: Iterable[CostBasis]
) -> Least:
    """The bounds of a job on a cluster, at the lowest of these kinds of price."""
    gpus = entry.cluster.num_gpus
    prices = (gpu_hour(entry.offer, entry.cluster, kind, settings) for kind in kinds)
    price = min((one for one in prices if one is not None), default=None)
    days = least_days(entry.job, tokens) if entry.job is not None else 0.0
    power_kw = facility_kw(power_of(entry.cluster, settings).drawn_w, gpus)
    hours = days * HOURS_PER_DAY
    cost = None if price is None else hours * gpus * price
    racks = racks_of(entry.cluster, gpus, settings)
    return Least(days, cost, hours * power_kw / 1e3, power_kw, racks)


def over_a_limit(least: Least, limits: ChoiceLimits, currency: str) -> tuple[Beyond, str]:
    """The name of a limit that every plan of a cluster breaks, and a sentence on it. Both are empty
    if the bounds keep all limits, so that only a search can tell."""
    if limits.power_kw is not None and least.power > limits.power_kw:
        return "power", f"draws {least.power:,.0f} kW"
    if limits.racks is not None and least.racks > limits.racks:
        return "racks", f"fills {least.racks:,} racks"
    if limits.deadline_days is not None and least.time > limits.deadline_days:
        return "deadline", f"takes {least.time:,.3g} days {EVEN_SO}"
    if limits.budget is not None and (least.cost or 0.0) > limits.budget:
        return "budget", f"costs {least.cost:,.0f} {currency} {EVEN_SO}"
    return "", ""


def counting(limits: ChoiceLimits, objective: Objective) -> tuple[str, ...]:
    """The names of the figures in which another cluster must be at least as good before a cluster
    is left out: time and cost always, the others if they are limited or minimised."""
    asked = {
        "power": limits.power_kw is not None,
        "racks": limits.racks is not None,
        "energy": objective == "energy",
    }
    return ("time", "cost", *(name for name, wanted in asked.items() if wanted))


def better(least: Least, found: Iterable[Choice], sums: Iterable[str], limits: ChoiceLimits) -> str:
    """The name of the first cluster that has a choice at least as good as `least` in every one of
    the `sums`; empty if there is none. A choice with a price is compared only with bounds that have
    one, and one without only with bounds without. A choice is judged by its upper bounds at the
    requested certainty, which are never below the figures of its plan."""
    for choice in found:
        if (choice.cost is None) != (least.cost is None):
            continue
        figures = choice.bounds(limits.certainty)
        if all(figures[name] <= (getattr(least, name) or 0.0) for name in sums):
            return choice.cluster
    return ""


def least_days(job: Job, tokens: int) -> float:
    """A lower bound on the days of any plan: the model's matrix products run at the rate that the
    largest ones sustain (or at the attention kernel's rate, if that is higher), without
    recomputation and communication."""
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
    flop = tokens * trained_flop(job, job.row(1).attended, causal=True).total
    return flop / (rate * job.cluster.num_gpus) / DAY_S
