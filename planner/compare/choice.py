"""What a choice of clusters is made of: limits, the table of choices, and what was decided."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hardware.frozen import Frozen
from planner.compare.interval import Range, bound
from planner.compare.settings import CostBasis

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
    """What a choice must keep to; None: no limit. `certainty`: how surely, each by itself."""

    deadline_days: float | None = Field(None, gt=0.0)
    budget: float | None = Field(None, gt=0.0)
    power_kw: float | None = Field(None, gt=0.0)
    racks: int | None = Field(None, gt=0)
    certainty: float = Field(0.8, ge=0.5, lt=1.0)

    @property
    def given(self) -> dict[str, float]:
        """The limits that there are, by the name of the sum they hold for."""
        values = {name: getattr(self, limit) for name, (limit, _) in SUMS.items()}
        return {name: value for name, value in values.items() if value is not None}


class Choice(Frozen):
    """A job on a cluster, each figure with its interval. `power_kw`: drawn by the facility;
    `racks`: that the GPUs fill; `basis`: the kind of price; `provider`: whose, empty where bought
    or without a price; `price_age`: in words, empty without a price; `beyond_measured`: that
    nothing like it was measured on so many GPUs, empty where something was."""

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

    def bounds(self, certainty: float) -> dict[str, float]:
        """What each sum does not exceed with this probability, 0 for an unknown cost."""
        return {
            "time": bound(self.days, certainty),
            "cost": 0.0 if self.cost is None else bound(self.cost, certainty),
            "energy": bound(self.mwh, certainty),
            "power": self.power_kw,
            "racks": self.racks,
        }


class Taken(Frozen):
    """A set of choices, one a job. Figures hold with the certainty asked for.

    `together`: number of the cluster of each choice; jobs of one number run there in turn.
    `cost` is None where a price is missing. `chance_in_time`, `chance_in_budget`: that the limits
    are kept, None without such a limit; errors of several jobs are taken to go one way, which is
    on the safe side for limits above the prediction. `gap`: share by which another set of choices
    might be better by its aim, 0 where it is proven that none is.
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


class Decision(Frozen):
    """The choice to take, the front of money against time, or what would have to give.

    `least`: where nothing keeps all limits, the smallest value of each limit with which something
    does while the others hold, None where no value helps; `alone`: the smallest value without the
    others, where none of them helps by itself; `front` then holds for no limits.
    """

    limits: ChoiceLimits
    objective: Objective
    order: Order
    best: Taken | None
    front: tuple[Taken, ...] = ()
    least: dict[str, float | None] = Field(default_factory=dict)
    alone: dict[str, float | None] = Field(default_factory=dict)
    reason: str = ""
