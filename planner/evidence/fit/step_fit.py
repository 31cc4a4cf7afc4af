"""The constants that were fitted on whole training steps.

`planner.evidence.fit.held_out` fits all of them at once, on all runs and without each source;
`constants.toml` lists them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hardware.curves import load_compute_curves
from hardware.files import shipped_toml
from hardware.load import parse_gpus
from planner.job.frameworks import load_framework
from planner.job.job import Job

_SIXTEEN = frozenset({"bf16", "fp16"})
_MOST_RUNS = 60
_CURVES = "hardware/efficiency/compute.toml"

Run = TypeVar("Run")


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant, the compiled core's fields that are proportional to it, and its scope.

    `shipped` reads its present value; `applies` says which jobs depend on it; `most`: its upper
    limit; `prior`: what physics or the same mechanism elsewhere gives it, where that is known.
    """

    name: str
    file: str
    fields: frozenset[str]
    shipped: Callable[[], float]
    applies: Callable[[Job], bool]
    most: float = math.inf
    prior: float | None = None


def _rate(name: str, gpu: str, architecture: str, *, wide: bool) -> Constant:
    """Share of the short-benchmark maximum that large products sustain in whole steps."""
    field = "gemm16_max_efficiency" if wide else "gemm_max_efficiency"
    curve = "sustained_share_16" if wide else "sustained_share_8"

    def applies(job: Job) -> bool:
        gpu = job.cluster.gpu
        sxm = "SXM" in gpu.name or architecture != "ampere"
        return gpu.architecture == architecture and sxm and (job.precision in _SIXTEEN) == wide

    both = frozenset({field, "gemm_max_efficiency"})
    return Constant(name, _CURVES, both, lambda: _curve(gpu, curve), applies, 1.0)


def _curve(gpu: str, name: str) -> float:
    return float(getattr(load_compute_curves(parse_gpus(f"8x{gpu}").gpu).curves, name).value)


def _profile(name: str, framework: str, table: str, field: str, **more: float) -> Constant:
    """A number of a framework's profile, fitted on the jobs of that profile."""
    return Constant(
        name,
        f"planner/job/frameworks/{framework}.toml",
        frozenset({field}),
        lambda: float(getattr(getattr(load_framework(framework), table), field)),
        # Its versions too (`nanotron-2024`).
        lambda job: job.framework.name.startswith(framework),
        **more,
    )


def _launch() -> float:
    return load_framework("megatron-core").kernels.launch_s


_OTHERS = (
    Constant(
        "megatron-experts-launch",
        "planner/job/frameworks/megatron-core.toml",
        frozenset({"launch_s"}),
        _launch,
        lambda job: job.model.moe is not None and job.framework.kernels.launch_s == _launch(),
    ),
    Constant(
        "scan",
        _CURVES,
        frozenset({"scan_efficiency"}),
        lambda: _curve("H100", "scan_efficiency"),
        lambda job: any(kind.attention == "state" for kind in job.model.kinds),
    ),
)


def _constant(row: dict[str, Any]) -> Constant:
    if "gpu" in row:
        return _rate(**row)
    if "framework" in row:
        return _profile(**row)
    return next(one for one in _OTHERS if one.name == row["name"])


CONSTANTS = tuple(
    map(_constant, shipped_toml("planner.evidence.fit", "constants.toml")["constants"])
)


def spread_out(runs: Sequence[Run], most: int = _MOST_RUNS) -> Sequence[Run]:
    """At most so many runs of a source, evenly spread: further ones say little new."""
    if len(runs) <= most:
        return runs
    return [runs[round(index * len(runs) / most)] for index in range(most)]
