"""The largest batch or context that fits, and changes to make if nothing does."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from planner.job.errors import UsageError
from planner.predict.memory.serving.deployment import (
    MAX_BATCH,
    MAX_TOKENS,
    Deployment,
    check_deployment,
)
from planner.predict.memory.serving.formats import KV_FORMATS, PUBLISHED_FORMATS, WEIGHT_FORMATS
from planner.predict.memory.serving.logs import CacheSpread
from planner.predict.memory.serving.stage import stage_memory

_GPU_STEPS = (2, 4, 8, 16, 32)
_HIGH_UTILIZATION = 0.95
# Number of key/value heads in Llama 2 70B, Llama 3, Mistral, and Qwen2.5 from 7B on.
GROUPED_KV_HEADS = 8
# Tensor parallelism beyond the usual node is rare; more GPUs become pipeline stages.
_NODE_GPUS = 8


@dataclass(frozen=True)
class DeploymentChange:
    """A deployment near the requested one. `options`: the options that produce it; `missing`: bytes
    by which it exceeds its limit (negative: to spare)."""

    options: str
    deployment: Deployment
    missing: float

    @property
    def fits(self) -> bool:
        """Whether it is expected to fit."""
        return self.missing <= 0


@dataclass(frozen=True)
class Solved:
    """The largest batch or context that fits; `what` says which of the two. `expected`: with the
    predicted room for the KV cache; `low`, `high`: with the room at the two ends of its 80 %
    interval; 0 if nothing fits."""

    what: str
    expected: int
    low: int
    high: int


def solve(deployment: Deployment, what: str, spread: CacheSpread) -> Solved:
    """The largest `batch` or `context`, as `what` says; UsageError for anything else. `spread`: the
    interval of the room."""
    if what not in ("batch", "context"):
        raise UsageError(f"--solve {what} is for training; with --inference: batch or context")
    largest = largest_batch if what == "batch" else largest_context
    low, expected, high = (largest(deployment, e) for e in (spread.low, 0.0, spread.high))
    return Solved(what, expected, low, high)


def solved_deployment(deployment: Deployment, solved: Solved) -> Deployment:
    """The deployment with the expected batch or context of `solved`, or with 1 if that is 0."""
    found = max(1, solved.expected)
    if solved.what == "batch":
        return replace(deployment, batch=found)
    return replace(deployment, context=found)


def missing_bytes(deployment: Deployment) -> float:
    """Bytes by which the KV cache exceeds its room on the worst stage; negative: bytes to spare."""
    return max(stage.missing for stage in stage_memory(deployment))


def largest_batch(deployment: Deployment, extra: float = 0.0) -> int:
    """Largest number of sequences of the given context that fits; 0 if none does. `extra`: bytes of
    room beyond the expected room."""
    return _largest(lambda n: missing_bytes(replace(deployment, batch=n)) <= extra, MAX_BATCH)


def largest_context(deployment: Deployment, extra: float = 0.0) -> int:
    """Largest context at which the given batch fits; 0 if none does."""
    return _largest(lambda n: missing_bytes(replace(deployment, context=n)) <= extra, MAX_TOKENS)


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number from 1 to `most` that fits; 0 if none does. Assumes that no number fits
    above one that does not."""
    return bisect_left(range(1, most + 1), True, key=lambda number: not fits(number))


def changes(deployment: Deployment) -> tuple[DeploymentChange, ...]:
    """Deployments near the given one, each with the bytes missing there; those that fit come first.
    Most differ in a single option. The list also has the combination of GPUs and formats that fits
    with the fewest GPUs, if there is one."""
    found = [_measured(options, near) for options, near in _near(deployment)]
    known = {change.options for change in found}
    found += [change for change in _together(deployment) if change.options not in known]
    return tuple(sorted(found, key=lambda change: not change.fits))


def with_grouped_queries(deployment: Deployment) -> DeploymentChange | None:
    """The deployment of a model with fewer KV heads (grouped-query attention, arXiv 2305.13245),
    which is not an option but another model to choose or train. None if the model has as few
    already, or compresses keys and values (MLA)."""
    model = deployment.model
    few = model.mla is not None or model.kv_heads <= GROUPED_KV_HEADS
    if few or model.heads % GROUPED_KV_HEADS:
        return None
    grouped = model.model_copy(update={"kv_heads": GROUPED_KV_HEADS})
    near = replace(deployment, model=grouped)
    return _measured(f"a model with {GROUPED_KV_HEADS} KV heads", near) if _legal(near) else None


