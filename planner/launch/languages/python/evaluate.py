"""Values that Python code builds, read from its syntax tree and never run.

A small part of the language is followed within the limits of reading: assignments, calls of
functions whose source is beside the file, branches with known tests, loops over known lists. A call
of anything else becomes a `Record` of its name and arguments.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.launch.languages.limits import Limits
from planner.launch.languages.python import syntax
from planner.launch.languages.python.values import (
    ASKED,
    BUILTINS,
    UNKNOWN,
    Record,
    asked,
    built_in,
    calculated,
    compared,
    is_key,
    is_short,
    item_of,
    method_of,
    truth,
)

_MOST_MODULES = 60


@dataclass(frozen=True)
class Function:
    """A function with its module and the enclosing names that it sees."""

    node: ast.FunctionDef
    module: PythonFile
    outer: Mapping[str, Any] = field(default_factory=dict)

    def call(self, given: Sequence[Any] = (), named: Mapping[str, Any] | None = None) -> Any:
        """The function's result; None if it returns nothing. Raises LimitError, RecursionError."""
        words, arguments = dict(named or {}), self.node.args
        frame, outside = Frame(self.module, dict(self.outer)), Frame(self.module, {})
        names = [arg.arg for arg in (*arguments.posonlyargs, *arguments.args)]
        every = (*names, *(arg.arg for arg in arguments.kwonlyargs))
        defaults = (*reversed(arguments.kw_defaults), *reversed(arguments.defaults))
        for name, default in zip(reversed(every), defaults, strict=False):
            if default is not None:
                frame.names[name] = outside.value(default)
        frame.names |= dict(zip(names, given, strict=False))
        frame.names |= {name: words.pop(name) for name in every if name in words}
        if arguments.kwarg is not None:
            frame.names[arguments.kwarg.arg] = words
        for name in every:
            frame.names.setdefault(name, Record(name, made=False))
        with self.module.reader.limits.call(f"the function {self.node.name}"):
            try:
                frame.run(self.node.body)
            except _Returned as returned:
                return returned.value
        return None


@dataclass(frozen=True)
class Class:
    """A class whose source is available."""

    node: ast.ClassDef
    module: PythonFile

    def make(self, named: Mapping[str, Any]) -> Record:
        """An object with the defaults of the class's bases and body, then the given fields."""
        fields: dict[str, Any] = {}
        frame = Frame(self.module, {})
        with self.module.reader.limits.call(f"the class {self.node.name}"):
            for base in self.node.bases:
                parent = Frame(self.module, {}).value(base)
                if isinstance(parent, Class) and parent.node is not self.node:
                    fields |= parent.make({}).fields
            for node in self.node.body:
                match node:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                        | ast.Assign(targets=[ast.Name(id=name)], value=value)
                    ):
                        fields[name] = frame.names[name] = frame.value(value)
        made = {name: _made(value) for name, value in fields.items()}
        return Record(self.node.name, {**made, **named})


def _made(value: Any) -> Any:
    """The default in `field(default=8)` or `field(default_factory=list)`; any other value
    unchanged."""
    if not isinstance(value, Record) or value.name.rpartition(".")[2] != "field":
        return value
    if "default" in value.fields:
        return value.fields["default"]
    factory = value.fields.get("default_factory")
    return factory.make({}) if isinstance(factory, Class) else Record(_name_of(factory))


@dataclass(eq=False)
class PythonFile:
    """A file's global names, whose values are worked out on demand."""

    path: str
    tree: ast.Module
    reader: Reader
    names: dict[str, Any] = field(default_factory=dict)

    def lookup(self, name: str) -> Any:
        """The value of a global name; a Record of the name if it is unknown."""
        if name not in self.names:
            # Ends the lookup of a name whose value refers to itself.
            self.names[name] = Record(name, made=False)
            self.names[name] = self._find(name)
        return self.names[name]

    def _find(self, name: str) -> Any:
        found: Any = Record(name, made=False)
        for node in (node for node in self.tree.body if syntax.binds(node, name)):
            match node:
                case ast.FunctionDef():
                    found = Function(node, self)
                case ast.ClassDef():
                    found = Class(node, self)
                case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                    found = Frame(self, {}).value(value)
                case ast.Import() | ast.ImportFrom():
                    found = self.reader.imported(node, name, self.path, found)
        return found

    def functions(self) -> dict[str, Function]:
        """The functions that the file defines, by name, in order."""
        nodes = [node for node in self.tree.body if isinstance(node, ast.FunctionDef)]
        return {node.name: Function(node, self) for node in nodes}


