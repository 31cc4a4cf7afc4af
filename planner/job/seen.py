"""Add a job's images to its model and to the lengths of its samples."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from planner.job.errors import UsageError
from planner.job.frameworks.profile import FrameworkProfile
from planner.job.images import image_load, stated_tokens
from planner.job.samples import Samples
from planner.job.sampling import images_of_samples
from planner.job.specs import ModelSpec
from planner.job.tuning import VISION_TOWER, Tuning

if TYPE_CHECKING:
    from planner.job.request_fields import RequestFields


def with_images(
    request: RequestFields,
    model: ModelSpec,
    profile: FrameworkProfile,
    tuning: Tuning,
    samples: Samples,
    seq: int,
) -> tuple[Samples, ModelSpec]:
    """The samples with their images, and the model with a batch's images and its tower as it is
    trained. Raises UsageError."""
    samples = _with_room(request, samples, model)
    model = _seeing(request, model, profile, tuning, samples, seq)
    return _with_patches(samples, model), model


def _seeing(
    request: RequestFields,
    model: ModelSpec,
    profile: FrameworkProfile,
    tuning: Tuning,
    samples: Samples,
    seq: int,
) -> ModelSpec:
    """The model with a batch's images, and its tower as it is trained. Raises UsageError."""
    mean = samples.lengths.mean if samples.lengths else float(seq)
    images = images_of_samples(request, model, mean, seq)
    if images is None:
        images = image_load(model, request.images, request.image_tokens, mean)
    if model.vision is None:
        return model
    place = profile.towers.place(model.vision.rule)
    changed = {"frozen": tuning.freezes(VISION_TOWER), "place": place}
    vision = model.vision.model_copy(update=changed)
    return model.model_copy(update={"images": images, "vision": vision})


def _with_room(request: RequestFields, samples: Samples, model: ModelSpec) -> Samples:
    """The samples, each at least as long as its images. UsageError if the longest has no room for
    them."""
    tokens, lengths = stated_tokens(model, request.images, request.image_tokens), samples.lengths
    if lengths is None or not tokens:
        return samples
    if tokens > lengths.longest:
        raise UsageError(
            f"--lengths {request.lengths}: the images of a sample are {tokens:,} tokens, which "
            f"are part of its length, but the longest sample has {lengths.longest:,}; give "
            f"lengths of whole samples, a --seq of {tokens} or more, or smaller images"
        )
    return replace(samples, lengths=lengths.at_least(tokens), raised=lengths.below(tokens))


def _with_patches(samples: Samples, model: ModelSpec) -> Samples:
    """The samples with image patches, the same number in each unless a file states them."""
    lengths, patches = samples.lengths, model.images.patches
    if lengths is None or lengths.patches or not patches:
        return samples
    return replace(samples, lengths=lengths.with_patches(patches * lengths.mean))
