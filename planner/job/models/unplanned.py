"""Models that are refused by name, with the reason and the nearest that is planned."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from hardware.files import shipped_toml


@cache
def _models() -> Sequence[Mapping[str, Any]]:
    models: Sequence[Mapping[str, Any]] = shipped_toml("planner.job", "unplanned_models.toml")[
        "models"
    ]
    return models


def unplanned_name(spellings: Sequence[str]) -> str:
    """Why no model of these spellings (without separators) is planned; empty where none is known
    to be beyond what is described."""
    for model in _models():
        if any(re.fullmatch(model["names"], spelling) for spelling in spellings):
            return _refusal(model)
    return ""


def unplanned_type(model_type: str) -> str:
    """Why no config.json of this `model_type` is planned; empty where that is not known."""
    return next((_refusal(model) for model in _models() if model_type in model["types"]), "")


def _refusal(model: Mapping[str, Any]) -> str:
    nearest = " or ".join(f"--model {name}" for name in model["nearest"])
    return f"{model['what']} is not planned: {model['why']}. Nearest help: {nearest} is planned"
