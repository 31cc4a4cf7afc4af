"""The syntax of a Python file, and where its names come from: its own definitions, files beside
it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from planner.job.errors import UsageError
from planner.launch.read.beside import beside
from planner.launch.read.text import Text

_MOST_NAMED = 6


def python_module(text: Text, path: str) -> ast.Module:
    """Syntax tree of a file. UsageError with the line of a slip."""
    try:
        return parsed(text.value)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise UsageError(f"{path}: not valid Python: line {line}: {error}") from None


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


def module_file(package: str, near: str) -> Path | None:
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
        path = folder / file if level else beside(file, folder, whole=True)
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