@dataclass(eq=False)
class Reader:
    """The modules read for one configuration.

    `special`: replacements for functions, by name; `partials`: last names of functions such as
    `partial`, whose call stands for a call of their first argument; `only`: read only modules whose
    names end so; `around`: finds their files.
    """

    special: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    partials: Collection[str] = ()
    only: str = ""
    around: syntax.Neighbours = syntax.NOTHING_BESIDE
    limits: Limits = field(default_factory=Limits)
    modules: dict[str, PythonFile | None] = field(default_factory=dict)

    def read(self, text: str, path: str) -> PythonFile:
        """Read a given file. PythonError with the line of a syntax error."""
        module = self.modules[path] = PythonFile(path, syntax.parsed(text, path), self)
        return module

    def imported(
        self, node: ast.Import | ast.ImportFrom, name: str, path: str, otherwise: Any
    ) -> Any:
        """The value that an import binds to a name; a Record of the full name if its source is not
        available."""
        alias = next((alias for alias in node.names if syntax.bound_name(alias) == name), None)
        if alias is None:
            return otherwise
        if isinstance(node, ast.Import):
            return Record(alias.name if alias.asname else name, made=False)
        package = "." * node.level + (node.module or "")
        module = self._file(package, path)
        inner = self._file(f"{package}.{alias.name}", path)
        body = module.tree.body if module is not None else []
        if module and any(syntax.binds(node, alias.name, local=inner is not None) for node in body):
            return module.lookup(alias.name)
        return inner or Record(f"{package}.{alias.name}", made=False)

    def _file(self, package: str, near: str) -> PythonFile | None:
        """The file of a module, looked for beside the file that imports it; None if there is
        none."""
        path = (
            syntax.module_file(package, near, self.around) if package.endswith(self.only) else None
        )
        if path is None:
            return None
        name = str(path)
        if name not in self.modules:
            self.modules[name] = None
            text = self.around.text(path) if len(self.modules) <= _MOST_MODULES else None
            self.limits.step(len(text or ""))
            try:
                self.modules[name] = None if text is None else self.read(text, name)
            except syntax.PythonError:
                self.modules[name] = None
        return self.modules[name]


class _Returned(Exception):  # noqa: N818 - it carries a value, nothing is wrong
    def __init__(self, value: Any) -> None:
        self.value = value


