"""Models that a step reads forward without training: a reference, a teacher, the policy itself.

A read is a forward pass without gradients: it keeps no activation, has no gradient and no state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.job.objective import Objective
from planner.job.specs import ModelSpec

ReadName = Literal["policy", "reference", "teacher"]


@dataclass(frozen=True, slots=True)
class Read:
    """A model that is read `times` for each row that is trained.

    `copied`: it has weights of its own on the GPUs; `plain`: without the adapters of the model
    that is trained; `model`: another one than that, a teacher's.
    """

    name: ReadName
    times: int
    copied: bool = False
    plain: bool = False
    model: ModelSpec | None = None


def reads_of(objective: Objective, teacher: ModelSpec | None) -> tuple[Read, ...]:
    """What a step of an objective reads, in the order in which it does."""
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
