"""Families of measured runs, and which are nearest: what residuals are pooled by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from hardware.facts import architecture_named

Figure = Literal["time", "memory"]
# Framework of a profile that stands for one that was never measured.
UNFAMILIAR = "unfamiliar"
# Those whose step is mostly what the author of a script makes of it.
OWN_LOOPS = frozenset(
    {"hf-transformers", "hf-fsdp2", "deepspeed", "nanogpt", "torchtune", UNFAMILIAR}
)


class Family(NamedTuple):
    """Framework profile, GPU architecture, scale and kind of model; empty fields pool."""

    framework: str = ""
    architecture: str = ""
    scale: str = ""
    model: str = ""

    def includes(self, other: Family) -> bool:
        """Whether `other` is part of this family."""
        return all(item in ("", its) for item, its in zip(self, other, strict=True))


# Before the kind of a model whose training is no full one on rows of one length.
_TUNED = "tuned "
_MODELS = {"dense": "dense models", "moe": "mixture-of-experts models"}


def kind_of_model(*, mixture: bool, tuned: bool) -> str:
    """What a family calls a kind of model: dense or moe, tuned or trained in full."""
    return f"{_TUNED if tuned else ''}{'moe' if mixture else 'dense'}"


def is_tuned_kind(model: str) -> bool:
    """Whether a family's kind of model is of the tuned ones."""
    return model.startswith(_TUNED)


def as_trained_in_full(family: Family) -> Family:
    """The family of the same model when all of its weights are trained."""
    return family._replace(model=family.model.removeprefix(_TUNED))


def is_mixture(model: str) -> bool:
    """Whether a family's kind of model has experts."""
    return model.removeprefix(_TUNED) == "moe"


def model_words(model: str) -> str:
    """A kind of model as people say it."""
    words = _MODELS.get(model.removeprefix(_TUNED), f"{model} models")
    return f"fine-tuned {words}" if is_tuned_kind(model) else words


def architecture_text(architecture: str) -> str:
    """`Hopper`, `CDNA3`: as the makers write it."""
    return architecture_named(architecture).title


def wider_families(family: Family, figure: Figure) -> Iterator[Family]:
    """A family, those that it is part of, and all runs at last: nearest first.

    Kernels make a step time, so other frameworks on the same architecture are nearer than the
    same framework on another. What a step keeps in memory is the framework's doing: there it is
    the other way round.
    """
    framework, architecture, _, model = family
    on_architecture = (Family("", architecture, "", model), Family("", architecture))
    of_framework = (Family(framework, "", "", model), Family(framework))
    yield family
    yield family._replace(scale="")
    if figure == "time":
        yield from (*on_architecture, *of_framework)
    else:
        yield from (*of_framework, *on_architecture)
    yield Family()
