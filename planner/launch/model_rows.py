"""Tables of the architecture as TOML: the rows of `planner.launch.architecture`, read.

A row has `fields`, `key`, and where the value is not the field as it is, `value`, an expression of
`planner.launch.sentences` over `model`, its tables (`moe`, `mla`; `stretch`: how rotary positions
are stretched) and what the dialect adds. `when` is a condition; `optional`: nothing is written
where the value is None; `whole`: it is written as a whole number; `default`: what the framework
does unasked. `refuses` and `departs` are lists of `when` and `text`, of which the first that holds
is said.
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
    known = names_of_model(facts)

    def made(entry: Mapping[str, Any]) -> ArchitectureRow:
        value, default, more = parts_of(entry, known)
        return row(entry["fields"], entry.get("key", ""), value, default, **more)

    return tuple(map(made, rows))


def names_of_model(facts: Facts) -> Facts:
    """What rows may name of a model: itself, its tables and some facts."""

    def names(model: ModelSpec) -> dict[str, object]:
        tables = {"moe": model.moe, "mla": model.mla, "stretch": model.rope.scaling}
        return {"model": model, "stretch_kind": scaling_kind(model), **tables, **facts(model)}

    return names


def parts_of(
    entry: Mapping[str, Any], names: Facts, phrases: Sequence[str] = ("refuses", "departs")
) -> tuple[Callable[[ModelSpec], Any] | None, Any, dict[str, Any]]:
    """Value, default and the other arguments of a row. `phrases`: what is said of some models."""
    more: dict[str, Any] = {}
    if "when" in entry:
        more["when"] = lambda model: holds(entry["when"], names(model))
    more |= {kind: _said(entry[kind], names) for kind in phrases if kind in entry}
    default = None if entry.get("optional") else entry.get("default", ...)
    whole = entry.get("whole", False)
    value = value_of_text(entry["value"], names, whole) if "value" in entry else None
    return value, default, more


def value_of_text(text: str, names: Facts, whole: bool = False) -> Callable[[ModelSpec], Any]:
    """The value of an expression for a model; `whole`: as a whole number."""

    def value(model: ModelSpec) -> Any:
        found = evaluated(text, names(model))
        return int(found) if whole else found

    return value


def _said(rows: Sequence[Mapping[str, str]], names: Facts) -> Phrase:
    def phrase(model: ModelSpec) -> str | None:
        known = names(model)
        found = (one["text"] for one in rows if holds(one.get("when"), known))
        text = next(found, None)
        return None if text is None else filled_in(text, known)

    return phrase
