"""The vision part of a measured run's model, and its images."""

from __future__ import annotations

import re

from planner.evidence.runs.lengths import longest_row, samples_of
from planner.evidence.runs.model import UnpredictableRowError, model_of
from planner.evidence.runs.rows import MeasuredRow
from planner.job.images import image_count, image_load
from planner.job.models.catalog import catalog_name, load_model
from planner.job.specs import ModelSpec
from planner.job.tuning import PROJECTOR, VISION_TOWER
from planner.job.vision import ImageLoad

# Endings of checkpoint names that say how weights are packed, dated or tuned.
_PACKED = re.compile(
    r"[-_](unsloth[-_])?(bnb[-_]?4bit|gptq[-_]int4|awq|fp8|4bit|instruct|chat|pretrained|it|\d{4})$",
    re.IGNORECASE,
)
# Names under which ms-swift 2 had models of the catalogue.
_CALLED = (
    (re.compile(r"^llava1[._]6-(mistral|vicuna)-7b", re.IGNORECASE), r"llava-v1.6-\1-7b"),
    # InternViT-6B before InternLM2-20B, as InternVL2-26B.
    (re.compile(r"^internvl-chat-v1[._]5$", re.IGNORECASE), "internvl2-26b"),
    (re.compile(r"^phi3-vision-128k", re.IGNORECASE), "phi-3.5-vision"),
)
# The size of an image if neither size nor tokens are stated (COCO's), and the form of a size in an
# open fact.
_USUAL_IMAGE = "1x640x480"
_SIZED = r"^one of (\d+x\d+)$"
_OTHER = r"\b(audio|speech)"
# Words for towers; projectors are also called mergers or aligners.
_TOWER = r"vision|\bvit\b"
_PROJECTOR = r"projector|merger|aligner"


def says_vision(row: MeasuredRow) -> bool:
    """Whether a row's model reads images or audio: it has a cell for vision, or a frozen tower."""
    return bool(row.fact("vision")) or row.says("frozen", f"{_TOWER}|{_OTHER}")


def whole_model(row: MeasuredRow) -> ModelSpec:
    """A row's model, with its vision tower and images if it has them. The catalogue's language
    model is then used if the row leaves out its shape. UnpredictableRowError for an unknown tower.
    """
    if not says_vision(row):
        return model_of(row)
    known = _known(row)
    vision = known.vision
    if vision is None:
        raise _unknown(row)
    model = model_of(row) if row.integer("layers") else _in_row(known.language, row)
    whole = model.model_copy(update={"vision": vision})
    frozen = VISION_TOWER in frozen_parts(row)
    images = _images(row, whole)
    part = vision.model_copy(update={"frozen": frozen})
    return whole.model_copy(update={"vision": part, "images": images})


def _images(row: MeasuredRow, model: ModelSpec) -> ImageLoad:
    """The images of the row's samples: the stated number of tokens, or one image of a usual size,
    as far as it fits in a sample."""
    text, samples = row.fact("image_tokens"), samples_of(row).lengths
    room = float(samples.mean if samples else model.pretraining_seq)
    if text == "none":
        return ImageLoad()
    if text == "the largest" or model.vision is None:
        return image_load(model, None, None, room)
    tokens = re.match(r"\d+", text)
    if tokens:
        return image_load(model, None, int(tokens[0]), max(room, float(tokens[0])))
    sized = re.search(_SIZED, text)
    width, height = (sized[1] if sized else _USUAL_IMAGE).rpartition("1x")[2].split("x")
    most = re.match(r"at most (\d+)", text)
    one = image_count(model.vision, int(width), int(height)).tokens
    return image_load(model, None, min(int(room), one, int(most[1]) if most else one), room)


def frozen_parts(row: MeasuredRow) -> tuple[str, ...]:
    """The parts that were not trained, according to the row."""
    frozen = row.fact("frozen") if "trained" not in row.fact("frozen") else ""
    if "frozen" in row.fact("vision"):
        frozen += " vision_tower"
    words = {VISION_TOWER: _TOWER, PROJECTOR: _PROJECTOR}
    return tuple(part for part, word in words.items() if re.search(word, frozen, re.IGNORECASE))


def _known(row: MeasuredRow) -> ModelSpec:
    """The catalogue's model with the row's name, without endings that say how its weights are
    packed."""
    name = row.text("model") or ""
    for pattern, called in _CALLED:
        name = pattern.sub(called, name)
    while (known := catalog_name(name)) is None and _PACKED.search(name):
        name = _PACKED.sub("", name)
    if known is None or row.says("frozen", _OTHER):
        raise _unknown(row)
    return load_model(known).with_vision().spec


def _unknown(row: MeasuredRow) -> UnpredictableRowError:
    return UnpredictableRowError(f"the tower of {row.text('model') or 'the model'} is not known")


def _in_row(model: ModelSpec, row: MeasuredRow) -> ModelSpec:
    """The model with its length limit set to the longest row of the run. UnpredictableRowError if
    the row does not state that length."""
    seq = longest_row(row)
    if not seq:
        raise UnpredictableRowError("seq is not stated")
    return model.model_copy(update={"pretraining_seq": seq})
