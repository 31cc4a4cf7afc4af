"""What another GiB, another link or another node would be worth to a plan: solved again each time.

Every row is a search of the changed job, not a derivative: the best plan may have other degrees.
Typed data; `planner.report.explain` says how it reads.
"""

from __future__ import annotations

from typing import Literal

from hardware.frozen import Frozen
from planner.predict.plan import Degrees, Interval

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
