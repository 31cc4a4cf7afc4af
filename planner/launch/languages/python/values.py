"""Values that Python configuration code builds, read from its syntax tree and never run.

A small part of the language is followed within the limits of reading: assignments, calls of
functions whose source is beside the file, branches whose test is known, loops over known lists.
Whatever else is called becomes a `Record` of its name and arguments, and what a record holds
besides is not known: reading one of its fields makes a record again.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.launch.languages.limits import Limits
from planner.launch.languages.python.records import (
    ASKED,
    BUILTINS,
    NOTHING_BESIDE,
    UNKNOWN,
    Expressions,
    Neighbours,
    Record,
    are_plain,
    asked,
    binds,
    bound_name,
    calculated,
    is_short,
    method_of,
    module_file,
    parsed,
    truth,
)

_MOST_MODULES = 60


@dataclass(frozen=True)
class Function:
    """A function with the module and the names that it sees."""

    node: ast.FunctionDef
    module: PythonFile
    outer: Mapping[str, Any]


@dataclass(frozen=True)
class Class:
    """A class whose source is there."""

    node: ast.ClassDef
    module: PythonFile


@dataclass(eq=False)
class PythonFile:
    """A file's names, worked out when they are asked for."""

    path: str
    tree: ast.Module
    reader: Reader
    names: dict[str, Any] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)

    def lookup(self, name: str) -> Any:
        """The value of a global name; a Record of it where it is not known."""
        if name in self.names:
            return self.names[name]
        if name in self.pending:
            return Record(name, made=False)
        self.pending.add(name)
        value = self._find(name)
        self.pending.discard(name)
        self.names[name] = value
        return value

    def _find(self, name: str) -> Any:
        found: Any = Record(name, made=False)
        for node in (node for node in self.tree.body if binds(node, name)):
            match node:
                case ast.FunctionDef():
                    found = Function(node, self, {})
                case ast.ClassDef():
                    found = Class(node, self)
                case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                    found = Frame(self, {}).value(value)
                case ast.Import() | ast.ImportFrom():
                    found = self.reader.imported(node, name, self.path, found)
        return found

    def functions(self) -> dict[str, Function]:
        """Its own functions by name, in order."""
        nodes = [node for node in self.tree.body if isinstance(node, ast.FunctionDef)]
        return {node.name: Function(node, self, {}) for node in nodes}


class Reader:
    """Modules that are read for one configuration. `special`: functions that stand for others;
    `only`: how the modules are called that are followed; `around`: where they are found."""

    def __init__(
        self,
        special: Mapping[str, Callable[..., Any]] | None = None,
        only: str = "",
        around: Neighbours = NOTHING_BESIDE,
    ) -> None:
        self.limits, self.only, self.around = Limits(), only, around
        self.modules: dict[str, PythonFile | None] = {}
        self.special = dict(special or {})

    def module(self, tree: ast.Module, path: str) -> PythonFile:
        """A file that is given."""
        self.modules[path] = PythonFile(path, tree, self)
        return PythonFile(path, tree, self)

    def imported(
        self, node: ast.Import | ast.ImportFrom, name: str, path: str, otherwise: Any
    ) -> Any:
        """What an import binds to a name; a Record of its full name where it is not there."""
        for alias in node.names:
            if bound_name(alias) != name:
                continue
            if isinstance(node, ast.Import):
                return Record(alias.name if alias.asname else name, made=False)
            package = "." * node.level + (node.module or "")
            module = self._file(package, path)
            inner = self._file(f"{package}.{alias.name}", path)
            local = inner is not None
            body = module.tree.body if module is not None else []
            if module and any(binds(node, alias.name, local=local) for node in body):
                return module.lookup(alias.name)
            if inner is not None:
                return inner
            return Record(f"{package}.{alias.name}", made=False)
        return otherwise

    def _file(self, package: str, near: str) -> PythonFile | None:
        """A module's file beside the one that imports it."""
        is_followed = package.endswith(self.only)
        path = module_file(package, near, self.around) if is_followed else None
        return None if path is None else self._open(path)

    def _open(self, path: Path) -> PythonFile | None:
        name = str(path)
        if name not in self.modules:
            self.modules[name] = None
            text = self.around.text(path) if len(self.modules) <= _MOST_MODULES else None
            self.limits.step(len(text or ""))
            try:
                tree = parsed(text) if text is not None else None
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                tree = None
            if tree is not None:
                self.modules[name] = PythonFile(name, tree, self)
        return self.modules[name]


