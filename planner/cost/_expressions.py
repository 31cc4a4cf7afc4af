"""Translation of expressions and of places in memory into LLVM's language."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from enum import EnumMeta
from typing import Any

from planner.cost._operations import Operations
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
    unified,
)


class Expressions(Operations):
    """Translates expressions to values. A method `on_...` translates the syntax node of that name;
    the methods for names and calls are in `planner.cost._translate`."""

    def any(self, node: ast.AST) -> Value | Known:
        """An expression's value, or an object known at translation."""
        return self.method(node)(node)

    def method(self, node: ast.AST) -> Callable[[Any], Any]:
        """The method that translates a node."""
        found = getattr(self, f"on_{type(node).__name__.lower()}", None)
        if found is None:
            raise unplanned(node)
        return found

    def value(self, node: ast.AST) -> Value:
        """The value of an expression; raise UnplannedError if it is an object such as a module."""
        found = self.any(node)
        if isinstance(found, Known):
            raise unplanned(node)
        return found

    def values(self, nodes: Sequence[ast.expr]) -> list[Value]:
        """Values of arguments or items; a starred one is replaced by all of its items."""
        found: list[Value] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                found += items_of(self.value(node.value))
            else:
                found.append(self.value(node))
        return found

    def truth(self, node: ast.expr) -> str:
        """Whether an expression is true, as an LLVM operand."""
        return self.converted(self.value(node), TRUTH).parts[0]

    def whole_number(self, node: ast.expr) -> str:
        """The value of an expression that has to be an integer."""
        value = self.value(node)
        if value.type not in (WHOLE, TRUTH):
            raise unplanned(node)
        return self.converted(value, WHOLE).parts[0]

    # --- constants, tuples, fields --------------------------------------------------------------

    def on_constant(self, node: ast.Constant) -> Value | Known:
        """A constant."""
        return constant(node.value)

    def on_tuple(self, node: ast.Tuple) -> Value:
        """A tuple."""
        return grouped(self.values(node.elts))

    def on_attribute(self, node: ast.Attribute) -> Value | Known:
        """A field of a record or of a NamedTuple, the shape of an array, or a name in a module."""
        owner = self.any(node.value)
        if isinstance(owner, Known):
            found = getattr(owner.it, node.attr)
            return constant(int(found) if isinstance(owner.it, EnumMeta) else found)
        if isinstance(owner.type, Array) and node.attr == "shape":
            self.counts.update(sizes_of(owner))
            return grouped([Value(WHOLE, (size,)) for size in sizes_of(owner)])
        if isinstance(owner.type, Group) and node.attr in owner.type.names:
            return items_of(owner)[owner.type.names.index(node.attr)]
        return self.load(*self._field(owner, node))

    def _field(self, owner: Value, node: ast.Attribute) -> tuple[Type, str]:
        if not isinstance(owner.type, Record) or node.attr not in owner.type.fields:
            raise unplanned(node)
        offset, kind = owner.type.fields[node.attr]
        return kind, self.moved(owner.parts[0], offset)

    def on_subscript(self, node: ast.Subscript) -> Value:
        """An item or a part of an array or of a tuple."""
        owner = self.value(node.value)
        if isinstance(owner.type, Group):
            return self._item(owner, node.slice)
        if isinstance(node.slice, ast.Slice):
            return self._first_rows(owner, node.slice)
        kind, address, sizes = self._indexed(owner, node.slice)
        return part_of(kind, address, sizes) if sizes else self.load(kind.item, address)

    def _item(self, group: Value, node: ast.expr) -> Value:
        """One item of a tuple, or a slice of it."""
        items = items_of(group)
        if isinstance(node, ast.Slice):
            limits = [ast.literal_eval(each) if each else None for each in (node.lower, node.upper)]
            return grouped(items[slice(*limits)])
        index = self.from_start(self.whole_number(node), str(len(items)))
        known = known_number(index)
        return items[int(known)] if known is not None else self._item_at(items, index, node)

    def _item_at(self, items: Sequence[Value], index: str, node: ast.expr) -> Value:
        """The item of a tuple at an index that is known only when the code runs; all items have one
        type."""
        kind = items[0].type
        if any(item.type != kind for item in items):
            raise unplanned(node)
        parts = []
        for at, part in enumerate(parts_of(kind)):
            table = self.room(f"[{len(items)} x {part}]")
            for number, item in enumerate(items):
                place = self.item_at(table, str(number), 8)
                self.say(f"store {part} {item.parts[at]}, ptr {place}")
            parts.append(self.make(f"load {part}, ptr {self.item_at(table, index, 8)}"))
        return Value(kind, tuple(parts))

    # --- arrays and places in memory ------------------------------------------------------------

    def place(self, node: ast.expr) -> tuple[Type, str]:
        """(type, address) of a field of a record or of an item of an array."""
        if isinstance(node, ast.Attribute):
            return self._field(self.value(node.value), node)
        if not isinstance(node, ast.Subscript) or isinstance(node.slice, ast.Slice):
            raise unplanned(node)
        kind, address, sizes = self._indexed(self.value(node.value), node.slice)
        if sizes:
            raise unplanned(node)
        return kind.item, address

    def load(self, kind: Type, address: str) -> Value:
        """The value at an address."""
        if isinstance(kind, str):
            return Value(kind, (self.make(f"load {kind}, ptr {address}"),))
        return Value(kind, (address,))

    def store(self, kind: Type, address: str, value: Value) -> None:
        """Write a number, or copy a record, to an address."""
        if isinstance(kind, Record) and value.type == kind:
            self.copy(address, value.parts[0], kind.size)
            return
        if not isinstance(kind, str) or unified(kind, value.type) != kind:
            raise UnplannedError(f"{value.type} cannot be stored as {kind}")
        self.say(f"store {kind} {self.converted(value, kind).parts[0]}, ptr {address}")

    def _first_rows(self, array: Value, node: ast.Slice) -> Value:
        """The first rows of an array: `array[:upper]`."""
        if not isinstance(array.type, Array) or node.lower or node.step or node.upper is None:
            raise unplanned(node)
        kind, sizes = Array(array.type.item, (None, *array.type.sizes[1:])), sizes_of(array)
        upper = self.from_start(self.whole_number(node.upper), sizes[0])
        return part_of(kind, array.parts[0], [self.within(upper, sizes[0]), *sizes[1:]])

    def _indexed(self, array: Value, node: ast.expr) -> tuple[Array, str, list[str]]:
        """(type of the indexed part, its address, its sizes) of an array at some indices."""
        kind, sizes, flat = array.type, sizes_of(array), "0"
        if not isinstance(kind, Array):
            raise unplanned(node)
        indices = node.elts if isinstance(node, ast.Tuple) else [node]
        for axis, size in enumerate(sizes):
            flat = self.whole("mul", flat, size)
            if axis < len(indices):
                index = self.from_start(self.whole_number(indices[axis]), size)
                flat = self.whole("add", flat, index)
        address = self.item_at(array.parts[0], flat, size_of(kind.item))
        left = len(indices)
        return Array(kind.item, kind.sizes[left:]), address, sizes[left:]

    # --- operators ------------------------------------------------------------------------------

    def on_binop(self, node: ast.BinOp) -> Value:
        """An operation on two numbers, such as a sum."""
        return self.binary(node.op, self.value(node.left), self.value(node.right))

    def on_unaryop(self, node: ast.UnaryOp) -> Value:
        """`not` or a minus sign."""
        if isinstance(node.op, ast.Not):
            return Value(TRUTH, (self.negated(self.truth(node.operand)),))
        if isinstance(node.op, ast.USub):
            return self.minus(self.value(node.operand))
        raise unplanned(node)

    def on_compare(self, node: ast.Compare) -> Value:
        """A comparison, or a chain of them."""
        left, found = self.value(node.left), "1"
        for operator, following in zip(node.ops, node.comparators, strict=True):
            right = self.value(following)
            if isinstance(operator, ast.In | ast.NotIn):
                holds = "0"
                for item in items_of(right):
                    holds = self.either(holds, self.compared(ast.Eq(), left, item))
                holds = self.negated(holds) if isinstance(operator, ast.NotIn) else holds
            else:
                holds = self.compared(operator, left, right)
            found, left = self.both(found, holds), right
        return Value(TRUTH, (found,))

    def on_boolop(self, node: ast.BoolOp) -> Value:
        """`and` or `or` of truth values."""
        found = self.truth(node.values[0])
        for each in node.values[1:]:
            found = self._joined(found, each, isinstance(node.op, ast.And))
        return Value(TRUTH, (found,))

    def _joined(self, found: str, node: ast.expr, both: bool) -> str:
        """`found and node`, or `found or node`; the node is evaluated only if it decides the
        result."""
        known = known_number(found)
        if known is not None:
            return self.truth(node) if bool(known) == both else found
        if _is_quick(node):
            more = self.truth(node)
            return self.both(found, more) if both else self.either(found, more)
        right, end = self.labels("right", "end")
        before, targets = self.at, (right, end) if both else (end, right)
        self.end(f"br i1 {found}, label %{targets[0]}, label %{targets[1]}")
        self.start(right)
        more = self.truth(node)
        after = self.at
        self.go_on(end)
        self.start(end)
        return self.make(f"phi i1 [{int(not both)}, %{before}], [{more}, %{after}]")

    def on_ifexp(self, node: ast.IfExp) -> Value | Known:
        """A conditional expression: `body if test else orelse`."""
        test = self.truth(node.test)
        known = known_number(test)
        if known is not None:
            return self.any(node.body if known else node.orelse)
        if _is_quick(node.body) and _is_quick(node.orelse):
            return self.selected(test, self.value(node.body), self.value(node.orelse))
        return self._chosen(test, node)

    def _chosen(self, test: str, node: ast.IfExp) -> Value:
        """One of two values, of which only the chosen one is computed."""
        then, other, end = self.labels("then", "else", "end")
        self.end(f"br i1 {test}, label %{then}, label %{other}")
        self.start(then)
        one = self.value(node.body)
        first, first_lines, self.lines = self.at, self.lines, []
        self.start(other)
        two = self.value(node.orelse)
        kind = unified(one.type, two.type)
        two = self.converted(two, kind)
        second = self.at
        self.go_on(end)
        # The first value's conversion and jump come before the lines of the second value.
        second_lines, self.lines, self.open = self.lines, first_lines, True
        one = self.converted(one, kind)
        self.go_on(end)
        self.lines += second_lines
        self.start(end)
        parts = zip(parts_of(kind), one.parts, two.parts, strict=True)
        lines = [f"phi {each} [{a}, %{first}], [{b}, %{second}]" for each, a, b in parts]
        return Value(kind, tuple(map(self.make, lines)))


def part_of(kind: Array, address: str, sizes: Sequence[str]) -> Value:
    """An array at an address."""
    pairs = zip(sizes, kind.sizes, strict=True)
    return Value(kind, (address, *(size for size, known in pairs if known is None)))


def unplanned(node: ast.AST) -> UnplannedError:
    """The error for a node that cannot be translated."""
    return UnplannedError(f"`{ast.unparse(node)}` is not in the language of the cost core")


def declared_float(value: Value, text: object, conversions: Operations) -> Value:
    """A value as a float if it is an integer and its declaration says float."""
    name = getattr(text, "__forward_arg__", getattr(text, "__name__", str(text)))
    narrower = isinstance(value.type, str) and name == "float"
    return conversions.converted(value, FLOAT) if narrower else value


def _is_quick(node: ast.expr) -> bool:
    """Whether evaluating an expression that is not needed is harmless and takes no time."""
    slow = ast.Call, ast.Subscript, ast.BoolOp, ast.IfExp, ast.FloorDiv, ast.Mod
    return not any(isinstance(each, slow) for each in ast.walk(node))
