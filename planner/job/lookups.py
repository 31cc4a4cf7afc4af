"""Look up the model, the framework and the machine of a request.

A request's `overrides` take the place of the catalogues.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hardware.load import load_cluster_file, parse_gpus
from hardware.schema import Cluster
from hardware.sharp import why_not, with_sharp
from planner.job.errors import UsageError
from planner.job.frameworks.adapters import check_tuning
from planner.job.frameworks.profile import (
    FrameworkProfile,
    frameworks_with,
    load_framework,
    profile_on,
    with_tables,
)
from planner.job.frameworks.switches import (
    framework_sharp,
)
from planner.job.models.catalog import ResolvedModel, load_model
from planner.job.objective import Objective
from planner.job.pool import GpuWords, SeveralTypes
from planner.job.request_fields import RequestFields
from planner.job.sampling import (
    states_images,
)
from planner.job.specs import ModelSpec
from planner.job.towers import part_targets
from planner.job.tuning import PARTS, PROJECTOR, VISION_TOWER, Tuning, read_tuning
from planner.job.tuning_checks import checked


def find_model(request: RequestFields) -> ResolvedModel:
    """The overriding model, else the one of the request's name, without biases if the request says
    so."""
    spec = request.overrides.model
    if spec is not None:
        return ResolvedModel(spec=spec, name=spec.name, asked=spec.name)
    found = load_model(request.model)
    sees = request.images or request.image_tokens or states_images(request.lengths)
    if sees or set(request.freeze) & set(PARTS):
        found = found.with_vision()
    if request.bias:
        return found
    return found.model_copy(update={"spec": found.spec.without_biases()})


def find_framework(request: RequestFields) -> FrameworkProfile:
    """The profile named by `framework`, or the one that replaces it on AMD's GPUs. For a launch, as
    its settings change it."""
    named, launched = load_framework(request.framework), request.overrides.launched
    if launched is not None:
        for tables in launched.variations.values():
            named = with_tables(named, tables)
        return named
    if request.gpus is None and request.cluster is None:
        return named
    gpu = find_cluster(request).gpu
    return profile_on(named, gpu.name, gpu.vendor)


def find_cluster(request: RequestFields) -> Cluster:
    """The machine of the request; for a launch, the part on which it starts processes. UsageError
    unless exactly one is named."""
    if (request.gpus is None) == (request.cluster is None):
        raise UsageError("give the GPUs once: --gpus 64xH100, or --cluster FILE.toml")
    if request.cluster is not None:
        machine = load_cluster_file(Path(request.cluster))
    else:
        machine = _machine_of(request.gpu_words)
    launched = request.overrides.launched
    started = launched.started if launched else None
    return machine if started is None else started.part_of(machine)


def _machine_of(words: GpuWords | None) -> Cluster:
    """GPUs of one type. Several types become the same number of GPUs of the first type."""
    match words:
        case SeveralTypes():
            return words.pool().worlds()[0]
        case _:
            return parse_gpus(words.text if words else "")


def job_cluster(request: RequestFields, profile: FrameworkProfile) -> Cluster:
    """The machine with the in-network reductions that the framework can use. For the run of launch
    files, the machine as their NCCL variables change it, with reductions only if they are requested
    and possible. Raises UsageError or HardwareError."""
    machine, launched = find_cluster(request), request.overrides.launched
    if launched is None:
        return framework_sharp(machine, profile, request.sharp)
    cluster = launched.transport.applied(machine)
    if request.sharp and profile.parallelism.sharp_groups and not why_not(cluster):
        return with_sharp(cluster, cluster.sharp)
    return cluster.model_copy(update={"sharp": ""})


def trained_model(request: RequestFields, model: ModelSpec, profile: FrameworkProfile) -> ModelSpec:
    """The model with the framework's scan chunks and the number of multi-token-prediction layers
    that it trains."""
    chunked = model.with_scan_chunks(profile.scan_chunk)
    return chunked.with_mtp(_trained_mtp(request, model, profile))


def _trained_mtp(request: RequestFields, model: ModelSpec, profile: FrameworkProfile) -> int:
    """Number of multi-token-prediction layers to train: as asked, as a launch's files say, or the
    framework's default. UsageError if the framework has none."""
    asked, overrides = request.mtp_layers, request.overrides
    if overrides.launched and overrides.model and profile.mtp != "never":
        return model.mtp_layers
    if asked and profile.mtp == "never":
        having = frameworks_with(lambda other: other.mtp != "never")
        raise UsageError(
            f"--mtp-layers {asked}: {profile.name} trains without multi-token "
            f"prediction; frameworks that have it: {', '.join(having)}"
        )
    usual = model.mtp_layers if profile.mtp == "model" else 0
    return usual if asked is None else asked


def tuning_of(request: RequestFields, model: ModelSpec, profile: FrameworkProfile) -> Tuning:
    """How the weights are trained. UsageError if the model or the framework does not allow it."""
    tuning = checked(read_tuning(request.train, request.freeze), model)
    check_tuning(profile, tuning)
    return _with_missed_parts(tuning, model, profile)


def _with_missed_parts(tuning: Tuning, model: ModelSpec, profile: FrameworkProfile) -> Tuning:
    """The tuning with parts frozen in which adapters find no layer by name. Megatron's layers are
    named differently from those of transformers' tower (Megatron-Bridge 0.6.2, peft/lora.py)."""
    vision = model.vision
    if vision is None or not tuning.has_adapters:
        return tuning
    copied = profile.towers.place(vision.rule) == "copied"
    missed = (
        part
        for part in (VISION_TOWER, PROJECTOR)
        if part not in (*tuning.frozen, *tuning.whole)
        and (copied or not part_targets(tuning, part, vision.tower.kind))
    )
    return replace(tuning, frozen=(*tuning.frozen, *missed))


def teacher_of(
    objective: Objective, model: ModelSpec, profile: FrameworkProfile
) -> ModelSpec | None:
    """The model whose logits a student learns. UsageError if the two are incompatible."""
    if objective.teacher is None:
        return None
    teacher = load_model(objective.teacher).spec.with_scan_chunks(profile.scan_chunk).with_mtp(0)
    if teacher.vocab != model.vocab:
        raise UsageError(
            f"--objective {objective}: {teacher.name} has a vocabulary of {teacher.vocab:,} and "
            f"{model.name} one of {model.vocab:,}, but their logits are compared one by one; give "
            "a teacher of the same family"
        )
    return teacher
