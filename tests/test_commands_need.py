"""Every module serves a command: scripts that only developers run live under `tests`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("planner", "constraints", "hardware")
# Where users enter: the command line, and dialects of launch files, found by their folder.
ENTRIES = ("planner", "planner.__main__", "planner.cli", "planner.launch.dialects")
# Commands of their own, `python -m MODULE`, that pages name.
COMMANDS = {"planner.search.certificate": "docs/search.md"}


@cache
def modules() -> dict[str, Path]:
    """Files by the names of their modules."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def named_in(path: Path) -> Iterator[str]:
    """Names that a file imports, and modules that its texts name, as lazy imports do."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.split(":")[0]


def reached() -> set[str]:
    """Modules that the entries need, directly or through others."""
    left = [name for name in modules() if name in ENTRIES or name.startswith(ENTRIES[2:])]
    found: set[str] = set()
    while left:
        if (name := left.pop()) in found:
            continue
        found.add(name)
        for word in named_in(modules()[name]):
            parts = word.split(".")
            parents = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
            left += [parent for parent in parents if parent in modules()]
    return found


def test_no_module_serves_developers_alone() -> None:
    assert set(modules()) - reached() == set(COMMANDS)


def test_a_command_of_its_own_is_on_its_page() -> None:
    for module, page in COMMANDS.items():
        assert f"python -m {module}" in (ROOT / page).read_text(encoding="utf-8")
