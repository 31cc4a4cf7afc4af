"""Errors that a user can fix. Messages state the input, the rule and the nearest fix."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class UsageError(ValueError):
    """The user's input is wrong. The command line shows the message and exits with 2."""


class NothingFitsError(Exception):
    """No legal plan fits. Carries the explanation; the command line exits with 1."""


class CannotTellError(Exception):
    """The input is not enough for an answer. Says what is missing and where to get it; the command
    line exits with 3."""


def demand_installed(whoever_needs: str, extra: str, *modules: str) -> None:
    """Raise UsageError, before any work is done, if a library of an optional extra is missing."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            raise UsageError(
                f"{whoever_needs} {name}, which is not installed: pip install 'trainplan[{extra}]'"
            ) from None


def unknown_name(what: str, given: str, known: Iterable[str], hint: str) -> UsageError:
    """UsageError for a name missing from a catalogue, with close matches and where to look."""
    matches = difflib.get_close_matches(given.lower(), list(known), n=3, cutoff=0.5)
    close = f" Did you mean {' or '.join(repr(m) for m in matches)}?" if matches else ""
    return UsageError(f"unknown {what} {given!r}.{close} ({hint})")


class ModelError(UsageError):
    """A model that cannot be found or read. The message says what, where, and what would work."""


def validation_message(error: ValidationError, where: str) -> str:
    """Pydantic's findings on one line, after the name of the file they are about."""
    findings = []
    for detail in error.errors():
        field = ".".join(str(part) for part in detail["loc"])
        found = "" if isinstance(detail["input"], dict) else f", found {detail['input']!r}"
        findings.append(f"{field}: {detail['msg']}{found}" if field else detail["msg"])
    return f"{where}: " + "; ".join(findings)
