"""What makes two rows one family: columns of the row, and what the planner takes them for."""

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
# What the planner makes of the row: empty for a refused one.
_DERIVED: dict[str, Callable[[Prediction], str]] = {
    "source": lambda prediction: prediction.row.source,
    "file": lambda prediction: prediction.row.file,
    "profile": lambda prediction: _part(prediction, "framework"),
    "architecture": lambda prediction: _part(prediction, "architecture"),
    "scale": lambda prediction: _part(prediction, "scale"),
    "kind": lambda prediction: _part(prediction, "model"),
}
FAMILY_COLUMNS = ("source", "gpu", "framework", "model", *(*_COLUMNS[3:], *tuple(_DERIVED)[1:]))


def _part(prediction: Prediction, name: str) -> str:
    if prediction.mapped is None:
        return "refused"
    return str(getattr(family_of(prediction.mapped.job), name))


def family_by(columns: str) -> Family:
    """Family of a row by comma-separated columns. Raises UsageError for an unknown one."""
    names = [name.strip() for name in columns.split(",")]
    for name in names:
        if name not in FAMILY_COLUMNS:
            raise unknown_name("column in --by", name, FAMILY_COLUMNS, _HINT)
    return lambda prediction: ", ".join(_value(prediction, name) for name in names)


_HINT = f"choose from {', '.join(FAMILY_COLUMNS)}"


def _value(prediction: Prediction, name: str) -> str:
    derived = _DERIVED.get(name)
    value = derived(prediction) if derived else prediction.row.text(name)
    return value or f"{name} unstated"
