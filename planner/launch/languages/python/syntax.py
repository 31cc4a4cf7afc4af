"""The syntax tree of a Python file, and the names in its statements."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

# What `ast` raises for a text that is no Python, or that is nested too deep.
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


class PythonError(ValueError):
    """Why a text is no Python."""


@dataclass(frozen=True)
class Neighbours:
    """The files around one that is read: `find` gives the file of a name as seen from a folder,
    `text` what a file holds; None for what is not there."""

    find: Callable[[str, Path], Path | None] = lambda _name, _folder: None
    text: Callable[[Path], str | None] = lambda _path: None


# Nothing but the file itself.
NOTHING_BESIDE = Neighbours()


def parsed(text: str, path: str) -> ast.Module:
    """Syntax tree, with `?` for lone surrogates in its texts, which cannot be printed. PythonError
    with the line of a slip."""
    try:
        tree = ast.parse(text)
    except _UNREADABLE as error:
        line = getattr(error, "lineno", None)
        raise PythonError(f"{path}: not valid Python: line {line}: {error}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = node.value.encode(errors="replace").decode()
    return tree


def written(node: ast.AST) -> str:
    """An expression as normalised code; a few words where it is nested too deep."""
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
