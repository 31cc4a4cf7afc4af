"""What a framework demands of the degrees for some models and ways of training, where no capability
of `constraints/capabilities.toml` says it: `[[demands]]` of its file."""

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
    """`needs`: a condition on the degrees, as `--require` takes it; `of`: who needs it, for people.

    It stands for models of no family of `families_but` (none: of every one), where all weights are
    trained (`trains`), where frozen ones are held in a format of `bases`, or where samples become
    rows by a rule of `packings`.
    """

    needs: str
    of: str
    families_but: tuple[str, ...] = ()
    trains: Literal["all", "any"] = "any"
    bases: tuple[str, ...] = ()
    packings: tuple[Packing, ...] = ()

    def stands(self, model: ModelSpec, tuning: Tuning, samples: Samples) -> bool:
        """Whether a job has to obey it."""
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
    """The conditions of those that stand for a job."""
    from constraints.condition import user_condition

    return tuple(
        replace(user_condition("require", one.needs), of=one.of)
        for one in demands
        if one.stands(model, tuning, samples)
    )
