"""Measurements of a run next to its prediction, and the meaning of a stated MFU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from typing import Literal

from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.quantities import GIB, share
from planner.predict.plan import Interval, Plan

# A stated MFU follows a convention if it matches the measured step time within this share.
SAME_MFU = 0.03
# Datasheets' sparse peaks are twice the dense ones (2:4 structured sparsity).
SPARSE_OVER_DENSE = 2.0

# A cause is near if it predicts the measurement within this share.
NEAR = 0.1
# A cause that moves the prediction by less than this share of the gap explains nothing.
LEAST_MOVE = 0.15

Figure = Literal["step time", "peak memory"]


@dataclass(frozen=True)
class Measured:
    """Measurements that the user gives: seconds per step, MFU as a share, peak GiB on the heaviest
    GPU, or tokens/s of the whole job."""

    step_time_s: float | None = None
    mfu: float | None = None
    memory_gib: float | None = None
    tokens_per_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("step-time", self.step_time_s),
            ("mfu", self.mfu),
            ("memory", self.memory_gib),
            ("tokens-per-s", self.tokens_per_s),
        ):
            if value is not None and value <= 0.0:
                raise UsageError(f"--measured-{name} {value:g}: must be positive")
        if self.mfu is not None and self.mfu > 1.0:
            raise UsageError(f"--measured-mfu {self.mfu:g}: a share of 0 to 1, or as 41%")
        if self.step_time_s is not None and self.tokens_per_s is not None:
            raise UsageError("give --measured-step-time or --measured-tokens-per-s, not both")

    @property
    def is_given(self) -> bool:
        """Whether anything was measured."""
        given = (self.step_time_s, self.mfu, self.memory_gib, self.tokens_per_s)
        return any(item is not None for item in given)

    def seconds(self, plan: Plan) -> float | None:
        """The measured step time, if necessary computed from tokens/s; None if neither is given."""
        if self.step_time_s is None and self.tokens_per_s is not None:
            return plan.gbs_tokens / self.tokens_per_s
        return self.step_time_s


@dataclass(frozen=True)
class MeasuredComparison:
    """A measured figure and its prediction, both in seconds or bytes."""

    figure: Figure
    measured: float
    predicted: float
    interval: Interval

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.predicted

    @property
    def agrees(self) -> bool:
        """Whether the measurement is within the prediction's 80 % interval."""
        return self.interval.low <= self.measured <= self.interval.high

    def figure_of(self, plan: Plan) -> float:
        """The plan's value of the figure that was measured."""
        return plan.step_time_s if self.figure == "step time" else plan.peak_bytes

    def distance(self, figure: float) -> float:
        """How far a figure is from the measured one: |ln of their ratio|."""
        return abs(log(figure / self.measured))

    def moves(self, figure: float) -> bool:
        """Whether `figure`, another prediction, closes a noticeable part of the gap to the
        measurement (at least `LEAST_MOVE`) and does not overshoot it by more than the gap itself.
        """
        gap = self.measured - self.predicted
        overshoots = abs(figure - self.measured) > abs(gap)
        return (figure - self.predicted) / gap >= LEAST_MOVE and not overshoots

    def is_near(self, figure: float) -> bool:
        """Whether `figure`, another prediction, is close to the measurement (within `NEAR`) and
        less than half as far from it as the original prediction, in ln."""
        near = abs(figure / self.measured - 1.0) <= NEAR
        return near and self.distance(figure) < 0.5 * abs(log(self.ratio))


@dataclass(frozen=True)
class Convention:
    """A way to count MFU, and the step time that the stated MFU implies under it."""

    name: str
    step_time_s: float
    plausible: bool


def comparisons(plan: Plan, measured: Measured) -> Iterator[MeasuredComparison]:
    """Each measured figure, step time and peak memory, with its prediction. If the step time is not
    given, it is computed from tokens/s or from the MFU. Figures that were not measured are left
    out."""
    seconds = measured.seconds(plan)
    if seconds is None and measured.mfu is not None:
        seconds = plan.step_time_s * plan.mfu / measured.mfu
    if seconds is not None:
        yield MeasuredComparison("step time", seconds, plan.step_time_s, plan.step_time)
    if measured.memory_gib is not None:
        size = measured.memory_gib * GIB
        yield MeasuredComparison("peak memory", size, plan.peak_bytes, plan.peak_interval)


def conventions(plan: Plan, job: Job, measured: Measured) -> tuple[Convention, ...]:
    """The step time that the stated MFU implies under each way of counting MFU; ways that imply
    nearly the same time are listed once. Empty if no MFU is stated."""
    if measured.mfu is None:
        return ()
    stated, taken_s = measured.mfu, measured.seconds(plan)
    sparse = 1.0 / SPARSE_OVER_DENSE
    ways = {
        "full attention square and dense 16-bit peak": plan.mfu,
        "causal attention and dense 16-bit peak": plan.mfu_causal,
        "full attention square and sparse 16-bit peak (2:4)": plan.mfu * sparse,
        "causal attention and sparse 16-bit peak (2:4)": plan.mfu_causal * sparse,
        "recomputed FLOP (HFU) and dense 16-bit peak": plan.hfu,
    }
    if job.precision not in ("bf16", "fp16"):
        ways[f"full attention square and dense {job.precision} peak"] = plan.mfu_precision
        ways[f"full attention square and sparse {job.precision} peak (2:4)"] = (
            plan.mfu_precision * sparse
        )
    found: dict[str, Convention] = {}
    for name, way in ways.items():
        seconds = plan.step_time_s * way / stated
        if any(abs(other.step_time_s / seconds - 1.0) < 1e-3 for other in found.values()):
            continue
        if taken_s is not None:
            plausible = abs(seconds / taken_s - 1.0) <= SAME_MFU
        else:
            plausible = plan.step_time.low <= seconds <= plan.step_time.high
        found[name] = Convention(name, seconds, plausible)
    return tuple(found.values())


def verdicts(plan: Plan, measured: Measured, ways: tuple[Convention, ...]) -> Iterator[str]:
    """Sentences on the way in which a stated MFU was counted: certain if the step time is known,
    else likely. Yields no sentence if no MFU is stated, or if it fits when counted the usual way,
    the first of `ways`."""
    if measured.mfu is None:
        return
    stated, first = share(measured.mfu), ways[0]
    fitting = [convention.name for convention in ways if convention.plausible]
    named = " or ".join(fitting)
    if (taken_s := measured.seconds(plan)) is not None:
        value = plan.mfu * plan.step_time_s / taken_s
        counted = f"counted with the {first.name}, the measured step time is {share(value)}"
        if not fitting:
            yield f"MFU {stated} fits the measured step time under no usual convention; {counted}"
        elif not first.plausible:
            yield f"MFU {stated} is counted with the {named}; {counted}"
    elif not fitting:
        yield f"MFU {stated}: under every usual convention, the run differs from the prediction"
    elif not first.plausible:
        ratio = first.step_time_s / plan.step_time_s
        yield (
            f"MFU {stated} agrees with the prediction only if counted with the {named}. "
            f"Counted with the {first.name} it means a step {ratio:.2f} times as long as "
            "predicted: give --measured-step-time to decide"
        )
