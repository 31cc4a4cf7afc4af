"""Models of the reference counts, by the names of the catalogue."""

from __future__ import annotations

from planner.models.catalog import load_model
from planner.specs import ModelSpec

# nanoGPT pads GPT-2's vocabulary and uses the library's GELU.
_NANOGPT = {"nanogpt-124m": "gpt2", "nanogpt-774m": "gpt2-large"}


def reference_model(name: str, layers: int | None = None, **changes: object) -> ModelSpec:
    """A model of the catalogue, perhaps cut to its first layers."""
    if name in _NANOGPT:
        changes = {"vocab": 50304, "activation": "gelu"} | changes
    spec = load_model(_NANOGPT.get(name, name)).spec
    if layers is not None:
        changes |= {"layers": layers, "layer_kinds": spec.layer_kinds[:layers]}
    return ModelSpec.model_validate(spec.model_dump() | changes)
