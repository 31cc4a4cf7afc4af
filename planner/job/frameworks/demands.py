"""Conditions on the degrees that a framework imposes for some models and kinds of training.

They are the `[[demands]]` of its file, for cases that no capability of
`constraints/capabilities.toml` expresses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from hardware.frozen import Frozen
from planner.job.samples import Packing, Samples
from planner.job.specs import ModelSpec
from planner.job.tuning import Tuning

if TYPE_CHECKING:
    from constraints.condition import UserCondition


class Demand(Frozen):
    """`needs`: a condition on the degrees, in the syntax of `--require`. `of`: what needs it, for
    messages.

    It applies to a job that meets all of the limits given here: the model's family is not one of
    `families_but`; no adapters are trained (`trains` is "all"); frozen weights are stored in one of
    the formats `bases`; samples are packed by one of the rules `packings`.
    """

    needs: str
    of: str
    families_but: tuple[str, ...] = ()
    trains: Literal["all", "any"] = "any"
    bases: tuple[str, ...] = ()
    packings: tuple[Packing, ...] = ()

    def stands(self, model: ModelSpec, tuning: Tuning, samples: Samples) -> bool:
        """Whether the condition applies to a job."""
        packed = samples.lengths is not None and samples.packing in self.packings
        return (
            model.family not in self.families_but
            and (self.trains == "any" or not tuning.has_adapters)
            and (not self.bases or tuning.base in self.bases)
            and (not self.packings or packed)
        )


def demand_conditions(
    demands: tuple[Demand, ...], model: ModelSpec, tuning: Tuning, samples: Samples
) -> tuple[UserCondition, ...]:
    """The conditions that apply to a job."""
    from constraints.condition import user_condition

    return tuple(
        replace(user_condition("require", one.needs), of=one.of)
        for one in demands
        if one.stands(model, tuning, samples)
    )
