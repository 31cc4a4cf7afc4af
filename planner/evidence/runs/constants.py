"""The constants that were fitted to whole training steps and to their memory peaks.

`constants.toml` lists them. `tests.fit.constants_fit` fits all constants of a figure at once, to
all runs and again without each source; `planner.evidence.runs.left_out` predicts with the latter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hardware.curves import load_compute_curves
from hardware.files import shipped_toml
from hardware.link_curves import load_curve_table, load_link_curves
from hardware.load import parse_gpus
from planner.job.frameworks.profile import FrameworkProfile, load_framework
from planner.job.job import Job
from planner.predict.uncertainty.families import Figure

_SIXTEEN = frozenset({"bf16", "fp16"})
_CURVES = "hardware/efficiency/compute.toml"
_LINKS = "hardware/efficiency/collectives.toml"
_PROFILES = "planner/job/frameworks"


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant, the compiled core's fields that are proportional to it, and its scope.

    `shipped` reads its present value; `applies` says whether a job depends on it. The fits use the
    other fields: `most` is its upper limit; `prior` the value from physics or from the same
    mechanism elsewhere, if known; `figure` the figure that it was fitted to; `also` names sources
    that measured it independently of the runs in a fit.
    """

    name: str
    file: str
    fields: frozenset[str]
    shipped: Callable[[], float]
    applies: Callable[[Job], bool]
    most: float = math.inf
    prior: float | None = None
    figure: Figure = "time"
    also: tuple[str, ...] = ()


def _rate(name: str, gpu: str, architecture: str, *, wide: bool) -> Constant:
    """The share of the short-benchmark maximum that large products sustain in whole steps."""
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


def _profile(
    name: str,
    table: str,
    field: str,
    framework: str = "",
    core: str = "",
    **more: Any,
) -> Constant:
    """A number in a framework's profile, fitted to jobs of that profile and its versions
    (`nanotron-2024`). Without a framework: the value for profiles that state none. `core`: the
    compiled core's name for it."""

    def read(profile: FrameworkProfile) -> float:
        value = getattr(getattr(profile, table), field)
        # Memory at the peak beyond the kept activations (`planner.predict.cost_tables`).
        kept = profile.saved.logits_saved_bytes if core == "logits_transient_bytes" else 0.0
        return float(value) - kept

    def shipped() -> float:
        if framework:
            return read(load_framework(framework))
        return float(FrameworkProfile.model_fields[table].annotation.model_fields[field].default)  # type: ignore[union-attr]

    def applies(job: Job) -> bool:
        if framework:
            return job.framework.name.startswith(framework)
        return read(job.framework) == shipped()

    file = f"{_PROFILES}/{framework}.toml" if framework else "planner/job/settings.toml"
    return Constant(name, file, frozenset({core or field}), shipped, applies, **more)


def _link(name: str, link: str, field: str, core: str, **more: Any) -> Constant:
    """A figure of a kind of link, also for kinds that inherit it; `core`: the compiled core's field
    that is proportional to it."""
    table = load_curve_table()
    kind = table.scale_up.get(link) or table.scale_out[link]

    def applies(job: Job) -> bool:
        curves = load_link_curves(job.cluster)
        level = curves.scale_up if link in table.scale_up else curves.scale_out
        return bool(getattr(level, field) == getattr(kind, field))

    return Constant(
        name, _LINKS, frozenset({core}), lambda: float(getattr(kind, field).value), applies, **more
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
        "straggler",
        _LINKS,
        frozenset({"straggler_share"}),
        lambda: float(load_curve_table().straggler_share.value),
        lambda job: job.cluster.num_gpus > job.cluster.scale_up_domain_gpus,
        # In runs that it was not fitted to, time grows by 0.9 % per doubling: MPT on 8 to 128 A100,
        # MegaScale.
        prior=0.009,
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
    row |= {"also": tuple(row["also"])} if "also" in row else {}
    if "link" in row:
        return _link(**row)
    if "table" in row:
        return _profile(**row)
    return next(one for one in _OTHERS if one.name == row["name"])


CONSTANTS = tuple(
    map(_constant, shipped_toml("planner.evidence.runs", "constants.toml")["constants"])
)
