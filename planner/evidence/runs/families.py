"""Group rows into families, by their columns or by the families of the planner's error bars."""

from __future__ import annotations

from collections.abc import Callable

from planner.evidence.runs.predict import Prediction
from planner.job.errors import unknown_name
from planner.predict.uncertainty.intervals import family_of

Family = Callable[[Prediction], str]

# Columns of a row, read as they are.
_COLUMNS = (
    "gpu", "framework", "model", "precision", "num_gpus", "seq", "tp", "pp", "vpp", "cp", "ep",
    "dp", "zero", "mbs", "gbs", "recompute", "flash", "kernel", "schedule", "software", "variant",
)  # fmt: skip
# Columns of --by that the planner derives (`refused` for a refused row) -> field of `Family`.
_DERIVED = {
    "profile": "framework", "architecture": "architecture", "scale": "scale", "kind": "model",
}  # fmt: skip
FAMILY_COLUMNS = ("source", *_COLUMNS, "file", *_DERIVED)


def family_by(columns: str) -> Family:
    """A function that gives a row's family by comma-separated columns. UsageError for an unknown
    column."""
    names = [name.strip() for name in columns.split(",")]
    for name in names:
        if name not in FAMILY_COLUMNS:
            raise unknown_name("column in --by", name, FAMILY_COLUMNS, _HINT)
    return lambda prediction: ", ".join(_value(prediction, name) for name in names)


_HINT = f"choose from {', '.join(FAMILY_COLUMNS)}"


def _value(prediction: Prediction, name: str) -> str:
    row, mapped = prediction.row, prediction.mapped
    if name in _DERIVED:
        value = "refused" if mapped is None else getattr(family_of(mapped.job), _DERIVED[name])
    else:
        value = getattr(row, name) if name in ("source", "file") else row.text(name)
    return value or f"{name} unstated"
