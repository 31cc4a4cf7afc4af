"""Plain values of configuration code: records of what is not there, calculations on them, and the
expressions that make them."""

from __future__ import annotations

import ast
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.launch.languages.limits import Limits
from planner.launch.languages.text import Text

# A loop over more tells no more; larger numbers and longer lists are no settings.
_LONGEST_LOOP = 256
_LARGEST = 2**63
_LONGEST_LIST = 100_000


@dataclass(eq=False)
class Record:
    """An object by the name of what made it, with the fields that are known.

    `of`: the object whose method or field it is; `given`: positional arguments. `made`: whether
    a call made it; else it stands for a name or field that is not known. `at`: the module and the
    call that made it; `places`: those of the keyword, or the value, that set a field.
    """

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    given: tuple[Any, ...] = ()
    of: Any = None
    made: bool = True
    at: Any = None
    places: dict[str, Any] = field(default_factory=dict)

    def get(self, path: str, default: Any = None) -> Any:
        """A known field by its dotted path; `default` where it is not known."""
        value: Any = self
        for part in path.split("."):
            if not isinstance(value, Record) or part not in value.fields:
                return default
            value = value.fields[part]
        return value


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Div: operator.truediv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda one, two: one in two, ast.NotIn: lambda one, two: one not in two,
}  # fmt: skip
UNKNOWN = Record("?", made=False)


ASKED = ("getattr", "setattr", "hasattr")


def asked(name: str, given: list[Any]) -> Any:
    """`getattr`, `setattr`, `hasattr`."""
    owner, field_name, *rest = given
    if not isinstance(owner, Record):
        return UNKNOWN
    if name == "setattr":
        owner.fields[field_name] = rest[0] if rest else None
        return None
    if name == "hasattr":
        return True if field_name in owner.fields else UNKNOWN
    return owner.fields.get(field_name, rest[0] if rest else UNKNOWN)


def truth(value: Any) -> bool | None:
    """Whether a value counts as true; None where it is not known."""
    if isinstance(value, Record):
        return True if value.made else None
    return bool(value)


def is_short(listed: Any) -> bool:
    """Whether a value is a list that a loop goes over."""
    return isinstance(listed, list | tuple | dict | range) and len(listed) <= _LONGEST_LOOP


def is_key(value: Any) -> bool:
    """Whether a tuple can stand for a table's key."""
    return isinstance(value, tuple) and all(
        item is None or isinstance(item, str | int) for item in value
    )


def are_plain(values: list[Any]) -> bool:
    return all(
        isinstance(value, int | float | str | list | tuple | dict | range) for value in values
    )


def calculated(kind: type[ast.operator], one: Any, two: Any) -> Any:
    """An operation on numbers, texts or lists within sizes."""
    if kind not in _BINARY or not are_plain([one, two]) or (kind, type(one)) == (ast.Mod, str):
        return UNKNOWN
    sizes = [len(item) for item in (one, two) if isinstance(item, str | list)]
    if kind is ast.Mult and sizes:
        times = next((item for item in (one, two) if isinstance(item, int)), 0)
        if sizes[0] * max(times, 0) > _LONGEST_LIST:
            return UNKNOWN
    try:
        result = _BINARY[kind](one, two)
    except (TypeError, ValueError, ArithmeticError):
        return UNKNOWN
    is_large = isinstance(result, int) and abs(result) > _LARGEST
    is_large |= isinstance(result, str | list) and len(result) > _LONGEST_LIST
    return UNKNOWN if is_large else result


def compared(kind: type[ast.cmpop], one: Any, two: Any) -> Any:
    unknown = any(isinstance(item, Record) and not item.made for item in (one, two))
    if unknown or kind not in _COMPARED:
        return UNKNOWN
    try:
        return _COMPARED[kind](one, two)
    except TypeError:
        return UNKNOWN


def item_of(held: Any, key: Any) -> Any:
    try:
        return held[key] if isinstance(held, list | dict | str) else UNKNOWN
    except (LookupError, TypeError):
        return UNKNOWN


