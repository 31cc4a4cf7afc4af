"""Turns every error into a message and an exit status."""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import IO, TYPE_CHECKING, Any

import click

from constraints.errors import ConstraintError
from hardware.errors import HardwareError
from hardware.files import is_name_at_fault
from planner._version import __version__
from planner.job.errors import CannotTellError, NothingFitsError, UsageError

if TYPE_CHECKING:
    from pydantic import ValidationError

DEBUG_VARIABLE = "PLANNER_DEBUG"


class ExitStatus(IntEnum):
    """Exit statuses, with the meaning that `planner --help` and the docs give them."""

    meaning: str

    def __new__(cls, status: int, meaning: str) -> ExitStatus:
        made = int.__new__(cls, status)
        made._value_, made.meaning = status, meaning
        return made

    DONE = 0, "done: a plan, a report, or launch files that will run and fit"
    NOTHING_FITS = 1, "the answer is no: nothing fits, or it will not run"
    WRONG_INPUT = 2, "wrong input: an option, or the content of a file"
    CANNOT_TELL = 3, "cannot tell: something is missing, and the message says what"
    CRASH = 70, "a crash of the planner itself: please report it"
    FILE_TROUBLE = 74, "the disk or a file: full, not readable, not writable"
    INTERRUPTED = 130, "interrupted"


# Options that are spelled differently from the request's fields.
_OPTION_OF_FIELD = {"allow_tp_across_domains": "allow-tp-across-nodes"}
# Records whose fields are options; any other ValidationError is a bug.
_MADE_OF_OPTIONS = ("Request", "RlRequest", "Degrees", "Settings")
# Longer words in a message are cut in the middle. No real path is as long.
_LONGEST_WORD = 400
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD},}}")
_LONGEST_MESSAGE = 20 * _LONGEST_WORD


class CommandRefusal(click.ClickException):
    """An error as users see it: a message and an exit status."""

    def __init__(self, message: str, status: ExitStatus) -> None:
        super().__init__(shortened(message))
        self.exit_code = int(status)  # type: ignore[misc]

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message on stderr, if there is one."""
        if self.message:
            super().show(file)


def shortened(message: str) -> str:
    """The message with the middle of very long words cut out."""
    words = _LONG_WORD.sub(lambda word: _shortened(word[0]), message)
    return words if len(words) <= _LONGEST_MESSAGE else _shortened(words)


def _shortened(text: str) -> str:
    return f"{text[:60]}…{text[-20:]} ({len(text):,} characters)"


def refusal(error: BaseException) -> CommandRefusal:
    """The message and exit status for any error. Unexpected errors are reported as crashes."""
    from pydantic import ValidationError

    status, message = ExitStatus.CRASH, crash_text(error)
    match error:
        case ValidationError() if error.title in _MADE_OF_OPTIONS:
            status, message = ExitStatus.WRONG_INPUT, validation_sentences(error)
        case OSError() | ImportError() if _is_of_a_library(error):
            status = ExitStatus.CANNOT_TELL
            message = (
                f"a library of this Python ({sys.prefix}) cannot be loaded: {error}\nInstall "
                "trainplan anew there, or what the message names."
            )
        case OSError():
            status, message = _file_trouble(error)
        case KeyboardInterrupt():
            status = ExitStatus.INTERRUPTED
            message = str(error) or "interrupted; nothing was written"
        case MemoryError():
            message = "the machine has no memory left for this"
        case UsageError() | HardwareError() | ConstraintError():
            status, message = ExitStatus.WRONG_INPUT, str(error)
        case NothingFitsError():
            status, message = ExitStatus.NOTHING_FITS, str(error)
        case CannotTellError():
            status, message = ExitStatus.CANNOT_TELL, str(error)
    return CommandRefusal(message, status)


_OURS = ("planner", "constraints", "hardware")


def _is_of_a_library(error: OSError | ImportError) -> bool:
    """Whether a package or a shared library is broken or missing. The loader's OSError has
    neither errno nor filename. An ImportError of our own modules is a bug."""
    if isinstance(error, ImportError):
        return (error.name or "").partition(".")[0] not in (*_OURS, "")
    return error.errno is None and error.filename is None


def _file_trouble(error: OSError) -> tuple[ExitStatus, str]:
    """The exit status and message for an OSError. A wrong path (no such file, a folder, too long a
    name) is wrong input; a full disk or a missing permission is trouble with files."""
    if error.errno == errno.EPIPE:  # the reading process has closed the pipe
        return ExitStatus.FILE_TROUBLE, ""
    where = error.filename or "the output"
    shown = f"{where}: {error.strerror or error}"
    named = error.filename is not None and is_name_at_fault(error)
    return (ExitStatus.WRONG_INPUT if named else ExitStatus.FILE_TROUBLE), shown


def validation_sentences(error: ValidationError) -> str:
    """Pydantic's errors in terms of command-line options."""
    sentences = []
    for detail in error.errors(include_url=False):
        field = str(detail["loc"][0]) if detail["loc"] else ""
        option = _OPTION_OF_FIELD.get(field, field.replace("_", "-"))
        text = detail["msg"].removeprefix("Value error, ").lower()
        sentences.append(f"--{option} {detail['input']!r}: {text}" if option else text)
    return "; ".join(sentences)


def crash_text(error: BaseException) -> str:
    """The message for a bug of the planner: where to report it."""
    return (
        f"the planner failed unexpectedly ({type(error).__name__}: {error}).\n"
        f"This is a bug in trainplan {__version__}. Please report it to its maintainers, with\n"
        "the command and what it prints when run as: planner --debug ..."
    )


@contextmanager
def refusing() -> Iterator[None]:
    """Turn every error inside the block into a `CommandRefusal`; print a traceback first
    with --debug."""
    try:
        yield
    except (click.exceptions.Exit, click.Abort):
        raise
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption):
            _rank(error)
        error.message = shortened(error.message)  # type: ignore[misc]
        raise
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exception(error)
        raise refusal(error) from error


# An option that is less alike than the likeliest by more is not what was meant.
_LESS_ALIKE = 0.15


def _rank(error: click.NoSuchOption) -> None:
    """Name the likeliest options in the message, likeliest first: click sorts by the alphabet."""
    given = error.option_name
    alike = {
        name: difflib.SequenceMatcher(None, given, name).ratio()
        for name in error.possibilities or ()
    }
    least = max(alike.values(), default=0.0) - _LESS_ALIKE
    near = [name for name, ratio in alike.items() if ratio >= least]
    # What was given with letters too many, then what goes on where it ends.
    near.sort(key=lambda one: (not given.startswith(one), not one.startswith(given), -alike[one]))
    error.possibilities = None  # type: ignore[misc]
    if near:
        meant = " or ".join(map(repr, near))
        error.message = f"{error.message} Did you mean {meant}?"  # type: ignore[misc]


def flush_output() -> int:
    """Flush stdout. Returns DONE, or FILE_TROUBLE if that fails."""
    try:
        sys.stdout.flush()
    except OSError as error:
        refusal(error).show()
        # Otherwise Python would flush again at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.FILE_TROUBLE
    return ExitStatus.DONE