class _Returned(Exception):  # noqa: N818 - it carries a value, nothing is wrong
    def __init__(self, value: Any) -> None:
        self.value = value


class Frame(Expressions):
    """One call's names, and the statements that change them."""

    def __init__(self, module: PythonFile, names: dict[str, Any]) -> None:
        self.module, self.names = module, names
        self.limits = module.reader.limits

    # --- statements -------------------------------------------------------------------------------

    def run(self, body: list[ast.stmt]) -> None:
        """Statements in order. _Returned at a return."""
        for node in body:
            self.limits.step()
            self._statement(node)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                result = self.value(value)
                for target in targets:
                    self.assign(target, result, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assign(target, self.value(value))
            case ast.AugAssign(target=target, op=op, value=value):
                old, new = self.value(target), self.value(value)
                self.assign(target, calculated(type(op), old, new))
            case ast.Expr(value=value):
                self.value(value)
            case ast.Return(value=value):
                raise _Returned(None if value is None else self.value(value))
            case ast.FunctionDef():
                self.names[node.name] = Function(node, self.module, dict(self.names))
            case _:
                self._block(node)

    def _block(self, node: ast.stmt) -> None:
        """Statements that hold others, and imports."""
        match node:
            case ast.If(test=test, body=body, orelse=orelse):
                met = truth(self.value(test))
                if met is not None:
                    self.run(body if met else orelse)
            case ast.For(target=target, iter=listed, body=body):
                self._loop(target, self.value(listed), body)
            case ast.With(body=body) | ast.Try(body=body):
                self.run(body)
            case ast.Import() | ast.ImportFrom():
                imported, path = self.module.reader.imported, self.module.path
                for name in map(bound_name, node.names):
                    self.names[name] = imported(node, name, path, UNKNOWN)

    def _loop(self, target: ast.expr, listed: Any, body: list[ast.stmt]) -> None:
        if not is_short(listed):
            return
        for item in list(listed):
            self.assign(target, item)
            self.run(body)

    def assign(self, target: ast.expr, value: Any, written: ast.expr | None = None) -> None:
        """Give a value to a name, a field or an entry."""
        match target:
            case ast.Name(id=name):
                self.names[name] = value
            case ast.Attribute(value=owner, attr=name):
                record = self.value(owner)
                if isinstance(record, Record):
                    record.fields[name] = value
                    record.places[name] = (self.module, written)
            case ast.Subscript(value=owner, slice=key):
                held, at = self.value(owner), self.value(key)
                if isinstance(held, dict) and isinstance(at, str | int):
                    held[at] = value
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                values = value if isinstance(value, list | tuple) else [UNKNOWN] * len(parts)
                for part, item in zip(parts, values, strict=False):
                    self.assign(part, item)

    # --- names, fields and calls ------------------------------------------------------------------

    def inner(self) -> Frame:
        """The same names, for others within."""
        return Frame(self.module, dict(self.names))

    def _of_name(self, node: ast.Name) -> Any:
        return self.names[node.id] if node.id in self.names else self.module.lookup(node.id)

    def _of_attribute(self, node: ast.Attribute) -> Any:
        return self._attribute(self.value(node.value), node.attr)

    def _attribute(self, owner: Any, name: str, *, is_method: bool = False) -> Any:
        if isinstance(owner, PythonFile):
            return owner.lookup(name)
        if isinstance(owner, Record):
            if name not in owner.fields:
                inner = Record(f"{owner.name}.{name}", of=owner, made=False)
                if is_method or (not owner.made and owner.of is None):
                    return inner  # no field, or a package's name
                owner.fields[name] = inner
            return owner.fields[name]
        return Record(f"?.{name}", of=owner, made=False)

    def _of_call(self, node: ast.Call) -> Any:
        given = [self.value(arg) for arg in node.args if not isinstance(arg, ast.Starred)]
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value)
            if keyword.arg:
                named[keyword.arg] = value
            elif isinstance(value, dict):
                named |= value
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value)
            if isinstance(owner, list | dict | str):
                return method_of(owner, node.func.attr, given)
            called = self._attribute(owner, node.func.attr, is_method=True)
        else:
            called = self.value(node.func)
        result = self.call(called, given, named)
        if isinstance(result, Record) and result.made and result.at is None:
            result.at = (self.module, node)
            result.places |= {word.arg: (self.module, word) for word in node.keywords if word.arg}
        return result

    def call(self, what: Any, given: list[Any], named: dict[str, Any]) -> Any:
        """What a call comes to: of a function or class that is there, else a Record of it."""
        name, specials = _name_of(what), self.module.reader.special
        special = specials.get(name) or specials.get(name.rpartition(".")[2])
        if special is not None:
            return special(*given, **named)
        if isinstance(what, Function):
            return call_function(what, given, named)
        if isinstance(what, Class):
            return construct(what, named)
        return self._call_unseen(what, given, named) if isinstance(what, Record) else UNKNOWN

    def _call_unseen(self, what: Record, given: list[Any], named: dict[str, Any]) -> Any:
        """A call of what is not there: nemo_run's wrappers, built-in functions, anything else."""
        if what.name.rpartition(".")[2] in ("Config", "Partial") and given:
            if isinstance(given[0], Class):
                return construct(given[0], named)
            return Record(_name_of(given[0]), dict(named), tuple(given))
        if what.name in ASKED and len(given) > 1 and isinstance(given[1], str):
            return asked(what.name, given)
        if what.of is None and what.name in BUILTINS:
            return BUILTINS[what.name](*given) if are_plain(given) else UNKNOWN
        return Record(what.name, dict(named), tuple(given), what.of)


