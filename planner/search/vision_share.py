"""The part of a plan's step time and memory that belongs to the vision tower and its projector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from planner.job.job import Job
from planner.job.parameter_classes import parameter_classes
from planner.predict.configuration import Configuration
from planner.predict.cost_tables import job_pieces
from planner.predict.layer_profile import LayerProfile, StepProfile
from planner.predict.memory.account import footprint_of
from planner.predict.memory.terms import peak_parts
from planner.predict.pictures import VISION
from planner.predict.plan import Plan

_TOWER, _PROJECTOR = "vision tower", "projector"
# Prefixes of the names of a tower's layers and of a projector's rows.
_LAYER, _BEHIND = "vision ", f"{VISION}projector"


class Share(NamedTuple):
    """Seconds or bytes of a part, and its share of the step or the peak."""

    name: str
    label: str
    amount: float
    share: float


def vision_shares(job: Job, plan: Plan, profile: StepProfile | None) -> tuple[Share, ...]:
    """Seconds of a step in the tower and in the projector, and their bytes of the heaviest stage's
    peak. Empty if a step has no images."""
    if job.model.vision is None or not job.model.images.patches or profile is None:
        return ()
    return (*_seconds(plan, profile), *_bytes(job, plan))


def _seconds(plan: Plan, profile: StepProfile) -> Iterator[Share]:
    spent = {_TOWER: 0.0, _PROJECTOR: 0.0}
    for layer in profile.layers:
        for part, seconds in _parts(layer):
            spent[part] += profile.micro_batches * layer.layers * seconds
    for part, seconds in spent.items():
        if seconds:
            name = f"{part.replace(' ', '_')}_s"
            yield Share(name, f"{part}, time", seconds, seconds / plan.step_time_s)


def _parts(layer: LayerProfile) -> Iterator[tuple[str, float]]:
    """(part, seconds) of one tower layer, or of an end layer with the parts beside it."""
    if layer.name.startswith(_LAYER):
        whole = sum(op.forward_s + op.backward_s for op in layer.ops)
        yield _TOWER, whole + layer.waiting_s + layer.accumulation_s + layer.again_s
        return
    for op in layer.ops:
        if op.name.startswith(VISION):
            part = _PROJECTOR if op.name.startswith(_BEHIND) else _TOWER
            yield part, op.forward_s + op.backward_s


def _bytes(job: Job, plan: Plan) -> Iterator[Share]:
    stage = plan.stages[plan.heaviest_stage]
    footprint = footprint_of(Configuration.of_plan(job, plan))
    account = footprint.stages[plan.heaviest_stage]
    for part in peak_parts(footprint, account):
        name = part.name.removeprefix("activations/")
        if name in (_TOWER, _PROJECTOR):
            share = part.size_bytes / stage.peak
            label = f"{name}, kept for backward"
            yield Share(f"{name.replace(' ', '_')}_bytes", label, part.size_bytes, share)
    held = _held_share(job) if plan.degrees.pp == 1 else 0.0
    if held:
        size = held * stage.weights
        label = "vision tower and projector, weights"
        yield Share("vision_weights_bytes", label, size, size / stage.peak)


def _held_share(job: Job) -> float:
    """The vision part's share of the weights' bytes."""
    sizes = {True: 0.0, False: 0.0}
    for index, piece in enumerate(job_pieces(job)):
        kinds = job.model.piece_kinds
        times = job.model.piece_sequence.count(kinds[index]) if index < len(kinds) else 1
        for op in piece.ops:
            size = times * op.parameter_count * _held(op.parameter_class, job)
            sizes[op.name.startswith(VISION)] += size
    return sizes[True] / sum(sizes.values())


def _held(name: str, job: Job) -> float:
    """Bytes in which a weight of a parameter class is stored."""
    one = parameter_classes()[name]
    held = one.bytes_per_parameter
    if held is None and not (one.trained or one.only_read) and job.framework.adapters.frozen_bytes:
        held = job.framework.adapters.frozen_bytes
    return job.framework.state.weight_bytes if held is None else held
