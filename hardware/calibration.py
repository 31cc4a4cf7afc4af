"""What was learnt of one cluster from its runs: multipliers on what the model reads.

`PARAMETERS` is the one list of what a calibration may change: name, meaning, and the figures of the
model's inputs that it multiplies (`planner.predict.calibrated` does so). A cluster's file holds
their values in a table [calibration] that `planner calibrate` writes and people may edit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hardware.errors import did_you_mean
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


@dataclass(frozen=True, slots=True)
class Parameter:
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


_COPIES = ("tensor_copy_s", "gather_copy_s", "reduce_copy_s")
_INSIDE = (
    "scale_up_bytes_per_s", "scale_up_exchange_bytes_per_s", "scale_up_pair_bytes_per_s",
    "scale_up_mesh_bytes_per_s", "scale_up_dispatch_bytes_per_s", "root_bytes_per_s",
)  # fmt: skip
_STARTS = ("scale_up_latency_s", "scale_up_start_s", "scale_up_half_bytes", "collective_launch_s")


def _software(name: str, meaning: str, *fields: str, exposed: bool = False) -> Parameter:
    return Parameter(name, meaning, framework=fields, exposed=exposed, software=True)


def _memory(name: str, meaning: str, *fields: str, software: bool = True) -> Parameter:
    return Parameter(name, meaning, "memory", framework=fields, software=software)


PARAMETERS: tuple[Parameter, ...] = (
    Parameter(
        "gemm_rate",
        "rate of large matrix products under load (power, clocks)",
        gpu=("gemm_max_efficiency", "gemm16_max_efficiency"),
    ),
    Parameter("gemm_start", "what short products lose at their start", gpu=("gemm_start_depth",)),
    Parameter(
        "attention_rate",
        "rate of the fused attention kernel",
        gpu=("attention_forward_efficiency", "attention_backward_efficiency"),
    ),
    Parameter(
        "hbm_rate", "rate of GPU memory in whole steps", gpu=("hbm_bytes_per_s",), inverse=_COPIES
    ),
    Parameter(
        "grouped_rate", "rate of the experts' grouped products", gpu=("grouped_efficiency_share",)
    ),
    _software("elementwise_traffic", "passes of elementwise kernels over memory", "memory_traffic"),
    _software("launch_time", "CPU time to issue one kernel", "issue_s"),
    _software("step_overhead", "CPU time of each step beside its kernels", "host_step_s"),
    Parameter("inside_rate", "bus bandwidth inside a scale-up domain (NVLink)", links=_INSIDE),
    Parameter("inside_latency", "start and hop times inside a domain", links=_STARTS),
    Parameter(
        "network_rate",
        "bus bandwidth between domains (NICs, spine)",
        links=(
            "scale_out_bytes_per_s",
            "scale_out_pair_bytes_per_s",
            "scale_out_exchange_bytes_per_s",
            "scale_out_dispatch_bytes_per_s",
        ),
    ),
    Parameter(
        "network_latency",
        "hop times between domains",
        links=("scale_out_latency_s", "scale_out_half_bytes", "scale_out_exchange_half_bytes"),
    ),
    _software(
        "tensor_exposed", "share of tensor-parallel traffic that is not hidden",
        "hide_tensor", "hide_tensor_backward", exposed=True,
    ),
    _software(
        "data_exposed", "share of gradient and weight traffic that is not hidden",
        "hide_gradient_reduction", "hide_parameter_gather", "hide_fsdp_prefetch", exposed=True,
    ),
    _software(
        "expert_exposed", "share of expert traffic that is not hidden", "hide_expert", exposed=True
    ),
    _software(
        "context_exposed", "share of context-parallel traffic that is not hidden",
        "hide_context", exposed=True,
    ),
    _software(
        "pipeline_exposed", "share of pipeline traffic that is not hidden",
        "hide_pipeline", exposed=True,
    ),
    _software("contention", "how far hidden traffic slows compute", "contention"),
    Parameter("jitter", "waiting for the slowest of many ranks", links=("straggler_share",)),
    _software(
        "pipeline_waits", "waits of pipeline stages for each other",
        "pipeline_exchange_s", "wide_stage_wait_s", "outer_tensor_step_s",
    ),
    _software(
        "optimizer_traffic", "memory traffic of an update",
        "optimizer_traffic_bytes", "step_traffic_bytes",
    ),
    _memory("context", "memory that driver and libraries take", "context_bytes", software=False),
    _memory("communicators", "buffers of a communicator (NCCL)", "communicator_bytes"),
    _memory("fragmentation", "what the allocator reserves beyond tensors", "fragmentation"),
)  # fmt: skip
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
    ones beside all factors (`planner.predict.likeness`)."""

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


class LearntFigure(Frozen):
    """How well a figure was predicted: runs, mean |predicted / measured - 1| before and after, each
    run judged by the others (`error_left_out`; none of a single run), and the standard deviation
    `spread` of ln(measured / predicted) that a further run like these will show.

    `measured`: lowest and highest value of the runs on each axis of
    `planner.predict.uncertainty.measured_range`.
    """

    runs: Annotated[int, Field(ge=1)]
    error_before: _Share
    error_after: _Share
    error_left_out: _Share | None = None
    spread: _Share
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
