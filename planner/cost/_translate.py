"""Translates the cost core's Python to LLVM's language, in one pass over a function's syntax tree.

A function is translated once for each combination of argument types with which it is called.
Numbers behave as in Python, except that integers have 64 bits and a division by zero gives infinity
or NaN. Only the part of Python that the core needs is known; anything else raises UnplannedError,
and then numba compiles (`planner.cost._ordinary`).

A name that is assigned once stands for its value. Other names have places in memory, which LLVM
turns into registers. If a type turns out to be too narrow, the function is translated again with a
wider one.
"""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FunctionType

import numpy as np

from planner.cost._expressions import Expressions, declared_float, part_of, unplanned
from planner.cost._jit import marked
from planner.cost._types import (
    FLOAT,
    TRUTH,
    WHOLE,
    Array,
    Group,
    Known,
    Record,
    Type,
    UnplannedError,
    Value,
    constant,
    grouped,
    items_of,
    known_number,
    parts_of,
    size_of,
    sizes_of,
    type_of,
    unified,
)

_DECLARED = {"float": FLOAT, "int": WHOLE, "bool": TRUTH}


class _WiderTypeError(Exception):
    """A name needs a wider type, so the function has to be translated again."""


class Unit:
    """All functions that an entry needs, each translated once for every combination of argument
    types."""

    def __init__(self) -> None:
        self.codes: dict[tuple[FunctionType, tuple[Type, ...]], Code] = {}

    def code(self, function: FunctionType, arguments: tuple[Type, ...]) -> Code:
        """The translation of a function for arguments of these types."""
        key = function, arguments
        if key not in self.codes:
            name = f"{function.__name__}.{len(self.codes)}"
            self.codes[key] = Code(self, function, arguments, name)
            self.codes[key].translate()
        return self.codes[key]


