"""Tables of the architecture as TOML: the rows of `planner.launch.architecture`, read.

A row has `fields`, `key`, and where the value is not the field as it is, `value`, an expression of
`planner.launch.sentences` over `model`, its tables (`moe`, `mla`; `stretch`: how rotary positions
are stretched) and what the dialect adds. `when` is a condition; `optional`: nothing is written
where the value is None; `default`: what the framework does unasked. `refuses` and `departs` are
lists of `when` and `text`, of which the first that holds is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from planner.job.specs import ModelSpec
from planner.launch.architecture import ArchitectureRow, Phrase, row, scaling_kind
from planner.launch.sentences import evaluated, filled_in, holds

Facts = Callable[[ModelSpec], Mapping[str, object]]


def model_rows(rows: Iterable[Mapping[str, Any]], facts: Facts) -> tuple[ArchitectureRow, ...]:
    """The rows of a table. `facts`: further names of a model."""

    def names(model: ModelSpec) -> dict[str, object]:
        tables = {"moe": model.moe, "mla": model.mla, "stretch": model.rope.scaling}
        return {"model": model, "stretch_kind": scaling_kind(model), **tables, **facts(model)}

    return tuple(_row(entry, names) for entry in rows)


def _row(entry: Mapping[str, Any], names: Facts) -> ArchitectureRow:
    more: dict[str, Any] = {}
    if "when" in entry:
        more["when"] = lambda model: holds(entry["when"], names(model))
    for kind in ("refuses", "departs"):
        if kind in entry:
            more[kind] = _said(entry[kind], names)
    default = None if entry.get("optional") else entry.get("default", ...)
    value = None
    if "value" in entry:
        value = lambda model: evaluated(entry["value"], names(model))  # noqa: E731
    return row(entry["fields"], entry.get("key", ""), value, default, **more)


def _said(rows: Sequence[Mapping[str, str]], names: Facts) -> Phrase:
    def phrase(model: ModelSpec) -> str | None:
        known = names(model)
        found = (one["text"] for one in rows if holds(one.get("when"), known))
        text = next(found, None)
        return None if text is None else filled_in(text, known)

    return phrase
