"""Values of expressions in a training script, worked out from its text: constants, defaults of its
options, functions and classes, environment variables."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from planner.launch.dialects.hf.script_tables import (
    arguments_of,
    called_functions,
    imported_modules,
    loaded_table,
)
from planner.launch.languages.python import UNKNOWN, calculated, compared, last_name, written
from planner.launch.languages.text import digits
from planner.launch.read.found import Setting

# Functions that ask whether a GPU has bf16; every GPU since Ampere has.
_OF_BF16 = ("is_bfloat16_supported", "is_bf16_supported", "is_torch_bf16_gpu_available",
            "is_torch_bf16_available")  # fmt: skip
_DTYPES = ("bfloat16", "float16", "float32", "half")
_CASTS: Mapping[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str}
_DEEPEST = 20
_READ = (ValueError, TypeError, SyntaxError, RecursionError, MemoryError)


class NoValueError(ValueError):
    """An expression whose value is known only at run time."""


@dataclass
class ScriptValues:
    """Values in one script. `given`: its command's arguments; `environment`: variables; `defaults`:
    options, parameters and fields whose defaults were used, in order."""

    module: ast.Module
    given: Mapping[str, Setting]
    environment: Mapping[str, str]
    folder: Path | None = None
    defaults: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        beside = () if self.folder is None else imported_modules(self.module, self.folder)
        self.modules = (self.module, *beside)
        self.functions = called_functions(self.modules)
        self.constants = _of_all((self.module, *self.functions), _constants)
        self.arguments = _once(arguments_of(self.modules, self.functions))
        self.options = _of_all(self.modules, lambda module: dict(_options(module)))
        self.parameters = _of_all(
            (self.module, *self.functions), lambda one: _once(_parameters(one))
        )
        self.fields = _of_all(self.modules, lambda module: _once(_fields(module)))
        self._loaded: dict[ast.Call, dict[str, Any] | None] = {}
        self.tests = {
            node: around
            for part in (*self.functions, self.module)
            for node, around in _tested(part, ())
        }

    def of(self, node: ast.expr) -> object:
        """The value of an expression. NoValueError."""
        try:
            return self._of(node, 0)
        except _READ as error:
            raise NoValueError(str(error)) from None

    def runs(self, node: ast.AST) -> tuple[bool | None, str]:
        """Whether a statement runs, according to the `if`s around it; None if a test is unknown,
        with that test."""
        for test, wanted in self.tests.get(node, ()):
            try:
                value = bool(self.of(test))
            except NoValueError:
                return None, written(test)[:80]
            if value is not wanted:
                return False, ""
        return True, ""

    def shown(self, node: ast.expr) -> str:
        """An expression without a value, for a message."""
        made = self.constants.get(node.id, node) if isinstance(node, ast.Name) else node
        return f"{written(made)[:80]}, which is not a literal"

    def _of(self, node: ast.expr, depth: int) -> Any:
        if depth > _DEEPEST:
            raise NoValueError("nested too deep")
        match node:
            case ast.Name(id=name):
                return self._named(name, depth)
            case ast.Attribute(attr=name) if name in _DTYPES:
                return "float16" if name == "half" else name
            case ast.Attribute(value=owner, attr=name):
                return self._attribute(owner, name, depth)
            case ast.Call():
                return self._call(node, depth)
        inner = partial(self._of, depth=depth + 1)
        made = self._calculated(node, inner)
        return ast.literal_eval(node) if made is UNKNOWN else made

    def _calculated(self, node: ast.expr, inner: Callable[[ast.expr], Any]) -> Any:
        """The value of an operator (`a * b`, `a if b else c`, `t["k"]`) or of a written list,
        tuple, table or f-string; UNKNOWN for other expressions. NoValueError if an operand has no
        value."""
        made: Any = UNKNOWN
        match node:
            case ast.BinOp(left=left, op=operation, right=right):
                made = calculated(type(operation), inner(left), inner(right))
                if made is UNKNOWN:
                    raise NoValueError(written(node))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                made = not inner(operand)
            case ast.BoolOp(op=operation, values=values):
                found = [inner(value) for value in values]
                made = all(found) if isinstance(operation, ast.And) else _first_true(found)
            case ast.Compare(left=left, ops=[sign], comparators=[right]):
                made = compared(type(sign), inner(left), inner(right))
                if made is UNKNOWN:
                    raise NoValueError(written(node))
            case ast.IfExp(test=test, body=body, orelse=other):
                made = inner(body if inner(test) else other)
            case ast.Subscript(value=table, slice=key):
                made = self._entry(inner(table), inner(key))
            case ast.List(elts=items) | ast.Tuple(elts=items):
                made = [inner(item) for item in items]
            case ast.Dict(keys=keys, values=values):
                made = self._table(keys, values, inner)
            case ast.JoinedStr(values=parts):
                made = "".join(str(inner(part)) for part in parts)
            case ast.FormattedValue(value=value):
                made = inner(value)
        return made

    @staticmethod
    def _table(
        keys: list[ast.expr | None], values: list[ast.expr], inner: Callable[[ast.expr], Any]
    ) -> dict[Any, Any]:
        """A written table (`{...}`) as a dict, without the entries whose values are unknown."""
        found: dict[Any, Any] = {}
        for key, value in zip(keys, values, strict=True):
            try:
                inside = inner(value)
            except _READ:
                continue
            if key is None:
                found |= inside if isinstance(inside, dict) else {}
            else:
                found[inner(key)] = inside
        return found

    @staticmethod
    def _entry(table: Any, key: Any) -> Any:
        if isinstance(table, dict) and key in table:
            return table[key]
        if isinstance(table, list) and isinstance(key, int) and -len(table) <= key < len(table):
            return table[key]
        raise NoValueError(f"no {key}")

    def _named(self, name: str, depth: int) -> Any:
        for stated in (self.constants, self.arguments):
            if name in stated:
                return self._of(stated[name], depth + 1)
        if name in self.parameters:
            return self._default(name, self.parameters[name], depth)
        if name == "__name__":  # a script that is started
            return "__main__"
        raise NoValueError(name)

    def _attribute(self, owner: ast.expr, name: str, depth: int) -> Any:
        """`args.batch_size`, `config.batch_size`, `torch.cuda.x`."""
        if isinstance(owner, ast.Name) and owner.id in ("torch", "os", "sys", "np", "math"):
            raise NoValueError(name)
        if isinstance(owner, ast.Name | ast.Attribute | ast.Subscript):
            try:
                table = self._of(owner, depth + 1)
            except _READ:
                table = None
            if isinstance(table, dict) and name in table:
                return table[name]
        given = self.given.get(name) or self.given.get(name.replace("_", "-"))
        if given is not None and not given.unknown and given.value is not None:
            return _typed(given.value)
        for stated in (self.options, self.fields):
            if name in stated:
                return self._default(name, stated[name], depth)
        raise NoValueError(name)

    def _default(self, name: str, node: ast.expr, depth: int) -> Any:
        value = self._of(node, depth + 1)
        self.defaults[name] = value
        return value

    def _call(self, node: ast.Call, depth: int) -> Any:
        name = last_name(node.func)
        if name in _OF_BF16 or name == "is_available":
            return True
        if name in _CASTS and len(node.args) == 1:
            return _CASTS[name](self._of(node.args[0], depth + 1))
        if name in ("getenv", "get") and node.args:
            return self._looked_up(node, depth)
        if name == "field":
            return self._field(node, depth)
        if name in ("Path", "join") and len(node.args) == 1:
            return self._of(node.args[0], depth + 1)
        if self.folder is not None and (table := self._table_of_file(node)) is not None:
            return table
        raise NoValueError(name)

    def _table_of_file(self, node: ast.Call) -> dict[str, Any] | None:
        """The table that a call loads; each call is evaluated once."""
        if node not in self._loaded:
            self._loaded[node] = None  # while its own arguments are looked at
            folder = self.folder or Path()
            self._loaded[node] = loaded_table(node, self.modules, folder, self.of)
        return self._loaded[node]

    def _looked_up(self, node: ast.Call, depth: int) -> Any:
        """`os.environ.get("N", 4)`, `TABLE.get("n", 4)`."""
        key = self._of(node.args[0], depth + 1)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        is_environment = isinstance(owner, ast.Attribute) and owner.attr == "environ"
        if is_environment or last_name(node.func) == "getenv":
            if key in self.environment:
                return self.environment[key]
        elif owner is None:
            raise NoValueError(str(key))
        else:
            table = self._of(owner, depth + 1)
            if isinstance(table, dict) and key in table:
                return table[key]
        if len(node.args) < 2:
            raise NoValueError(str(key))
        return self._default(str(key), node.args[1], depth)

    def _field(self, node: ast.Call, depth: int) -> Any:
        """`field(default=4)`, `field(default_factory=lambda: [...])` of a dataclass."""
        for keyword in node.keywords:
            if keyword.arg == "default":
                return self._of(keyword.value, depth + 1)
            if keyword.arg == "default_factory" and isinstance(keyword.value, ast.Lambda):
                return self._of(keyword.value.body, depth + 1)
        raise NoValueError("field")


def _typed(value: object) -> object:
    """A word of a command as its parser would convert it: a number, a switch or a text."""
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    number = digits(value)
    return value if number is None else number


def _first_true(values: list[Any]) -> Any:
    return next((value for value in values if value), values[-1] if values else None)


def _constants(module: ast.AST) -> dict[str, ast.expr]:
    """Names and their values, without names to which the module assigns several different
    values."""
    found: dict[str, ast.expr] = {}
    several: set[str] = set()
    for node in ast.walk(module):
        for name, value in _bound(node):
            first = found.setdefault(name, value)
            if first is not value and written(first) != written(value):
                several.add(name)
    return {name: value for name, value in found.items() if name not in several}


def _bound(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names that a statement assigns, except fields of classes."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield name, value
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            pairs = zip(names, values, strict=False)
            yield from ((one.id, value) for one, value in pairs if isinstance(one, ast.Name))


# Tests of the `if`s around a call, each with the outcome that leads to the call.
_Tests = tuple[tuple[ast.expr, bool], ...]


def _tested(node: ast.AST, around: _Tests) -> Iterator[tuple[ast.AST, _Tests]]:
    """Every call below a node, with the tests around it."""
    if isinstance(node, ast.Call):
        yield node, around
    if not isinstance(node, ast.If | ast.IfExp):
        for child in ast.iter_child_nodes(node):
            yield from _tested(child, around)
        return
    yield from _tested(node.test, around)
    body, other = node.body, node.orelse
    for branch, outcome in ((body, True), (other, False)):
        for child in branch if isinstance(branch, list) else [branch]:
            yield from _tested(child, (*around, (node.test, outcome)))


def _options(module: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Defaults of `add_argument("--name", default=...)`."""
    for node in ast.walk(module):
        if not isinstance(node, ast.Call) or last_name(node.func) != "add_argument":
            continue
        keywords = {one.arg: one.value for one in node.keywords}
        words = (one.value for one in node.args if isinstance(one, ast.Constant))
        names = [str(word).lstrip("-").replace("-", "_") for word in words]
        if isinstance(dest := keywords.get("dest"), ast.Constant):
            names = [str(dest.value)]
        action = keywords.get("action")
        switch = isinstance(action, ast.Constant) and str(action.value).startswith("store_")
        default = keywords.get("default")
        if default is None and switch and isinstance(action, ast.Constant):
            default = ast.Constant(action.value == "store_false")
        if default is not None:
            yield from ((name, default) for name in names)


