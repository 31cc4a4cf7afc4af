"""The result of a search, which a plan file stores, and of searches after a change to the job."""

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
    """How many shapes a search examined, and how fast.

    considered: enumerated; legal: passed every rule; fitting: fit every stage's HBM in their even
    layout; solved: given to CP-SAT; skipped: proven unable to improve the front. `seconds`: wall
    time of the search; `costing_seconds`: that of the compiled kernel.
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
    # How the weights are trained, and how many of them, if not all.
    tuning: str = ""
    # The training objective, if it is not next-token prediction.
    objective: str = ""
    trained_parameters: int = 0
    notes: tuple[str, ...] = ()
    # Unpublished numbers of the hardware, which concern every plan in addition to its own
    # `assumptions`. Empty in plan files written before the field existed.
    assumed: tuple[str, ...] = ()


# A bound; infinite if nothing fits. JSON has no infinity and stores null.
Seconds = Annotated[
    float,
    BeforeValidator(lambda value: math.inf if value is None else value),
    PlainSerializer(lambda value: None if value == math.inf else value, when_used="json"),
]


class LimitBound(Frozen):
    """No plan whose peak is within `limit_bytes` takes fewer than `sample_s` seconds per
    sequence."""

    limit_bytes: float
    sample_s: Seconds


class SolverBound(Frozen):
    """A `LimitBound` for the layouts of one configuration that rests on CP-SAT. `choice`: which of
    the jobs that differ in offload and techniques. `parts`: the clusters of a pool that the stages
    are on."""

    choice: int = 0
    degrees: Degrees
    recompute: str
    parts: tuple[int, ...] = ()
    limit_bytes: float
    sample_s: Seconds


class Proof(Frozen):
    """The bounds that make a search's plans optimal, which `planner.search.certificate` can
    verify."""

    limits: tuple[LimitBound, ...]
    by_solver: tuple[SolverBound, ...] = ()


ChangeKind = Literal["hardware", "gpus", "choice"]


class WhatIfRow(Frozen):
    """One change and the best plan after it.

    Times are in seconds at the batch of the plan in question. `effect_s`, `effect`: difference from
    the best plan now (negative: shorter), absolute and as a share. `resolved`: the difference is
    larger than the searches' own precision. `kept_effect`: change of the plan's own step time if
    the plan stays as it is, as a share; None if it cannot stay so. All are None if nothing legal
    fits; `note` says why.
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

    `row`: name of the change that lifts or loosens it (memory: 8 GiB more; `stage` now uses
    `held_bytes`).
    """

    name: str
    row: str
    binding: bool
    stage: int | None = None
    held_bytes: float | None = None


class WhatIf(Frozen):
    """`best_s`: step time of the best plan now under the same memory limit, at this plan's batch;
    effects are relative to it. `limit_bytes`: largest predicted peak of the plans compared. It fits
    with probability `fit_probability`, or is the plan's own peak if the plan was
    `chosen_for_memory`. `untried`: changes for which no time was left."""

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

    `complete`: every plan that is missing lies within the resolution of one of these
    (`planner.search.exact_front`). `riskier`: faster plans that fit less surely than requested.
    `proven`: every shape left out was shown unable to improve the front. `gap`: largest share of
    the step time that a better plan could save anywhere on the front; None in files written before
    the field existed. `stopped`: what cut the search short, if anything.
    """

    version: int = PLAN_FILE_VERSION
    planner_version: str
    request: Request
    job: JobSummary
    counts: Counts
    plans: tuple[Plan, ...]
    # Numbers, from 1, of the plans that people would choose between, and of the recommended one.
    shown: tuple[int, ...] = ()
    recommended: int = 0
    riskier: tuple[Plan, ...] = ()
    # Gains of the recommended plan from techniques that are used only on request. Empty in plan
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
    # How much of the fastest plan's lead may be prediction error; None in files written before the
    # field existed.
    luck: Luck | None = None

    def noted(self, *notes: str) -> Self:
        """The result with further notes."""
        return self.model_copy(update={"notes": (*self.notes, *notes)}) if notes else self

    def to_frame(self) -> pd.DataFrame:
        """One row per plan, in the order of the search. Columns with units and meanings:
        `planner.search.frame.COLUMNS`, and the frame's `attrs["units"]`."""
        return plan_frame(self.plans)

    def __repr__(self) -> str:
        """One line: the job, the number of plans, and the recommended one."""
        number = self.recommended or 1
        take = f"; take plan {number}: {self.plans[number - 1]!r}" if self.plans else ""
        where = f"{self.job.model} on {self.job.num_gpus:,} {self.job.gpu}"
        return f"SearchResult({where}: {len(self.plans)} plans{take})"

    __str__ = __repr__

    def plot(self, figure: Literal["front", "heat"] = "front") -> Any:
        """An Altair chart for notebooks.

        `front`: tokens/s per GPU against peak memory in GiB, with all shapes considered, which are
        costed again. `heat`: the best shape for each pair of values of two degrees. UsageError
        without the extra `plot`.
        """
        return displays().plot_result(self, figure)

    def _repr_html_(self) -> str:
        """The view of a search in notebooks: a table of the plans to choose from."""
        return displays().result_html(self)
