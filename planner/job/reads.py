"""Models that a step reads forward without training: a reference, a teacher, the policy itself.

Such a read is a forward pass that keeps no activations and has no gradients or optimizer states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.job.objective import Objective
from planner.job.specs import ModelSpec

ReadName = Literal["policy", "reference", "teacher"]


@dataclass(frozen=True, slots=True)
class Read:
    """A model that is read `times` for each trained row.

    `copied`: it has its own weights on the GPUs. `plain`: it is the trained model without its
    adapters. `model`: another model, such as a teacher.
    """

    name: ReadName
    times: int
    copied: bool = False
    plain: bool = False
    model: ModelSpec | None = None


def reads_of(objective: Objective, teacher: ModelSpec | None) -> tuple[Read, ...]:
    """The reads of a step with this objective, in order."""
    rules, found = objective.rules, []
    if rules.policy_rows:
        found.append(Read("policy", rules.policy_rows // rules.rows))
    times = rules.reference_rows // rules.rows
    if teacher is not None:
        found.append(Read("teacher", times, copied=True, model=teacher))
    elif objective.reference == "copied":
        found.append(Read("reference", times, copied=True, plain=True))
    elif objective.reference == "adapters-off":
        found.append(Read("reference", times, plain=True))
    return tuple(found)
