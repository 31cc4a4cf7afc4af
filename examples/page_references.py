"""Reference pages made from the code: docstrings, and what every command does."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from pathlib import Path

import click
from planner.cli.program import COMMANDS, planner_command
from planner.job.written import markdown_table

ROOT = Path(__file__).resolve().parents[1]
# What tells click to keep the lines of a paragraph.
_KEPT = "\b\n"


def docstrings(names: Sequence[str]) -> str:
    """Docstrings of modules and functions, each under its name, as Markdown."""
    return "\n".join(_docstring(name) for name in names)


def _docstring(name: str) -> str:
    """What `planner.cost.step.slowdown` says of itself. ValueError if there is none."""
    module, function = name, ""
    if not _file(module).exists():
        module, _, function = name.rpartition(".")
    path = _file(module)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    text = ast.get_docstring(named[function] if function else tree)
    if text is None:
        raise ValueError(f"{name} has no docstring")
    where = f"`{path.relative_to(ROOT)}`"
    return f"**`{function}`** in {where}\n\n{text}\n" if function else f"{where}: {text}\n"


def _file(module: str) -> Path:
    return ROOT / f"{module.replace('.', '/')}.py"


def command_reference() -> str:
    """Every command with its usage and its help; `page_data.options` has the options."""
    links = ((f"[`planner {name}`](#planner-{name})", line) for name, line in COMMANDS.items())
    contents = markdown_table(("command", "what it does"), links)
    return "\n".join((f"{contents}\n", *(_command(name) for name in COMMANDS)))


def _command(name: str) -> str:
    context = click.Context(planner_command, info_name="planner")
    command = planner_command.get_command(context, name)
    if command is None:
        raise ValueError(f"no command {name}")
    inner = click.Context(command, info_name=name, parent=context)
    usage = " ".join(command.collect_usage_pieces(inner))
    parts = [f"## planner {name}", f"`planner {name} {usage}`", _words(command.help or "")]
    if command.epilog:
        parts.append(_words(command.epilog))
    return "\n\n".join(parts) + "\n"


def _words(text: str) -> str:
    """Paragraphs as click has them: those behind `\\b` keep their lines."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        f"```text\n{paragraph.removeprefix(_KEPT)}\n```"
        if paragraph.startswith(_KEPT)
        else paragraph
        for paragraph in paragraphs
    )
