"""Reader of Megatron's batch ramps.

Rules: megatron-core 0.19.2, training/arguments.py (validate_args) and
core/num_microbatches_calculator.py: thresholds are in tokens; before it, `--rampup-batch-size`.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.job.batch_ramp import read_ramp
from planner.job.errors import UsageError
from planner.job.quantities import parse_tokens
from planner.launch.options import MEGATRON
from planner.launch.read.found import Edit, Problem
from planner.launch.read.megatron_arguments import Arguments

_STEPS, _BATCH = MEGATRON["batch_ramp"].name, MEGATRON["gbs"].name
_LINEAR = "rampup-batch-size"
RAMPS = (_STEPS, _LINEAR)
_MAY_SHRINK = "decrease-batch-size-if-needed"


@dataclass(frozen=True, slots=True)
class Ramp:
    """`text`: as `planner.job.batch_ramp` reads it; `gbs`: its last batch; None for no ramp."""

    text: str | None = None
    gbs: int | None = None
    problems: tuple[Problem, ...] = ()


def read_megatron_ramp(arguments: Arguments, gbs: int | None, seq: int | None) -> Ramp:
    """The ramp of a launch, and what is wrong with it; `gbs`, `seq`: as its options say."""
    if arguments.given.get(_STEPS) is not None:
        return _steps(arguments, gbs)
    words = arguments.many(_LINEAR)
    if not words or gbs is None or seq is None or arguments.has(_MAY_SHRINK):
        return Ramp()
    place = arguments.place(_LINEAR)
    try:
        if len(words) != 3:
            raise UsageError("takes three numbers: start, increment, samples")
        read_ramp(" ".join(words), gbs)
    except UsageError as error:
        return Ramp(problems=(_wrong(f"--{_LINEAR} {' '.join(words)}: {error}", place),))
    text = (
        f"--{_LINEAR} is deprecated; megatron-core 0.19.2 ignores it and takes --{_BATCH} from "
        "the start"
    )
    note = Problem("batch-ramp-ignored", text, "note", place, f"--{_STEPS} in its place")
    return Ramp(" ".join(words), gbs, (note,))


def _steps(arguments: Arguments, gbs: int | None) -> Ramp:
    text, place = arguments.text(_STEPS) or "", arguments.place(_STEPS)
    pairs = [item.partition(":") for item in text.replace(",", " ").split()]
    try:
        starts = [0 if at == "0" else parse_tokens(at) for at, _, _ in pairs]
        sizes = [parse_tokens(size) for _, _, size in pairs]
        if not starts or starts[0] != 0:
            raise UsageError("the first threshold is 0")
        steps = [f"{size}:{end}" for size, end in zip(sizes, starts[1:], strict=False)]
        ramp = ",".join((*steps, str(sizes[-1]))) if steps else None
        if ramp:
            read_ramp(ramp)
    except UsageError as error:
        return Ramp(problems=(_wrong(f"--{_STEPS} {text}: {error}", place),))
    problems: tuple[Problem, ...] = ()
    if gbs is not None:
        both = f"--{_STEPS} with --{_BATCH}: Megatron takes one of them"
        edits = (Edit(f"--{_BATCH}", None),)
        problems = (
            Problem("batch-twice", both, "error", arguments.place(_BATCH), f"no --{_BATCH}", edits),
        )
    return Ramp(ramp, sizes[-1], problems)


def _wrong(text: str, place: tuple[str, ...]) -> Problem:
    return Problem("option-value", text, "error", place, "growing batches and thresholds")
