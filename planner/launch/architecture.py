"""How a dialect describes a model: a table of rows, which its writer, the docs and tests use.

Every field of `ModelSpec` that affects training has a row. The field is written under the
framework's key, equals the framework's default, is refused with a reason, or departs: the framework
does something else, which the folder's README reports.

In TOML a row has `fields`, `key`, and an expression `value` if the value is not simply the field's.
Expressions (`planner.launch.sentences`) may use `model`, its tables (`moe`, `mla`, and `stretch`
for the scaling of rotary positions) and names that the dialect adds. `when` is a condition;
`optional`: None is not written; `whole`: write a whole number; `default`: the framework's default.
`refuses` and `departs` are lists of `when` and `text`; the first one that holds applies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from hardware.files import shipped_toml
from planner.job.specs import ModelSpec, MoeSpec
from planner.launch.contract import Refusal
from planner.launch.quoting import Value
from planner.launch.sentences import evaluated, filled_in, holds

# Fields that name the model, or state its pretraining sequence length or images per batch.
NO_ARCHITECTURE = ("name", "family", "source", "pretraining_seq", "images")
# A table that a framework supports as a whole or not at all.
_WHOLE = ("vision",)


def always(model: ModelSpec) -> bool:  # noqa: ARG001 (a condition of rows)
    """The condition of rows for every model."""
    return True


def nothing(model: ModelSpec) -> None:
    """Return None: no phrase, or no value. The default of a row's functions."""


@dataclass(frozen=True, slots=True)
class ArchitectureRow:
    """How a dialect describes `fields`, dotted names of ModelSpec.

    `key`: the framework's key, empty if it has none. `value`: gives the value under the key for a
    model. `default`: the framework's default; a value equal to it is not written, and `...` means
    that the value is always written. `when`: whether the row applies to a model. `refuses`: names
    the feature that the framework lacks for a model; None if it lacks nothing. `departs`: says what
    the framework does instead; None if it does the same.
    """

    fields: tuple[str, ...]
    key: str = ""
    value: Callable[[ModelSpec], Value] = nothing
    default: Value = ...  # type: ignore[assignment]
    when: Callable[[ModelSpec], bool] = always
    refuses: Callable[[ModelSpec], str | None] = nothing
    departs: Callable[[ModelSpec], str | None] = nothing


def row(
    fields: str,
    key: str = "",
    value: Callable[[ModelSpec], Value] | None = None,
    default: Value = ...,  # type: ignore[assignment]
    **more: Callable[[ModelSpec], Any],
) -> ArchitectureRow:
    """A row; `fields` is a text of names separated by spaces. With a key and without `value`, the
    value is that of the first field, and the row applies to models that have the field's table
    (unless `when` is given)."""
    names = tuple(fields.split())
    if key and value is None:
        value, more = as_it_is(names[0]), {"when": has_table_of(names[0])} | more
    return ArchitectureRow(names, key, value or nothing, default, **more)


def as_it_is(name: str) -> Callable[[ModelSpec], Any]:
    """A function that returns the value of a model's field; `name` is dotted."""
    return lambda model: value_of(model, name)


def has_table_of(name: str) -> Callable[[ModelSpec], bool]:
    """A condition: whether a model has the table that a field is in (`moe` for `moe.top_k`). Always
    true for a field at the top level."""
    table = name.rpartition(".")[0]
    return (lambda model: value_of(model, table) is not None) if table else always


Table = Sequence[ArchitectureRow]


def settings(table: Table, model: ModelSpec) -> dict[str, Value]:
    """Keys to write and their values, in the order of the table, without those that equal the
    framework's default."""
    return {
        key: value
        for key, (value, default) in all_settings(table, model).items()
        if value != default
    }


def all_settings(table: Table, model: ModelSpec) -> dict[str, tuple[Value, Value]]:
    """All keys that apply to the model, each with its value and the framework's default."""
    return {
        entry.key: (entry.value(model), entry.default)
        for entry in table
        if entry.key and entry.when(model)
    }


