"""The constants that were fitted on whole training steps.

`planner.evidence.fit.held_out` fits all of them at once, on all runs and without each source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hardware.curves import load_compute_curves
from hardware.load import parse_gpus
from planner.job.frameworks import load_framework
from planner.job.job import Job

_SIXTEEN = frozenset({"bf16", "fp16"})
_MOST_RUNS = 60

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

    def shipped() -> float:
        loaded = load_compute_curves(parse_gpus(f"8x{gpu}").gpu)
        return float(getattr(loaded.curves, curve).value)

    def applies(job: Job) -> bool:
        gpu = job.cluster.gpu
        sxm = "SXM" in gpu.name or architecture != "ampere"
        return gpu.architecture == architecture and sxm and (job.precision in _SIXTEEN) == wide

    both = frozenset({field, "gemm_max_efficiency"})
    return Constant(name, "hardware/efficiency/compute.toml", both, shipped, applies, 1.0)


def _profile(
    name: str, framework: str, table: str, field: str, most: float = math.inf,
    prior: float | None = None,
) -> Constant:  # fmt: skip
    """A number of a framework's profile, fitted on the jobs of that profile."""
    key = {"tensor": "hide_tensor"}.get(field, field)
    return Constant(
        name,
        f"planner/job/frameworks/{framework}.toml",
        frozenset({key}),
        lambda: float(getattr(getattr(load_framework(framework), table), field)),
        # Its versions too (`nanotron-2024`).
        lambda job: job.framework.name.startswith(framework),
        most,
        prior,
    )


def _launch() -> float:
    return load_framework("megatron-core").kernels.launch_s


def _scan() -> float:
    return float(load_compute_curves(parse_gpus("8xH100").gpu).curves.scan_efficiency.value)


# Eager torch blocks (torchtitan's, and counted in Hugging Face's Llama: 3.5 of the fused bytes
# forward); one kernel for each row, as llm-foundry's norms and plain GELU: what Megatron-Core's
# fused ones hold on other sources; NCCL beside compute as torchtitan has it.
_EAGER, _SINGLE_KERNELS, _NCCL_CONTENTION = 4.0, 1.5, 0.3

CONSTANTS = (
    _rate("a100-sxm-16bit", "A100", "ampere", wide=True),
    _rate("hopper-16bit", "H100", "hopper", wide=True),
    _rate("hopper-8bit", "H100", "hopper", wide=False),
    _rate("blackwell-16bit", "B200", "blackwell", wide=True),
    _rate("blackwell-8bit", "B200", "blackwell", wide=False),
    _profile("megatron-core-issue", "megatron-core", "kernels", "issue_s"),
    _profile("megatron-core-traffic", "megatron-core", "kernels", "memory_traffic"),
    _profile("megatron-lm-2022-issue", "megatron-lm-2022", "kernels", "issue_s"),
    _profile("megatron-lm-2022-update", "megatron-lm-2022", "kernels", "update_traffic_bytes"),
    _profile("megatron-lm-2022-contention", "megatron-lm-2022", "overlap", "contention"),
    _profile("megatron-fsdp-issue", "megatron-fsdp", "kernels", "issue_s"),
    _profile("megatron-bridge-issue", "megatron-bridge", "kernels", "issue_s"),
    _profile("megatron-bridge-traffic", "megatron-bridge", "kernels", "memory_traffic"),
    _profile("megatron-bridge-overlap", "megatron-bridge", "overlap", "tensor", 1.0),
    Constant(
        "megatron-experts-launch",
        "planner/job/frameworks/megatron-core.toml",
        frozenset({"launch_s"}),
        _launch,
        lambda job: job.model.moe is not None and job.framework.kernels.launch_s == _launch(),
    ),
    Constant(
        "scan",
        "hardware/efficiency/compute.toml",
        frozenset({"scan_efficiency"}),
        _scan,
        lambda job: any(kind.attention == "state" for kind in job.model.kinds),
    ),
    _profile("nanotron-issue", "nanotron", "kernels", "issue_s"),
    _profile("torchtitan-issue", "torchtitan", "kernels", "issue_s"),
    _profile("torchtitan-traffic", "torchtitan", "kernels", "memory_traffic"),
    _profile("torchtitan-contention", "torchtitan", "overlap", "contention"),
    _profile(
        "llm-foundry-traffic", "llm-foundry", "kernels", "memory_traffic", prior=_SINGLE_KERNELS
    ),
    _profile("fsdp1-traffic", "fsdp1", "kernels", "memory_traffic", prior=_EAGER),
    _profile("fsdp1-contention", "fsdp1", "overlap", "contention", prior=_NCCL_CONTENTION),
    _profile("nanotron-traffic", "nanotron", "kernels", "memory_traffic"),
    _profile("nanotron-host-step", "nanotron", "outside", "host_step_s"),
    _profile("torch-3d-traffic", "torch-3d", "kernels", "memory_traffic", prior=_EAGER),
    _profile("jax-xla-traffic", "jax-xla", "kernels", "memory_traffic"),
    _profile("jax-xla-contention", "jax-xla", "overlap", "contention"),
)


def spread_out(runs: Sequence[Run], most: int = _MOST_RUNS) -> Sequence[Run]:
    """At most so many runs of a source, evenly spread: further ones say little new."""
    if len(runs) <= most:
        return runs
    return [runs[round(index * len(runs) / most)] for index in range(most)]
