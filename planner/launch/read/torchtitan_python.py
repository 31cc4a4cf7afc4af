"""Reader of torchtitan 0.3 configuration functions: Python parsed, never imported.

Calls of the configuration classes with literal arguments, and assignments to their fields, become
the dotted keys of 0.2, whose meanings they kept.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.job.errors import UsageError
from planner.job.unmodelled import refuse_unmodelled
from planner.launch.read.beside import text_of
from planner.launch.read.command import OF_TORCHTITAN, LaunchCommand
from planner.launch.read.document import Document
from planner.launch.read.found import Found, Hints, Problem, Setting
from planner.launch.read.hf_arguments import given_arguments
from planner.launch.read.python_records import (
    assigned,
    bound_name,
    chosen_words,
    last_name,
    module_file,
    python_module,
    written,
)
from planner.launch.read.python_values import Frame, Reader
from planner.launch.read.text import Files, Span, Text
from planner.launch.read.torchtitan import TorchtitanReader, override

# Registries that call each other's functions.
_DEEPEST = 3
# The variable that names one of several functions, where no command does.
CHOICE = "CONFIG"
# Class called -> table whose fields its arguments are.
_TABLES: Mapping[str, str] = {
    "ParallelismConfig": "parallelism",
    "TrainingConfig": "training",
    "CompileConfig": "compile",
    "ActivationCheckpointConfig": "activation_checkpoint",
}
# Class called -> mode of activation checkpointing.
_CHECKPOINTING: Mapping[str, str] = {
    "SelectiveAC": "selective", "FullAC": "full", "MemoryBudgetAC": "memory_budget",
}  # fmt: skip
# What configures torchtitan's experiment with reinforcement learning.
_REINFORCED = re.compile(r"\bRLTrainer\b|\bexperiments\.rl\b")
_CONVERTERS = {"Float8LinearConverter": "float8", "MXFP8LinearConverter": "mx"}


def is_torchtitan_python(text: str) -> bool:
    """Whether a Python file configures torchtitan."""
    signs = (".config_registry import", *(f"{name}(" for name in _TABLES))
    return "torchtitan" in text and any(sign in text for sign in signs)


def read_torchtitan_python(
    text: Text, path: str, launch: LaunchCommand | None, files: Files, hints: Hints
) -> Found:
    """The launch that a configuration function describes. UsageError with the line of a slip."""
    module = python_module(text, path)
    if sign := _REINFORCED.search(text.value):
        refuse_unmodelled("rl", f"{path}: {sign[0]}")
    wanted = _wanted(launch, files) or hints.environment.get(CHOICE)
    functions = _functions(module)
    function = _chosen(functions, wanted)
    if function is None:
        asked = f" named {wanted}" if wanted else ""
        raise UsageError(f"{path}: holds no function{asked} that returns a Trainer.Config")
    document = _document(module, function, text, path, files)
    override(document, launch, files)
    _in_tokens(document)
    document.settings.setdefault(
        "activation_checkpoint.mode", Setting("activation_checkpoint.mode", "none", path)
    )
    if "model.flavor" not in document.settings:
        for key, value in (("model.name", "that the file builds"), ("model.flavor", "")):
            document.settings[key] = Setting(key, value, path, function.lineno)
    reader = TorchtitanReader(document, launch, files, hints)
    reader.problems += list(_unread(document))
    others = [item.name for item in functions if item is not function]
    if others and wanted is None:
        reader.assumed.append(chosen_words(function.name, others, "configurations", CHOICE))
    return reader.found("torchtitan-0.3")


def _wanted(launch: LaunchCommand | None, files: Files) -> str | None:
    """Value of --config, or of the variable that torchtitan's own script takes."""
    if launch is None:
        return None
    config = given_arguments(launch.arguments, files).get("config")
    if config is not None:
        return str(config.value)
    given = launch.command.environment.get(CHOICE)
    return given.known if given is not None and launch.program.endswith(OF_TORCHTITAN) else None