def refusals(table: Table, model: ModelSpec, what: str, nearest: str) -> tuple[Refusal, ...]:
    """A refusal for each property of the model that the framework `what` lacks; empty if it lacks
    none. `nearest`: the alternative to suggest."""
    found = (entry.refuses(model) for entry in table if entry.when(model))
    phrases = dict.fromkeys(phrase for phrase in found if phrase)
    return tuple(
        Refusal(f"{what} cannot express {model.name}: {phrase}", nearest) for phrase in phrases
    )


def departures(table: Table, model: ModelSpec) -> tuple[str, ...]:
    """Sentences about what the framework does differently from the model."""
    found = (entry.departs(model) for entry in table if entry.when(model))
    return tuple(dict.fromkeys(sentence for sentence in found if sentence))


def departing_fields(table: Table, model: ModelSpec) -> frozenset[str]:
    """Fields of the model about which `departures` has a sentence."""
    found = (entry.fields for entry in table if entry.when(model) and entry.departs(model))
    return frozenset(name for names in found for name in names)


def has_moe(model: ModelSpec) -> bool:
    """Whether the model has experts."""
    return model.moe is not None


def has_mla(model: ModelSpec) -> bool:
    """Whether the model has latent attention."""
    return model.mla is not None


def has_rope(model: ModelSpec) -> bool:
    """Whether the model has rotary positions."""
    return model.position == "rope"


def experts(model: ModelSpec) -> MoeSpec:
    """The expert settings of a model. ValueError if it has no experts."""
    if model.moe is None:
        raise ValueError(f"{model.name} has no experts")
    return model.moe


def stretched(kind: str) -> Callable[[ModelSpec], bool]:
    """A condition: whether a model has rotary positions that are scaled in the way `kind`."""
    return lambda model: has_rope(model) and scaling_kind(model) == kind


def scaling_kind(model: ModelSpec) -> str:
    """How rotary positions are scaled; empty if they are not."""
    return model.rope.scaling.kind if model.rope.scaling else ""


def attention_scale(model: ModelSpec) -> float | None:
    """The factor by which attention scores are multiplied; None if it is the usual one, 1 /
    sqrt(width of a head)."""
    width = model.query_width / model.heads
    scale = model.attention_scale
    return None if scale is None or abs(scale * width**0.5 - 1) < 1e-9 else scale


def without(name: str, phrase: str) -> ArchitectureRow:
    """A row for a field that the framework lacks. Refused with `phrase` if the model gives the
    field a value other than None, False, 0 or ()."""

    def refuses(model: ModelSpec) -> str | None:
        value = value_of(model, name)
        return phrase.format(value=value) if value not in (None, False, 0, 0.0, ()) else None

    return ArchitectureRow((name,), refuses=refuses)


def value_of(model: ModelSpec, name: str) -> object:
    """The value of a dotted field; None if a table on the way is missing."""
    found: object = model
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def fields_of(kind: type[BaseModel] = ModelSpec, before: str = "") -> tuple[str, ...]:
    """Dotted names of all fields of the architecture. The vision part counts as a single field."""
    found: list[str] = []
    for name, field in kind.model_fields.items():
        full = before + name
        if full in NO_ARCHITECTURE:
            continue
        inner = None if full in _WHOLE else _table(field.annotation)
        found += fields_of(inner, f"{full}.") if inner else [full]
    return tuple(found)


def _table(annotation: object) -> type[BaseModel] | None:
    united = () if get_origin(annotation) is tuple else get_args(annotation)
    for kind in (annotation, *united):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


Phrase = Callable[[ModelSpec], str | None]
Facts = Callable[[ModelSpec], Mapping[str, object]]


def constants(model: ModelSpec) -> str | None:
    """The model's constants that only transformers supports, as `key = value, ...`; None if there
    are none."""
    return ", ".join(f"{key} = {value}" for key, value in model.constants) or None


