"""The syntax tree of a Python file, and the names in its statements."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

# Errors of `ast` for text that is not valid Python or is nested too deep.
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


class PythonError(ValueError):
    """Raised for a text that is not valid Python."""


@dataclass(frozen=True)
class Neighbours:
    """Access to files near the one that is read. `find`: path of a file name as seen from a folder;
    `text`: content of a file. Both give None if there is none."""

    find: Callable[[str, Path], Path | None] = lambda _name, _folder: None
    text: Callable[[Path], str | None] = lambda _path: None


# No files other than the one being read.
NOTHING_BESIDE = Neighbours()


def parsed(text: str, path: str) -> ast.Module:
    """The syntax tree of a file. Lone surrogates in its strings become `?`, because they cannot be
    printed. PythonError with the line of a syntax error."""
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
    """An expression as normalised code, or a placeholder if it is nested too deep."""
    try:
        return ast.unparse(node)
    except RecursionError:
        return "an expression that is nested too deep"


def assigned(statements: Iterable[ast.stmt]) -> dict[str, ast.expr]:
    """The expression assigned to each name."""
    return {
        target.id: item.value
        for item in statements
        if isinstance(item, ast.Assign)
        for target in item.targets
        if isinstance(target, ast.Name)
    }


def last_name(node: ast.expr) -> str:
    """The last name of a dotted expression."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def bound_name(alias: ast.alias) -> str:
    """The name that an import binds."""
    return alias.asname or alias.name.split(".")[0]


def binds(node: ast.stmt, name: str, *, local: bool = False) -> bool:
    """Whether a top-level statement of a module binds a name. `local`: imports do not count."""
    match node:
        case ast.FunctionDef(name=given) | ast.ClassDef(name=given):
            return given == name
        case ast.Assign(targets=[ast.Name(id=given)]) | ast.AnnAssign(target=ast.Name(id=given)):
            return given == name
        case ast.Import() | ast.ImportFrom() if not local:
            return any(bound_name(alias) == name for alias in node.names)
    return False


def module_file(package: str, near: str, around: Neighbours) -> Path | None:
    """The file that `near` would import for `a.b.c` or `..c`; None if it is not available."""
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
