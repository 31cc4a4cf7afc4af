"""Checks of a `Tuning` against a model: frozen modules exist, and something is left to train."""

from __future__ import annotations

from collections.abc import Mapping

from planner.job.errors import UsageError
from planner.job.specs import ModelSpec
from planner.job.tuned_layers import LinearLayer, in_groups, linear_layers
from planner.job.tuning import (
    FIRST_LAYERS,
    PARTS,
    PROJECTOR,
    TOGETHER,
    VISION_TOWER,
    WHOLE_MODULES,
    Tuning,
)


def checked(tuning: Tuning, model: ModelSpec) -> Tuning:
    """The tuning, if it can train the model. UsageError says what does not fit."""
    layers = linear_layers(model)
    _demand_modules(tuning, model, layers)
    if tuning.has_adapters:
        _demand_adapters(tuning, model, layers)
    elif _trains_nothing(tuning, model, layers):
        raise UsageError(
            f"--freeze {' '.join(tuning.frozen)} leaves nothing of {model.name} to train; leave "
            "a module out, for example the last layers"
        )
    return tuning


def _demand_modules(tuning: Tuning, model: ModelSpec, layers: Mapping[str, LinearLayer]) -> None:
    """Raise UsageError if a frozen module, or one trained in full, is not in the model."""
    if tuning.frozen_layers > model.layers:
        raise UsageError(
            f"--freeze layers:{tuning.frozen_layers}: {model.name} has {model.layers} layers; give "
            f"layers:{model.layers - 1} or fewer"
        )
    for name in tuning.frozen:
        if name in PARTS:
            if model.vision is None:
                raise UsageError(
                    f"--freeze {name}: {model.name} reads only text and has no such part; leave "
                    "it out"
                )
            continue
        words = set(in_groups((name,)))
        if FIRST_LAYERS.fullmatch(name) or name in WHOLE_MODULES or words & set(layers):
            continue
        raise UsageError(f"--freeze {name}: {model.name} has no {name}; it has {_listed(layers)}")
    for together in TOGETHER:
        some = [name for name in together if name in tuning.frozen_modules and name in layers]
        if some and len(some) < sum(name in layers for name in together):
            raise UsageError(
                f"--freeze {' '.join(some)}: {', '.join(together)} are trained or frozen together; "
                f"give --freeze {','.join(together)}"
            )
    parts = [name for name in tuning.whole if name in PARTS]
    if parts and model.vision is None:
        raise UsageError(
            f"--train whole={'+'.join(parts)}: {model.name} reads only text and has no such part; "
            "leave it out"
        )
    if both := set(tuning.whole) & set(tuning.frozen):
        raise UsageError(
            f"--train whole={'+'.join(sorted(both))}: --freeze freezes it as well; leave it out of "
            "one of them"
        )


def _demand_adapters(tuning: Tuning, model: ModelSpec, layers: Mapping[str, LinearLayer]) -> None:
    """Raise UsageError if an adapter cannot be put on a target."""
    for name in tuning.targets:
        if not set(in_groups((name,))) & set(layers):
            raise UsageError(
                f"--train targets={name}: {model.name} has no layer {name}; it has "
                f"{_listed(layers)}"
            )
    adapted = tuning.adapted(model)
    if not adapted or tuning.frozen_layers == model.layers:
        raise UsageError(
            f"--freeze {' '.join(tuning.frozen)} freezes every layer that has adapters, so "
            f"nothing of {model.name} is left to train; freeze fewer layers"
        )
    # A router is only as wide as the number of experts, but recipes use their usual rank there too.
    wide = [name for name in adapted if name != "router"] or adapted
    narrowest = min(wide, key=lambda name: layers[name].narrowest)
    width = layers[narrowest].narrowest
    if tuning.rank > width:
        raise UsageError(
            f"--train rank={tuning.rank}: {narrowest} of {model.name} is {width:,} wide, and a "
            f"weight cannot have a larger rank; give rank={width} or less"
        )


def _trains_nothing(tuning: Tuning, model: ModelSpec, layers: Mapping[str, LinearLayer]) -> bool:
    """Whether no linear layer, embedding or head is left to train."""
    frozen = set(tuning.frozen_modules)
    ends = {"embeddings"} if model.tied_embeddings else {"embeddings", "head"}
    if model.vision is not None and not (
        tuning.freezes(VISION_TOWER) and tuning.freezes(PROJECTOR)
    ):
        return False
    inside = tuning.frozen_layers < model.layers and not set(layers) - {"head"} <= frozen
    return ends <= frozen and not inside


def _listed(layers: Mapping[str, LinearLayer]) -> str:
    return ", ".join(layers)
