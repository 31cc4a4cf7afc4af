"""Reader of torchtitan 0.3 configuration functions, parsed as Python and never imported.

Calls of the configuration classes with literal arguments, and assignments to their fields, become
the dotted keys of 0.2, which mean the same.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.job.errors import UsageError
from planner.job.unmodelled import refuse_unmodelled
from planner.launch.dialects.torchtitan import TORCHTITAN
from planner.launch.dialects.torchtitan.reader import TorchtitanReader, override
from planner.launch.dialects.torchtitan.sources import START_SCRIPT
from planner.launch.languages.python import (
    Function,
    PythonFile,
    Record,
    assigned,
    bound_name,
    dotted_name,
    last_name,
    written,
)
from planner.launch.languages.text import Span
from planner.launch.read.beside import text_of
from planner.launch.read.command import LaunchCommand
from planner.launch.read.document import Document, Source
from planner.launch.read.found import Found, Problem, Setting
from planner.launch.read.names import meanings
from planner.launch.read.python_files import chosen_words, evaluating, read_python

# The variable that selects one of several functions if no command does.
CHOICE = "CONFIG"
# Meanings of the configuration's classes: tables, checkpointing modes and converters.
_TABLES = meanings("torchtitan", "classes")
_CHECKPOINTING = meanings("torchtitan", "checkpointing")
_CONVERTERS = meanings("torchtitan", "converters")
# Signs of torchtitan's reinforcement-learning experiment.
_REINFORCED = re.compile(r"\bRLTrainer\b|\bexperiments\.rl\b")
_MODE = TORCHTITAN["recompute"]
_MAKERS = {"Config", "ParallelismConfig"}


def is_torchtitan_python(text: str) -> bool:
    """Whether a Python file configures torchtitan."""
    signs = (".config_registry import", *(f"{name}(" for name in _TABLES))
    return "torchtitan" in text and any(sign in text for sign in signs)


def read_torchtitan_python(source: Source) -> Found:
    """The launch that a configuration function describes. UsageError with the line of a syntax
    error."""
    path, launch = source.path, source.launch
    model = {"model_registry": lambda *given, **named: Record("model_registry", named, given)}
    module = read_python(source.text, path, model, only="config_registry")
    if sign := _REINFORCED.search(source.text.value):
        refuse_unmodelled("grpo", f"{path}: {sign[0]}")
    wanted = _wanted(launch) or source.hints.environment.get(CHOICE)
    functions = _functions(module.tree)
    function = _chosen(functions, wanted)
    if function is None:
        asked = f" named {wanted}" if wanted else ""
        raise UsageError(f"{path}: has no function{asked} that returns a Trainer.Config")
    settings = _Settings(function, source)
    with evaluating(path):
        result = Function(function, module).call()
        settings.visit(result)
    document = Document(path, settings.found)
    override(document, source.given)
    _in_tokens(document)
    document.settings.setdefault(_MODE.key, Setting(_MODE.key, "none", path))
    if "model.flavor" not in document.settings:
        for key, value in (("model.name", "that the file builds"), ("model.flavor", "")):
            document.settings[key] = Setting(key, value, path, function.lineno)
    titan = TorchtitanReader(document, source)
    titan.problems += list(_unread(document))
    made_by = result.name.rpartition(".")[2] if isinstance(result, Record) else ""
    if made_by in _imported(module.tree):
        why = f"{made_by}, from another registry, is not there to read: its settings are not seen"
        titan.problems.append(Problem("recipe-unseen", why, "missing", (path,), "give its folder"))
    others = [item.name for item in functions if item is not function]
    if others and wanted is None:
        titan.assumed.append(chosen_words(function.name, others, "configurations", CHOICE))
    return titan.found("torchtitan-0.3")


def _wanted(launch: LaunchCommand | None) -> str | None:
    """The value of --config, or of the variable that torchtitan's start script reads; None if
    neither is given."""
    if launch is None:
        return None
    config = launch.given.get("config")
    if config is not None:
        return str(config.value)
    given = launch.command.environment.get(CHOICE)
    return given.known if given is not None and launch.program.endswith(START_SCRIPT) else None


def _functions(module: ast.Module) -> list[ast.FunctionDef]:
    """Functions that make a configuration, or change one that another, possibly imported, function
    makes."""
    makers = _imported(module)
    called = {
        item: {last_name(node.func) for node in ast.walk(item) if isinstance(node, ast.Call)}
        for item in module.body
        if isinstance(item, ast.FunctionDef)
    }
    makers |= {item.name for item, names in called.items() if names & _MAKERS}
    return [item for item, names in called.items() if item.name in makers or names & makers]


def _imported(module: ast.Module) -> set[str]:
    """Names of functions imported from other registries."""
    return {
        bound_name(alias)
        for node in module.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("config_registry")
        for alias in node.names
    }


def _chosen(functions: list[ast.FunctionDef], wanted: str | None) -> ast.FunctionDef | None:
    """The function with the wanted name; without one, the first function that is not for tests."""
    if wanted is not None:
        return next((item for item in functions if item.name == wanted), None)
    real = [item for item in functions if "debug" not in item.name and item.name[0] != "_"]
    return next(iter(real or functions), None)


def _in_tokens(document: Document) -> None:
    """Convert batches in tokens, which torchtitan has since 2026-08, to sequences."""
    length = document.settings.get("training.max_context_length")
    if length is None or not isinstance(length.value, int) or length.value < 1:
        return
    seq = TORCHTITAN["seq"].key
    document.settings.setdefault(seq, replace(length, key=seq))
    for tokens, name in (
        ("num_tokens_per_microbatch_per_dp_rank", "mbs"),
        ("num_tokens_per_train_step", "gbs"),
    ):
        setting, key = document.settings.get(f"training.{tokens}"), TORCHTITAN[name].key
        if setting is not None and isinstance(setting.value, int):
            sequences = max(1, setting.value // length.value)
            same = replace(setting, key=key, value=sequences, spans=(), whole=None)
            document.settings.setdefault(key, same)


class _Settings:
    """Settings in the configuration that a function returns, with the place of each value."""

    def __init__(self, function: ast.FunctionDef, source: Source) -> None:
        self.function, self.path, self.files = function, source.path, source.files
        self.texts = {source.path: source.text}
        self.found: dict[str, Setting] = {}
        self.seen: set[int] = set()

    def visit(self, value: Any, field: str = "") -> None:
        """Collect the settings in a value. `field`: the field of the parent object that contains
        the value."""
        if id(value) in self.seen or not isinstance(value, Record | list | tuple | dict):
            return
        self.seen.add(id(value))
        if isinstance(value, list | tuple | dict):
            for item in value.values() if isinstance(value, dict) else value:
                self.visit(item)
        if not isinstance(value, Record):
            return
        for item in value.given:
            self.visit(item)
        for name, item in value.fields.items():
            self.visit(item, name)
        *_, owner, name = words = ("", *dotted_name(value).split("."))
        if name == "model_registry" and value.given:
            module, call = value.at
            self._add("model.flavor", value.given[0], (module, call.args[0]))
            self._state("model.name", _model_package(module))
        # A converter's configuration, or the result of a call on it:
        # `Float8LinearConverter.Config().build()`.
        for converter in _CONVERTERS.keys() & set(words):
            self._state("model.converters", [_CONVERTERS[converter]])
        mode = _CHECKPOINTING.get(owner) or _CHECKPOINTING.get(name)
        if mode is not None:
            self._state(_MODE.key, mode)
        if mode == "selective":  # each op by itself
            self._state(TORCHTITAN["recompute-of"].key, "op")
        table = _TABLES.get(name) or ("activation_checkpoint" if mode else field)
        for name, at in value.places.items():
            # For the optimizer, only fields that are assigned.
            set_on = field == "optimizer" and not isinstance(at[1], ast.keyword)
            if table in _TABLES.values() or set_on:
                self._add(f"{table}.{name}", value.fields.get(name), at)

    def _state(self, key: str, value: object) -> None:
        self.found[key] = Setting(key, value, self.path, self.function.lineno)

    def _add(self, key: str, value: Any, at: tuple[PythonFile, ast.keyword | ast.expr]) -> None:
        module, whole = at
        node = whole.value if isinstance(whole, ast.keyword) else whole
        if isinstance(node, ast.Name):
            local = self.function.body if module.path == self.path else []
            node = assigned((*module.tree.body, *local)).get(node.id, node)
        spans = [span for span in (self._span(module.path, node),) if span]
        key_too = self._span(module.path, whole) if whole is not node and node else None
        unknown = "" if _is_literal(value) else f"{written(node)}, which is not a literal"
        self.found[key] = Setting(
            key,
            None if unknown else value,
            module.path,
            node.lineno,
            tuple(spans),
            key_too,
            unknown,
        )

    def _span(self, path: str, node: ast.expr | ast.keyword) -> Span | None:
        """The span of a node. Columns in `ast` count bytes of UTF-8."""
        if path not in self.texts:
            self.texts[path] = self.files.add(path, text_of(Path(path)) or "").as_text()
        lines = self.texts[path].value.splitlines(keepends=True)
        start, end = (
            sum(map(len, lines[: line - 1]))
            + len(lines[line - 1].encode()[:column].decode(errors="ignore"))
            for line, column in (
                (node.lineno, node.col_offset),
                (node.end_lineno or 0, node.end_col_offset or 0),
            )
        )
        return self.texts[path][start:end].span()


def _is_literal(value: Any) -> bool:
    if isinstance(value, list | tuple | dict):
        return all(map(_is_literal, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, str | int | float)


def _model_package(module: PythonFile) -> str:
    """The model's package, such as `llama3` in `from torchtitan.models.llama3 import
    model_registry`; empty if unknown."""
    for item in ast.walk(module.tree):
        if isinstance(item, ast.ImportFrom) and any(n.name == "model_registry" for n in item.names):
            parts = (item.module or "").split(".")
            if item.level == 1 and not item.module:
                return Path(module.path).absolute().parent.name
            if "models" in parts[:-1]:
                return parts[parts.index("models") + 1]
    return ""


def _unread(document: Document) -> Iterator[Problem]:
    for setting in document.settings.values():
        if setting.unknown:
            text = f"{setting.key} is {setting.unknown}: the default is used"
            yield Problem("unresolved", text, "warning", (setting.place,))