@cache
def _definitions(path: str) -> dict[tuple[str, int], ast.FunctionDef]:
    """The functions of a file, by name and first line."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    found = [each for each in tree.body if isinstance(each, ast.FunctionDef)]
    lines = [[each.lineno, *(one.lineno for one in each.decorator_list)] for each in found]
    return {(each.name, min(line)): each for each, line in zip(found, lines, strict=True)}


def _definition(function: FunctionType) -> ast.FunctionDef:
    code = function.__code__
    found = _definitions(code.co_filename).get((code.co_name, code.co_firstlineno))
    if found is None:
        raise UnplannedError(f"{function.__qualname__} is not at the top level of its file")
    return found


class Code(Expressions):
    """The translation of one function."""

    def __init__(
        self, unit: Unit, function: FunctionType, arguments: tuple[Type, ...], name: str
    ) -> None:
        super().__init__()
        self.unit, self.function, self.name = unit, function, name
        self.node = _definition(function)
        self.arguments = [
            Value(kind, tuple(f"%a{index}.{at}" for at in range(len(parts_of(kind)))))
            for index, kind in enumerate(arguments)
        ]
        self.returned: Type | None = _DECLARED.get(str(function.__annotations__.get("return")))
        stores = [each for each in ast.walk(self.node) if isinstance(each, ast.Name)]
        self.times = Counter(each.id for each in stores if isinstance(each.ctx, ast.Store))
        # Types of names that have places in memory.
        self.kept: dict[str, Type] = {}

    def translate(self) -> None:
        """Write the lines of the function."""
        while True:
            try:
                self._begin()
                self._run(self.node.body)
                if self.open:
                    self._return(None)
                return
            except _WiderTypeError:
                continue
            except UnplannedError as error:
                raise UnplannedError(f"{self.function.__name__}: {error}") from error

    def text(self) -> str:
        """The function in LLVM's language."""
        lines = ["entry:", *self.entry, "br label %body", "body:", *self.lines]
        body = "\n".join(lines)
        head = f"define internal {self.result()} @{self.name}({typed(self.arguments)})"
        return f"{head} nounwind {{\n{body}\n}}\n"

    def result(self) -> str:
        """LLVM's name for the function's return type."""
        parts = parts_of(self.returned) if self.returned is not None else ()
        if len(parts) == 1:
            return parts[0]
        return f"{{{', '.join(parts)}}}" if parts else "void"

    def _begin(self) -> None:
        self.reset()
        # Addresses of names in memory; values of other names, by block; types of all these other
        # names.
        self.places: dict[str, Value] = {}
        self.bound: list[dict[str, Value | Known]] = [{}]
        self.seen: dict[str, Type] = {}
        # Labels of each enclosing loop: of the next round, and of the end.
        self.loops: list[tuple[str, str]] = []
        # Places that hold the addresses of arrays that the function has to free.
        self.owned: list[str] = []
        for parameter, value in zip(self.node.args.args, self.arguments, strict=True):
            if isinstance(value.type, Array):
                self.counts.update(sizes_of(value))
            self._name(parameter.arg, value, always=self.times[parameter.arg] > 0)

    # --- names ----------------------------------------------------------------------------------

    def _name(self, name: str, value: Value | Known, always: bool = False) -> None:
        """Give a name a value. The value is stored in memory if the name may get another, or if
        `always`."""
        if isinstance(value, Known):
            self.bound[-1][name] = value
        elif always or self.times[name] > 1 or name in self.kept:
            self._keep(name, value)
        else:
            self.bound[-1][name], self.seen[name] = value, value.type

    def _keep(self, name: str, value: Value) -> None:
        kind = unified(self.kept.get(name, value.type), value.type)
        self.kept[name] = kind
        if name not in self.places:
            self.places[name] = Value(kind, tuple(map(self.room, parts_of(kind))))
        place = self.places[name]
        if place.type != kind:
            raise _WiderTypeError
        parts = self.converted(value, kind).parts
        for each, part, at in zip(parts_of(kind), parts, place.parts, strict=True):
            self.say(f"store {each} {part}, ptr {at}")

    def on_name(self, node: ast.Name) -> Value | Known:
        """The value of a name, or the object that it names."""
        name = node.id
        found = next((names[name] for names in reversed(self.bound) if name in names), None)
        if found is not None:
            return found
        if name in self.places:
            place = self.places[name]
            pairs = zip(parts_of(place.type), place.parts, strict=True)
            lines = [f"load {kind}, ptr {at}" for kind, at in pairs]
            return Value(place.type, tuple(map(self.make, lines)))
        if name in self.seen:
            # The name was assigned in a block that has ended.
            self.kept[name] = self.seen[name]
            raise _WiderTypeError
        if self.times[name]:
            raise unplanned(node)
        for outside in (self.function.__globals__, vars(builtins)):
            if name in outside:
                return constant(outside[name])
        raise unplanned(node)

    # --- statements -----------------------------------------------------------------------------

    def _run(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if self.open:
                self.method(statement)(statement)

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        """Statements that may not run; names assigned in them have no known value afterwards."""
        self.bound.append({})
        self._run(statements)
        self.bound.pop()

    def on_expr(self, node: ast.Expr) -> None:
        """A call as a statement, or a docstring."""
        self.any(node.value)

    def on_assign(self, node: ast.Assign) -> None:
        """An assignment."""
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            found = [self.any(each) for each in value.elts]
            for each, one in zip(target.elts, found, strict=True):
                self._assign(each, one)
            return
        whole = self.any(value)
        for each in node.targets:
            self._assign(each, whole)

    def _assign(self, target: ast.expr, value: Value | Known) -> None:
        if isinstance(target, ast.Name):
            self._name(target.id, value)
        elif isinstance(value, Known):
            raise unplanned(target)
        elif isinstance(target, ast.Tuple):
            for each, item in zip(target.elts, items_of(value), strict=True):
                self._assign(each, item)
        else:
            self.store(*self.place(target), value)

    def on_augassign(self, node: ast.AugAssign) -> None:
        """An assignment such as `+=`."""
        if isinstance(node.target, ast.Name):
            before = self.value(ast.Name(node.target.id, ast.Load()))
            self._name(node.target.id, self.binary(node.op, before, self.value(node.value)))
            return
        kind, address = self.place(node.target)
        more = self.value(node.value)
        self.store(kind, address, self.binary(node.op, self.load(kind, address), more))

    def on_if(self, node: ast.If) -> None:
        """A branch. If the test is a constant, only the branch that it selects is translated."""
        test = self.truth(node.test)
        known = known_number(test)
        if known is not None:
            self._run(node.body if known else node.orelse)
            return
        then, other, end = self.labels("then", "else", "end")
        self.end(f"br i1 {test}, label %{then}, label %{other}")
        for label, statements in ((then, node.body), (other, node.orelse)):
            self.start(label)
            self._block(statements)
            self.go_on(end)
        self.start(end)

    def on_while(self, node: ast.While) -> None:
        """A `while` loop."""
        test, body, end = self.labels("test", "body", "end")
        self.go_on(test)
        self.start(test)
        self.end(f"br i1 {self.truth(node.test)}, label %{body}, label %{end}")
        self.start(body)
        with self._loop(test, end):
            self._run(node.body)
        self.go_on(test)
        self.start(end)

    @contextmanager
    def _loop(self, following: str, end: str) -> Iterator[None]:
        self.loops.append((following, end))
        self.bound.append({})
        yield
        self.bound.pop()
        self.loops.pop()

    def on_continue(self, _: ast.Continue) -> None:
        """Start the next round of a loop."""
        self.end(f"br label %{self.loops[-1][0]}")

    def on_break(self, _: ast.Break) -> None:
        """Leave a loop."""
        self.end(f"br label %{self.loops[-1][1]}")

    def on_for(self, node: ast.For) -> None:
        """A loop over a range, or over a tuple, whose body is translated once for each item."""
        if isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) == "range":
            self._count(node, [self.whole_number(each) for each in node.iter.args])
            return
        (end,) = self.labels("end")
        for item in items_of(self.value(node.iter)):
            (following,) = self.labels("next")
            with self._loop(following, end):
                self._assign(node.target, item)
                self._run(node.body)
            self.go_on(following)
            self.start(following)
        self.go_on(end)
        self.start(end)

    def _count(self, node: ast.For, limits: Sequence[str]) -> None:
        """A loop over a range."""
        first, last = limits[:2] if len(limits) > 1 else ("0", limits[0])
        step = limits[2] if len(limits) > 2 else "1"
        if step not in ("1", "-1"):
            raise unplanned(node.iter)
        place = self.room(WHOLE)
        test, body, following, end = self.labels("test", "body", "next", "end")
        self.say(f"store i64 {first}, ptr {place}")
        self.go_on(test)
        self.start(test)
        index = self.make(f"load i64, ptr {place}")
        if step == "1" and self.is_count(first):
            self.counts.add(index)
        more = self.make(f"icmp {'slt' if step == '1' else 'sgt'} i64 {index}, {last}")
        self.end(f"br i1 {more}, label %{body}, label %{end}")
        self.start(body)
        with self._loop(following, end):
            self._assign(node.target, Value(WHOLE, (index,)))
            self._run(node.body)
        self.go_on(following)
        self.start(following)
        self.say(f"store i64 {self.make(f'add nsw i64 {index}, {step}')}, ptr {place}")
        self.go_on(test)
        self.start(end)

    def on_return(self, node: ast.Return) -> None:
        """Return from the function."""
        self._return(self.value(node.value) if node.value is not None else None)

    def _return(self, value: Value | None) -> None:
        if value is None:
            self._free(())
            self.end("ret void" if self.returned is None else "unreachable")
            return
        before = self.returned
        self.returned = unified(before or value.type, value.type)
        if before not in (None, self.returned):
            raise _WiderTypeError
        value = self.converted(value, self.returned)
        self._free([each.parts[0] for each in _arrays(value)])
        whole = value.parts[0] if len(value.parts) == 1 else self.packed(self.result(), value)
        self.end(f"ret {self.result()} {whole}")

    # --- calls and new arrays -------------------------------------------------------------------

    def on_call(self, node: ast.Call) -> Value:
        """A call of a function of the core, of a NamedTuple, or of a function that Python has."""
        callee = self.any(node.func)
        if node.keywords or not isinstance(callee, Known):
            raise unplanned(node)
        it = callee.it
        if it is np.zeros:
            return self._zeros(node)
        values = self.values(node.args)
        if isinstance(it, FunctionType) and it in marked:
            return self._called(it, values)
        if hasattr(it, "_fields"):
            texts = [it.__annotations__[name] for name in it._fields]
            pairs = zip(values, texts, strict=True)
            return grouped([declared_float(*pair, self) for pair in pairs], it._fields)
        found = self.built_in(it, values)
        if found is None:
            raise unplanned(node)
        return found

    def _called(self, function: FunctionType, values: list[Value]) -> Value:
        count = function.__code__.co_argcount
        defaults = [constant(each) for each in function.__defaults__ or ()]
        missing = defaults[len(defaults) - count + len(values) :]
        values = [*values, *(each for each in missing if isinstance(each, Value))]
        texts = [function.__annotations__.get(name) for name in function.__code__.co_varnames]
        values = [declared_float(*pair, self) for pair in zip(values, texts, strict=False)]
        code = self.unit.code(function, tuple(value.type for value in values))
        call = f"call {code.result()} @{code.name}({typed(values)})"
        if code.returned is None:
            self.say(call)
            return grouped([])
        found = self.unpacked(code.returned, code.result(), self.make(call))
        if code.owned:
            for array in _arrays(found):
                self._own(array.parts[0])
        return found

    def _own(self, address: str) -> None:
        """Free an array when the function ends, or when the next round of a loop replaces it."""
        place = self.room("ptr")
        self.entry.append(f"store ptr null, ptr {place}")
        self.owned.append(place)
        if self.loops:
            self.say(f"call void @free(ptr {self.make(f'load ptr, ptr {place}')})")
        self.say(f"store ptr {address}, ptr {place}")

    def _zeros(self, node: ast.Call) -> Value:
        """`np.zeros`."""
        shape = self.value(node.args[0])
        axes = items_of(shape) if isinstance(shape.type, Group) else [shape]
        dtype = self.any(node.args[1]) if len(node.args) > 1 else Known(np.float64)
        item = type_of(np.dtype(dtype.it)) if isinstance(dtype, Known) else None
        if not isinstance(item, str | Record) or any(axis.type != WHOLE for axis in axes):
            raise unplanned(node)
        count, sizes = "1", [axis.parts[0] for axis in axes]
        self.counts.update(sizes)
        for size in sizes:
            count = self.whole("mul", count, size)
        address = self.make(f"call ptr @calloc(i64 {count}, i64 {size_of(item)})")
        self._own(address)
        kind = Array(item, tuple(int(size) if size.isdigit() else None for size in sizes))
        return part_of(kind, address, sizes)

    def _free(self, returned: Sequence[str]) -> None:
        """Free the arrays that the function made, except those that it returns."""
        for place in self.owned:
            address = self.make(f"load ptr, ptr {place}")
            for each in returned:
                same = self.make(f"icmp eq ptr {address}, {each}")
                address = self.make(f"select i1 {same}, ptr null, ptr {address}")
            self.say(f"call void @free(ptr {address})")


def typed(values: Sequence[Value]) -> str:
    """Arguments, or parameters, in LLVM's language."""
    return ", ".join(
        f"{kind} {part}"
        for value in values
        for kind, part in zip(parts_of(value.type), value.parts, strict=True)
    )


def _arrays(value: Value) -> list[Value]:
    """The arrays in what a function returns."""
    items = items_of(value) if isinstance(value.type, Group) else [value]
    return [each for each in items if isinstance(each.type, Array)]
