"""The vision part of a measured run's model, and its images, from its columns."""

from __future__ import annotations

import re

from planner.evidence.runs.lengths import longest_row
from planner.evidence.runs.model import UnpredictableRowError, model_of
from planner.evidence.runs.rows import MeasuredRow
from planner.job.errors import UsageError
from planner.job.images import image_load
from planner.job.models.catalog import catalog_name, load_model
from planner.job.specs import ModelSpec
from planner.job.tuning import PROJECTOR, VISION_TOWER

# What a name of a checkpoint says of how its weights are packed.
_PACKED = re.compile(r"[-_](unsloth[-_])?(bnb[-_]?4bit|gptq[-_]int4|awq|fp8|4bit)$", re.IGNORECASE)
_OTHER = r"\b(audio|speech)"
# Towers by the words of a cell; projectors are called so, or mergers and aligners.
_TOWER = r"vision|\bvit\b"
_PROJECTOR = r"projector|merger|aligner"


def says_vision(row: MeasuredRow) -> bool:
    """Whether a row is of a model that reads images: a cell of its own, or a tower that is
    frozen."""
    return bool(row.fact("vision")) or row.says("frozen", f"{_TOWER}|{_OTHER}")


def whole_model(row: MeasuredRow) -> ModelSpec:
    """A row's model, with its tower and images where it reads any. Of those the language model is
    the catalogue's where the row leaves its shape out. UnpredictableRowError where the tower is
    none that is known."""
    if not says_vision(row):
        return model_of(row)
    known = _known(row)
    vision = known.vision
    if vision is None:
        raise _unknown(row)
    model = model_of(row) if row.integer("layers") else _in_row(known.language, row)
    whole = model.model_copy(update={"vision": vision})
    frozen = VISION_TOWER in frozen_parts(row)
    tokens = re.search(r"(\d+)", row.fact("image_tokens"))
    try:
        images = image_load(
            whole, None, int(tokens[1]) if tokens else None, float(model.pretraining_seq)
        )
    except UsageError as error:
        raise UnpredictableRowError(str(error).partition(";")[0]) from None
    part = vision.model_copy(update={"frozen": frozen})
    return whole.model_copy(update={"vision": part, "images": images})


def frozen_parts(row: MeasuredRow) -> tuple[str, ...]:
    """Parts that a row says nothing trained."""
    frozen = row.fact("frozen") if "trained" not in row.fact("frozen") else ""
    if "frozen" in row.fact("vision"):
        frozen += " vision_tower"
    words = {VISION_TOWER: _TOWER, PROJECTOR: _PROJECTOR}
    return tuple(part for part, word in words.items() if re.search(word, frozen, re.IGNORECASE))


def _known(row: MeasuredRow) -> ModelSpec:
    """The catalogue's model of the row's name, whose weights may be published packed."""
    known = catalog_name(_PACKED.sub("", row.text("model") or ""))
    if known is None or row.says("frozen", _OTHER):
        raise _unknown(row)
    return load_model(known).with_vision().spec


def _unknown(row: MeasuredRow) -> UnpredictableRowError:
    return UnpredictableRowError(f"the tower of {row.text('model') or 'the model'} is not known")


def _in_row(model: ModelSpec, row: MeasuredRow) -> ModelSpec:
    """The model on rows of the length of the run's."""
    seq = longest_row(row)
    if not seq:
        raise UnpredictableRowError("seq is not stated")
    return model.model_copy(update={"pretraining_seq": seq})
