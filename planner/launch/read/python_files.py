"""Python files of a launch, and those beside them that they import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from planner.job.errors import CannotTellError, UsageError
from planner.launch.languages.python import records
from planner.launch.languages.python.records import Neighbours, PythonError
from planner.launch.languages.text import Text
from planner.launch.read.beside import beside, text_of
from planner.launch.read.limits import within_limits

# The modules that a file imports, from the folders around it.
BESIDE = Neighbours(partial(beside, whole=True), text_of)


def python_module(text: Text, path: str) -> ast.Module:
    """Syntax tree of a file. UsageError with the line of a slip."""
    try:
        return records.python_module(text, path)
    except PythonError as error:
        raise UsageError(str(error)) from None


@contextmanager
def evaluating(path: str) -> Iterator[None]:
    """Calls of a file's functions inside it. CannotTellError beyond the limits of reading."""
    try:
        with within_limits():
            yield
    except RecursionError:
        raise CannotTellError(f"{path}: nested too deep to be read") from None