def method_of(owner: Any, name: str, given: list[Any]) -> Any:
    """Methods of lists, tables and texts that configurations use."""
    if isinstance(owner, list):
        return _grow(owner, name, given)
    if isinstance(owner, dict):
        return _of_table(owner, name, given)
    texts = isinstance(owner, str) and all(isinstance(item, str) for item in given)
    if texts and name in _TEXT_METHODS:
        return getattr(owner, name)(*given)
    if texts and name == "replace" and len(given) > 1:
        is_short = len(owner) * len(given[1]) < _LONGEST_LIST
        return owner.replace(given[0], given[1]) if is_short else UNKNOWN
    return UNKNOWN


_TEXT_METHODS = ("lower", "upper", "strip", "startswith", "endswith", "split")


def _grow(owner: list[Any], name: str, given: list[Any]) -> Any:
    """`append` and `extend`."""
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


def _number(kind: Callable[[Any], Any]) -> Callable[..., Any]:
    def made(*given: Any) -> Any:
        sizes = [len(item) for item in given if isinstance(item, str | list | dict | range)]
        if any(size > _LONGEST_LIST for size in sizes):
            return UNKNOWN
        try:
            return kind(*given)
        except (TypeError, ValueError, ArithmeticError):
            return UNKNOWN

    return made


BUILTINS: Mapping[str, Callable[..., Any]] = {
    "int": _number(int), "float": _number(float), "bool": _number(bool), "str": _number(str),
    "len": _number(len), "max": _number(max), "min": _number(min), "list": _number(list),
    "dict": _number(dict), "range": _number(range), "abs": _number(abs),
}  # fmt: skip


_MOST_NAMED = 6


class PythonError(ValueError):
    """Why a text is no Python."""


def python_module(text: Text, path: str) -> ast.Module:
    """Syntax tree of a file. PythonError with the line of a slip."""
    try:
        return parsed(text.value)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise PythonError(f"{path}: not valid Python: line {line}: {error}") from None


def parsed(text: str) -> ast.Module:
    """Syntax tree, with `?` for the halves of characters in its texts, which nothing can print.

    SyntaxError, ValueError, RecursionError, MemoryError."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = node.value.encode(errors="replace").decode()
    return tree


def written(node: ast.AST) -> str:
    """An expression as code, always the same for the same; in words where it is nested too deep."""
    try:
        return ast.unparse(node)
    except RecursionError:
        return "an expression that is nested too deep"


def assigned(statements: Iterable[ast.stmt]) -> dict[str, ast.expr]:
    """Values by the names that they are given to."""
    return {
        target.id: item.value
        for item in statements
        if isinstance(item, ast.Assign)
        for target in item.targets
        if isinstance(target, ast.Name)
    }


def last_name(node: ast.expr) -> str:
    """Last name of a dotted expression."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def chosen_words(name: str, others: Sequence[str], what: str, variable: str) -> str:
    """Which of a file's functions is read, and what names another."""
    more = ", …" * (len(others) > _MOST_NAMED)
    shown = ", ".join(others[:_MOST_NAMED]) + more
    return f"{name}, of the file's {what} ({shown}; --env {variable}=NAME chooses)"


@dataclass(frozen=True)
class Neighbours:
    """The files around one that is read: `find` gives the file of a name as seen from a folder,
    `text` what a file holds; None for what is not there."""

    find: Callable[[str, Path], Path | None] = lambda _name, _folder: None
    text: Callable[[Path], str | None] = lambda _path: None


# Nothing but the file itself.
NOTHING_BESIDE = Neighbours()


def module_file(package: str, near: str, around: Neighbours) -> Path | None:
    """The file of `a.b.c`, or of `..c`, as the file `near` would import it; None if not there."""
    plain = package.lstrip(".")
    level = len(package) - len(plain)
    if not level and "." not in plain:
        return None  # an installed package, or the standard library
    folder = Path(near).parent
    for _ in range(level - 1):
        folder = folder.parent
    name = plain.replace(".", "/")
    for file in (f"{name}.py", f"{name}/__init__.py") if name else ("__init__.py",):
        path = folder / file if level else around.find(file, folder)
        if path is not None and path.is_file():
            return path
    return None


