"""What was learnt of one cluster from its runs: multipliers on what the model reads.

`catalog/parameters.toml` is the one list of what a calibration may change: name, meaning, and the
figures of the model's inputs that it multiplies (`planner.predict.calibrated` does so). A cluster's
file has these values in a table [calibration], which `planner calibrate` writes and people edit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hardware.errors import did_you_mean
from hardware.files import shipped_toml
from hardware.frozen import Frozen

Figure = Literal["time", "memory"]
# What error bars widen with, where it lies beyond what was measured.
Axis = Literal["gpus", "seq", "hidden", "tokens", "overhead"]
# Beyond these a factor is a slip of the pen.
LEAST_FACTOR, MOST_FACTOR = 0.01, 100.0
_Factor = Annotated[float, Field(ge=LEAST_FACTOR, le=MOST_FACTOR, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1, le=2**40)]
_Measured = Annotated[float, Field(ge=1e-3, le=1e18, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False)]


class Parameter(Frozen):
    """A physical quantity that runs may correct by a factor (unit 1).

    `gpu`, `framework`, `links`: fields of the compiled core's inputs that are proportional to it;
    `inverse`: fields of the framework's that are proportional to its inverse. `exposed`: the fields
    are shares that are hidden, and what the factor multiplies is the rest, which is exposed.
    `software`: it says nothing of other frameworks on the same machine.
    """

    name: str
    meaning: str
    figure: Figure = "time"
    gpu: tuple[str, ...] = ()
    framework: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    inverse: tuple[str, ...] = ()
    exposed: bool = False
    software: bool = False


_ROWS = shipped_toml("hardware", "catalog/parameters.toml").items()
PARAMETERS = tuple(Parameter.model_validate({"name": name, **row}) for name, row in _ROWS)
NAMES = tuple(parameter.name for parameter in PARAMETERS)


def parameters_of(figure: Figure) -> tuple[Parameter, ...]:
    """The parameters that a figure's runs can tell something of."""
    return tuple(parameter for parameter in PARAMETERS if parameter.figure == figure)


class LearntFactor(Frozen):
    """A factor on what the model has without runs, with its 80 % interval."""

    name: str
    value: _Factor
    low: _Factor = LEAST_FACTOR
    high: _Factor = MOST_FACTOR
    determined: bool = True
    meaning: str = ""

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in NAMES:
            raise ValueError(
                f"{name!r} is no parameter.{did_you_mean(name, NAMES)} (they are: "
                f"{', '.join(NAMES)})"
            )
        return name

    @model_validator(mode="after")
    def _holds_its_value(self) -> LearntFactor:
        if not self.low <= self.value <= self.high:
            raise ValueError(
                f"{self.value:g} lies outside its interval {self.low:g}..{self.high:g}"
            )
        return self


class LearntRun(Frozen):
    """A configuration that was measured, and the weight with which its step says something of like
    ones beside all factors (`planner.predict.calibrated`)."""

    hidden: _Count
    vocab: _Count
    seq: _Count
    tp: _Count
    pp: _Count
    vpp: _Count
    cp: _Count
    ep: _Count
    mbs: _Count
    grad_acc: _Count
    precision: str
    recompute: str
    kernel: str
    pull: Annotated[float, Field(ge=-1e3, le=1e3, allow_inf_nan=False)]


class LearntPhase(Frozen):
    """What runs of reinforcement learning taught of a kind of phase (`generation`, `training`,
    `reading`, `transfer`, `moves`, `reward`): the factor on its predicted seconds, the standard
    deviation of ln(measured / predicted) that a further run will show by it, and how many runs."""

    name: str
    value: _Factor
    spread: _Share
    runs: Annotated[int, Field(ge=1)]


class LearntFigure(Frozen):
    """How well a figure was predicted: runs, mean |predicted / measured - 1| before and after, each
    run judged by the others (`error_left_out`; none of a single run), how wide the bars of further
    runs are over those without calibration (`width`), and `spread`, the standard deviation of
    ln(measured / predicted) that a further run like these will show by them.

    `measured`: lowest and highest value of the runs on each axis of
    `planner.predict.uncertainty.measured_range`.
    """

    runs: Annotated[int, Field(ge=1)]
    error_before: _Share
    error_after: _Share
    error_left_out: _Share | None = None
    spread: _Share
    width: _Share = 1.0
    measured: tuple[tuple[Axis, _Measured, _Measured], ...] = ()

    @field_validator("measured", mode="before")
    @classmethod
    def _from_table(cls, given: Any) -> Any:
        """`gpus = [8, 64]` in a file."""
        if not isinstance(given, Mapping):
            return given
        return tuple(
            (axis, *limits) if isinstance(limits, list) else limits
            for axis, limits in given.items()
        )


class Calibration(Frozen):
    """What was learnt of a cluster, by which runs of which frameworks, and when."""

    date: str
    planner: str = ""
    sources: tuple[str, ...] = ()
    frameworks: tuple[str, ...]
    time: LearntFigure | None = None
    memory: LearntFigure | None = None
    factors: tuple[LearntFactor, ...] = ()
    runs: tuple[LearntRun, ...] = ()
    phases: tuple[LearntPhase, ...] = ()

    @field_validator("factors", mode="before")
    @classmethod
    def _from_table(cls, given: Any) -> Any:
        """[calibration.factors.NAME] tables, or `NAME = 0.93`."""
        if not isinstance(given, Mapping):
            return given
        return tuple(
            {"name": name, **item} if isinstance(item, Mapping) else {"name": name, "value": item}
            for name, item in given.items()
        )

    def knows(self, framework: str) -> bool:
        """Whether runs of a framework (the name of its profile) are among those learnt from."""
        return framework in self.frameworks

    def of(self, framework: str) -> dict[str, float]:
        """Factors that hold for jobs of a framework: those of its software if it was measured."""
        told = {parameter.name for parameter in PARAMETERS if not parameter.software}
        return {
            factor.name: factor.value
            for factor in self.factors
            if factor.value != 1.0 and (factor.name in told or self.knows(framework))
        }
