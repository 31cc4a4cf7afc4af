"""Factors that correct the model's inputs, learnt from runs on one cluster.

`catalog/parameters.toml` lists everything that a calibration may change: the name, its meaning, and
the inputs of the model that it multiplies (`planner.predict.calibrated` applies them). A cluster
file holds the factors in its [calibration] table, which `planner calibrate` writes and people may
edit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hardware.errors import did_you_mean
from hardware.files import shipped_toml
from hardware.frozen import Frozen

Figure = Literal["time", "memory"]
# Axes along which error bars widen outside the measured range.
Axis = Literal["gpus", "seq", "hidden", "tokens", "overhead"]
# Factors outside this range are typing errors.
LEAST_FACTOR, MOST_FACTOR = 0.01, 100.0
_Factor = Annotated[float, Field(ge=LEAST_FACTOR, le=MOST_FACTOR, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1, le=2**40)]
_Measured = Annotated[float, Field(ge=1e-3, le=1e18, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False)]


class Parameter(Frozen):
    """A physical quantity that measured runs may correct by a factor (unit 1).

    `gpu`, `framework`, `links`: inputs of the compiled core that grow in proportion to it.
    `inverse`: inputs of the framework that shrink in proportion. `exposed`: the inputs are hidden
    shares, and the factor multiplies the exposed rest. `software`: the factor applies only to the
    framework it was measured with.
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
    """The parameters that can be learnt from measured times, or from measured memory."""
    return tuple(parameter for parameter in PARAMETERS if parameter.figure == figure)


class LearntFactor(Frozen):
    """A factor on one of the model's inputs, with its 80 % interval."""

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
                f"{name!r} is not a parameter.{did_you_mean(name, NAMES)} (they are: "
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
    """A measured configuration. `pull` is the weight of its remaining error when a similar
    configuration is predicted (`planner.predict.calibrated`)."""

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
    """Result of reinforcement-learning runs for one kind of phase (`generation`, `training`,
    `reading`, `transfer`, `moves`, `reward`): the factor on its predicted seconds, the standard
    deviation of ln(measured / predicted) to expect of the next run after that factor, and the
    number of runs."""

    name: str
    value: _Factor
    spread: _Share
    runs: Annotated[int, Field(ge=1)]


class LearntFigure(Frozen):
    """How accurate predictions of one figure were: the number of runs and the mean |predicted /
    measured - 1| before and after calibration.

    `error_left_out`: the same error when each run is predicted from the others; None for a single
    run. `width`: width of a calibrated error bar relative to an uncalibrated one. `spread`:
    standard deviation of ln(measured / predicted) to expect of the next similar run. `measured`:
    lowest and highest value among the runs on each axis of
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
        """Accept the form that files use: `gpus = [8, 64]`."""
        if not isinstance(given, Mapping):
            return given
        return tuple(
            (axis, *limits) if isinstance(limits, list) else limits
            for axis, limits in given.items()
        )


class Calibration(Frozen):
    """Everything learnt about a cluster, from which runs and frameworks, and when."""

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
        """Accept the forms that files use: [calibration.factors.NAME] tables, or `NAME = 0.93`."""
        if not isinstance(given, Mapping):
            return given
        return tuple(
            {"name": name, **item} if isinstance(item, Mapping) else {"name": name, "value": item}
            for name, item in given.items()
        )

    def knows(self, framework: str) -> bool:
        """Whether the calibration used runs of this framework (the name of its profile)."""
        return framework in self.frameworks

    def of(self, framework: str) -> dict[str, float]:
        """Factors that apply to jobs of a framework. Software factors apply only if its runs were
        used."""
        told = {parameter.name for parameter in PARAMETERS if not parameter.software}
        return {
            factor.name: factor.value
            for factor in self.factors
            if factor.value != 1.0 and (factor.name in told or self.knows(framework))
        }