def _functions(module: ast.Module) -> list[ast.FunctionDef]:
    """Functions that make a configuration, or change another's."""
    found = [item for item in module.body if isinstance(item, ast.FunctionDef)]
    makers = {item.name for item in found if _called(item, "Config")}
    makers |= {item.name for item in found if _called(item, "ParallelismConfig")}
    makers |= _imported(module).keys()
    return [
        item for item in found
        if item.name in makers or any(_called(item, maker) for maker in makers)
    ]  # fmt: skip


def _imported(module: ast.Module) -> dict[str, str]:
    """Functions of other registries that are imported, and where each stands."""
    return {
        bound_name(alias): f"{'.' * node.level}{node.module}"
        for node in module.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("config_registry")
        for alias in node.names
    }


def _document(
    module: ast.Module,
    function: ast.FunctionDef,
    text: Text,
    path: str,
    files: Files,
    depth: int = 0,
) -> Document:
    """A function's settings, over those of the function of another registry that it calls."""
    document = _Walk(module, function, text, path, files).document()
    for name, package in _imported(module).items():
        found = module_file(package, path) if depth < _DEEPEST and _called(function, name) else None
        below = None if found is None else text_of(found)
        if found is None or below is None:
            continue
        other = files.add(str(found), below).as_text()
        tree = python_module(other, str(found))
        base = _chosen(_functions(tree), name)
        if base is not None:
            settings = _document(tree, base, other, str(found), files, depth + 1).settings
            document.settings = settings | document.settings
    return document


def _chosen(functions: list[ast.FunctionDef], wanted: str | None) -> ast.FunctionDef | None:
    """The function of a name; without one, the first that is for no test."""
    if wanted is not None:
        return next((item for item in functions if item.name == wanted), None)
    real = [item for item in functions if "debug" not in item.name and item.name[0] != "_"]
    return next(iter(real or functions), None)


