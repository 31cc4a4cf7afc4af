"""The largest micro-batch, sequence or number of layers that fits: `planner memory --solve`.

Memory grows with each of the three, so bisection over the values that the rules allow finds the
largest. Every value tried has a real account, including both sides of the border.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import lcm
from typing import Any, Literal

from constraints.axes import LARGEST_DEGREE
from planner.job.errors import UsageError
from planner.job.job import BatchTarget, Job
from planner.job.specs import LayerKind, ModelSpec
from planner.predict.configuration import Configuration
from planner.predict.evaluate import checked
from planner.predict.memory.account import Footprint, footprint_of
from planner.predict.plan import Degrees

Unknown = Literal["mbs", "seq", "layers"]

# A value fits if the true peak stays within the limit with this probability; at one half, the
# prediction itself decides.
SAFE_PROBABILITY, EVEN_PROBABILITY = 0.8, 0.5
MOST_LAYERS = 2**14
# Units to try if rules demand multiples beyond those of the degrees (fp8: 16 or 32).
_MOST_DOUBLINGS = 8


@dataclass(frozen=True)
class Border:
    """The largest value that fits with a given probability, and the next one, which does not.
    `largest` None: not even the smallest value fits; `beyond` None: the rules allow no larger
    value."""

    probability: float
    largest: SolvedPoint | None
    beyond: SolvedPoint | None


@dataclass(frozen=True)
class SolvedPoint:
    """A value, and the memory account of the configuration with it."""

    value: int
    footprint: Footprint


@dataclass(frozen=True)
class Solution:
    """Borders for the safe probability (`safe`) and for an even chance (`even`). Tried values are
    multiples of `step`, or divisors of the batch if `step` is 0; `held` states in words what stays
    fixed."""

    unknown: Unknown
    step: int
    held: str
    safe: Border
    even: Border


def solve(configuration: Configuration, unknown: Unknown, *, batch_is_fixed: bool) -> Solution:
    """The largest `mbs`, `seq` or number of `layers` that fits, everything else fixed.

    `batch_is_fixed`: keep the global batch, which micro-batches then divide; otherwise keep the
    number of micro-batches. UsageError if no value obeys the rules.
    """
    axis = _axis(configuration, unknown, batch_is_fixed)
    return Solution(
        unknown, axis.step, axis.held, axis.border(SAFE_PROBABILITY), axis.border(EVEN_PROBABILITY)
    )


@dataclass
class _Axis:
    """The values of the unknown to try, ascending; `place` makes the configuration with one of
    them. `step`, `held`: as in `Solution`."""

    values: Sequence[int]
    step: int
    held: str
    place: Callable[[int], Configuration]
    # Points by index, so that each is costed once.
    known: dict[int, SolvedPoint] = field(default_factory=dict)

    def point(self, index: int) -> SolvedPoint:
        if index not in self.known:
            value = self.values[index]
            self.known[index] = SolvedPoint(value, footprint_of(self.place(value)))
        return self.known[index]

    def border(self, probability: float) -> Border:
        """The largest value that fits with a probability, and the next one."""

        def fits(index: int) -> bool:
            return self.point(index).footprint.fit_probability >= probability

        good, bad = bracket(fits, 0, len(self.values))
        return Border(
            probability,
            self.point(good) if good >= 0 else None,
            self.point(bad) if bad < len(self.values) else None,
        )


def bracket(
    fits: Callable[[int], bool], start: int, count: int, over: Callable[[], bool] = lambda: False
) -> tuple[int, int]:
    """(last index that fits or -1, first one that does not or `count`) for a predicate that is true
    up to some index.

    Steps from `start` double until both sides are known, then the interval is halved. If time runs
    out (`over`), the two indices need not be neighbours.
    """
    low, high, step, at = -1, count, 1, start
    while high - low > 1 and not over():
        if fits(at):
            low = at
            at = min(at + step, high - 1) if high == count else (low + high) // 2
        else:
            high = at
            at = max(at - step, low + 1) if low == -1 else (low + high) // 2
        step *= 2
    return low, high


def _axis(configuration: Configuration, unknown: Unknown, batch_is_fixed: bool) -> _Axis:
    job, degrees = configuration.job, configuration.degrees
    match unknown:
        case "mbs" if batch_is_fixed:
            return _dividing_micro_batches(configuration)
        case "mbs":
            count = degrees.grad_acc
            held = "1 micro-batch a step" if count == 1 else f"{count:,} micro-batches a step"
            return _stepped(held, LARGEST_DEGREE, 1, lambda mbs: _again(configuration, mbs=mbs))
        case "seq":
            step = lcm(2 * degrees.cp if degrees.cp > 1 else 1, degrees.tp * degrees.cp)
            batch = "one sequence" if degrees.gbs == 1 else f"{degrees.gbs:,} sequences"
            held = f"a batch of {batch}"
            return _stepped(
                held, job.model.longest_seq, step, lambda seq: _again(configuration, seq)
            )
        case "layers":
            blocks = degrees.pp * degrees.vpp
            held = "everything else, the layers spread evenly"
            return _stepped(
                held, MOST_LAYERS, blocks, lambda layers: _with_layers(configuration, layers)
            )


def _dividing_micro_batches(configuration: Configuration) -> _Axis:
    """The micro-batches to try if the global batch is fixed: those that divide a data-parallel
    rank's share of it. UsageError if none obeys the rules."""
    degrees = configuration.degrees
    share = degrees.mbs * degrees.grad_acc

    def place(mbs: int) -> Configuration:
        return _again(configuration, mbs=mbs, grad_acc=share // mbs)

    divisors = [value for value in range(1, min(share, LARGEST_DEGREE) + 1) if share % value == 0]
    values = [value for value in divisors if _is_legal(place, value)]
    if not values:
        raise UsageError(f"no micro-batch that divides {share:,} sequences obeys the rules")
    held = f"the global batch of {degrees.gbs:,} sequences, which mbs·dp divides"
    return _Axis(values, 0, held, place)


def _stepped(held: str, largest: int, step: int, place: Callable[[int], Configuration]) -> _Axis:
    """The values to try: all multiples, up to `largest`, of the smallest unit whose first three
    multiples obey the rules. Units are `step` times a power of two. UsageError if there is no such
    unit."""
    for doubling in range(_MOST_DOUBLINGS):
        unit = step << doubling
        first = [unit * count for count in (1, 2, 3) if unit * count <= largest]
        if first and all(_is_legal(place, value) for value in first):
            return _Axis(range(unit, largest + 1, unit), unit, held, place)
    place(step)
    raise UsageError(f"no multiples of {step:,} up to {largest:,} obey the rules")


def _is_legal(place: Callable[[int], Configuration], value: int) -> bool:
    try:
        place(value)
    except UsageError:
        return False
    return True


def _exact(job: Job, degrees: Degrees, **changes: Any) -> Job:
    """The job with `changes`, and with exactly the global batch of these degrees, without
    tolerance."""
    batch = BatchTarget(float(degrees.gbs), tolerance=0.0, exact=True)
    return replace(job, batch=batch, **changes)


def _again(configuration: Configuration, seq: int | None = None, **degrees: int) -> Configuration:
    """The configuration with the same layout but another sequence length or other degrees, checked
    against the rules."""
    changed = configuration.degrees.model_copy(update=degrees)
    job = _exact(configuration.job, changed, seq=seq or configuration.job.seq)
    return checked(replace(configuration, job=job, degrees=changed))


def _with_layers(configuration: Configuration, layers: int) -> Configuration:
    job, degrees = configuration.job, configuration.degrees
    kinds = repeated_kinds(job.model, layers)
    model = job.model.model_copy(update={"layers": layers, "layer_kinds": kinds})
    # `model_copy` would keep the cached kinds of the old layers.
    exact = _exact(job, degrees, model=ModelSpec.model_validate(model.model_dump()))
    return checked(Configuration.even(exact, degrees, configuration.recompute))


def repeated_kinds(model: ModelSpec, layers: int) -> tuple[LayerKind, ...]:
    """Layer kinds of a deeper or shallower model: the first ones, then the repeating pattern of the
    second half of the model's layers (so dense layers before MoE ones stay first)."""
    kinds = list(model.layer_kinds)
    if not kinds:
        return ()
    half = len(kinds) // 2
    period = next(
        length
        for length in range(1, len(kinds) + 1)
        if all(kinds[i] == kinds[i - length] for i in range(max(half, length), len(kinds)))
    )
    while len(kinds) < layers:
        kinds.append(kinds[-period])
    return tuple(kinds[:layers])
