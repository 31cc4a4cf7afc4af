"""Models that are refused by name, with the reason and the nearest model that can be planned."""

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
    """Why a model with one of these spellings (without separators) cannot be planned; empty if it
    is not in the list."""
    for model in _models():
        if any(re.fullmatch(model["names"], spelling) for spelling in spellings):
            return _refusal(model)
    return ""


def unplanned_type(model_type: str) -> str:
    """Why a config.json with this `model_type` cannot be planned; empty if it is not in the
    list."""
    return next((_refusal(model) for model in _models() if model_type in model["types"]), "")


def _refusal(model: Mapping[str, Any]) -> str:
    nearest = " or ".join(f"--model {name}" for name in model["nearest"])
    return f"{model['what']} is not planned: {model['why']}. Nearest help: {nearest} is planned"
