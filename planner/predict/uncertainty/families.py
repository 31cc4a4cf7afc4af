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
