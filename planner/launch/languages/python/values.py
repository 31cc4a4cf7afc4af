"""Values of Python code that is read: plain values, and records of objects whose source is not
available; with the operators, built-in functions and methods on them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Longer loops add no information; larger numbers and longer lists are not settings.
_LONGEST_LOOP = 256
_LARGEST = 2**63
_LONGEST_LIST = 100_000


@dataclass(eq=False)
class Record:
    """An object of which only the name of its call and some fields are known.

    `of`: the object whose method or field it is; `given`: positional arguments. `made`: whether a
    call made it; otherwise it stands for an unknown name or field. `at`: the module and the call
    that made it; `places`: for each field, the module and the keyword or expression that set it.
    """

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    given: tuple[Any, ...] = ()
    of: Any = None
    made: bool = True
    at: Any = None
    places: dict[str, Any] = field(default_factory=dict)

    def get(self, path: str, default: Any = None) -> Any:
        """A known field by its dotted path; `default` if it is unknown."""
        value: Any = self
        for part in path.split("."):
            if not isinstance(value, Record) or part not in value.fields:
                return default
            value = value.fields[part]
        return value


UNKNOWN = Record("?", made=False)
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Div: operator.truediv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda one, two: one in two, ast.NotIn: lambda one, two: one not in two,
}  # fmt: skip
BUILTINS: Mapping[str, Callable[..., Any]] = {
    made.__name__: made
    for made in (int, float, bool, str, len, max, min, list, dict, range, abs)
}  # fmt: skip
ASKED = ("getattr", "setattr", "hasattr")
_TEXT_METHODS = ("lower", "upper", "strip", "startswith", "endswith", "split")


def truth(value: Any) -> bool | None:
    """Whether a value counts as true; None if that is unknown."""
    if isinstance(value, Record):
        return True if value.made else None
    return bool(value)


def is_short(listed: Any) -> bool:
    """Whether a value is a list, table or range short enough to loop over."""
    return isinstance(listed, list | tuple | dict | range) and len(listed) <= _LONGEST_LOOP


def is_key(value: Any) -> bool:
    """Whether a value can be a table's key."""
    if isinstance(value, tuple):
        return all(part is None or isinstance(part, str | int) for part in value)
    return isinstance(value, str | int)


def are_plain(values: Sequence[Any]) -> bool:
    """Whether all values are known numbers, texts, lists or tables."""
    return all(
        isinstance(value, int | float | str | list | tuple | dict | range) for value in values
    )


def _tried(operation: Callable[..., Any], *given: Any) -> Any:
    """The result of an operation; UNKNOWN if it raises an error for these values."""
    try:
        return operation(*given)
    except (TypeError, ValueError, ArithmeticError, LookupError):
        return UNKNOWN


def calculated(kind: type[ast.operator], one: Any, two: Any) -> Any:
    """The result of an arithmetic operator on numbers, texts or lists; UNKNOWN if it is unsupported
    or too large."""
    if kind not in _BINARY or not are_plain([one, two]) or (kind, type(one)) == (ast.Mod, str):
        return UNKNOWN
    sizes = [len(item) for item in (one, two) if isinstance(item, str | list)]
    if kind is ast.Mult and sizes:
        times = next((item for item in (one, two) if isinstance(item, int)), 0)
        if sizes[0] * max(times, 0) > _LONGEST_LIST:
            return UNKNOWN
    result = _tried(_BINARY[kind], one, two)
    is_large = isinstance(result, int) and abs(result) > _LARGEST
    is_large |= isinstance(result, str | list) and len(result) > _LONGEST_LIST
    return UNKNOWN if is_large else result


def compared(kind: type[ast.cmpop], one: Any, two: Any) -> Any:
    """The result of a comparison; UNKNOWN if a value is unknown."""
    unknown = any(isinstance(item, Record) and not item.made for item in (one, two))
    return UNKNOWN if unknown or kind not in _COMPARED else _tried(_COMPARED[kind], one, two)


def item_of(held: Any, key: Any) -> Any:
    """An entry of a list, a table or a text."""
    return _tried(operator.getitem, held, key) if isinstance(held, list | dict | str) else UNKNOWN


def built_in(name: str, given: Sequence[Any]) -> Any:
    """The result of calling one of `BUILTINS`."""

    def made() -> Any:
        sized = (item for item in given if isinstance(item, str | list | dict | range))
        is_large = any(len(item) > _LONGEST_LIST for item in sized)
        return UNKNOWN if is_large else BUILTINS[name](*given)

    return _tried(made) if are_plain(given) else UNKNOWN


def asked(name: str, owner: Any, field_name: str, *rest: Any) -> Any:
    """The result of `getattr`, `setattr` or `hasattr` on a Record."""
    if not isinstance(owner, Record):
        return UNKNOWN
    if name == "setattr":
        owner.fields[field_name] = rest[0] if rest else None
        return None
    if name == "hasattr":
        return True if field_name in owner.fields else UNKNOWN
    return owner.fields.get(field_name, rest[0] if rest else UNKNOWN)


def method_of(owner: Any, name: str, given: list[Any]) -> Any:
    """The result of a method of a list, table or text, for those methods that configurations
    use."""
    if isinstance(owner, list):
        return _of_list(owner, name, given)
    if isinstance(owner, dict):
        return _of_table(owner, name, given)
    if not all(isinstance(item, str) for item in given):
        return UNKNOWN
    is_small = name == "replace" and len(owner) * len("".join(given[1:2])) < _LONGEST_LIST
    known = name in _TEXT_METHODS or (is_small and len(given) > 1)
    return _tried(getattr(owner, name), *given) if known else UNKNOWN


def _of_list(owner: list[Any], name: str, given: list[Any]) -> Any:
    """The result of `append` or `extend`; UNKNOWN for other methods."""
    if name not in ("append", "extend") or not given:
        return UNKNOWN
    more = given[:1] if name == "append" else given[0]
    if isinstance(more, list) and len(owner) + len(more) <= _LONGEST_LIST:
        owner.extend(more)
    return None


def _of_table(owner: dict[Any, Any], name: str, given: list[Any]) -> Any:
    match name:
        case "get" if given and isinstance(given[0], str | int | tuple):
            return owner.get(given[0], given[1] if len(given) > 1 else None)
        case "items":
            return [list(pair) for pair in owner.items()]
        case "keys" | "values":
            return list(getattr(owner, name)())
        case "update" if given and isinstance(given[0], dict):
            owner.update(given[0])
        case "copy":
            return dict(owner)
    return UNKNOWN
