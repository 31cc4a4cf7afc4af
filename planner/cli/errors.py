"""The one place that says which errors a user sees how, and with which exit status."""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType

import click
from pydantic import ValidationError

from planner._version import __version__
from planner.job.errors import NothingFitsError, UsageError

FAILURE, WRONG_INPUT, INTERRUPTED = 1, 2, 130
DEBUG_VARIABLE = "PLANNER_DEBUG"

# Options that are spelled differently from the request's fields.
_OPTION_OF_FIELD = {"allow_tp_across_domains": "allow-tp-across-nodes"}


class Failure(click.ClickException):
    """The planner worked, and the answer is no."""

    exit_code = FAILURE


class WrongInput(click.ClickException):
    """Something that the user gave is at fault."""

    exit_code = WRONG_INPUT


class Interrupted(click.ClickException):
    """Ctrl-C."""

    exit_code = INTERRUPTED


def click_error(error: BaseException) -> click.ClickException | None:
    """How an error is shown; None if it is not one that a user can mend."""
    from constraints.numbers import ConstraintError
    from hardware.errors import HardwareError

    match error:
        case ValidationError():
            return WrongInput(validation_sentences(error))
        case UsageError() | HardwareError() | ConstraintError():
            return WrongInput(str(error))
        case NothingFitsError():
            return Failure(str(error))
        case KeyboardInterrupt():
            return Interrupted(str(error) or "interrupted; nothing was written")
        case _:
            return None


def validation_sentences(error: ValidationError) -> str:
    """Pydantic's findings in the words of the command line."""
    sentences = []
    for detail in error.errors(include_url=False):
        field = str(detail["loc"][0]) if detail["loc"] else ""
        option = _OPTION_OF_FIELD.get(field, field.replace("_", "-"))
        text = detail["msg"].removeprefix("Value error, ").lower()
        sentences.append(f"--{option} {detail['input']!r}: {text}" if option else text)
    return "; ".join(sentences)


def report_unexpected(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Excepthook: a bug of the planner, in three lines; the traceback with --debug."""
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(kind, error, trace)
        return
    lines = (
        f"Error: the planner failed unexpectedly ({kind.__name__}: {error}).",
        f"This is a bug in trainplan {__version__}. Please report it to its maintainers, with",
        "the command and what it prints when run as: planner --debug ...",
    )
    sys.stderr.write("\n".join(lines) + "\n")
