"""Kinds of training that are not modelled. They are refused by name, with the nearest
alternative."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

from hardware.files import shipped_toml
from planner.job.errors import UsageError


@cache
def _kinds() -> Sequence[Mapping[str, str]]:
    kinds: Sequence[Mapping[str, str]] = shipped_toml("planner.job", "unmodelled.toml")["kinds"]
    return kinds


def refuse_unmodelled(name: str, where: str) -> None:
    """Raise UsageError if `name` asks for a kind of training that is not modelled. `where`: the
    place of the name, such as `--lora-rank` or `framework 'trl'`."""
    wanted = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    for kind in _kinds():
        if re.fullmatch(kind["names"], wanted):
            raise UsageError(
                f"{where}: {kind['what']} is not modelled. Nearest help: {kind['help']}. Modelled "
                "are next-token prediction, preferences, rewards and distillation (--objective)"
            )


def modules_not_modelled(model: str, left_out: tuple[str, ...]) -> str:
    """Why a model with modules besides its language model is not predicted, and what helps."""
    return (
        f"{model} has {', '.join(left_out)} besides its language model, and only language models "
        "are modelled. Nearest help: save its text_config as a separate config.json to plan the "
        "training of the language model"
    )