def call_function(function: Function, given: list[Any], named: dict[str, Any]) -> Any:
    """What a function returns; None where it returns nothing."""
    reader = function.module.reader
    node = function.node.args
    frame = Frame(function.module, dict(function.outer))
    names = [arg.arg for arg in (*node.posonlyargs, *node.args)]
    defaults = dict(zip(reversed(names), reversed(node.defaults), strict=False))
    defaults |= {
        arg.arg: value
        for arg, value in zip(node.kwonlyargs, node.kw_defaults, strict=True)
        if value is not None
    }
    for name, default in defaults.items():
        frame.names[name] = Frame(function.module, {}).value(default)
    frame.names |= dict(zip(names, given, strict=False))
    known = {*names, *(arg.arg for arg in node.kwonlyargs)}
    frame.names |= {name: value for name, value in named.items() if name in known}
    if node.kwarg is not None:
        frame.names[node.kwarg.arg] = {k: v for k, v in named.items() if k not in known}
    for name in known - frame.names.keys():
        frame.names[name] = Record(name, made=False)
    with reader.limits.call(f"the function {function.node.name}"):
        try:
            frame.run(function.node.body)
        except _Returned as returned:
            return returned.value
    return None


def construct(made: Class, named: dict[str, Any]) -> Record:
    """An object of a class: the defaults of its body and its bases, then what is given."""
    record = Record(made.node.name, {})
    with made.module.reader.limits.call(f"the class {made.node.name}"):
        for base in made.node.bases:
            parent = Frame(made.module, {}).value(base)
            if isinstance(parent, Class) and parent.node is not made.node:
                record.fields |= construct(parent, {}).fields
        frame = Frame(made.module, {})
        for node in made.node.body:
            match node:
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    record.fields[name] = frame.names[name] = frame.value(value)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    record.fields[name] = frame.names[name] = frame.value(value)
    record.fields = {name: _made(value) for name, value in record.fields.items()} | named
    return record


def _made(value: Any) -> Any:
    """`field(default=8)`, `field(default_factory=list)`: what they make."""
    if isinstance(value, Record) and value.name.rpartition(".")[2] == "field":
        if "default" in value.fields:
            return value.fields["default"]
        factory = value.fields.get("default_factory")
        if isinstance(factory, Class):
            return construct(factory, {})
        return Record(_name_of(factory), made=True)
    return value


def dotted_name(record: Record) -> str:
    """`FullAC.Config` of what a class that is there has inside."""
    inner = record.name.startswith("?.") and isinstance(record.of, Class)
    return f"{_name_of(record.of)}{record.name[1:]}" if inner else record.name


def _name_of(value: Any) -> str:
    if isinstance(value, Record):
        return value.name
    return value.node.name if isinstance(value, Function | Class) else "?"
