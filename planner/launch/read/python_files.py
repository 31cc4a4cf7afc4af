"""Python files of a launch, and the files beside them that they import."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from planner.job.errors import CannotTellError, UsageError
from planner.launch.languages.python import Neighbours, PythonError, PythonFile, Reader
from planner.launch.languages.text import Text
from planner.launch.read.beside import beside, text_of, within_limits

# The modules that a file imports, from the folders around it.
_BESIDE = Neighbours(partial(beside, whole=True), text_of)
# nemo_run's calls that represent a call of their first argument.
_PARTIALS = ("Config", "Partial")
_MOST_NAMED = 6


def read_python(
    text: Text, path: str, special: Mapping[str, Callable[..., Any]] | None = None, only: str = ""
) -> PythonFile:
    """A Python file, whose functions are interpreted and never run. Arguments as for `Reader`.
    UsageError with the line of a syntax error."""
    try:
        return Reader(special or {}, _PARTIALS, only, _BESIDE).read(text.value, path)
    except PythonError as error:
        raise UsageError(str(error)) from None


@contextmanager
def evaluating(path: str) -> Iterator[None]:
    """A context for interpreting a file's functions. CannotTellError if a limit is exceeded."""
    try:
        with within_limits():
            yield
    except RecursionError:
        raise CannotTellError(f"{path}: nested too deep to be read") from None


def chosen_words(name: str, others: Sequence[str], what: str, variable: str) -> str:
    """A note that one function of the file is read, with the names of the others (`what`: a word
    for them), and how the user chooses another: `--env VARIABLE=NAME`."""
    more = ", …" * (len(others) > _MOST_NAMED)
    shown = ", ".join(others[:_MOST_NAMED]) + more
    return f"{name}, of the file's {what} ({shown}; --env {variable}=NAME chooses)"