def _of_traits(model: ModelSpec) -> dict[str, object]:
    return {
        "constants": constants(model),
        "own_scale": attention_scale(model) is not None,
        "mixed": len({kind.ffn for kind in model.kinds}) > 1,
        "separate": any("none" in (kind.attention, kind.ffn) for kind in model.kinds),
        "slides": any(kind.attention == "sliding" for kind in model.kinds),
    }


def lacking(known: Set[str]) -> tuple[ArchitectureRow, ...]:
    """One row for each trait in `traits.toml`, which refuses models with that trait. Traits in
    `known` get no row."""
    traits = shipped_toml("planner.launch", "traits.toml")
    return tuple(_lacked(trait) for name, trait in traits.items() if name not in known)


def _lacked(trait: Mapping[str, Any]) -> ArchitectureRow:
    of = trait["of"]
    names = names_of_model(lambda model: _of_traits(model) | {"value": value_of(model, of)})
    said = {"when": trait.get("when", "value"), "text": f"it has no {trait['phrase']}"}
    words = f"{of} {trait.get('and', '')}".split()
    starts = tuple(word[:-1] for word in words if word.endswith("*"))
    more = (name for name in fields_of() if starts and name.startswith(starts))
    fields = (*(word for word in words if not word.endswith("*")), *more)
    return ArchitectureRow(fields, refuses=_said([said], names))


def moe_indices(model: ModelSpec) -> tuple[int, ...]:
    """Indices of the layers that have experts."""
    return tuple(i for i, kind in enumerate(model.kind_sequence) if kind.ffn == "moe")


def leading_dense(model: ModelSpec) -> int | None:
    """The number of dense layers, if all of them come before the layers with experts; None
    otherwise."""
    dense = model.layers - len(moe_indices(model))
    return dense if moe_indices(model) == tuple(range(dense, model.layers)) else None


# --- rows of TOML ---------------------------------------------------------------------------------


def model_rows(rows: Iterable[Mapping[str, Any]], facts: Facts) -> tuple[ArchitectureRow, ...]:
    """The rows that a TOML table describes. `facts`: returns further names that their expressions
    may use."""
    known = names_of_model(facts)

    def made(entry: Mapping[str, Any]) -> ArchitectureRow:
        value, default, more = parts_of(entry, known)
        return row(entry["fields"], entry.get("key", ""), value, default, **more)

    return tuple(map(made, rows))


def names_of_model(facts: Facts) -> Facts:
    """A function that returns the names for expressions about a model: the model itself, its
    tables, and those that `facts` adds."""

    # Every row of a table asks for them.
    @lru_cache(maxsize=64)
    def names(model: ModelSpec) -> dict[str, object]:
        tables = {"moe": model.moe, "mla": model.mla, "stretch": model.rope.scaling}
        return {"model": model, "stretch_kind": scaling_kind(model), **tables, **facts(model)}

    return names


def parts_of(
    entry: Mapping[str, Any], names: Facts, phrases: Sequence[str] = ("refuses", "departs")
) -> tuple[Callable[[ModelSpec], Any] | None, Any, dict[str, Any]]:
    """The value, the default and the remaining arguments for a row, from its TOML entry. The value
    is None if the entry has none. `phrases`: keys of the entry that hold lists of conditional
    texts."""
    more: dict[str, Any] = {}
    if "when" in entry:
        more["when"] = lambda model: holds(entry["when"], names(model))
    more |= {kind: _said(entry[kind], names) for kind in phrases if kind in entry}
    default = None if entry.get("optional") else entry.get("default", ...)
    whole = entry.get("whole", False)
    value = value_of_text(entry["value"], names, whole) if "value" in entry else None
    return value, default, more


def value_of_text(text: str, names: Facts, whole: bool = False) -> Callable[[ModelSpec], Any]:
    """A function that evaluates an expression for a model. `whole`: it returns the result as a
    whole number."""

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
