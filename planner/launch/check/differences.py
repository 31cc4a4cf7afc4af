"""What a launch folder's files say differently from the plan file in it; the files count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hardware import HardwareError
from planner.job.errors import CannotTellError, UsageError
from planner.job.frameworks.switches import with_techniques
from planner.job.specs import ModelSpec
from planner.launch.check.request import LaunchRequest, as_request
from planner.launch.read.document import leaves
from planner.launch.read.found import Found, Problem
from planner.predict.memory.advice import Setup

RULE = "differs-from-plan"
# Fields of a model's description that do not change what is trained.
_DESCRIPTIVE = {
    "family",
    "name",
    "source",
    "hf_name",
    "pretraining_seq",
    "max_positions",
    "pretraining_tokens",
}
# Megatron has one GELU; the folder's README names the departure.
_SAME_VALUES = {"gelu_new": "gelu"}
_REQUEST_FIELDS = (
    "batch_ramp",
    "seq", "precision", "dtype", "optimizer", "optimizer_offload", "activation_offload",
    "attention", "schedule", "dropout",
)  # fmt: skip


def plan_differences(found: Found, planned: Found, name: str) -> tuple[Problem, ...]:
    """A warning for each setting of the plan (`name`: its file) that the files have otherwise."""
    try:
        here = as_request(found, planned.plan_gpus)
        there = as_request(planned)
    except (CannotTellError, UsageError, HardwareError):
        return ()  # what is missing or wrong is said where the launch is looked at
    return tuple(
        Problem(
            RULE,
            f"{setting} is {_text(value)} in the files, {_text(other)} in {name}: the files count",
            "warning",
            (found.where[setting].place,) if setting in found.where else (),
        )
        for setting, value, other in _differences(here, there)
    )


def _differences(here: Setup, there: Setup) -> Iterator[tuple[str, Any, Any]]:
    """(setting, as in the files, as in the plan)."""
    mine, planned = here.degrees.model_dump(), there.degrees.model_dump()
    yield from ((key, mine[key], planned[key]) for key in mine if mine[key] != planned[key])
    if here.request.gbs != there.request.gbs:
        yield "gbs", here.request.gbs, there.request.gbs
    if _mode(here) != _mode(there):
        yield "recompute", here.recompute, there.recompute
    if _profile(here) != _profile(there):
        yield "framework", _profile(here), _profile(there)
    for key in _REQUEST_FIELDS:
        one, other = getattr(here.request, key), getattr(there.request, key)
        if one != other and None not in (one, other):
            yield key, one, other
    if isinstance(here.request, LaunchRequest) and here.request.shape is not None:
        # DeepEP and HybridEP take weights in fp32 whatever the model asks of its router.
        fused = "fused-dispatch" in here.request.variations
        for difference in _model_differences(here.request.shape, there.request.find_model().spec):
            if not (fused and difference[0] == "model's moe.router_fp32"):
                yield difference


def _profile(setup: Setup) -> str:
    """The profile that it trains with: a technique may put another in the framework's place."""
    request = setup.request
    used = request.variations if isinstance(request, LaunchRequest) else request.use
    return with_techniques(request.find_framework(), used).name


def _mode(setup: Setup) -> object:
    try:
        return setup.request.find_framework().recompute_mode(setup.recompute).mask
    except UsageError:
        return setup.recompute


def _model_differences(here: ModelSpec, there: ModelSpec) -> Iterator[tuple[str, Any, Any]]:
    """Fields of the model, by dotted name."""
    one, other = (dict(leaves(model.model_dump(mode="json"))) for model in (here, there))
    for key in one.keys() | other.keys():
        values = [_SAME_VALUES.get(str(side.get(key)), side.get(key)) for side in (one, other)]
        if key.split(".")[0] not in _DESCRIPTIVE and values[0] != values[1]:
            yield f"model's {key}", one.get(key), other.get(key)


def _text(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
