"""Files that a training script reads: the YAML or JSON with its settings, and modules that it
imports, which may define its argument classes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from planner.launch.languages.python import last_name
from planner.launch.read.beside import text_beside
from planner.launch.read.yaml_text import YamlError, read_yaml

# Calls that load a table from a file, by libraries or by the script's own functions.
_LOADS = re.compile(
    r"(safe_load|full_load|load|(load|read|parse|get)_(config|cfg|yaml|json|params)\w*)$"
)
_TABLES = (".yaml", ".yml", ".json")
# How many modules are followed.
_MOST_MODULES = 12
Evaluated = Callable[[ast.expr], Any]


def imported_modules(module: ast.Module, folder: Path) -> Iterator[ast.Module]:
    """The modules beside a script that it imports from, if they can be parsed."""
    named = (node for node in ast.walk(module) if isinstance(node, ast.ImportFrom) and node.module)
    paths = dict.fromkeys(f"{node.module}.py".replace(".", "/")[:-3] for node in named)
    texts = (text_beside(f"{path}.py", folder, whole=True) for path in paths)
    for text in islice(filter(None, texts), _MOST_MODULES):
        try:
            yield ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue


def loaded_table(
    node: ast.Call, modules: tuple[ast.Module, ...], folder: Path, value_of: Evaluated
) -> dict[str, Any] | None:
    """The table that a call loads from a file beside the script; None if there is none."""
    if not _LOADS.search(last_name(node.func)):
        return None
    for name in _file_names(node, modules, value_of):
        text = text_beside(name, folder)
        try:
            content = read_yaml(text).content if text else None
        except YamlError:
            continue
        if isinstance(content, dict):
            return content
    return None


def _file_names(
    node: ast.Call, modules: tuple[ast.Module, ...], value_of: Evaluated
) -> Iterator[str]:
    """Files that a call may load: named in its argument, in the `open` that made its argument, or
    in an `open` inside the function that is called."""
    for argument in (*node.args, *(one.value for one in node.keywords)):
        yield from _named(argument, value_of)
        if isinstance(argument, ast.Name):
            opened = (call for module in modules for call in _opened_as(argument.id, module))
            for handle in opened:
                yield from _named(handle, value_of)
    called = last_name(node.func)
    for module in modules:
        for one in ast.walk(module):
            if isinstance(one, ast.FunctionDef) and one.name == called:
                for call in (inner for inner in ast.walk(one) if _opens(inner)):
                    yield from _named(call, value_of)


def _opens(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in ("open", "Path", "read_text")


def _opened_as(name: str, module: ast.Module) -> Iterator[ast.expr]:
    """The `open(...)` of `with open(...) as name`."""
    for node in ast.walk(module):
        for item in node.items if isinstance(node, ast.With) else ():
            target = item.optional_vars
            if isinstance(target, ast.Name) and target.id == name:
                yield item.context_expr


def _named(node: ast.AST, value_of: Evaluated) -> Iterator[str]:
    """Every name of a table's file in an expression."""
    for part in ast.walk(node):
        if not isinstance(part, ast.expr):
            continue
        try:
            value = value_of(part)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(value, str) and value.endswith(_TABLES):
            yield value


def called_functions(modules: tuple[ast.Module, ...]) -> tuple[ast.FunctionDef, ...]:
    """Functions of imported modules that a script calls, directly or indirectly."""
    own, *others = modules
    there = {
        one.name: one
        for module in reversed(others)
        for one in module.body
        if isinstance(one, ast.FunctionDef)
    }
    found: dict[str, ast.FunctionDef] = {}
    ahead: list[ast.AST] = [own]
    while ahead:
        names = {last_name(one.func) for one in ast.walk(ahead.pop()) if isinstance(one, ast.Call)}
        new = {name: there[name] for name in names & there.keys() - found.keys()}
        found |= new
        ahead += new.values()
    return tuple(found.values())


def arguments_of(
    modules: tuple[ast.Module, ...], functions: tuple[ast.FunctionDef, ...]
) -> Iterator[tuple[str, ast.expr]]:
    """Parameters of functions that are called only once, each with its argument."""
    own = modules[0]
    inside = [one for one in ast.walk(own) if isinstance(one, ast.FunctionDef)]
    calls: dict[str, list[ast.Call]] = {}
    for place in (own, *functions):
        for node in ast.walk(place):
            if isinstance(node, ast.Call):
                calls.setdefault(last_name(node.func), []).append(node)
    for function in (*inside, *functions):
        sites = calls.get(function.name, [])
        if len(sites) == 1:
            yield from _given(function, sites[0])


def _given(function: ast.FunctionDef, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    names = names[1:] if names[:1] == ["self"] else names
    pairs = (*zip(names, call.args, strict=False), *((one.arg, one.value) for one in call.keywords))
    for name, value in pairs:
        itself = isinstance(value, ast.Name) and value.id == name
        if name and not itself and not isinstance(value, ast.Starred):
            yield name, value