def bound_name(alias: ast.alias) -> str:
    """The name that an import binds."""
    return alias.asname or alias.name.split(".")[0]


def binds(node: ast.stmt, name: str, *, local: bool = False) -> bool:
    """Whether a statement at a module's top binds a name; `local`: by itself, not by an import."""
    match node:
        case ast.FunctionDef(name=given) | ast.ClassDef(name=given):
            return given == name
        case ast.Assign(targets=[ast.Name(id=given)]) | ast.AnnAssign(target=ast.Name(id=given)):
            return given == name
        case ast.Import() | ast.ImportFrom() if not local:
            return any(bound_name(alias) == name for alias in node.names)
    return False


class Expressions(ABC):
    """The values of expressions; names, fields and calls are a subclass's. `_of_NODE` gives that of
    a node of the syntax tree."""

    limits: Limits

    @abstractmethod
    def assign(self, target: ast.expr, value: Any) -> None:
        """Give a value to a name, a field or an entry."""

    @abstractmethod
    def inner(self) -> Expressions:
        """The same names, for others within."""

    def value(self, node: ast.expr) -> Any:
        """The value of an expression; a Record where it is not known."""
        self.limits.step()
        with self.limits.deeper():
            return self._value(node)

    def _value(self, node: ast.expr) -> Any:
        handler = getattr(self, f"_of_{type(node).__name__.lower()}", None)
        return UNKNOWN if handler is None else handler(node)

    def _of_constant(self, node: ast.Constant) -> Any:
        return node.value

    def _of_list(self, node: ast.List | ast.Tuple | ast.Set) -> Any:
        return [self.value(part) for part in node.elts if not isinstance(part, ast.Starred)]

    _of_set = _of_list

    def _of_tuple(self, node: ast.Tuple) -> Any:
        return tuple(self._of_list(node))

    def _of_dict(self, node: ast.Dict) -> Any:
        return self._table(node.keys, node.values)

    def _of_listcomp(self, node: ast.ListComp | ast.GeneratorExp) -> Any:
        one = len(node.generators) == 1
        return self._listed(node.elt, node.generators[0]) if one else UNKNOWN

    _of_generatorexp = _of_listcomp

    def _of_ifexp(self, node: ast.IfExp) -> Any:
        met = truth(self.value(node.test))
        return UNKNOWN if met is None else self.value(node.body if met else node.orelse)

    def _of_subscript(self, node: ast.Subscript) -> Any:
        return item_of(self.value(node.value), self.value(node.slice))

    def _of_binop(self, node: ast.BinOp) -> Any:
        return calculated(type(node.op), self.value(node.left), self.value(node.right))

    def _of_unaryop(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            met = truth(value)
            return UNKNOWN if met is None else not met
        is_number = isinstance(value, int | float) and isinstance(node.op, ast.USub)
        return -value if is_number else UNKNOWN

    def _of_compare(self, node: ast.Compare) -> Any:
        if len(node.ops) > 1:
            return UNKNOWN
        right = self.value(node.comparators[0])
        return compared(type(node.ops[0]), self.value(node.left), right)

    def _of_boolop(self, node: ast.BoolOp) -> Any:
        is_or = isinstance(node.op, ast.Or)
        result: Any = UNKNOWN
        for part in node.values:
            result = self.value(part)
            met = truth(result)
            if met is None or met == is_or:
                return result
        return result

    def _listed(self, element: ast.expr, made: ast.comprehension) -> Any:
        """`[f(x) for x in listed if test]`."""
        source = self.value(made.iter)
        if not is_short(source):
            return UNKNOWN
        inner, found = self.inner(), []
        for item in source:
            inner.assign(made.target, item)
            met = [truth(inner.value(test)) for test in made.ifs]
            if None in met:
                return UNKNOWN
            if all(met):
                found.append(inner.value(element))
        return found

    def _table(self, keys: list[ast.expr | None], values: list[ast.expr]) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, value in zip(keys, values, strict=True):
            result = self.value(value)
            if key is None:
                found |= result if isinstance(result, dict) else {}
                continue
            name = self.value(key)
            if isinstance(name, str | int) or is_key(name):
                found[name] = result
        return found