class Frame:
    """Names of one call, with the evaluation of expressions and statements on them.

    `_of_NODE` gives the value of a kind of node of the syntax tree.
    """

    def __init__(self, module: PythonFile, names: dict[str, Any]) -> None:
        self.module, self.names = module, names
        self.limits = module.reader.limits

    def run(self, body: Iterable[ast.stmt]) -> None:
        """Run statements in order. Raises _Returned at a return."""
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
        """Run an import, or a statement that contains others."""
        match node:
            case ast.If(test=test, body=body, orelse=orelse):
                met = truth(self.value(test))
                if met is not None:
                    self.run(body if met else orelse)
            case ast.For(target=target, iter=listed, body=body):
                items = self.value(listed)
                for item in list(items) if is_short(items) else ():
                    self.assign(target, item)
                    self.run(body)
            case ast.With(body=body) | ast.Try(body=body):
                self.run(body)
            case ast.Import() | ast.ImportFrom():
                imported, path = self.module.reader.imported, self.module.path
                for name in map(syntax.bound_name, node.names):
                    self.names[name] = imported(node, name, path, UNKNOWN)

    def assign(self, target: ast.expr, value: Any, written: ast.expr | None = None) -> None:
        """Assign a value to a name, a field or an entry."""
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

    def value(self, node: ast.expr) -> Any:
        """The value of an expression; a Record if it is unknown."""
        self.limits.step()
        handler = getattr(self, f"_of_{type(node).__name__.lower()}", None)
        with self.limits.deeper():
            return UNKNOWN if handler is None else handler(node)

    def _of_constant(self, node: ast.Constant) -> Any:
        return node.value

    def _of_list(self, node: ast.List | ast.Tuple | ast.Set) -> Any:
        return [self.value(part) for part in node.elts if not isinstance(part, ast.Starred)]

    _of_set = _of_list

    def _of_tuple(self, node: ast.Tuple) -> Any:
        return tuple(self._of_list(node))

    def _of_dict(self, node: ast.Dict) -> Any:
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            result = self.value(value)
            if key is None:
                found |= result if isinstance(result, dict) else {}
            elif is_key(name := self.value(key)):
                found[name] = result
        return found

    def _of_listcomp(self, node: ast.ListComp | ast.GeneratorExp) -> Any:
        """The list that `[f(x) for x in listed if test]` makes."""
        made = node.generators[0]
        source: Any = self.value(made.iter) if len(node.generators) == 1 else UNKNOWN
        if not is_short(source):
            return UNKNOWN
        inner, found = Frame(self.module, dict(self.names)), []
        for item in source:
            inner.assign(made.target, item)
            met = [truth(inner.value(test)) for test in made.ifs]
            if None in met:
                return UNKNOWN
            if all(met):
                found.append(inner.value(node.elt))
        return found

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
        result: Any = UNKNOWN
        for part in node.values:
            result = self.value(part)
            met = truth(result)
            if met is None or met == isinstance(node.op, ast.Or):
                return result
        return result

    def _of_name(self, node: ast.Name) -> Any:
        return self.names[node.id] if node.id in self.names else self.module.lookup(node.id)

    def _of_attribute(self, node: ast.Attribute) -> Any:
        return _attribute(self.value(node.value), node.attr)

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
            called = _attribute(owner, node.func.attr, is_method=True)
        else:
            called = self.value(node.func)
        result = self._call(called, given, named)
        if isinstance(result, Record) and result.made and result.at is None:
            result.at = (self.module, node)
            result.places |= {word.arg: (self.module, word) for word in node.keywords if word.arg}
        return result

    def _call(self, what: Any, given: list[Any], named: dict[str, Any]) -> Any:
        """The result of a call. If the source of the function or class is not available, a Record
        of the call."""
        name, special = _name_of(what), self.module.reader.special
        if (stands := special.get(name) or special.get(name.rpartition(".")[2])) is not None:
            return stands(*given, **named)
        if isinstance(what, Function):
            return what.call(given, named)
        if isinstance(what, Class):
            return what.make(named)
        return self._call_unseen(what, given, named) if isinstance(what, Record) else UNKNOWN

    def _call_unseen(self, what: Record, given: list[Any], named: dict[str, Any]) -> Any:
        """The result of calling a function without available source: a wrapper such as `partial`, a
        built-in, or any other."""
        if what.name.rpartition(".")[2] in self.module.reader.partials and given:
            if isinstance(given[0], Class):
                return given[0].make(named)
            return Record(_name_of(given[0]), dict(named), tuple(given))
        if what.name in ASKED and len(given) > 1 and isinstance(given[1], str):
            return asked(what.name, *given)
        if what.of is None and what.name in BUILTINS:
            return built_in(what.name, given)
        return Record(what.name, dict(named), tuple(given), what.of)


def evaluated(text: str) -> Any:
    """The value of an expression given as text. Raises SyntaxError, ValueError, RecursionError,
    LimitError."""
    node = ast.parse(text.strip(), mode="eval").body
    return Frame(PythonFile("", ast.Module([], []), Reader()), {}).value(node)


def _attribute(owner: Any, name: str, *, is_method: bool = False) -> Any:
    """The value of `owner.name`; if it is unknown, a Record. `is_method`: it is being called."""
    if isinstance(owner, PythonFile):
        return owner.lookup(name)
    if not isinstance(owner, Record):
        return Record(f"?.{name}", of=owner, made=False)
    if name not in owner.fields:
        inner = Record(f"{owner.name}.{name}", of=owner, made=False)
        if is_method or (not owner.made and owner.of is None):
            return inner  # no field, or a package's name
        owner.fields[name] = inner
    return owner.fields[name]


def dotted_name(record: Record) -> str:
    """The dotted name of a Record, such as `FullAC.Config` for a class nested in another."""
    inner = record.name.startswith("?.") and isinstance(record.of, Class)
    return f"{_name_of(record.of)}{record.name[1:]}" if inner else record.name


def _name_of(value: Any) -> str:
    if isinstance(value, Record):
        return value.name
    return value.node.name if isinstance(value, Function | Class) else "?"