def _parameters(module: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Parameters of functions that have defaults."""
    for node in ast.walk(module):
        if not isinstance(node, ast.FunctionDef):
            continue
        listed = [*node.args.posonlyargs, *node.args.args]
        pairs = zip(reversed(listed), reversed(node.args.defaults), strict=False)
        yield from ((one.arg, default) for one, default in pairs)
        named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        yield from ((one.arg, default) for one, default in named if default is not None)


def _fields(module: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Fields of classes: `batch_size: int = 4`, `BATCH = 4`, `self.batch_size = 4`."""
    for node in ast.walk(module):
        match node:
            case ast.ClassDef(body=body):
                for item in body:
                    match item:
                        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                            yield name, value
                        case ast.Assign(targets=[ast.Name(id=name)], value=value):
                            yield name, value
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=value):
                yield name, value


def _of_all(
    modules: Sequence[ast.AST], found: Callable[[Any], dict[str, ast.expr]]
) -> dict[str, ast.expr]:
    """Definitions in all parts of a script; its own file overrides imported modules."""
    said: dict[str, ast.expr] = {}
    for module in reversed(modules):
        said |= found(module)
    return said


def _once(pairs: Iterator[tuple[str, ast.expr]]) -> dict[str, ast.expr]:
    """Names and their values, without names that have several different values."""
    found: dict[str, set[str]] = {}
    values: dict[str, ast.expr] = {}
    for name, value in pairs:
        found.setdefault(name, set()).add(written(value))
        values[name] = value
    return {name: value for name, value in values.items() if len(found[name]) == 1}