def _measured(options: str, deployment: Deployment) -> DeploymentChange:
    return DeploymentChange(options, deployment, missing_bytes(deployment))


def _near(deployment: Deployment) -> Iterator[tuple[str, Deployment]]:
    """(options, deployment) of each single change, in the order in which users would prefer them.
    Splits over more GPUs end with the first one that fits."""
    yield from _smaller_requests(deployment)
    if deployment.utilization < _HIGH_UTILIZATION:
        text = f"--gpu-memory-utilization {_HIGH_UTILIZATION:g}"
        yield text, replace(deployment, utilization=_HIGH_UTILIZATION)
    yield from _smaller_formats(deployment)
    for text, near in _more_gpus(deployment):
        yield text, near
        if missing_bytes(near) <= 0:
            return


def _smaller_requests(deployment: Deployment) -> Iterator[tuple[str, Deployment]]:
    batch = largest_batch(deployment)
    if 0 < batch < deployment.batch:
        yield f"--batch {batch}", replace(deployment, batch=batch)
    context = largest_context(deployment)
    if 0 < context < deployment.context:
        yield f"--context {context}", replace(deployment, context=context)


def _smaller_formats(deployment: Deployment) -> Iterator[tuple[str, Deployment]]:
    for cache in ("fp8", "int4"):
        if KV_FORMATS[cache].element_bytes < deployment.kv.element_bytes:
            yield f"--kv-cache {cache}", replace(deployment, kv=KV_FORMATS[cache])
    for name in _narrower(deployment):
        yield f"--weights {name}", replace(deployment, weights=WEIGHT_FORMATS[name])


def _more_gpus(deployment: Deployment) -> Iterator[tuple[str, Deployment]]:
    """The next legal degrees: tp up to 8, then pipeline stages."""
    for factor in _GPU_STEPS:
        grown = max(deployment.tp, min(deployment.tp * factor, _NODE_GPUS))
        stages = deployment.pp * deployment.tp * factor // grown
        experts = deployment.ep * grown // deployment.tp if deployment.ep > 1 else 1
        near = replace(deployment, tp=grown, pp=stages, ep=experts)
        if _legal(near):
            yield gpu_options(near), near


def gpu_options(deployment: Deployment) -> str:
    """`--tp 8 --gpus 8xH100`, with the other degrees that are not 1."""
    degrees = {"tp": deployment.tp, "pp": deployment.pp, "dp": deployment.dp, "ep": deployment.ep}
    text = " ".join(f"--{name} {value}" for name, value in degrees.items() if value > 1)
    return f"{text} --gpus {deployment.gpus}x{deployment.gpu.name}".strip()


def _legal(deployment: Deployment) -> bool:
    try:
        check_deployment(deployment)
    except UsageError:
        return False
    return True


def _together(deployment: Deployment) -> list[DeploymentChange]:
    """A list of the first combination of GPUs and number formats that fits (fewest GPUs, then
    widest formats); empty if none fits."""
    wider = [deployment, *(near for _, near in _more_gpus(deployment))]
    for grown in wider:
        for weights, kv in product(("", *_narrower(deployment)), ("", "fp8")):
            near, options = grown, [] if grown is deployment else [gpu_options(grown)]
            if weights:
                near = replace(near, weights=WEIGHT_FORMATS[weights])
                options.append(f"--weights {weights}")
            if kv and KV_FORMATS[kv].element_bytes < deployment.kv.element_bytes:
                near = replace(near, kv=KV_FORMATS[kv])
                options.append(f"--kv-cache {kv}")
            change = _measured(" ".join(options), near)
            if change.fits:
                return [change]
    return []


def _narrower(deployment: Deployment) -> tuple[str, ...]:
    """Names of weight formats with fewer bytes than the present one, in the order to try: fp8 and
    int4, or, if the model's own format is known, that one and int4."""
    published = PUBLISHED_FORMATS.get(deployment.model.family)
    names = dict.fromkeys((published, "int4") if published else ("fp8", "int4"))
    given = deployment.weights.element_bytes
    return tuple(name for name in names if WEIGHT_FORMATS[name].element_bytes < given)
