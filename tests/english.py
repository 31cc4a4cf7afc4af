"""Plain English: finds the habits of `english.toml` in docstrings, comments, messages and pages.

    python -m tests.english

`.ci/run` calls it. It prints every place with the reason and a plainer form, and exits with 1 if
there is one.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CODE = ("planner", "constraints", "hardware")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "AGENTS.md", "docs")
# Shorter texts are names, units and formats.
_LEAST_WORDS = 4
_EXEMPT = "# plain:"


class Text(NamedTuple):
    """One text that a person reads. `kind`: docstring, comment, message or page."""

    path: Path
    line: int
    kind: str
    words: str


class Habit(NamedTuple):
    """One entry of `english.toml`. `docstrings`: it concerns the openings of docstrings alone."""

    name: str
    pattern: re.Pattern[str]
    why: str
    instead: str
    docstrings: bool = False


def habits() -> tuple[Habit, ...]:
    """The habits that are looked for."""
    rows = tomllib.loads((Path(__file__).parent / "english.toml").read_text(encoding="utf-8"))
    return tuple(
        Habit(name, re.compile(row.pop("pattern")), **row) for name, row in sorted(rows.items())
    )


def _strings(tree: ast.Module, path: Path) -> Iterator[Text]:
    """Docstrings by paragraph, and messages."""
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
            text := ast.get_docstring(node)
        ):
            docstrings.add(id(node.body[0].value))  # type: ignore[attr-defined]
            for paragraph in text.split("\n\n"):
                yield Text(path, node.body[0].lineno, "docstring", " ".join(paragraph.split()))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) not in docstrings and len(node.value.split()) >= _LEAST_WORDS:
            yield Text(path, node.lineno, "message", " ".join(node.value.split()))


def _comments(source: str, path: Path) -> Iterator[Text]:
    """Comments; lines that follow each other are one."""
    words, line = "", 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line = line or token.start[0]
            words += f" {token.string.lstrip('#').strip()}"
        elif token.type != tokenize.NL and words:
            yield Text(path, line, "comment", words.strip())
            words, line = "", 0


def _exempt(source: str) -> frozenset[int]:
    return frozenset(
        number for number, line in enumerate(source.splitlines(), 1) if _EXEMPT in line
    )


def texts_of_code(path: Path) -> Iterator[Text]:
    """What a Python file says to people."""
    source = path.read_text(encoding="utf-8")
    left_out = _exempt(source)
    for text in (*_strings(ast.parse(source), path), *_comments(source, path)):
        if text.line not in left_out:
            yield text


def texts_of_page(path: Path) -> Iterator[Text]:
    """The prose of a page: no code, no tables, no output of commands."""
    in_code, words, first = False, "", 0
    for number, line in enumerate([*path.read_text(encoding="utf-8").splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        prose = line.strip() and not in_code and not line.lstrip().startswith(("|", "<", "```"))
        if prose:
            first = first or number
            words += f" {line.strip()}"
        elif words:
            yield Text(path, first, "page", words.strip())
            words, first = "", 0


def all_texts() -> Iterator[Text]:
    """Every text of the code and of the pages."""
    for room in CODE:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield from texts_of_code(path)
    for name in PAGES:
        path = ROOT / name
        for page in sorted(path.rglob("*.md")) if path.is_dir() else (path,):
            yield from texts_of_page(page)


def found_in(texts: Iterator[Text]) -> Iterator[tuple[Text, Habit, str]]:
    """(text, habit, the words) of every habit in some texts."""
    known = habits()
    for text in texts:
        for habit in known:
            if habit.docstrings and text.kind != "docstring":
                continue
            if match := habit.pattern.search(text.words):
                yield text, habit, match[0]


def main() -> int:
    """Print every place that was found; 1 if there is one."""
    lines = [
        f"{text.path.relative_to(ROOT)}:{text.line}: '{words}' ({habit.name}): "
        f"{habit.why} {habit.instead}"
        for text, habit, words in found_in(all_texts())
    ]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
