"""The readers of languages need nothing else of the planner."""

from __future__ import annotations

import ast
from pathlib import Path

import planner.launch.languages

PACKAGE = "planner.launch.languages"


def test_nothing_else_of_the_planner_is_imported() -> None:
    files = list(Path(planner.launch.languages.__file__).parent.rglob("*.py"))
    imported = {
        name
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for name in _imported(node)
        if name.split(".")[0] in ("planner", "constraints", "hardware")
    }
    assert len(files) > 10
    assert imported
    assert {name for name in imported if not name.startswith(PACKAGE)} == set()


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
