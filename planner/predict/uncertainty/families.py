"""Families of measured runs, by which residuals are pooled, and the order of families by
nearness."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from hardware.facts import architecture_named

Figure = Literal["time", "memory"]
# Name for a framework that was never measured.
UNFAMILIAR = "unfamiliar"
# Frameworks whose step time depends mostly on the author of a script.
OWN_LOOPS = frozenset(
    {"hf-transformers", "hf-fsdp2", "deepspeed", "nanogpt", "torchtune", UNFAMILIAR}
)


class Family(NamedTuple):
    """A family of measured runs: framework profile, GPU architecture, scale and kind of model. An
    empty field means that runs with any value belong to it."""

    framework: str = ""
    architecture: str = ""
    scale: str = ""
    model: str = ""

    def includes(self, other: Family) -> bool:
        """Whether every run of the family `other` also belongs to this one."""
        return all(
            field in ("", other_field) for field, other_field in zip(self, other, strict=True)
        )


# Prefix of the kind of model if training is partial or samples differ in length.
_TUNED = "tuned "
_MODELS = {"dense": "dense models", "moe": "mixture-of-experts models"}


def kind_of_model(*, mixture: bool, tuned: bool) -> str:
    """Name of a kind of model in a family: dense or moe, tuned or trained in full."""
    return f"{_TUNED if tuned else ''}{'moe' if mixture else 'dense'}"


def is_tuned_kind(model: str) -> bool:
    """Whether this kind of model, a family's `model` field, means models that are tuned, as opposed
    to trained in full."""
    return model.startswith(_TUNED)


def as_trained_in_full(family: Family) -> Family:
    """The family of the same model when all of its weights are trained."""
    return family._replace(model=family.model.removeprefix(_TUNED))


def is_mixture(model: str) -> bool:
    """Whether this kind of model, a family's `model` field, means mixtures of experts."""
    return model.removeprefix(_TUNED) == "moe"


def model_words(model: str) -> str:
    """A kind of model in words."""
    words = _MODELS.get(model.removeprefix(_TUNED), f"{model} models")
    return f"fine-tuned {words}" if is_tuned_kind(model) else words


def architecture_text(architecture: str) -> str:
    """Name of a GPU architecture as its maker spells it, for example `Hopper` or `CDNA3`."""
    return architecture_named(architecture).title


def wider_families(family: Family, figure: Figure) -> Iterator[Family]:
    """The family, then wider ones, nearest first, and finally the family of all runs.

    Kernels determine a step time, so other frameworks on the same architecture are nearer than the
    same framework on another one. Memory depends mostly on the framework, so for memory the order
    is reversed.
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
