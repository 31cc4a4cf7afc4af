"""Compare clusters for reinforcement learning in samples per dollar: each at its fastest plan, also
combined with sampling GPUs of another type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from constraints.errors import ConstraintError
from hardware.errors import HardwareError
from hardware.frozen import Frozen
from hardware.schema import Cluster
from planner._version import __version__
from planner.compare.goodput import GoodputRun, checkpoint_bytes, goodput
from planner.compare.interval import Range, bound, columns
from planner.compare.offers import Offer, check_providers
from planner.compare.results import ChoiceLimits, Objective
from planner.compare.run import facility_kw, gpu_hour, power_of, racks_of, with_interruptions
from planner.compare.settings import BASIS_NAMES, CostBasis, Settings
from planner.job.errors import NothingFitsError, UsageError
from planner.job.job import Job
from planner.job.quantities import DAY_S, HOUR_S
from planner.job.rl.request import RlRequest
from planner.search.rl.engines import EngineLimits
from planner.search.rl.result import RlPlan
from planner.search.rl.search import find_rl_plans

if TYPE_CHECKING:
    import pandas as pd

# Most pairs of clusters that are searched.
MOST_PAIRS = 200
Beyond = Literal["", "deadline", "budget", "power", "racks"]
# Changes the trainer's request for one cluster, for example by limits on degrees.
Prepare = Callable[[RlRequest, Job], RlRequest]


class RlRow(Frozen):
    """A cluster, perhaps with a second one for sampling: its fastest plan with its figures, or the
    reason why there is none.

    `samples_per_s`: lasting ones, including interruptions; `price_per_hour`: of all GPUs, None
    without a price; `samples_per_unit`: samples per unit of the currency; `days`, `cost`, `mwh`:
    for the samples to train on, None if their number is not given; `beyond`: a limit that is not
    kept with enough certainty.
    """

    cluster: str
    rollout: str = ""
    gpus: int
    plan: RlPlan | None = None
    reason: str = ""
    refused: bool = False
    samples_per_s: Range | None = None
    price_per_hour: float | None = None
    samples_per_unit: Range | None = None
    power_kw: float = 0.0
    racks: int = 0
    days: Range | None = None
    cost: Range | None = None
    mwh: Range | None = None
    beyond: Beyond = ""
    on_front: bool = False

    @property
    def name(self) -> str:
        """`32xH100`; with separate sampling GPUs `32xH100 + 32xL40S`; if some of its GPUs sample
        `32xH100 (16 sample)`."""
        if self.rollout.isdecimal():
            return f"{self.cluster} ({self.rollout} sample)"
        return f"{self.cluster} + {self.rollout}" if self.rollout else self.cluster


class RlComparison(Frozen):
    """Clusters, best first, and the one to take, which is None if none keeps the limits."""

    planner_version: str
    model: str
    algorithm: str
    currency: str
    basis: CostBasis
    minimise: Objective
    samples: int | None = None
    rows: tuple[RlRow, ...]
    best: str | None = None
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """One row per cluster; empty cells if there is no plan."""
        import pandas as pd

        return pd.DataFrame([_flat(row) for row in self.rows])


def _flat(row: RlRow) -> dict[str, Any]:
    ranges = ("samples_per_s", "samples_per_unit", "days", "cost", "mwh")
    flat: dict[str, Any] = row.model_dump(exclude={"plan", *ranges})
    for name in ranges:
        flat |= columns(name, getattr(row, name))
    if row.plan is not None:
        flat |= {"placement": row.plan.placement, "step_s": row.plan.step_s}
    return flat


@dataclass(frozen=True, slots=True)
class RlHow:
    """How the searches run: `limits` on engines; `prepare`: changes the trainer's request on each
    cluster; `seed`, `time_limit_s`: of each search; `progress`: called when a search ends."""

    limits: EngineLimits | None = None
    prepare: Prepare | None = None
    seed: int = 0
    time_limit_s: float | None = None
    progress: Callable[[str, int, int], None] | None = None


def compare_rl(
    request: RlRequest,
    offers: Sequence[Offer],
    rollouts: Sequence[str] = (),
    settings: Settings | None = None,
    *,
    samples: int | None = None,
    limits: ChoiceLimits | None = None,
    minimise: Objective = "cost",
    how: RlHow | None = None,
) -> RlComparison:
    """Clusters for one reinforcement-learning job, each after a search for its fastest plan.

    `request`: without gpus; `rollouts`: separate sampling GPUs, each tried with each offer, which
    is also searched without any; or numbers of the offer's GPUs that sample. `samples`: to train on
    in total, for days and cost. `limits`: for the best cluster; `minimise`: dollars per sample,
    seconds, or energy. UsageError for input that is wrong for every cluster.
    """
    chosen, asked, kept = settings or Settings(), how or RlHow(), limits or ChoiceLimits()
    _check(offers, rollouts, chosen, kept, samples)
    pairs = [(offer, rollout) for offer in offers for rollout in _beside(rollouts)]
    rows = []
    for number, (offer, rollout) in enumerate(pairs):
        rows.append(_row(request, offer, rollout, chosen, asked, samples))
        if asked.progress is not None:
            asked.progress(f"searched {rows[-1].name}", number + 1, len(pairs))
    judged = [row.model_copy(update={"beyond": _beyond(row, kept)}) for row in rows]
    front = _front(judged)
    judged = [row.model_copy(update={"on_front": row.name in front}) for row in judged]
    judged.sort(key=lambda row: _value(row, minimise))
    best = next((row for row in judged if row.plan and not row.beyond), None)
    if best is not None and _value(best, minimise) == inf:
        best = None
    return RlComparison(
        planner_version=__version__,
        model=request.trainer.find_model().spec.name,
        algorithm=request.algorithm,
        currency=chosen.currency,
        basis=chosen.basis,
        minimise=minimise,
        samples=samples,
        rows=tuple(judged),
        best=best.name if best else None,
    )


def _beside(rollouts: Sequence[str]) -> Sequence[str]:
    """The entries of `rollouts` to try with each offer. If they are types of GPU, the empty text
    comes first, for the offer without other GPUs. If they are numbers of the offer's own GPUs, they
    are returned alone."""
    numbers = any(text.isdecimal() for text in rollouts)
    return rollouts if numbers else ("", *rollouts)


def _check(
    offers: Sequence[Offer],
    rollouts: Sequence[str],
    settings: Settings,
    limits: ChoiceLimits,
    samples: int | None,
) -> None:
    if not offers:
        raise UsageError("no cluster to compare: give --gpus 64xH100 or --clusters FILE.toml")
    count = len(offers) * len(_beside(rollouts))
    if count > MOST_PAIRS:
        raise UsageError(f"{count} pairs of clusters: give at most {MOST_PAIRS}")
    check_providers(settings, tuple(offers))
    if samples is None and (limits.deadline_days is not None or limits.budget is not None):
        raise UsageError(
            "--deadline, --budget: give the number of samples to train on, such as --samples 10M"
        )


def _row(
    request: RlRequest,
    offer: Offer,
    rollout: str,
    settings: Settings,
    how: RlHow,
    samples: int | None,
) -> RlRow:
    cluster = offer.resolve()
    trainer = request.trainer.model_copy(update={"gpus": offer.gpus, "cluster": offer.cluster})
    update: dict[str, Any] = {"trainer": trainer}
    if rollout:
        update["rollout_gpus"] = rollout
    asked = request.model_copy(update=update)
    row = RlRow(cluster=offer.label, rollout=rollout, gpus=cluster.num_gpus)
    try:
        job = asked.resolve()
        if how.prepare is not None:
            asked = how.prepare(asked, job.trainer)
        found = find_rl_plans(
            asked, limits=how.limits, seed=how.seed, time_limit_s=how.time_limit_s,
            fastest_only=True, remedies=False,
        )  # fmt: skip
    except (UsageError, HardwareError, ConstraintError) as error:
        return row.model_copy(update={"reason": str(error).splitlines()[0], "refused": True})
    except NothingFitsError as error:
        return row.model_copy(update={"reason": ": ".join(str(error).splitlines()[:2])})
    own = () if job.engine_cluster is None else ((Offer(gpus=rollout), job.engine_cluster),)
    machines = ((offer, cluster), *own)
    return _priced(row, found.plans[0], job.trainer, machines, settings, samples)


def _priced(
    row: RlRow,
    plan: RlPlan,
    trainer: Job,
    machines: Sequence[tuple[Offer, Cluster]],
    settings: Settings,
    samples: int | None,
) -> RlRow:
    """A row with the figures of its plan: lasting samples, their price, power."""
    clusters = [cluster for _, cluster in machines]
    gpus = sum(cluster.num_gpus for cluster in clusters)
    lasting = goodput(
        GoodputRun(
            gpus,
            sum(cluster.num_nodes for cluster in clusters),
            checkpoint_bytes(trainer),
            trainer.cluster.gpu.host_link_bytes_per_s_per_direction,
        ),
        settings,
    )
    if lasting.share <= 0.0:
        return row.model_copy(update={"gpus": gpus, "reason": "no useful time is left"})
    step = Range(value=plan.step_s, low=plan.low_s, high=plan.high_s)
    step_s = with_interruptions(step, lasting)
    rate = Range(
        value=plan.samples / step_s.value,
        low=plan.samples / step_s.high,
        high=plan.samples / step_s.low,
    )
    price, missing = _price_per_hour(machines, settings)
    power_kw = sum(
        facility_kw(power_of(cluster, settings).drawn_w, cluster.num_gpus) for cluster in clusters
    )
    update: dict[str, Any] = {
        "gpus": gpus,
        "plan": plan,
        "samples_per_s": rate,
        "price_per_hour": price,
        "samples_per_unit": None if not price else rate.times(HOUR_S / price),
        "power_kw": power_kw,
        "racks": sum(racks_of(cluster, cluster.num_gpus, settings) for cluster in clusters),
        "reason": missing,
    }
    if samples is not None:
        days = step_s.times(samples / plan.samples / DAY_S)
        hours = days.times(DAY_S / HOUR_S)
        update |= {"days": days, "mwh": hours.times(power_kw / 1e3)}
        update["cost"] = None if price is None else hours.times(price)
    return row.model_copy(update=update)


def _price_per_hour(
    machines: Sequence[tuple[Offer, Cluster]], settings: Settings
) -> tuple[float | None, str]:
    """The price of an hour of all machines; if it is None, a message that names the GPU without a
    price."""
    total = 0.0
    for offer, cluster in machines:
        each = gpu_hour(offer, cluster, settings.basis, settings)
        if each is None:
            return None, f"no {BASIS_NAMES[settings.basis]} price for {cluster.gpu.name}"
        total += each * offer.ordered(cluster.num_gpus)
    return total, ""


def _beyond(row: RlRow, limits: ChoiceLimits) -> Beyond:
    """The name of the first limit that a row does not keep with enough certainty; empty if it keeps
    all. A cost that is not known breaks every budget."""
    if limits.deadline_days is not None and _surely(row.days, limits) > limits.deadline_days:
        return "deadline"
    if limits.budget is not None and _surely(row.cost, limits) > limits.budget:
        return "budget"
    if limits.power_kw is not None and row.power_kw > limits.power_kw:
        return "power"
    return "racks" if limits.racks is not None and row.racks > limits.racks else ""


def _surely(figure: Range | None, limits: ChoiceLimits) -> float:
    return inf if figure is None else bound(figure, limits.certainty)


def _front(rows: Sequence[RlRow]) -> set[str]:
    """Names of the rows that no other beats both in samples per second and in samples for the
    money."""
    known = [
        (row.name, row.samples_per_s.value, row.samples_per_unit.value)
        for row in rows
        if row.samples_per_s is not None and row.samples_per_unit is not None
    ]
    return {
        name
        for name, speed, worth in known
        if not any(a >= speed and b >= worth and (a, b) != (speed, worth) for _, a, b in known)
    }


def _value(row: RlRow, minimise: Objective) -> float:
    """Money, seconds or energy per sample, whichever is minimised; smaller is better. Infinite if
    it is unknown."""
    if row.samples_per_s is None:
        return inf
    speed = row.samples_per_s.value
    if minimise == "time":
        return 1.0 / speed
    if minimise == "energy":
        return row.power_kw / speed
    worth = row.samples_per_unit
    return inf if worth is None or not worth.value else 1.0 / worth.value
