"""The outcome of a search, which a plan file holds, and of searches after a change of the job."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer

from hardware.frozen import Frozen
from planner.job.request import Request
from planner.predict.displays import displays
from planner.predict.plan import PLAN_FILE_VERSION, Degrees, Interval, Plan
from planner.predict.uncertainty.selection import Luck
from planner.search.frame import plan_frame
from planner.search.unused import UnusedTechnique

if TYPE_CHECKING:
    import pandas as pd


class Counts(Frozen):
    """How many shapes a search looked at, and how fast.

    considered: enumerated; legal: passed every rule; fitting: fit every stage's HBM in their
    even layout; solved: given to CP-SAT; skipped: proven unable to improve the front.
    `seconds`: wall time of the search; `costing_seconds`: of the compiled kernel alone.
    """

    considered: int
    legal: int
    fitting: int
    solved: int
    skipped: int
    seconds: float
    costing_seconds: float

    @property
    def shapes_per_s(self) -> float:
        """Legal shapes costed per second by the compiled kernel."""
        return self.legal / self.costing_seconds if self.costing_seconds else 0.0


class JobSummary(Frozen):
    """The resolved job, in words, for headers and files."""

    model: str
    model_alias: str | None
    parameters: int
    active_parameters: int
    cluster: str
    gpu: str
    num_gpus: int
    used_gpus: int
    usable_bytes: float
    limit_bytes: float
    peak_flop_per_s: float
    precision_peak_flop_per_s: float
    framework: str
    framework_version: str
    precision: str
    optimizer: str
    seq: int
    batch_target_sequences: float
    # How the weights are trained, and how many of them, where not all are.
    tuning: str = ""
    # What training minimises, where that is not next-token prediction.
    objective: str = ""
    trained_parameters: int = 0
    notes: tuple[str, ...] = ()
    # Numbers of the hardware that nobody published: true of every plan, beside its own
    # `assumptions`. Empty in plan files written before the field existed.
    assumed: tuple[str, ...] = ()


# A bound, infinite where nothing fits. JSON has no infinity: there it is null.
Seconds = Annotated[
    float,
    BeforeValidator(lambda value: math.inf if value is None else value),
    PlainSerializer(lambda value: None if value == math.inf else value, when_used="json"),
]


class LimitBound(Frozen):
    """No plan whose peak is within `limit_bytes` takes fewer seconds a sequence than `sample_s`."""

    limit_bytes: float
    sample_s: Seconds


class SolverBound(Frozen):
    """The same of the layouts of one configuration, by CP-SAT's word. `choice`: which of the jobs
    that differ in what is offloaded and in techniques; `parts`: the clusters of a pool that the
    stages are on."""

    choice: int = 0
    degrees: Degrees
    recompute: str
    parts: tuple[int, ...] = ()
    limit_bytes: float
    sample_s: Seconds


class Proof(Frozen):
    """What makes the plans of a search optimal, for `planner.search.certificate` to verify."""

    limits: tuple[LimitBound, ...]
    by_solver: tuple[SolverBound, ...] = ()


ChangeKind = Literal["hardware", "gpus", "choice"]


class WhatIfRow(Frozen):
    """One change and the best plan after it.

    Times in seconds at the batch of the plan that is asked about. `effect_s`, `effect`: longer
    (shorter: negative) than the best plan now, and as a share of it; `resolved`: larger than what
    the searches can tell apart. `kept_effect`: the same for the plan as it is, None where the
    change leaves it as it is not. None throughout where nothing legal fits: `note` says why.
    """

    kind: ChangeKind
    name: str
    change: str
    step_time_s: float | None = None
    step_time: Interval | None = None
    effect_s: float | None = None
    effect: float | None = None
    resolution: float = 0.0
    resolved: bool = False
    kept_effect: float | None = None
    gpus: int | None = None
    degrees: Degrees | None = None
    recompute: str = ""
    optimizer_offload: float = 0.0
    activation_offload: tuple[str, ...] = ()
    activation_offload_fraction: float = 1.0
    peak_bytes: float | None = None
    same_plan: bool = False
    note: str = ""


class BindingConstraint(Frozen):
    """A constraint of the plan, and whether lifting it was shown to shorten the step.

    `row`: name of the change that lifts it, or loosens it (memory: 8 GiB more, of which `stage`
    holds `held_bytes` now).
    """

    name: str
    row: str
    binding: bool
    stage: int | None = None
    held_bytes: float | None = None


class WhatIf(Frozen):
    """`best_s`: the best plan now under the same memory limit, at this plan's batch, which the
    effects are relative to; `limit_bytes`: largest predicted peak of the plans compared, which
    fits with `fit_probability`, or is the plan's own where it was `chosen_for_memory`. `untried`:
    changes for which no time was left.
    """

    step_time_s: float
    best_s: float
    best_degrees: Degrees
    best_is_this: bool
    limit_bytes: float
    fit_probability: float
    chosen_for_memory: bool
    constraints: tuple[BindingConstraint, ...]
    rows: tuple[WhatIfRow, ...]
    untried: tuple[str, ...] = ()


class SearchResult(Frozen):
    """Pareto front of a search (tokens/s against peak HBM), fastest first.

    `complete`: no plan is missing that lies further from all of these than the resolution of
    `planner.search.exact_front`. `riskier`: faster plans that fit less surely than was asked.
    `proven`: every shape left out was shown unable to improve the front. `gap`: share of its step
    time by which a better plan may exist at most, somewhere on the front, shown or not; None in
    files written before the field existed. `stopped`: what cut the search short, if anything did.
    """

    version: int = PLAN_FILE_VERSION
    planner_version: str
    request: Request
    job: JobSummary
    counts: Counts
    plans: tuple[Plan, ...]
    # Numbers, from 1, of the plans between which people would choose, and of the one to take.
    shown: tuple[int, ...] = ()
    recommended: int = 0
    riskier: tuple[Plan, ...] = ()
    # What the recommended plan would gain by techniques that somebody has to ask for. Empty in plan
    # files written before the field existed.
    unused: tuple[UnusedTechnique, ...] = ()
    complete: bool = False
    proven: bool
    gap: float | None = None
    stopped: Literal["", "time-limit", "interrupted"] = ""
    notes: tuple[str, ...] = ()
    rule_counts: dict[str, int] = Field(default_factory=dict)
    # None in files written before the field existed.
    proof: Proof | None = None
    # What the fastest plan owes to its error; None in files written before the field existed.
    luck: Luck | None = None

    def noted(self, *notes: str) -> Self:
        """The result with further notes."""
        return self.model_copy(update={"notes": (*self.notes, *notes)}) if notes else self

    def to_frame(self) -> pd.DataFrame:
        """One row a plan, fastest first, as the search sorted them. Columns, their units and what
        they mean: `planner.search.frame.COLUMNS`, and the frame's `attrs["units"]`."""
        return plan_frame(self.plans)

    def __repr__(self) -> str:
        """One line: the job, how many plans, and the one to take."""
        number = self.recommended or 1
        take = f"; take plan {number}: {self.plans[number - 1]!r}" if self.plans else ""
        where = f"{self.job.model} on {self.job.num_gpus:,} {self.job.gpu}"
        return f"SearchResult({where}: {len(self.plans)} plans{take})"

    __str__ = __repr__

    def plot(self, figure: Literal["front", "heat"] = "front") -> Any:
        """An Altair chart, which notebooks show: the `front` of tokens/s of a GPU against peak
        memory, GiB, with the shapes that were considered, which are costed again; or `heat`, the
        best shape for each pair of values of two degrees. UsageError without the extra `plot`."""
        return displays().plot_result(self, figure)

    def _repr_html_(self) -> str:
        """What notebooks show of a search: the plans to choose between, as a table."""
        return displays().result_html(self)