def _in_tokens(document: Document) -> None:
    """Batches in tokens, as torchtitan has them since 2026-08, in sequences."""
    training = "training."
    length = document.settings.get(f"{training}max_context_length")
    if length is None or not isinstance(length.value, int) or length.value < 1:
        return
    document.settings.setdefault(f"{training}seq_len", replace(length, key=f"{training}seq_len"))
    for tokens, key in (
        ("num_tokens_per_microbatch_per_dp_rank", "local_batch_size"),
        ("num_tokens_per_train_step", "global_batch_size"),
    ):
        setting = document.settings.get(training + tokens)
        if setting is not None and isinstance(setting.value, int):
            sequences = max(1, setting.value // length.value)
            same = replace(setting, key=training + key, value=sequences, spans=(), whole=None)
            document.settings.setdefault(training + key, same)


def _called(function: ast.FunctionDef, name: str) -> bool:
    return any(
        isinstance(node, ast.Call) and last_name(node.func) == name for node in ast.walk(function)
    )


class _Walk:
    """One function's calls and assignments as settings."""

    def __init__(
        self, module: ast.Module, function: ast.FunctionDef, text: Text, path: str, files: Files
    ) -> None:
        self.function, self.text, self.path, self.files = function, text, path, files
        self.module = module
        self.values = Reader().module(module, path)
        self.constants = assigned((*module.body, *function.body))
        starts = [0]
        for line in text.value.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self.starts = starts

    def document(self) -> Document:
        document = Document(self.path)
        for key, node, whole in self._keys():
            document.settings[key] = self._setting(key, node, whole)
        return document

    def _keys(self) -> Iterator[tuple[str, ast.expr, ast.keyword | None]]:
        for node in self._reached():
            if isinstance(node, ast.Call):
                yield from self._call(node)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                names = written(node.targets[0]).split(".")
                if names[0] == "optimizer" and len(names) == 2:
                    yield ".".join(names), node.value, None
                elif names[1:] and names[1] in _TABLES.values():
                    yield ".".join(names[1:]), node.value, None

    def _reached(self) -> Iterator[ast.AST]:
        """Everything in the function, in the functions that it calls, in the constants they name.

        What it only reaches stands first: the function's own settings win.
        """
        functions = {
            item.name: item for item in self.module.body if isinstance(item, ast.FunctionDef)
        }
        known: dict[str, ast.AST] = {**assigned(self.module.body), **functions}
        found: list[ast.AST] = []
        ahead: list[ast.AST] = [self.function]
        while ahead:
            node = ahead.pop()
            if node in found:
                continue
            found.append(node)
            names = {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}
            ahead += [known[name] for name in sorted(names & known.keys())]
        for node in reversed(found):
            yield from ast.walk(node)

    def _call(self, node: ast.Call) -> Iterator[tuple[str, ast.expr, ast.keyword | None]]:
        name = last_name(node.func)
        owner = last_name(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        table = _TABLES.get(name)
        if table == "activation_checkpoint":  # its own default, and each op by itself
            yield "activation_checkpoint.mode", ast.Constant("selective"), None
            yield "activation_checkpoint.selective_ac_option", ast.Constant("op"), None
        if table is not None:
            yield from (
                (f"{table}.{keyword.arg}", keyword.value, keyword)
                for keyword in node.keywords
                if keyword.arg
            )
        mode = _CHECKPOINTING.get(owner) or _CHECKPOINTING.get(name)
        if mode is not None:
            yield "activation_checkpoint.mode", ast.Constant(mode), None
            if mode == "selective":
                yield "activation_checkpoint.selective_ac_option", ast.Constant("op"), None
            for keyword in node.keywords:
                if keyword.arg:
                    yield f"activation_checkpoint.{keyword.arg}", keyword.value, keyword
        converter = _CONVERTERS.get(owner)
        if converter is not None:
            yield "model.converters", ast.List([ast.Constant(converter)]), None
        if name == "model_registry" and node.args:
            yield "model.flavor", node.args[0], None
            yield "model.name", ast.Constant(self._model_package()), None

    def _model_package(self) -> str:
        """`llama3` of `from torchtitan.models.llama3 import model_registry`."""
        for item in ast.walk(self.module):
            if isinstance(item, ast.ImportFrom) and any(
                n.name == "model_registry" for n in item.names
            ):
                parts = (item.module or "").split(".")
                if item.level == 1 and not item.module:
                    return Path(self.path).absolute().parent.name
                if "models" in parts[:-1]:
                    return parts[parts.index("models") + 1]
        return ""

    def _setting(self, key: str, node: ast.expr, keyword: ast.keyword | None) -> Setting:
        value, node = self._value(node)
        line = getattr(node, "lineno", 0)
        if not line:
            return Setting(key, value, self.path, self.function.lineno)
        span = self._span(node)
        whole = self._span(keyword) if keyword is not None else None
        unknown = f"{written(node)}, which is no literal" if value is ... else ""
        none = None if value is ... else value
        return Setting(key, none, self.path, line, (span,) if span else (), whole, unknown)

    def _span(self, node: ast.expr | ast.keyword) -> Span | None:
        """Where a node stands."""
        start = self._offset(node.lineno, node.col_offset)
        return self.text[start : self._offset(node.end_lineno, node.end_col_offset)].span()

    def _offset(self, line: int | None, column: int | None) -> int:
        """Offset in characters; columns of ast are bytes of UTF-8."""
        start = self.starts[(line or 1) - 1]
        before = self.text.value[start:].split("\n", 1)[0].encode()[: column or 0]
        return start + len(before.decode(errors="ignore"))

    def _value(self, node: ast.expr) -> tuple[Any, ast.expr]:
        """A literal, through names that stand for one; `...` for anything else."""
        if isinstance(node, ast.Name) and node.id in self.constants:
            node = self.constants[node.id]
        try:
            return ast.literal_eval(node), node
        except (ValueError, TypeError, SyntaxError):
            return self._calculated(node), node

    def _calculated(self, node: ast.expr) -> Any:
        """`8 * 2048`: a number or text that literals make; `...` for anything else."""
        value = Frame(self.values, {}).value(node)
        return value if isinstance(value, str | int | float) else ...


def _unread(document: Document) -> Iterator[Problem]:
    for setting in document.settings.values():
        if setting.unknown:
            text = f"{setting.key} is {setting.unknown}: its default is taken"
            yield Problem("unresolved", text, "warning", (setting.place,))
