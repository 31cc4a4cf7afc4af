"""Typed, serialisable results of comparisons, scaling studies and choices of clusters, also
available as DataFrames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import Field

from hardware.facts import Figure
from hardware.frozen import Frozen
from hardware.prices import PRICE_KINDS, Price, PriceKind
from planner.compare.goodput import Goodput
from planner.compare.interval import Range, bound, columns
from planner.compare.laws import BatchPrice
from planner.compare.settings import CostBasis
from planner.job.written import picked
from planner.predict.plan import Degrees, Plan
from planner.predict.uncertainty.differences import Ratio
from planner.search.result import JobSummary

if TYPE_CHECKING:
    import pandas as pd

Objective = Literal["cost", "time", "energy"]
Order = Literal["one-after-another", "side-by-side", "mixed"]

# Sums that may be limited: the fields of `ChoiceLimits` and of `Taken`.
SUMS = {
    "time": ("deadline_days", "days"),
    "cost": ("budget", "cost"),
    "power": ("power_kw", "power_kw"),
    "racks": ("racks", "racks"),
}


class ChoiceLimits(Frozen):
    """Limits of a choice; None: no limit. `certainty`: probability with which each single limit
    must be kept."""

    deadline_days: float | None = Field(None, gt=0.0)
    budget: float | None = Field(None, gt=0.0)
    power_kw: float | None = Field(None, gt=0.0)
    racks: int | None = Field(None, gt=0)
    certainty: float = Field(0.8, ge=0.5, lt=1.0)

    @property
    def given(self) -> dict[str, float]:
        """The limits that are set, by the name of the sum that they limit."""
        values = {name: getattr(self, limit) for name, (limit, _) in SUMS.items()}
        return {name: value for name, value in values.items() if value is not None}


class Choice(Frozen):
    """A job on a cluster, each figure with its interval. `power_kw`: drawn by the facility;
    `basis`: the kind of price; `provider`: empty if bought or without a price; `price_age`: in
    words, empty without a price; `beyond_measured`: a sentence if nothing similar was measured on
    this number of GPUs, otherwise empty."""

    job: str
    cluster: str
    num_gpus: int
    days: Range
    cost: Range | None
    mwh: Range
    power_kw: float
    racks: int = 0
    basis: CostBasis = "on_demand"
    provider: str = ""
    price_age: str = ""
    beyond_measured: str = ""
    # The run behind the figures, which tells how surely it is better than another.
    run: Run | None = Field(None, exclude=True, repr=False)

    def bounds(self, certainty: float) -> dict[str, float]:
        """By the name of each sum (`time` in days, `cost`, `energy` in MWh, `power` in kW,
        `racks`), the value that is not exceeded with this probability. A cost that is not known
        counts as 0; power and racks have no interval."""
        return {
            "time": bound(self.days, certainty),
            "cost": 0.0 if self.cost is None else bound(self.cost, certainty),
            "energy": bound(self.mwh, certainty),
            "power": self.power_kw,
            "racks": self.racks,
        }


class Taken(Frozen):
    """A set of choices, one per job. Its figures are upper bounds at the requested certainty.

    `together`: for each choice, the number of its cluster; jobs with the same number run on one
    cluster, one after another. `cost` is None if a price is missing. `chance_in_time`,
    `chance_in_budget`: the probability that the deadline and the budget are kept, None without such
    a limit. The errors of several jobs are taken to have the same sign, which is on the safe side
    for limits above the prediction. `gap`: the share by which another set of choices may still be
    better in the figure that was minimised; 0 if it is proven that none is.
    """

    choices: tuple[Choice, ...]
    together: tuple[int, ...]
    days: float
    cost: float | None
    mwh: float
    power_kw: float
    racks: int
    chance_in_time: float | None = None
    chance_in_budget: float | None = None
    gap: float = 0.0


class RunnerUp(Frozen):
    """The next best choice. `ratio`: the figure that was minimised, divided by that of the best
    choice, with the 80 % interval."""

    cluster: str
    ratio: Ratio


class Decision(Frozen):
    """The choice to take, and the front of money against time. `best` is None if nothing keeps all
    limits, or if a job has no choice.

    If nothing keeps all limits, `least` gives, for each limit, the smallest value with which all
    could be kept while the others stay as they are; None if no value helps. If no single limit
    helps, `alone` gives for each limit the smallest value that is possible without the others.
    `front` then ignores the limits. `runner_up`: the next best choice, only for a single job.
    """

    limits: ChoiceLimits
    objective: Objective
    order: Order
    best: Taken | None
    front: tuple[Taken, ...] = ()
    least: dict[str, float | None] = Field(default_factory=dict)
    alone: dict[str, float | None] = Field(default_factory=dict)
    reason: str = ""
    runner_up: RunnerUp | None = None


COMPARISON_VERSION = 1


class Rental(Frozen):
    """Cost of renting the cluster for the run. Amounts are in the comparison's currency.

    `choices`: the number of prices of this kind that were available; `lowest` and `highest` of
    them, per GPU hour. `least_days`: the shortest time that is paid for, however soon the run ends.
    """

    kind: PriceKind
    price: Price
    per_gpu_hour: float
    cost: Range
    per_trillion_tokens: float
    age: str
    stale: bool
    smaller_instance: bool
    choices: int
    lowest: float
    highest: float
    least_days: float = 0.0


class Owning(Frozen):
    """Cost of owning the cluster for the run, and the parts of a GPU hour's cost, in the
    comparison's currency.

    `billed_gpus`: GPUs that are bought, None in results written before the field existed. `age`: of
    the purchase price, empty in such results.
    """

    billed_gpus: int | None = None
    hardware_usd: Figure
    around_usd: Figure
    hardware_per_gpu_hour: float
    around_per_gpu_hour: float
    electricity_per_gpu_hour: float
    hosting_per_gpu_hour: float
    per_gpu_hour: float
    cost: Range
    per_trillion_tokens: float
    age: str = ""


class Energy(Frozen):
    """Energy of the run at the facility's meter. `rated_w`, `drawn_w`: watts per GPU; `co2_t`:
    tonnes."""

    rated_w: float
    rated_source: Figure
    drawn_w: float
    mwh: Range
    co2_t: Range | None


class Share(Frozen):
    """A resource that the step waits for, the traffic on it, and its share of the step's time;
    `text`: all this, as `NVLink (TP) 9 %`."""

    resource: str
    traffic: str
    share: float
    text: str


class Run(Frozen):
    """A training run on a cluster at its best plan. `days` include interruptions.

    `ideal_days`: at the predicted pace without interruptions. `gpu_hours`: of all billed GPUs (the
    cluster, its spares, and the rest of the last unit ordered) over all days. `racks`: number that
    these GPUs fill.
    """

    job: JobSummary
    plan: Plan
    ideal_days: Range
    days: Range
    billed_gpus: int
    racks: int = 0
    gpu_hours: Range
    goodput: Goodput
    energy: Energy
    rentals: tuple[Rental, ...]
    owning: Owning | None
    missing: tuple[str, ...]
    shares: tuple[Share, ...]
    # The plan's batch compared with the critical one; None in results written before the field
    # existed.
    batch_price: BatchPrice | None = None
    # A sentence if nothing similar was measured on this number of GPUs, otherwise empty.
    beyond_measured: str = ""

    def cost(self, basis: CostBasis) -> Range | None:
        """Cost at one kind of price; None if it is not known."""
        return None if (priced := self.priced(basis)) is None else priced.cost

    def priced(self, basis: CostBasis) -> Rental | Owning | None:
        """The rental at one kind of price, or the owning; None if it is not known."""
        return self.owning if basis == "owned" else self.rental(basis)

    def rental(self, kind: PriceKind) -> Rental | None:
        return next((rental for rental in self.rentals if rental.kind == kind), None)


# These classes refer to `Run`, which is defined after them.
for _record in (Choice, Taken, Decision):
    _record.model_rebuild()


class ComparisonRow(Frozen):
    """One cluster: its run, or the reason why there is none and what would make one possible."""

    name: str
    cluster: str
    gpu: str
    num_gpus: int
    num_nodes: int
    precision: str
    run: Run | None = None
    reason: str = ""
    needs: tuple[str, ...] = ()
    on_front: bool = False
    # No configuration obeys the request, whatever its memory.
    refused: bool = False


SortKey = Literal["days", "cost", "tokens_per_s", "mfu", "energy", "given"]
SORT_KEYS: tuple[SortKey, ...] = get_args(SortKey)


class Comparison(Frozen):
    """Clusters for one job, in the requested order; those without a plan come last.

    `basis`: the kind of price that `on_front` weighs against days. `decision`: which cluster to
    take.
    """

    version: int = COMPARISON_VERSION
    planner_version: str
    model: str
    parameters: int
    framework: str
    tokens: int
    currency: str
    basis: CostBasis
    sort: SortKey
    rows: tuple[ComparisonRow, ...]
    decision: Decision | None = None
    notes: tuple[str, ...] = ()

    def row(self, name: str) -> ComparisonRow | None:
        return next((row for row in self.rows if row.name == name), None)

    def to_frame(self) -> pd.DataFrame:
        """One row per cluster; empty cells for figures that are not known."""
        names = {"name", "gpu", "num_gpus", "num_nodes", "precision", "reason"}
        return _frame(
            [
                row.model_dump(include=names) | {"on_front": row.on_front} | flat_run(row.run)
                for row in self.rows
            ]
        )


class ScalePoint(Frozen):
    """One number of GPUs, with a fixed `batch` (strong scaling) or one that grows with the GPUs
    (weak).

    `speedup`: tokens/s divided by those of the first point of its series; `efficiency`: speedup
    divided by the growth in GPUs.
    """

    batch: Literal["fixed", "scaled"]
    num_gpus: int
    gbs_tokens: int
    run: Run | None = None
    reason: str = ""
    speedup: float | None = None
    efficiency: float | None = None

    @property
    def lasting_tokens_per_s(self) -> float | None:
        """Tokens/s including interruptions; None without a plan."""
        return None if self.run is None else self.run.plan.tokens_per_s * self.run.goodput.share


class Scaling(Frozen):
    """One kind of GPU in growing numbers. `decision`: how many to take, at the first batch.

    `knees`: for each series, the number of GPUs with the highest efficiency times speedup, None if
    that is the largest number. `batch_limit`: smallest number of GPUs at which the scaled batch is
    clearly faster per GPU than the fixed one.
    """

    version: int = COMPARISON_VERSION
    planner_version: str
    model: str
    gpu: str
    tokens: int
    currency: str
    basis: CostBasis
    points: tuple[ScalePoint, ...]
    decision: Decision | None = None
    knees: dict[str, int | None]
    batch_limit: int | None
    notes: tuple[str, ...] = ()

    def series(self, batch: str) -> tuple[ScalePoint, ...]:
        """The points of one series, fewest GPUs first."""
        return tuple(point for point in self.points if point.batch == batch)

    def to_frame(self) -> pd.DataFrame:
        """One row per point."""
        return _frame(
            [point.model_dump(exclude={"run"}) | flat_run(point.run) for point in self.points]
        )


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A table whose whole numbers stay whole next to empty cells."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    whole = [name for name in (*Degrees.model_fields, "gbs_tokens") if name in frame]
    return frame.astype(dict.fromkeys(whole, "Int64"))


def flat_run(run: Run | None) -> dict[str, Any]:
    """Scalars of a run, for tables."""
    if run is None:
        return {}
    plan = run.plan
    row: dict[str, Any] = {
        **plan.degrees.model_dump(),
        **picked(plan, "recompute gbs_tokens step_time_s tokens_per_s mfu fit_probability"),
        "goodput": run.goodput.share,
        "ideal_days": run.ideal_days.value,
        **columns("days", run.days),
        **columns("gpu_hours", run.gpu_hours),
        "racks": run.racks,
        **columns("mwh", run.energy.mwh),
        **columns("co2_t", run.energy.co2_t),
    }
    if run.batch_price is not None:
        row |= columns("critical_batch_tokens", run.batch_price.critical)
        row |= columns("extra_tokens_share", run.batch_price.extra)
    for kind in PRICE_KINDS:
        if (rental := run.rental(kind)) is None:
            row[f"{kind}_cost"] = None
            continue
        names = "per_gpu_hour per_trillion_tokens provider=price.provider date=price.date"
        more = picked(rental, f"{names} source=price.source")
        row |= columns(f"{kind}_cost", rental.cost)
        row |= {f"{kind}_{name}": value for name, value in more.items()}
    if run.owning is not None:
        row |= columns("owned_cost", run.owning.cost)
        names = "owned_per_gpu_hour=per_gpu_hour owned_per_trillion_tokens=per_trillion_tokens"
        row |= picked(run.owning, names)
    return row | {"limited_by": "; ".join(share.text for share in run.shares[:3])}
